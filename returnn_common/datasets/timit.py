"""
TIMIT: read sentences with hand-made transcripts of their phones.
"""

from __future__ import annotations

from typing import Any

from ..data import get_common_data_path
from ._paths import PathLike, check_path
from ._timit import PHONES_39, PHONES_48, PHONES_61, TARGETS, fold_phones
from .audio_corpus import AudioCorpus
from .corpus_options import EvalOptions, TrainOptions
from .interface import VocabConfig
from .vocab import CharacterVocab, WordVocab, make_vocab

__all__ = ["PHONES_39", "PHONES_48", "PHONES_61", "Timit", "fold_phones"]

_PHONES = {"phones61": PHONES_61, "phones48": PHONES_48, "phones39": PHONES_39}


class Timit(AudioCorpus):
    """
    TIMIT (Garofolo et al., 1993, https://catalog.ldc.upenn.edu/LDC93S1) as it is distributed: nothing has to be
    prepared. Splits, all without the two sentences that everybody reads ("sa"):

    - "train", 462 speakers, 3696 utterances;
    - "dev", 50 speakers, 400 utterances (Halberstadt, 1998);
    - "test", the core test set: 24 speakers, 192 utterances;
    - "test-complete", all of the folder TEST: 168 speakers, 1344 utterances. It has "dev" in it.

    See :class:`.audio_corpus.AudioCorpus` for what the data are. Utterances are called ``SPEAKER-SENTENCE``, in lower
    case.

    :param path: the folder with TRAIN and TEST (upper or lower case), or one above it; by default ``timit`` in
        :func:`returnn_common.data.get_common_data_path`. Anything that has ``get_path()`` stays as it is until a
        dataset is opened.
    :param targets: "phones61", as transcribed; "phones48" or "phones39", folded as by Lee and Hon, 1989 (39 to score
        with, :func:`fold_phones`); or "words"
    :param vocab: of the targets, or its name in :func:`.vocab.make_vocab`; by default the phones, or
        :class:`.vocab.CharacterVocab`
    :param audio: ``"raw"``, or ``"log-mel"`` for engines on which the model cannot compute features
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param training: augmentation, order, curriculum, number of processes
    :param evaluation: parts of the dev and training data to evaluate while training
    :raises ValueError: for options that make no sense
    """

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        targets: str = "phones48",
        vocab: VocabConfig | str | None = None,
        audio: str = "raw",
        train_epoch_split: int = 1,
        training: TrainOptions | None = None,
        evaluation: EvalOptions | None = None,
    ):
        if targets not in TARGETS:
            raise ValueError(f"Timit: targets: expected one of {', '.join(TARGETS)}, got {targets!r}")
        if vocab is None:
            vocab = WordVocab(_PHONES[targets]) if targets in _PHONES else CharacterVocab()
        super().__init__(
            vocab=make_vocab(vocab) if isinstance(vocab, str) else vocab,
            audio=audio,
            train_splits=["train"],
            dev_splits=["dev"],
            test_splits=["test", "test-complete"],
            train_epoch_split=train_epoch_split,
            training=training,
            evaluation=evaluation,
        )
        self.path = get_common_data_path("timit") if path is None else check_path("Timit: path", path)
        self.targets = targets

    def __repr__(self) -> str:
        return f"Timit({self.path!r}, targets={self.targets!r}, vocab={self.vocab!r}, audio={self.audio!r})"

    def get_source(self, split: str) -> dict[str, Any]:
        """see :class:`AudioCorpus`"""
        return {"kind": "timit", "folder": self.path, "split": split, "targets": self.targets}
