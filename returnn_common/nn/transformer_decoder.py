"""
Differs from :class:`returnn.frontend.decoder.transformer.TransformerDecoder` in what makes a beam search fast: it can
be told which of the batch dims is the beam, see :class:`.causal_attention.CausalSelfAttention`, and the keys and values
of the encoder lie in memory as each step reads them. Parameter names and numbers are RETURNN's.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.frontend.decoder.transformer import TransformerDecoder as _TransformerDecoder
from returnn.tensor import Dim, Tensor

__all__ = ["TransformerDecoder"]


class TransformerDecoder(_TransformerDecoder):
    """RETURNN's, with our :class:`.causal_attention.CausalSelfAttention` in each layer."""

    def default_initial_state(
        self, *, batch_dims: Sequence[Dim], capacity: int | Tensor | None = None, beam_dim: Dim | None = None
    ) -> rf.State:
        """
        :param batch_dims:
        :param capacity: number of steps at most, int or scalar: then no shape in the state ever changes
        :param beam_dim: one of batch_dims, hypotheses of the same utterance, which then share their slots. For single
            steps with an engine that is eager.
        :return: state before the first label
        """
        if beam_dim is None or capacity is not None:
            return super().default_initial_state(batch_dims=batch_dims, capacity=capacity)
        layers = {
            name: rf.State(self_att=layer.self_att.default_initial_state(batch_dims=batch_dims, beam_dim=beam_dim))
            for name, layer in self.layers.items()
        }
        return rf.State(**layers, pos=rf.zeros((), dtype="int32"))

    def transform_encoder(self, encoder: Tensor, *, axis: Dim) -> rf.State:
        """
        :param encoder: ``{batch, time, encoder_dim}``, normalised already
        :param axis: its time
        :return: what ``__call__`` takes as ``encoder``: keys and values of each layer
        """
        state = super().transform_encoder(encoder, axis=axis)
        if not rf.is_executing_eagerly():
            return state
        for name, layer in self.layers.items():
            state[name].cross_att = _heads_first(state[name].cross_att, module=layer.cross_att)
        return state


def _heads_first(state: rf.State, *, module: rf.CrossAttention) -> rf.State:
    """
    With all frames of a head together. The order of dims means nothing to us; but engines multiply matrices per head,
    and to bring keys and values together then would be a copy in each step.
    """
    order = [d for d in state.k.dims if d not in (state.kv_axis, module.num_heads, module.key_dim_per_head)]
    order += [module.num_heads, state.kv_axis]
    key_dim, value_dim = module.key_dim_per_head, module.value_dim_per_head
    keys, values = state.k.copy_transpose([*order, key_dim]), state.v.copy_transpose([*order, value_dim])
    # To transpose is but another view. What is concatenated is new in memory.
    both, _ = rf.concat((keys, key_dim), (values, value_dim), out_dim=module.kv_dim_per_head)
    keys, values = rf.split(both, axis=module.kv_dim_per_head, out_dims=(key_dim, value_dim))
    return rf.State(k=keys, v=values, kv_axis=state.kv_axis)
