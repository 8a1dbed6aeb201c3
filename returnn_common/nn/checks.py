"""
What builders ask of their arguments.
"""

from __future__ import annotations

from returnn.tensor import Dim

__all__ = ["check_at_least", "check_num_heads", "check_probability"]


def check_at_least(owner: str, minimum: int, **values: int) -> None:
    """
    >>> check_at_least("conformer", 1, num_layers=0)
    Traceback (most recent call last):
    ...
    ValueError: conformer: expected num_layers >= 1, got 0

    :param owner: whose arguments, for the message
    :param minimum: the least allowed value
    :param values: by the names of the arguments
    :raises ValueError: for a value that is less, or no int
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(f"{owner}: expected {name} >= {minimum}, got {value!r}")


def check_probability(owner: str, **values: float) -> None:
    """
    >>> check_probability("conformer", dropout=1.0)
    Traceback (most recent call last):
    ...
    ValueError: conformer: expected 0 <= dropout < 1, got 1.0

    :param owner: whose arguments, for the message
    :param values: by the names of the arguments
    :raises ValueError: for a value outside of [0, 1)
    """
    for name, value in values.items():
        if not 0.0 <= value < 1.0:
            raise ValueError(f"{owner}: expected 0 <= {name} < 1, got {value}")


def check_num_heads(owner: str, num_heads: int, *, out_dim: Dim) -> None:
    """
    :param owner: whose arguments, for the message
    :param num_heads: at least 1, divides the size of out_dim
    :param out_dim: of the model
    :raises ValueError: if it doesn't
    """
    size = out_dim.dimension
    if not isinstance(num_heads, int) or num_heads < 1 or size is None or size % num_heads:
        raise ValueError(f"{owner}: out_dim {size} is not a multiple of num_heads {num_heads}")
