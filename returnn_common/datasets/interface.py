"""
What a dataset and a vocabulary offer to a RETURNN config.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _returnn_vocab

__all__ = ["DatasetConfig", "DatasetConfigStatic", "VocabConfig", "VocabConfigStatic"]


class _MadeWith:
    """Remembers the arguments with which an object is made, so that it can be hashed, and written into a config."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any):
        self = super().__new__(cls)
        object.__setattr__(self, "_made_with", (args, options))  # also where the object can't be changed
        return self

    def get_arguments(self) -> dict[str, Any]:
        """:return: those arguments by name, but those that are the default"""
        args, options = self._made_with
        signature = inspect.signature(type(self))
        given = signature.bind(*args, **options).arguments
        return {
            name: value
            for name, value in given.items()
            if (default := signature.parameters[name].default) is not value
            and (type(default), default) != (type(value), value)
        }

    def __sis_state__(self) -> dict[str, Any]:
        """What Sisyphus' hash depends on: nothing that is made of the arguments, and no option that is added later."""
        return self.get_arguments()


class VocabConfig(_MadeWith, ABC):
    """
    Between texts and sequences of label indices. A blank label is none of them: models that need one add it.

    A class of one's own needs :meth:`get_num_classes` and :meth:`get_opts`; texts are then encoded by RETURNN's class
    of these options. Whoever overrides :meth:`encode` overrides :meth:`decode` and :meth:`find_unknown` as well.
    """

    @abstractmethod
    def get_num_classes(self) -> int:
        """The number of labels."""

    @abstractmethod
    def get_opts(self) -> dict[str, Any]:
        """
        Options for :func:`returnn.datasets.util.vocabulary.Vocabulary.create_vocab`, plain data: a vocabulary with the
        same labels. What it can encode, it encodes as :meth:`encode` does.
        """

    def get_eos_idx(self) -> int | None:
        """The index of the end-of-sentence label, or None if there is none."""
        return None

    def get_bos_idx(self) -> int | None:
        """The index of the begin-of-sentence label, or None if there is none; by default the end-of-sentence label."""
        return self.get_eos_idx()

    def get_dataset_opts(self) -> dict[str, Any]:
        """
        Plain data for the options of datasets of ours, from which :func:`.vocab.open_vocab` gives such an object back.
        """
        return self.get_opts()

    def encode(self, text: str) -> list[int]:
        """
        Label indices of a text, without begin or end of sentence.

        :raises ValueError: if it cannot be written with the labels
        """
        unknown = self.find_unknown(text)
        if unknown:
            raise ValueError(f"{self!r} lacks {', '.join(map(repr, dict.fromkeys(unknown)))} in {text!r}")
        return _returnn_vocab.encode(self.get_opts(), text)

    def encode_for_training(self, text: str, *, rng: np.random.Generator) -> list[int]:
        """
        The same but for vocabularies that have been told to draw for each text one of the ways to write it.

        :param rng: to draw with
        """
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """
        The text of label indices, inverse of :meth:`encode`.

        :raises ValueError: if an index is not one of the vocabulary
        """
        return _returnn_vocab.decode(self.get_opts(), self._check_ids(ids))

    def as_decoded(self, text: str) -> str:
        """
        What :meth:`decode` gives when all is recognised rightly: the text, but for vocabularies that have no way back,
        such as phonemes. For scoring.
        """
        return text

    def find_unknown(self, text: str) -> list[str]:
        """The parts of a text that the vocabulary lacks, in order, as often as they come; empty if it has all."""
        return _returnn_vocab.find_unknown(self.get_opts(), text)

    def _check_ids(self, ids: Iterable[int]) -> list[int]:
        ids = [int(i) for i in ids]
        num_classes = self.get_num_classes()
        for i in ids:
            if not 0 <= i < num_classes:
                raise ValueError(f"{self!r}: expected label indices from 0 to {num_classes - 1}, got {i}")
        return ids


class VocabConfigStatic(VocabConfig):
    """
    A vocabulary of which only this is known.

    :param num_classes: the number of labels
    :param opts: for :func:`returnn.datasets.util.vocabulary.Vocabulary.create_vocab`
    """

    def __init__(self, *, num_classes: int, opts: dict[str, Any]):
        self.num_classes, self.opts = num_classes, opts

    @classmethod
    def from_global_config(cls, data_key: str) -> VocabConfigStatic:
        """
        :param data_key: in the ``extern_data`` of RETURNN's config
        :raises ValueError: if that has no labels
        """
        from returnn.config import get_global_config
        from returnn.tensor import Tensor

        entry = get_global_config().typed_dict["extern_data"][data_key]
        tensor = Tensor(data_key, **{key: value for key, value in entry.items() if key != "vocab"})
        if tensor.sparse_dim is None or tensor.sparse_dim.dimension is None:
            raise ValueError(f"VocabConfigStatic: extern_data: expected labels in {data_key!r}, got {entry!r}")
        return cls(num_classes=tensor.sparse_dim.dimension, opts=entry.get("vocab", {}))

    def get_num_classes(self) -> int:
        """see :class:`VocabConfig`"""
        return self.num_classes

    def get_opts(self) -> dict[str, Any]:
        """see :class:`VocabConfig`"""
        return self.opts


class DatasetConfig(_MadeWith, ABC):
    """
    A corpus, as RETURNN configs need it. All datasets are dicts of options for
    :func:`returnn.datasets.init_dataset`.

    A class of one's own defines the methods that are asked for; one for recognition alone needs no training data. Those
    of the first returnn_common are as they were, so that classes that were written for it go on working.
    """

    def get_extern_data(self) -> dict[str, dict[str, Any]]:
        """RETURNN's ``extern_data``; always with the same Dim objects."""
        raise _not_defined(self, "get_extern_data")

    def get_train_dataset(self) -> dict[str, Any]:
        """The dataset to train on, shuffled."""
        raise _not_defined(self, "get_train_dataset")

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """Others by name, each sorted by length: to evaluate, during training or later."""
        raise _not_defined(self, "get_eval_datasets")

    def get_main_name(self) -> str:
        """The name of the one of :meth:`get_eval_datasets` that decides (learning rate, choice of checkpoints)."""
        raise _not_defined(self, "get_main_name")

    def get_main_dataset(self) -> dict[str, Any]:
        """The dataset of :meth:`get_main_name`."""
        return self.get_eval_datasets()[self.get_main_name()]

    def get_default_input(self) -> str | None:
        """The key of the input in :meth:`get_extern_data`."""
        return "data"

    def get_default_target(self) -> str | None:
        """The key of the targets in :meth:`get_extern_data`, or None if there are none."""
        return "classes"

    def get_config_opts(self) -> dict[str, Any]:
        """
        Everything that a RETURNN config says about data, for ``globals().update(dataset.get_config_opts())``: the
        training data, and all of :meth:`get_eval_datasets` to evaluate after each epoch.
        """
        return {
            "extern_data": self.get_extern_data(),
            "default_input": self.get_default_input(),
            "target": self.get_default_target(),
            "train": self.get_train_dataset(),
            "eval_datasets": self.get_eval_datasets(),
        }

    def get_config_opts_with_dev(self) -> dict[str, Any]:
        """The same, but only the main dataset is evaluated after each epoch, as ``dev``; ``forward_data`` as well."""
        return {
            "extern_data": self.get_extern_data(),
            "default_input": self.get_default_input(),
            "target": self.get_default_target(),
            "train": self.get_train_dataset(),
            "dev": self.get_main_dataset(),
            "forward_data": self.get_main_dataset(),
        }

    def copy_as_static(self) -> DatasetConfigStatic:
        """A copy with fixed options, of which single ones can be replaced (:func:`dataclasses.replace`)."""
        return DatasetConfigStatic(
            extern_data=self.get_extern_data(),
            default_input=self.get_default_input(),
            default_target=self.get_default_target(),
            train_dataset=self.get_train_dataset(),
            eval_datasets=self.get_eval_datasets(),
            main_name=self.get_main_name(),
            main_dataset=self.get_main_dataset(),
        )

    def copy_train_as_static(self) -> DatasetConfigStatic:
        """A copy whose main dataset is the one to train on, under the name ``train``."""
        return self._copy_one_as_static("train", self.get_train_dataset())

    def copy_eval_as_static(self, name: str) -> DatasetConfigStatic:
        """
        A copy whose main dataset is this one of :meth:`get_eval_datasets`.

        :raises ValueError: if there is none of this name
        """
        datasets = self.get_eval_datasets()
        if name not in datasets:
            raise ValueError(f"eval dataset: expected one of {', '.join(datasets)}, got {name!r}")
        return self._copy_one_as_static(name, datasets[name])

    def copy_main_as_static(self) -> DatasetConfigStatic:
        """A copy of the main dataset alone."""
        return self._copy_one_as_static(self.get_main_name(), self.get_main_dataset())

    def _copy_one_as_static(self, name: str, dataset: dict[str, Any]) -> DatasetConfigStatic:
        return DatasetConfigStatic(
            extern_data=self.get_extern_data(),
            default_input=self.get_default_input(),
            default_target=self.get_default_target(),
            train_dataset=None,
            eval_datasets={name: dataset},
            main_name=name,
            main_dataset=dataset,
        )


@dataclass(frozen=True, kw_only=True)
class DatasetConfigStatic(DatasetConfig):
    """A dataset that consists of given options, see the methods of the same names in :class:`DatasetConfig`."""

    extern_data: dict[str, dict[str, Any]]
    default_input: str
    default_target: str | None
    train_dataset: dict[str, Any] | None
    eval_datasets: dict[str, dict[str, Any]]
    main_name: str
    main_dataset: dict[str, Any]

    def get_extern_data(self) -> dict[str, dict[str, Any]]:
        """see :class:`DatasetConfig`"""
        return self.extern_data

    def get_train_dataset(self) -> dict[str, Any]:
        """
        see :class:`DatasetConfig`

        :raises ValueError: if the copy has none
        """
        if self.train_dataset is None:
            raise ValueError(f"dataset {self.main_name!r}: this copy has no dataset to train on")
        return self.train_dataset

    def get_eval_datasets(self) -> dict[str, dict[str, Any]]:
        """see :class:`DatasetConfig`"""
        return self.eval_datasets

    def get_main_name(self) -> str:
        """see :class:`DatasetConfig`"""
        return self.main_name

    def get_main_dataset(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`"""
        return self.main_dataset

    def get_default_input(self) -> str:
        """see :class:`DatasetConfig`"""
        return self.default_input

    def get_default_target(self) -> str | None:
        """see :class:`DatasetConfig`"""
        return self.default_target

    def get_config_opts(self) -> dict[str, Any]:
        """see :class:`DatasetConfig`; without ``train`` and ``dev`` where this copy has nothing to train on"""
        if self.train_dataset is not None:
            return self.get_config_opts_with_dev()
        return {
            "extern_data": self.extern_data,
            "default_input": self.default_input,
            "target": self.default_target,
            "forward_data": self.main_dataset,
        }


def _not_defined(dataset: DatasetConfig, method: str) -> NotImplementedError:
    return NotImplementedError(f"{type(dataset).__name__}: has no {method}()")
