"""
Mixed precision: matrix products and convolutions in bfloat16, everything else, and the parameters, in float32.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PRECISIONS", "mixed_precision"]

PRECISIONS = ("float32", "bfloat16")
_OPTIONS = {"torch": "torch_amp", "tensorflow": "tf_amp", "jax": "jax_amp"}


def mixed_precision(precision: str, *, backend: str) -> dict[str, Any]:
    """
    ``globals().update(mixed_precision("bfloat16", backend=backend))`` in a config. (Micikevicius et al. 2018,
    https://arxiv.org/abs/1710.03740, with bfloat16, whose range is that of float32, so that no loss has to be scaled.)
    It holds for training and recognition; checkpoints are in float32 and go with both.

    :param precision: "bfloat16"; or "float32", which sets nothing
    :param backend: of RETURNN
    :return: options for the config
    :raises ValueError: for another precision, or "bfloat16" with TensorFlow's layers, where RETURNN has no such option
    """
    if precision not in PRECISIONS:
        raise ValueError(f"mixed_precision: expected one of {', '.join(PRECISIONS)}, got {precision!r}")
    if precision == "float32":
        return {}
    if backend not in _OPTIONS:
        raise ValueError(f"mixed_precision: expected a backend of {', '.join(_OPTIONS)}, got {backend!r}")
    # RETURNN would scale the losses with PyTorch by default, which float16 needs.
    value = {"dtype": precision, "grad_scaler": None} if backend == "torch" else precision
    return {_OPTIONS[backend]: value}
