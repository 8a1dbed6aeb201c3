"""
One's own recordings, with tables of their transcripts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ._paths import PathLike, SomePath, check_path
from ._table_source import read_table
from .audio_corpus import AudioCorpus
from .corpus_options import EvalOptions, TrainOptions, check_int
from .interface import VocabConfig
from .prepare.folder import find_tables
from .prepare.report import Problem
from .transcripts_table import TableColumns
from .vocab import CharacterVocab, make_vocab

__all__ = ["AudioFolder", "FolderTables"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FolderTables:
    """
    Which tables there are, and how they are read.

    :param train: names of the tables (without suffix) that are trained on altogether
    :param dev: evaluated while training. If the only one is not there, dev is every n-th utterance of the training
        tables, chosen by its name; and if there is no test table either, test is as many others.
    :param test: may be missing
    :param audio_folder: where relative paths start, itself relative to the table's folder, which is the default
    :param columns: names of the columns, where they are unusual
    :param hold_out_every: n, at least 3
    :raises ValueError: for values out of range
    """

    train: tuple[str, ...] = ("train",)
    dev: tuple[str, ...] = ("dev",)
    test: tuple[str, ...] = ("test",)
    audio_folder: PathLike | None = None
    columns: TableColumns = TableColumns()
    hold_out_every: int = 20

    def __post_init__(self):
        check_int("FolderTables: hold_out_every", self.hold_out_every, at_least=3)
        if self.audio_folder is not None:
            check_path("FolderTables: audio_folder", self.audio_folder)


class AudioFolder(AudioCorpus):
    """
    Recordings of any format and sample rate that libsndfile reads (resampled, channels averaged), with tables of their
    transcripts: TSV, CSV or JSON Lines, see :mod:`.transcripts_table`. ``returnn-common prepare folder`` makes the
    same ready for :class:`.Librispeech`, which loads much faster where recordings have to be resampled or are many.

    Rows that cannot be used are left out with a warning: recordings that are not there or cannot be opened, empty
    transcripts, duplicates. :meth:`find_problems` lists them, and also decodes all recordings.

    See :class:`.audio_corpus.AudioCorpus` for what the data are.

    :param path: a folder of tables: ``train.tsv`` (or .csv, .jsonl) is the split "train", and so is the only table in
        the folder ``train``. Or one table, all of which is used, dev and test held out.
    :param vocab: of the targets, or its name in :func:`.vocab.make_vocab`; by default :class:`.vocab.CharacterVocab`,
        which has only what LibriSpeech's transcripts have: :meth:`get_characters` helps to make another
    :param audio: ``"raw"``, or ``"log-mel"`` for engines on which the model cannot compute features
    :param train_epoch_split: how many of RETURNN's epochs one pass over the training data takes
    :param training: augmentation, order, curriculum, number of processes
    :param evaluation: parts of the dev and training data to evaluate while training
    :param tables: their names, columns, and where the recordings are
    :raises ValueError: for options that make no sense
    """

    def __init__(
        self,
        path: PathLike,
        *,
        vocab: VocabConfig | str | None = None,
        audio: str = "raw",
        train_epoch_split: int = 1,
        training: TrainOptions | None = None,
        evaluation: EvalOptions | None = None,
        tables: FolderTables | None = None,
    ):
        tables = FolderTables() if tables is None else tables
        if not isinstance(tables, FolderTables):
            raise TypeError(f"AudioFolder: tables: expected FolderTables, got {tables!r}")
        super().__init__(
            vocab=make_vocab(vocab) if isinstance(vocab, str) else CharacterVocab() if vocab is None else vocab,
            audio=audio,
            train_splits=tables.train,
            dev_splits=tables.dev,
            test_splits=tables.test,
            train_epoch_split=train_epoch_split,
            training=training,
            evaluation=evaluation,
        )
        self.path = check_path("AudioFolder: path", path)
        self.tables = tables

    def __repr__(self) -> str:
        return f"AudioFolder({self.path!r}, vocab={self.vocab!r}, audio={self.audio!r})"

    def get_splits(self, purpose: str) -> tuple[str, ...]:
        """see :class:`AudioCorpus`"""
        if purpose in self._held_out() or self._is_one_table():
            return (purpose,)
        splits = super().get_splits(purpose)
        return () if purpose == "test" and not self._are_there(splits) else splits

    def get_source(self, split: str) -> dict[str, Any]:
        """see :class:`AudioCorpus`"""
        held_out, train = self._held_out(), super().get_splits("train")
        if self._is_one_table():
            tables, part = None, split
        elif split in held_out:
            tables, part = train, split
        else:
            tables, part = (split,), "train" if split in train and held_out else None
        return {
            "kind": "table",
            "folder": self.path,
            "tables": tables,
            "audio_folder": self.tables.audio_folder,
            "columns": dataclasses.asdict(self.tables.columns),
            "part": part,
            "hold_out": held_out,
            "hold_out_every": self.tables.hold_out_every,
        }

    def _held_out(self) -> tuple[str, ...]:
        """:return: which of dev and test are parts of the training tables"""
        if self._is_one_table():
            return ("dev", "test")
        if self._are_there(super().get_splits("dev")):
            return ()
        return ("dev",) if self._are_there(super().get_splits("test")) else ("dev", "test")

    def _is_one_table(self) -> bool:
        return not isinstance(self.path, SomePath) and os.path.isfile(self.path)

    def _are_there(self, splits: Sequence[str]) -> bool:
        """:return: whether any of the tables is there; also where that is not known yet"""
        if isinstance(self.path, SomePath) or not os.path.isdir(self.path):
            return True
        with contextlib.suppress(FileNotFoundError, ValueError):
            return bool(set(splits) & set(find_tables(Path(self.path), None)))
        return True

    def get_characters(self) -> str:
        """
        :return: all characters of the training transcripts, sorted, for :class:`.vocab.CharacterVocab`
        :raises FileNotFoundError: if the tables are not there
        """
        return "".join(
            sorted({char for split in self.train_splits for text in self.open(split).texts for char in text})
        )

    def find_problems(self, split: str) -> list[Problem]:
        """
        Everything that is wrong with a split; decodes all its recordings.

        :return: kind, name, and what is the matter
        """
        options = {key: value for key, value in self.get_source(self._check_split(split)).items() if key != "kind"}
        recordings, problems = read_table(**options)
        for i, name in enumerate(recordings.names):
            try:
                recordings.read(i)
            except ValueError as error:
                problems.append(Problem("broken", name, str(error)))
        return sorted(problems)
