"""
LibriSpeech, and every other corpus that ``returnn-common prepare librispeech`` has prepared.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

from ..data import get_common_data_path
from ._paths import PathLike, SomePath, check_path, resolve_path
from ._sources import prepared_source
from .audio_corpus import AudioCorpus
from .corpus_options import EvalOptions, TrainOptions
from .interface import VocabConfig
from .vocab import CharacterVocab, make_vocab

__all__ = ["Librispeech"]

_OFFICIAL = {
    "train": ("train-clean-100", "train-clean-360", "train-other-500"),
    "dev": ("dev-clean", "dev-other"),
    "test": ("test-clean", "test-other"),
}
_UNIONS = {
    "train-100": _OFFICIAL["train"][:1],
    "train-460": _OFFICIAL["train"][:2],
    "train-960": _OFFICIAL["train"],
    "train-clean": _OFFICIAL["train"][:2],
    "train-other": _OFFICIAL["train"][2:],
}


class Librispeech(AudioCorpus):
    """
    LibriSpeech (Panayotov et al., 2015, https://www.openslr.org/12), or another corpus with splits of other names, as
    ``returnn-common prepare librispeech`` writes it: a file ``SPLIT.zip`` for each split.

    See :class:`.audio_corpus.AudioCorpus` for what the data are. Nothing is read before it is needed; :meth:`check`
    looks whether all is there.

    :param path: the folder; by default ``librispeech`` in :func:`returnn_common.data.get_common_data_path`. Anything
        that has ``get_path()`` stays as it is until a dataset is opened.
    :param vocab: of the targets, or its name in :func:`.vocab.make_vocab`; by default :class:`.vocab.CharacterVocab`
    :param audio: ``"raw"``, or ``"log-mel"`` for engines on which the model cannot compute features
    :param train_splits: trained on altogether; names of splits, and "train-100", "train-460", "train-960",
        "train-clean", "train-other" for parts of LibriSpeech. None: all official ones that are in the folder, with a
        warning if not all of them are; all of them while the folder has none, or is not known yet.
    :param dev_splits: evaluated while training; the first one decides. None: as for ``train_splits``
    :param test_splits: None: as for ``train_splits``
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param training: augmentation, order, curriculum, number of processes
    :param evaluation: parts of the dev and training data to evaluate while training
    :raises ValueError: for options that make no sense
    """

    def __init__(
        self,
        *,
        path: PathLike | None = None,
        vocab: VocabConfig | str | None = None,
        audio: str = "raw",
        train_splits: Sequence[str] | None = None,
        dev_splits: Sequence[str] | None = None,
        test_splits: Sequence[str] | None = None,
        train_epoch_split: int = 20,
        training: TrainOptions | None = None,
        evaluation: EvalOptions | None = None,
    ):
        given = {"train": train_splits, "dev": dev_splits, "test": test_splits}
        self._are_default = {purpose: names is None for purpose, names in given.items()}
        super().__init__(
            vocab=make_vocab(vocab) if isinstance(vocab, str) else CharacterVocab() if vocab is None else vocab,
            audio=audio,
            train_splits=_OFFICIAL["train"] if train_splits is None else _expand(train_splits),
            dev_splits=_OFFICIAL["dev"] if dev_splits is None else dev_splits,
            test_splits=_OFFICIAL["test"] if test_splits is None else test_splits,
            train_epoch_split=train_epoch_split,
            training=training,
            evaluation=evaluation,
        )
        self.path = get_common_data_path("librispeech") if path is None else check_path("Librispeech: path", path)

    def __repr__(self) -> str:
        return f"Librispeech(path={self.path!r}, vocab={self.vocab!r}, audio={self.audio!r})"

    def get_splits(self, purpose: str) -> tuple[str, ...]:
        """see :class:`AudioCorpus`"""
        splits = super().get_splits(purpose)
        if not self._are_default[purpose] or isinstance(self.path, SomePath):
            return splits
        return tuple(split for split in splits if self._is_present(split)) or splits

    def get_train_dataset(self) -> dict[str, Any]:
        """see :class:`AudioCorpus`; warns if it takes less than all official splits because there are no more"""
        missing = [split for split in super().get_splits("train") if split not in self.train_splits]
        if missing:
            warnings.warn(
                f"Librispeech: the training data are {', '.join(self.train_splits)} alone: no {', '.join(missing)} in "
                f"{self.path}. Name them as train_splits to say that this is meant.",
                stacklevel=2,
            )
        return super().get_train_dataset()

    def get_source(self, split: str) -> dict[str, Any]:
        """see :class:`AudioCorpus`"""
        return prepared_source(self.path, split)

    def open(self, split: str):
        """see :class:`AudioCorpus`"""
        self._check_split(split)
        self._check_present([split])
        return super().open(split)

    def check(self):
        """see :class:`AudioCorpus`"""
        self._check_present(list(dict.fromkeys(self.train_splits + self.dev_splits + self.test_splits)))
        super().check()

    def _is_present(self, split: str) -> bool:
        return os.path.isfile(os.path.join(resolve_path(self.path), f"{split}.zip"))

    def _check_present(self, splits: list[str]):
        missing = [split for split in splits if not self._is_present(split)]
        if missing:
            path = resolve_path(self.path)
            raise FileNotFoundError(
                f"Librispeech: no split {', '.join(missing)} in {path}; to make them: "
                f"returnn-common prepare librispeech SRC {path}"
            )


def _expand(splits: Sequence[str]) -> Sequence[str]:
    """:return: with the parts of unions in their place"""
    if isinstance(splits, str):
        return splits  # an error, later
    return [part for split in splits for part in _UNIONS.get(split, (split,))]
