"""
Text for language models of LibriSpeech.
"""

from __future__ import annotations

import os
from typing import Any

from ..data import get_common_data_path
from ._paths import PathLike, check_path, resolve_path
from ._text_files import SPLITS
from .interface import DatasetConfig, VocabConfig
from .text import TextCorpus
from .vocab import CharacterVocab, make_vocab

__all__ = ["LibrispeechLm"]

_TRAIN = ("train-clean-100", "train-clean-360", "train-other-500")
_HELD_OUT = {"dev": ("dev-clean", "dev-other"), "test": ("test-clean", "test-other")}
_TEXT = ("librispeech-lm-norm.txt", "librispeech-lm-norm.txt.gz")


class LibrispeechLm(DatasetConfig):
    """
    The text for language models that belongs to LibriSpeech (https://www.openslr.org/11: 40 million lines of books, 800
    million words), and the transcripts of the training data. The transcripts of dev and test are held out, so that
    perplexities are those of what is recognised.

    The data are ``data``, label indices {batch, time}, without begin and end of sentence; there are no targets. Differs
    from :class:`.text.TextCorpus`, which it makes use of, in where it finds its files.

    The text is faster to open unpacked (it is mapped into memory then, for all processes once): ``gunzip`` it where
    there is the space. Packed, each process that loads it holds its 4 GB.

    :param path: the folder with ``librispeech-lm-norm.txt`` or ``.txt.gz``, and with the splits that
        ``returnn-common prepare librispeech`` has made; by default ``librispeech`` in
        :func:`returnn_common.data.get_common_data_path`. Anything that has ``get_path()`` stays as it is until a
        dataset is made.
    :param vocab: or its name in :func:`.vocab.make_vocab`; by default :class:`.vocab.CharacterVocab`
    :param use_text: whether to train on the text
    :param use_transcripts: whether to train on the transcripts, of those training splits that are in the folder
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param train_seq_ordering: see :class:`.text.TextCorpus`
    :param random_seed: for the order
    :raises ValueError: for options that make no sense
    """

    evaluation = TextCorpus.evaluation
    train_splits, dev_splits, test_splits = ("train",), ("dev",), ("test",)

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        vocab: VocabConfig | str | None = None,
        use_text: bool = True,
        use_transcripts: bool = True,
        train_epoch_split: int = 20,
        train_seq_ordering: str = "laplace:.1000",
        random_seed: int = 0,
    ):
        if not use_text and not use_transcripts:
            raise ValueError("LibrispeechLm: expected use_text or use_transcripts, got neither")
        self.path = get_common_data_path("librispeech") if path is None else check_path("LibrispeechLm: path", path)
        self.vocab = make_vocab(vocab) if isinstance(vocab, str) else CharacterVocab() if vocab is None else vocab
        self.use_text, self.use_transcripts = use_text, use_transcripts
        self._options: dict[str, Any] = {
            "vocab": self.vocab,
            "train_epoch_split": train_epoch_split,
            "train_seq_ordering": train_seq_ordering,
            "random_seed": random_seed,
        }
        TextCorpus("", **self._options)  # which checks them
        self._extern_data: dict[str, dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"LibrispeechLm({self.path!r}, vocab={self.vocab!r})"

    def get_extern_data(self) -> dict[str, dict[str, Any]]:
        """see :class:`DatasetConfig`"""
        if self._extern_data is None:
            self._extern_data = TextCorpus("", **self._options).get_extern_data()
        return self._extern_data

    def get_default_target(self) -> None:
        """There is none."""
        return None

    def get_train_dataset(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        return self._get_corpus().get_train_dataset()

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """ "dev" and "test\""""
        return self._get_corpus().get_eval_datasets()

    def get_main_name(self) -> str:
        """see :class:`DatasetConfig`"""
        return "dev"

    def get_forward_dataset(self, split: str) -> dict[str, Any]:
        """see :class:`.text.TextCorpus`"""
        return self._get_corpus().get_forward_dataset(split)

    def get_config_opts(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        return {**self._get_corpus().get_config_opts(), "extern_data": self.get_extern_data()}

    def get_references(self, split: str) -> dict[str, str]:
        """see :class:`.text.TextCorpus`"""
        return self._get_corpus().get_references(split)

    def get_word_starts(self) -> list[bool]:
        """see :class:`.text.TextCorpus`"""
        return TextCorpus("", **self._options).get_word_starts()

    def check(self):
        """see :class:`.text.TextCorpus`"""
        self._get_corpus().check()

    def _get_corpus(self) -> TextCorpus:
        folder = resolve_path(self.path)
        train: list[str] = []
        if self.use_text:
            found = [path for name in _TEXT if os.path.isfile(path := os.path.join(folder, name))]
            train += found[:1] or [os.path.join(folder, _TEXT[-1])]  # which is an error when it is read
        if self.use_transcripts:
            train += _find_splits(folder, _TRAIN)
        held_out = {split: _find_splits(folder, names) for split, names in _HELD_OUT.items()}
        assert set(held_out) == set(SPLITS[1:])
        return TextCorpus(train, dev_path=held_out["dev"], test_path=held_out["test"], **self._options)


def _find_splits(folder: str, names: tuple[str, ...]) -> list[str]:
    """:return: those that are there; all if none is, so that reading says what is missing"""
    paths = [os.path.join(folder, f"{name}.zip") for name in names]
    return [path for path in paths if os.path.isfile(path)] or paths
