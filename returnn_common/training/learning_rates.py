"""
Learning-rate schedules, as RETURNN options to merge into a config::

    globals().update(warmup_decay(num_epochs=100, peak=1e-3, warmup_epochs=10))

:func:`warmup_decay` gives one rate per (sub-)epoch, :func:`one_cycle` and :func:`noam` one per step.
All of them run on RETURNN's four engines, and depend on nothing but the number of the epoch or of the step,
so that an interrupted training goes on with the rate that it would have had.

The schedules per step are RETURNN's ``dynamic_learning_rate``: a function of the step and of ``learning_rate``.
PyTorch, TensorFlow (low-level) and JAX call it before every step with Python numbers. The TensorFlow layers engine
calls it once, with tensors, when it builds the graph, and can't tell it the epoch. So a schedule here needs the step
only, and computes with whichever of NumPy and TensorFlow the step belongs to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy

__all__ = ["warmup_decay", "one_cycle", "noam", "OneCycle", "Noam"]


def warmup_decay(
    *,
    num_epochs: int,
    peak: float,
    warmup_epochs: int,
    hold_epochs: int = 0,
    decay: str = "linear",
    initial_factor: float = 0.1,
    final_factor: float = 0.01,
) -> dict[str, Any]:
    """
    One rate per (sub-)epoch: linearly up from ``peak * initial_factor`` in epoch 1 to ``peak`` in epoch
    ``warmup_epochs + 1``, constant for ``hold_epochs`` more, then down to ``peak * final_factor`` in epoch
    ``num_epochs``, where it stays.

    :param num_epochs: (sub-)epochs of the whole training
    :param peak: highest rate
    :param warmup_epochs: epochs below the peak at the start; 0 starts at the peak
    :param hold_epochs: further epochs at the peak
    :param decay: "linear", "cosine" (half a period) or "exponential" (equal ratios)
    :param initial_factor: rate of the first epoch over the peak
    :param final_factor: rate of the last epoch over the peak
    :return: options ``learning_rate`` and ``learning_rates``
    :raise ValueError: a number out of range, or warm-up and hold leave no epoch for the decay
    """
    _check_int("warmup_decay: num_epochs", num_epochs, minimum=1)
    _check_int("warmup_decay: warmup_epochs", warmup_epochs, minimum=0)
    _check_int("warmup_decay: hold_epochs", hold_epochs, minimum=0)
    _check_positive("warmup_decay: peak", peak)
    _check_factor("warmup_decay: initial_factor", initial_factor)
    _check_factor("warmup_decay: final_factor", final_factor)
    if decay not in ("linear", "cosine", "exponential"):
        raise ValueError(f"warmup_decay: decay must be 'linear', 'cosine' or 'exponential', got {decay!r}")
    if warmup_epochs + hold_epochs >= num_epochs:
        raise ValueError(
            f"warmup_decay: warmup_epochs={warmup_epochs} and hold_epochs={hold_epochs} must be"
            f" fewer than num_epochs={num_epochs} together"
        )
    rates = []
    for epoch in range(1, num_epochs + 1):
        if epoch <= warmup_epochs:
            factor = initial_factor + (1.0 - initial_factor) * (epoch - 1) / warmup_epochs
        elif epoch <= warmup_epochs + 1 + hold_epochs:
            factor = 1.0
        else:
            start = warmup_epochs + 1 + hold_epochs
            factor = _decayed(decay, (epoch - start) / (num_epochs - start), final_factor)
        rates.append(float(peak * factor))
    return {"learning_rate": rates[0], "learning_rates": rates}


def one_cycle(
    *,
    num_steps: int,
    peak: float,
    warmup_steps: int,
    annihilation_steps: int = 0,
    decay: str = "linear",
    initial_factor: float = 0.1,
    final_factor: float = 0.001,
) -> dict[str, Any]:
    """
    One cycle over the training's steps (Smith 2018, "A disciplined approach to neural network hyper-parameters",
    https://arxiv.org/abs/1803.09820, section 4.1): linearly up from ``peak * initial_factor`` at the first step to
    ``peak`` at step ``warmup_steps`` (counted from 0), then down to ``peak * final_factor`` at the last step.
    With ``annihilation_steps``, as in the paper, the way down ends at the initial rate,
    and these last steps fall linearly from there to the final one.

    :param num_steps: steps of the whole training; later ones keep the last rate
    :param peak: highest rate. It becomes the option ``learning_rate``, which scales the whole curve
    :param warmup_steps: steps below the peak at the start
    :param annihilation_steps: steps at the end, for the fall below the initial rate
    :param decay: "linear" or "cosine", between the peak and the annihilation
    :param initial_factor: first rate over the peak
    :param final_factor: last rate over the peak
    :return: options ``learning_rate`` and ``dynamic_learning_rate``
    :raise ValueError: a number out of range, or no step left between the peak and the end
    """
    _check_positive("one_cycle: peak", peak)
    schedule = OneCycle(
        num_steps=num_steps,
        warmup_steps=warmup_steps,
        annihilation_steps=annihilation_steps,
        decay=decay,
        initial_factor=initial_factor,
        final_factor=final_factor,
    )
    return {"learning_rate": float(peak), "dynamic_learning_rate": schedule}


def noam(*, model_dim: int, warmup_steps: int = 4000, scale: float = 1.0) -> dict[str, Any]:
    """
    Linear warm-up, then the inverse square root of the step (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762,
    equation 3): ``scale * model_dim ** -0.5 * min(step ** -0.5, step * warmup_steps ** -1.5)``, steps counted from 1.

    :param model_dim: the model's width, d_model in the paper
    :param warmup_steps: the step with the highest rate
    :param scale: factor of the whole curve, 1 in the paper. It becomes the option ``learning_rate``
    :return: options ``learning_rate`` and ``dynamic_learning_rate``
    :raise ValueError: a number out of range
    """
    _check_positive("noam: scale", scale)
    schedule = Noam(model_dim=model_dim, warmup_steps=warmup_steps)
    return {"learning_rate": float(scale), "dynamic_learning_rate": schedule}


@dataclass(frozen=True)
class OneCycle:
    """
    The schedule of :func:`one_cycle`, whose arguments it has.

    ``schedule(global_train_step=..., learning_rate=...)`` is the rate at that step, with ``learning_rate`` as peak:
    a float for a number, a float32 tensor for a TensorFlow tensor. Steps are counted from 0.
    """

    num_steps: int
    warmup_steps: int
    annihilation_steps: int = 0
    decay: str = "linear"
    initial_factor: float = 0.1
    final_factor: float = 0.001

    def __post_init__(self) -> None:
        _check_int("one_cycle: num_steps", self.num_steps, minimum=2)
        _check_int("one_cycle: warmup_steps", self.warmup_steps, minimum=0)
        _check_int("one_cycle: annihilation_steps", self.annihilation_steps, minimum=0)
        _check_factor("one_cycle: initial_factor", self.initial_factor)
        _check_factor("one_cycle: final_factor", self.final_factor)
        if self.decay not in ("linear", "cosine"):
            raise ValueError(f"one_cycle: decay must be 'linear' or 'cosine', got {self.decay!r}")
        if self.warmup_steps + self.annihilation_steps + 1 >= self.num_steps:
            raise ValueError(
                f"one_cycle: warmup_steps={self.warmup_steps} and annihilation_steps={self.annihilation_steps} leave"
                f" no way down within num_steps={self.num_steps}"
            )

    def __call__(self, *, global_train_step: Any, learning_rate: Any, **_fwd_compat: Any) -> Any:
        ops, step = _ops_for(global_train_step)
        end = self.num_steps - 1 - self.annihilation_steps
        low = self.initial_factor if self.annihilation_steps else self.final_factor
        up = ops.clip_fraction(step / max(self.warmup_steps, 1)) if self.warmup_steps else 1.0
        down = ops.clip_fraction((step - self.warmup_steps) / (end - self.warmup_steps))
        if self.decay == "cosine":
            down = 0.5 - 0.5 * ops.cos(math.pi * down)
        # Three ramps, each constant before its start and after its end, so that their sum is the curve.
        factor = self.initial_factor + (1.0 - self.initial_factor) * up - (1.0 - low) * down
        if self.annihilation_steps:
            last = ops.clip_fraction((step - end) / self.annihilation_steps)
            factor = factor - (low - self.final_factor) * last
        return ops.result(factor, learning_rate)


@dataclass(frozen=True)
class Noam:
    """
    The schedule of :func:`noam`.

    ``schedule(global_train_step=..., learning_rate=...)`` is the rate at that step, with ``learning_rate`` as scale:
    a float for a number, a float32 tensor for a TensorFlow tensor. RETURNN counts steps from 0, the paper from 1.
    """

    model_dim: int
    warmup_steps: int = 4000

    def __post_init__(self) -> None:
        _check_int("noam: model_dim", self.model_dim, minimum=1)
        _check_int("noam: warmup_steps", self.warmup_steps, minimum=1)

    def __call__(self, *, global_train_step: Any, learning_rate: Any, **_fwd_compat: Any) -> Any:
        ops, step = _ops_for(global_train_step)
        step = step + 1.0
        factor = self.model_dim**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)
        return ops.result(factor, learning_rate)


def _decayed(decay: str, progress: float, final: float) -> float:
    """:return: factor between 1 (progress 0) and ``final`` (progress 1)"""
    if decay == "exponential":
        return final**progress
    if decay == "cosine":
        progress = 0.5 - 0.5 * math.cos(math.pi * progress)
    return 1.0 - (1.0 - final) * progress


class _NumpyOps:
    """Arithmetic in float64, for the engines that pass numbers."""

    minimum = staticmethod(numpy.minimum)
    cos = staticmethod(numpy.cos)

    @staticmethod
    def clip_fraction(value: Any) -> Any:
        return numpy.clip(value, 0.0, 1.0)

    @staticmethod
    def result(factor: Any, learning_rate: Any) -> float:
        return float(factor * learning_rate)


class _TensorFlowOps:
    """The same within a graph, in float64 too, since float32 is exact to 2**24 steps only."""

    def __init__(self) -> None:
        import tensorflow

        self._tf = tensorflow
        self.minimum = tensorflow.minimum
        self.cos = tensorflow.cos

    def clip_fraction(self, value: Any) -> Any:
        return self._tf.clip_by_value(value, self._tf.constant(0.0, value.dtype), self._tf.constant(1.0, value.dtype))

    def result(self, factor: Any, learning_rate: Any) -> Any:
        return self._tf.cast(factor, "float32") * self._tf.cast(learning_rate, "float32")


def _ops_for(step: Any) -> tuple[Any, Any]:
    """:return: the operations that fit the step, and the step as float64"""
    if isinstance(step, (int, numpy.integer)):
        return _NumpyOps, float(step)
    if type(step).__module__.partition(".")[0] == "tensorflow":
        ops = _TensorFlowOps()
        return ops, ops._tf.cast(step, "float64")
    raise TypeError(f"learning-rate schedule: global_train_step must be an int or a TensorFlow tensor, got {step!r}")


def _check_int(what: str, value: Any, *, minimum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, numpy.integer)):
        raise TypeError(f"{what} must be an int, got {value!r}")
    if value < minimum:
        raise ValueError(f"{what} must be at least {minimum}, got {value}")


def _check_positive(what: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{what} must be positive and finite, got {value!r}")


def _check_factor(what: str, value: float) -> None:
    # Zero is refused: RETURNN reads a rate of 0 in its learning-rate file as "not set".
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{what} must be above 0 and at most 1, got {value!r}")
