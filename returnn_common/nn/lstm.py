"""
LSTM (Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; with forget gate: Gers et al. 2000)
on every engine, without anything to compile.

Differs from :class:`returnn.frontend.LSTM` in that the engines other than PyTorch compute it by :func:`scan_over`.
RETURNN has none for TensorFlow (low-level) and JAX, and compiles native code for the net dict.
Parameter names, shapes and numbers are the same, so that checkpoints fit both.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import returnn.frontend as rf
from returnn.frontend import LstmState
from returnn.tensor import Dim, Tensor, single_step_dim

from .fused.lstm import lstm_by_lengths
from .fused.raw import is_on_torch, is_traced, tensor_of
from .scan import scan_over

__all__ = ["LSTM", "LstmState"]


class LSTM(rf.Module):
    """
    ``i, f, g, o`` are the four parts, in this order, of ``ff_weight x + rec_weight h' + bias`` (h', c': the state)::

        c = sigmoid(f) * c' + sigmoid(i) * tanh(g)
        h = sigmoid(o) * tanh(c)

    As PyTorch's, but with one bias, which is the sum of its two.

    :param in_dim: of the source
    :param out_dim: of the output h, and of the cell c
    :param with_bias: add a bias
    """

    def __init__(self, in_dim: Dim, out_dim: Dim, *, with_bias: bool = True):
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.ff_weight = rf.Parameter([4 * out_dim, in_dim])
        self.ff_weight.initial = rf.init.Glorot()
        self.rec_weight = rf.Parameter([4 * out_dim, out_dim])
        self.rec_weight.initial = rf.init.Glorot()
        self.bias = None
        if with_bias:
            self.bias = rf.Parameter([4 * out_dim])
            self.bias.initial = 0.0

    def default_initial_state(self, *, batch_dims: Sequence[Dim]) -> LstmState:
        """:return: zeros ``{batch, out_dim}``"""
        dims = [*batch_dims, self.out_dim]
        return LstmState(h=rf.zeros(dims, feature_dim=self.out_dim), c=rf.zeros(dims, feature_dim=self.out_dim))

    def outputs(self, source: Tensor, *, state: LstmState, spatial_dim: Dim) -> Tensor:
        """as a call, but without the states at the end, which PyTorch computes faster"""
        return self(source, state=state, spatial_dim=spatial_dim, with_states=False)[0]

    def __call__(
        self, source: Tensor, *, state: LstmState, spatial_dim: Dim, with_states: bool = True
    ) -> tuple[Tensor, LstmState]:
        """
        :param source: ``{batch, time, in_dim}``; ``{batch, in_dim}`` for one step
        :param state: before the first frame, h and c ``{batch, out_dim}``
        :param spatial_dim: time, or ``nn.single_step_dim``
        :param with_states: see :meth:`outputs`
        :return: h of each frame ``{batch, time, out_dim}`` (one step: ``{batch, out_dim}``);
            the state after each sequence's own last frame
        :raises ValueError: if the source has no in_dim, or no spatial_dim, or the state has no h or c
        """
        if self.in_dim not in source.dims:
            raise ValueError(f"LSTM: expected a source with the dim {self.in_dim}, got {source}")
        if spatial_dim != single_step_dim and spatial_dim not in source.dims:
            raise ValueError(f"LSTM: expected a source with the dim {spatial_dim}, got {source}")
        if state.get("h") is None or state.get("c") is None:
            raise ValueError(f"LSTM: expected a state with h and c, got {state}")
        source = rf.cast(source, self.ff_weight.dtype)  # what was computed before, in half precision by autocast
        if is_on_torch(source) and spatial_dim != single_step_dim:
            return self._on_torch(source, state, spatial_dim, with_states=with_states)
        if source._raw_backend is not None and source._raw_backend.name == "torch" and is_traced():
            return rf.LSTM.__call__(self, source, state=state, spatial_dim=spatial_dim)  # type: ignore[arg-type]
        x = rf.dot(source, self.ff_weight, reduce=self.in_dim)
        if self.bias is not None:
            x = x + self.bias
        if spatial_dim == single_step_dim:
            return _step(x, state, rec_weight=self.rec_weight)
        step = functools.partial(_step, rec_weight=self.rec_weight)
        template = Tensor("lstm", dims=state.h.dims, dtype=state.h.dtype, feature_dim=self.out_dim)
        return scan_over(spatial_dim, step, xs=x, initial=state, ys=template)

    def _on_torch(
        self, source: Tensor, state: LstmState, spatial_dim: Dim, *, with_states: bool
    ) -> tuple[Tensor, LstmState]:
        """
        PyTorch's own, from each sequence's end to the next one's, over those that go on: exact states, no padding, and
        in training a quarter of the time that PyTorch takes for packed sequences of different lengths.
        """
        batch_dims = source.remaining_dims([spatial_dim, self.in_dim])
        x = source.copy_compatible_to_dims_raw([spatial_dim, *batch_dims, self.in_dim])
        shape = x.shape[1:-1]
        h, c = (
            part.copy_compatible_to_dims_raw([*batch_dims, self.out_dim]).expand(*shape, -1).flatten(0, -2)
            if shape
            else part.raw_tensor[None]
            for part in (state.h, state.c)
        )
        sizes = spatial_dim.get_size_tensor().copy_compatible_to_dims_raw(batch_dims).expand(shape).flatten()
        params = [self.ff_weight.raw_tensor, self.rec_weight.raw_tensor]
        if self.bias is not None:
            params += [self.bias.raw_tensor, self.bias.raw_tensor.new_zeros(self.bias.raw_tensor.shape)]
        x = x.flatten(1, -2) if shape else x[:, None]
        out, h, c = lstm_by_lengths(x, sizes.tolist(), h, c, params, with_states=with_states)
        new_state = LstmState(
            h=tensor_of(h.view(*shape, h.shape[-1]), *batch_dims, self.out_dim),
            c=tensor_of(c.view(*shape, c.shape[-1]), *batch_dims, self.out_dim),
        )
        out = out.view(len(x), *shape, out.shape[-1])
        return tensor_of(out, spatial_dim, *batch_dims, self.out_dim), new_state


def _step(x: Tensor, state: LstmState, *, rec_weight: Tensor) -> tuple[Tensor, LstmState]:
    """:param x: ``{batch, 4 * out_dim}``, what the source contributes"""
    gates_dim, out_dim = rec_weight.dims
    x = x + rf.dot(state.h, rec_weight, reduce=out_dim)
    i, f, g, o = rf.split(x, axis=gates_dim, out_dims=[out_dim] * 4)
    c = rf.sigmoid(f) * state.c + rf.sigmoid(i) * rf.tanh(g)
    h = rf.sigmoid(o) * rf.tanh(c)
    h, c = rf.cast(h, state.h.dtype), rf.cast(c, state.c.dtype)
    h.feature_dim = c.feature_dim = out_dim
    return h, LstmState(h=h, c=c)
