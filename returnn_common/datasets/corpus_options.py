"""
Options that all corpora of recordings have in common, and how they are checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .augment import Augment

__all__ = ["EvalOptions", "TrainOptions"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """
    How the training data come.

    :param augment: see :mod:`.augment`
    :param seq_ordering: of RETURNN, see its ``Dataset``. The default shuffles, then sorts by length within every
        thousand utterances, up and down in turn.
    :param curriculum: pairs of an epoch and seconds, in rising order: through this epoch, the longest utterances are
        left out, as many as it takes until the others are so long on average; ``((2, 4.0), (4, 8.0))``
    :param num_workers: processes that load; 0: that of the training itself. The data are the same for any number.
    :param random_seed: for the augmentation, and in ``get_config_opts`` also for the order
    :raises ValueError: for values out of range
    """

    augment: Augment | None = None
    seq_ordering: str = "laplace:.1000"
    curriculum: tuple[tuple[int, float], ...] = ()
    num_workers: int = 0
    random_seed: int = 0

    def __post_init__(self):
        if self.augment is not None and not callable(self.augment):
            raise TypeError(f"TrainOptions: augment: expected a function, got {self.augment!r}")
        check_int("TrainOptions: num_workers", self.num_workers, at_least=0)
        check_int("TrainOptions: random_seed", self.random_seed, at_least=0)
        epochs = [step[0] for step in self.curriculum if len(step) == 2]
        if (
            len(epochs) != len(self.curriculum)
            or epochs != sorted(set(epochs))
            or any(s <= 0 for _, s in self.curriculum)
        ):
            raise ValueError(
                "TrainOptions: curriculum: expected pairs of an epoch and seconds above 0, in rising order of epochs, "
                f"got {self.curriculum!r}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """
    What is evaluated after each epoch of training; always the same utterances.

    :param dev_subset: so many utterances of each dev split, None: all of them. Not for :meth:`get_forward_dataset`.
    :param devtrain_subset: so many utterances of the training data, without augmentation, under the name "devtrain"
    :raises ValueError: for values out of range
    """

    dev_subset: int | None = None
    devtrain_subset: int = 0

    def __post_init__(self):
        if self.dev_subset is not None:
            check_int("EvalOptions: dev_subset", self.dev_subset, at_least=1)
        check_int("EvalOptions: devtrain_subset", self.devtrain_subset, at_least=0)


def check_splits(owner: str, splits: Sequence[str], *, may_be_empty: bool = False) -> tuple[str, ...]:
    """
    :return: the names
    :raises ValueError: if they are no names of splits, none, or one comes twice
    """
    if isinstance(splits, str) or not all(isinstance(split, str) for split in splits):
        raise TypeError(f"{owner}: expected a sequence of names, got {splits!r}")
    for split in splits:
        if not split or "/" in split or "\\" in split or split in (".", ".."):
            raise ValueError(f"{owner}: expected names of splits, got {split!r}")
    if len(set(splits)) != len(splits) or (not splits and not may_be_empty):
        raise ValueError(f"{owner}: expected one or more different names, got {tuple(splits)!r}")
    return tuple(splits)


def check_int(owner: str, value: int, *, at_least: int) -> int:
    """
    :return: the value
    :raises ValueError: if it is no integer, or less
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{owner}: expected an integer of at least {at_least}, got {value!r}")
    return value
