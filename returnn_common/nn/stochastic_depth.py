"""
Stochastic depth: in training, layers are left out at random.

Deep networks with stochastic depth (Huang et al. 2016, https://arxiv.org/abs/1603.09382); for Transformers: Pham et al.
2019 (https://arxiv.org/abs/1904.13377, section 3.2), and as LayerDrop Fan et al. 2019
(https://arxiv.org/abs/1909.11556).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, batch_dim

from .checks import check_probability

__all__ = ["StochasticDepth", "linear_drop_probs", "stochastic_depth"]


def stochastic_depth(
    before: Tensor, after: Tensor, *, drop_prob: float, axis: Sequence[Dim] = (), rescale: bool = False
) -> Tensor:
    """
    In training, ``before`` with a chance of drop_prob, else ``after``. In evaluation, ``after``.

    :param before: input of a layer, ``{batch, time, dim}``
    :param after: its output, same shape
    :param drop_prob: of the layer, in [0, 1)
    :param axis: dims of ``before`` over which it is drawn: none is once for the whole batch, as in all three papers,
        ``[batch_dim]`` is for each sequence
    :param rescale: what the layer adds, ``after - before``, is multiplied by ``1 / (1 - drop_prob)`` where it is kept,
        so that the expectation is the same as in evaluation (Pham et al.). For residual layers only: where a layer ends
        with a norm, as the Conformer's do, the sum would leave the norm's range.
    :return: same shape
    :raises ValueError: for a drop_prob outside of [0, 1)
    """
    check_probability("stochastic_depth", drop_prob=drop_prob)
    train_flag = rf.get_run_ctx().is_train_flag_enabled(func=stochastic_depth)
    if not drop_prob or train_flag is False:
        return after
    # Not by dropout on a one: RETURNN's dropout of something without features doesn't build on the net dict.
    keep = rf.random_uniform(axis, dtype="float32", device=before.device) >= drop_prob
    if isinstance(train_flag, Tensor):  # decided when the graph runs
        keep = rf.logical_or(keep, rf.logical_not(train_flag))
    if not rescale:
        return rf.where(keep, after, before)
    scale: Tensor | float = 1.0 / (1.0 - drop_prob)
    if isinstance(train_flag, Tensor):
        scale = rf.where(train_flag, scale, 1.0)
    return before + rf.where(keep, (after - before) * scale, 0.0)


def linear_drop_probs(num_layers: int, last: float) -> list[float]:
    """
    Chances that grow with the depth, ``layer / num_layers * last``: equation 4 of Huang et al.

    >>> linear_drop_probs(4, 0.2)
    [0.05, 0.1, 0.15, 0.2]
    """
    return [round(last * (i + 1) / num_layers, 12) for i in range(num_layers)]


class StochasticDepth(rf.Sequential):
    """
    Layers one after the other, each under :func:`stochastic_depth`.
    Takes the place of :class:`returnn.frontend.Sequential`; parameter names are the same.

    All layers are computed, and some results not used: the gradient then is zero, and not missing, which training in
    several processes would not stand.

    :param layers: modules with the same dims in and out
    :param drop_probs: a chance for each layer, e.g. ``[0.1] * 12`` or :func:`linear_drop_probs`
    :param per_sequence: draw for each sequence, not once for the whole batch
    :param rescale: see :func:`stochastic_depth`
    :raises ValueError: if these are not as many chances as layers, or a chance is outside of [0, 1)
    """

    def __init__(
        self,
        layers: Iterable[rf.Module],
        *,
        drop_probs: Sequence[float],
        per_sequence: bool = False,
        rescale: bool = False,
    ):
        super().__init__(layers)
        if len(drop_probs) != len(self):
            raise ValueError(f"StochasticDepth: expected a chance for each of {len(self)} layers, got {drop_probs}")
        for drop_prob in drop_probs:
            check_probability("StochasticDepth", drop_prob=drop_prob)
        self.drop_probs = tuple(drop_probs)
        self.per_sequence = per_sequence
        self.rescale = rescale

    def __call__(self, inp: Tensor, *, collected_outputs: dict[str, Tensor] | None = None, **kwargs) -> Tensor:
        """
        :param inp: ``{batch, time, dim}``
        :param collected_outputs: is filled with what goes from each layer to the next, by its number from "0" on
        :param kwargs: to each layer
        :return: ``{batch, time, dim}``
        """
        axis = [batch_dim] if self.per_sequence else []
        for (name, layer), drop_prob in zip(self.items(), self.drop_probs, strict=True):
            out = layer(inp, **kwargs)
            inp = stochastic_depth(inp, out, drop_prob=drop_prob, axis=axis, rescale=self.rescale)
            if collected_outputs is not None:
                collected_outputs[name] = inp
        return inp
