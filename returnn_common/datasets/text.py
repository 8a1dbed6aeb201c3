"""
Text for language models: each line of one or more files is a sentence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from returnn.datasets.map import MapDatasetBase
from returnn.datasets.util.vocabulary import Vocabulary
from returnn.tensor import Dim, batch_dim

from ._text_files import SPLITS, Paths, find_files, lines_of_split
from ._text_lines import TextLines, read_lines
from .augment import utterance_rng
from .interface import DatasetConfig, VocabConfig
from .vocab import CharacterVocab, PhonemeVocab, check_transcripts, make_vocab

__all__ = ["TextCorpus"]


class TextCorpus(DatasetConfig):
    """
    Lines of text files (UTF-8, plain or .gz), with the splits train, dev and test. Words have one space between them,
    however many there are in the file; empty lines don't count. The data are ``data``, label indices {batch, time},
    without begin and end of sentence; there are no targets.

    Held-out lines come from files of their own. Where there is none, they are lines of the training files, those with
    these numbers (from 1, in each file): n, 2n, 3n, ... for dev, and those half-way between (n // 2, n + n // 2, ...)
    for test. They are from the same books then, which makes them easier than another book.

    :param path: file or files to train on; or a folder: its ``dev.txt`` and ``test.txt`` (or ``.txt.gz``) are held out,
        all its other ``.txt`` and ``.txt.gz`` are trained on
    :param dev_path: file or files; None: those of the folder, or lines of the training files
    :param test_path: likewise
    :param vocab: or its name in :func:`.vocab.make_vocab`; by default :class:`.vocab.CharacterVocab`. What it draws in
        training depends on ``random_seed``, epoch and line.
    :param hold_out_every: n, at least 3
    :param max_chars: longer lines, of all splits, are split where a word ends. In characters, so that the sentences,
        and with them the perplexity per word, are the same whatever the vocabulary. None: no limit.
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param train_seq_ordering: of RETURNN, see its ``Dataset``; a line is as long as it has bytes. The default shuffles,
        then sorts by length within every thousand lines, up and down in turn.
    :param random_seed: for the order, in :meth:`get_config_opts`
    :raises ValueError: for options that make no sense
    """

    evaluation = "perplexity"  # for the command run
    train_splits, dev_splits, test_splits = ("train",), ("dev",), ("test",)

    def __init__(
        self,
        path: Paths,
        *,
        dev_path: Paths | None = None,
        test_path: Paths | None = None,
        vocab: VocabConfig | str | None = None,
        hold_out_every: int = 200,
        max_chars: int | None = None,
        train_epoch_split: int = 1,
        train_seq_ordering: str = "laplace:.1000",
        random_seed: int = 0,
    ):
        if isinstance(vocab, str):
            vocab = make_vocab(vocab)
        if vocab is not None and not isinstance(vocab, VocabConfig):
            raise TypeError(
                f"TextCorpus: vocab: expected a VocabConfig or a name, got {type(vocab).__name__} {vocab!r}"
            )
        self.path = path
        self.dev_path = dev_path
        self.test_path = test_path
        self.vocab = CharacterVocab() if vocab is None else vocab
        self.hold_out_every = _check_int("hold_out_every", hold_out_every, at_least=3)
        self.max_chars = None if max_chars is None else _check_int("max_chars", max_chars, at_least=1)
        self.train_epoch_split = _check_int("train_epoch_split", train_epoch_split, at_least=1)
        self.train_seq_ordering = train_seq_ordering
        self.random_seed = _check_int("random_seed", random_seed, at_least=0)
        self._extern_data: dict[str, dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return f"TextCorpus({self.path!r}, vocab={self.vocab!r})"

    def get_extern_data(self) -> dict[str, dict[str, Any]]:
        """see :class:`DatasetConfig`"""
        if self._extern_data is None:
            self._extern_data = {
                "data": {
                    "dims": [batch_dim, Dim(None, name="time")],
                    "sparse_dim": Dim(self.vocab.get_num_classes(), name="labels"),
                    "dtype": "int32",
                    "vocab": self.vocab.get_opts(),
                }
            }
        return self._extern_data

    def get_default_target(self) -> None:
        """There is none."""
        return None

    def get_train_dataset(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        order = {"seq_ordering": self.train_seq_ordering, "partition_epoch": self.train_epoch_split}
        return {**self._get_dataset("train", **order), "map_dataset": self._get_lines("train", seed=self.random_seed)}

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """ "dev" and "test\""""
        return {split: self.get_forward_dataset(split) for split in ("dev", "test")}

    def get_main_name(self) -> str:
        """see :class:`DatasetConfig`"""
        return "dev"

    def get_forward_dataset(self, split: str) -> dict[str, Any]:
        """
        Any one split, sorted by length.

        :raises ValueError: if there is none of this name
        """
        return self._get_dataset(split, seq_ordering="sorted")

    def get_config_opts(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        return {**self.get_config_opts_with_dev(), "dataset_random_seed_offset": self.random_seed}

    def get_references(self, split: str) -> dict[str, str]:
        """
        :return: tag, as ``FILE:LINE``, -> line
        :raises FileNotFoundError: if a file is not there
        :raises ValueError: if it cannot be read, or has no such split
        """
        lines = self._get_lines(split).lines
        return {lines.tag(i): lines.text(i) for i in range(len(lines))}

    def get_word_starts(self) -> list[bool]:
        """
        For each label, and for one behind them that is the begin of sentence, whether a word starts with it or right
        behind it, so that the words of a sentence can be counted: for :class:`..models.language_model.LanguageModel`.

        :return: one value more than there are labels
        :raises ValueError: for phonemes without a label between words
        """
        opts = self.vocab.get_opts()
        labels = [str(label) for label in Vocabulary.create_vocab(**opts).labels]
        if isinstance(self.vocab, PhonemeVocab):
            boundary = self.vocab.word_boundary
            if boundary is None:
                raise ValueError(f"TextCorpus: to count words, {self.vocab!r} needs a word_boundary")
            return [*(label == boundary for label in labels), True]
        if opts["class"] in ("CharacterTargets", "Utf8ByteTargets"):
            return [*(label == " " for label in labels), True]
        if opts["class"] == "SentencePieces":
            return [*(label.startswith("\u2581") for label in labels), False]
        if opts["class"] == "BytePairEncoding":  # where one ends, which is as often
            return [*(not label.endswith("@@") for label in labels), False]
        return [*(True for _ in labels), False]

    def check(self):
        """
        Reads everything.

        :raises FileNotFoundError: if a file is not there
        :raises ValueError: if a split has no lines (or the training too few for ``train_epoch_split``), a file is not
            UTF-8, or has what the vocabulary lacks: naming what, how often, and in which lines
        """
        for split in SPLITS:
            lines = self._get_lines(split).lines
            if split == "train" and len(lines) < self.train_epoch_split:
                raise ValueError(
                    f"TextCorpus: train_epoch_split: expected at most the number of training lines, {len(lines)}, "
                    f"got {self.train_epoch_split}"
                )
            check_transcripts(self.vocab, self._find_suspicious(lines), what="lines", total=len(lines))

    def _find_suspicious(self, lines: TextLines) -> dict[str, str]:
        """:return: the lines that can't be written with the vocabulary; found by their words, each once: much faster"""
        words = {word for text in lines for word in text.split()}
        unknown = {word for word in words if self.vocab.find_unknown(word)}
        known = next(iter(words - unknown), None)
        lacks_space = known is not None and bool(self.vocab.find_unknown(f"{known} {known}"))
        if not unknown and not lacks_space:
            return {}
        return {
            lines.tag(i): text
            for i, text in enumerate(lines)
            if unknown.intersection(text.split()) or (lacks_space and " " in text)
        }

    def _get_dataset(self, split: str, **order: Any) -> dict[str, Any]:
        return {"class": "MapDatasetWrapper", "map_dataset": self._get_lines(split), **order}

    def _get_lines(self, split: str, *, seed: int | None = None) -> _Lines:
        if split not in SPLITS:
            raise ValueError(f"TextCorpus: split: expected one of {', '.join(SPLITS)}, got {split!r}")
        return _Lines(
            split,
            paths={"train": self.path, "dev": self.dev_path, "test": self.test_path},
            vocab=self.vocab,
            hold_out_every=self.hold_out_every,
            max_chars=self.max_chars,
            seed=seed,
        )


class _Lines(MapDatasetBase):
    """
    The lines of a split. They are read when they are needed first, in each process.

    :param split: "train", "dev" or "test"
    :param paths: by split, see :class:`TextCorpus`
    :param seed: for vocabularies that draw, for training; None: they do not
    """

    def __init__(
        self,
        split: str,
        *,
        paths: dict[str, Paths | None],
        vocab: VocabConfig,
        hold_out_every: int,
        max_chars: int | None,
        seed: int | None = None,
    ):
        stream = {"dim": vocab.get_num_classes(), "sparse": True, "shape": (None,), "dtype": "int32"}
        super().__init__(data_types={"data": stream})
        self.split, self.paths, self.vocab = split, paths, vocab
        self.hold_out_every, self.max_chars = hold_out_every, max_chars
        self.seed, self._epoch = seed, 1
        self._lines: TextLines | None = None

    def __repr__(self) -> str:
        return f"Lines({self.split!r}, {self.paths!r}, {self.vocab!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lines": None}

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, seq_idx: int) -> dict[str, np.ndarray]:
        text = self.lines.text(seq_idx)
        if self.seed is None:
            return {"data": np.array(self.vocab.encode(text), "int32")}
        rng = utterance_rng(seed=self.seed, epoch=self._epoch, seq_tag=self.lines.tag(seq_idx))
        return {"data": np.array(self.vocab.encode_for_training(text, rng=rng), "int32")}

    def get_seq_order(self, epoch: int | None = None) -> list[int]:
        """Has no order of its own, but is told the epoch in this way."""
        self._epoch = epoch or 1
        return super().get_seq_order(epoch=epoch)

    def get_seq_len(self, seq_idx: int) -> int:
        return self.lines.num_bytes(seq_idx)

    def get_seq_tag(self, seq_idx: int) -> str:
        return self.lines.tag(seq_idx)

    @property
    def lines(self) -> TextLines:
        """
        :raises FileNotFoundError: if a file is not there
        :raises ValueError: if there are no lines
        """
        if self._lines is None:
            files, held_out = find_files(self.split, self.paths)
            lines = read_lines(files, max_chars=self.max_chars)
            chosen = lines_of_split(lines.line_numbers, self.split, every=self.hold_out_every, held_out=held_out)
            if not chosen.any():
                left = f", of {len(lines)} with hold_out_every = {self.hold_out_every}," * (len(lines) > 0)
                raise ValueError(f"TextCorpus: split {self.split!r}: no lines{left} in {', '.join(files)}")
            self._lines = lines.select(chosen)
        return self._lines


def _check_int(name: str, value: int, *, at_least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"TextCorpus: {name}: expected an integer of at least {at_least}, got {value!r}")
    return value
