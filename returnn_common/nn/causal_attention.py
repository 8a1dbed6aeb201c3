"""
Causal self-attention, over a whole sequence or step by step, alike on every engine and inside its loops.

Differs from :class:`returnn.frontend.CausalSelfAttention` (and ``RotaryPosCausalSelfAttention``) in the mask, written
out where RETURNN's doesn't build (net dict), and in the state: RETURNN's appends a frame behind each sequence's last
one, which fails or gives zeros on some engines when the lengths differ; here it goes into a slot of its own that all
sequences share, and a mask says which slots count. Parameter names and numbers are RETURNN's.

In a beam search, hypotheses of an utterance have most of their frames in common. So there can be one pool of slots for
all of them (:mod:`._beam_slots`): then only the mask depends on the hypothesis, and no keys and values are reordered.

Shapes: slots is the time of the keys in the state; heads, d: attention heads, and the features of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.frontend.attention import dot_attention
from returnn.tensor import Dim, Tensor, single_step_dim

from . import _beam_slots
from .rotary import rotate

__all__ = ["CausalSelfAttention"]

_MASKED = -1e30  # finite: it survives bfloat16, and its gradient is 0, not NaN


class CausalSelfAttention(rf.CausalSelfAttention):
    """
    Each frame attends to itself and those before it (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762,
    section 3.2.3).

    :param in_dim: of the source; the further arguments are RETURNN's
    :param proj_dim: of the output
    :param key_dim_total: of all heads together, a multiple of ``num_heads``
    :param value_dim_total: likewise
    :param num_heads:
    :param rotary: turn queries and keys by their positions, see :mod:`.rotary`
    :param att_dropout: of the attention weights
    """

    def __init__(
        self,
        in_dim: Dim,
        proj_dim: Dim | None,
        *,
        key_dim_total: Dim,
        value_dim_total: Dim,
        num_heads: int | Dim,
        rotary: bool = False,
        att_dropout: float = 0.1,
    ):
        super().__init__(
            in_dim,
            proj_dim,
            key_dim_total=key_dim_total,
            value_dim_total=value_dim_total,
            num_heads=num_heads,
            att_dropout=att_dropout,
            att_dropout_broadcast=False,
        )
        self.rotary = rotary

    def default_initial_state(
        self, *, batch_dims: Sequence[Dim], capacity: int | Tensor | None = None, beam_dim: Dim | None = None
    ) -> rf.State:
        """
        :param batch_dims:
        :param capacity: number of steps at most, int or scalar on the CPU. With it, no shape ever changes, as compiled
            loops of JAX and those of the net dict need it; without it, the state grows, and contains the dim that does.
        :param beam_dim: one of batch_dims, hypotheses of the same utterance, which then share their slots. For single
            steps with an engine that is eager; not with ``capacity``, which has precedence.
        :return: ``k_accum``, ``v_accum`` ``{batch, slots, heads, d}``; ``valid`` ``{slots}``: 1 for a slot that counts;
            ``pos`` ``{}``: number of frames so far. Both may get batch dims: hypotheses with other numbers of frames
        """
        if capacity is None and beam_dim is not None:
            return _beam_slots.initial_state(self, batch_dims=batch_dims, beam_dim=beam_dim)
        # Without capacity, there is one slot that never counts: dims of size 0 don't work everywhere.
        slots = Dim(1 if capacity is None else capacity, name="self-att-slots")
        state = rf.State(
            k_accum=rf.zeros([*batch_dims, slots, self.num_heads, self.key_dim_per_head]),
            v_accum=rf.zeros([*batch_dims, slots, self.num_heads, self.value_dim_per_head]),
            valid=rf.zeros([slots]),
            pos=rf.zeros((), dtype="int32"),
        )
        if capacity is None:
            state.accum_axis = slots
        return state

    def __call__(self, source: Tensor, axis: Dim, *, state: rf.State) -> tuple[Tensor, rf.State]:
        """
        :param source: ``{batch, time, in_dim}``; one step: ``{batch, in_dim}``
        :param axis: time, or ``nn.single_step_dim``
        :param state: of :meth:`default_initial_state`, or for one step of the call before
        :return: ``{batch, time, proj_dim}`` or ``{batch, proj_dim}``; new state.
            After a whole sequence, single steps may follow, but no other sequence.
        :raises ValueError: if one does
        """
        queries, keys, values = self.forward_qkv(source)
        if axis != single_step_dim:
            return self._whole(queries, keys, values, axis=axis, state=state)
        if self.rotary:
            queries, keys = self._rotate(queries, keys, positions=state.pos)
        if _beam_slots.is_shared(state):
            new_state = _beam_slots.append(state, keys, values)
            return self._project(_beam_slots.attend(self, queries, new_state)), new_state
        new_state = _append(state, keys, values)
        slots = new_state.accum_axis if "accum_axis" in new_state else _fixed_slots(new_state)
        out = self._attend(queries, new_state.k_accum, new_state.v_accum, mask=new_state.valid, axis=slots)
        return out, new_state

    def _whole(self, queries: Tensor, keys: Tensor, values: Tensor, *, axis: Dim, state: rf.State):
        if _beam_slots.is_shared(state):
            started = state.new.dimension + state.old.dimension > 2
        else:
            started = len(state.valid.dims) > 1 or "accum_axis" in state and state.accum_axis.dimension != 1
        if started:
            raise ValueError(f"CausalSelfAttention: a sequence can't follow on other frames, got the state {state}")
        if self.rotary:
            positions = rf.range_over_dim(axis, device=queries.device)
            queries, keys = self._rotate(queries, keys, positions=positions)
        if rf.get_selected_backend() == "returnn_layers_tf":
            mask, key_axis = _causal_mask(axis)
            keys_, values_ = (rf.replace_dim(x, in_dim=axis, out_dim=key_axis)[0] for x in (keys, values))
            out = self._attend(queries, keys_, values_, mask=mask, axis=key_axis)
        else:  # the engine's own kernel
            attended = dot_attention(
                queries,
                keys,
                values,
                key_dim=self.key_dim_per_head,
                axis=axis,
                att_dropout=self.att_dropout,
                att_dropout_broadcast=self.att_dropout_broadcast,
                causal_query_spatial_dim=axis,
            )
            out = self._project(attended)
        return out, _state_of_sequence(keys, values, axis=axis)

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor, axis: Dim) -> Tensor:
        """:param mask: 1 where a key counts, else 0"""
        energies = rf.matmul(queries * self.key_dim_per_head.dimension**-0.5, keys, reduce=self.key_dim_per_head)
        energies = rf.where(mask > 0.5, energies, _MASKED)
        weights = rf.softmax(energies, axis=axis)
        weights = rf.dropout(weights, self.att_dropout)
        return self._project(rf.matmul(weights, values, reduce=axis, use_mask=False))

    def _rotate(self, queries: Tensor, keys: Tensor, *, positions: Tensor) -> tuple[Tensor, Tensor]:
        dim = self.key_dim_per_head
        return rotate(queries, positions=positions, feature_dim=dim), rotate(keys, positions=positions, feature_dim=dim)

    def _project(self, attended: Tensor) -> Tensor:
        out, _ = rf.merge_dims(attended, dims=(self.num_heads, self.value_dim_per_head), out_dim=self.value_dim_total)
        return self.proj(out) if self.proj is not None else out


def _causal_mask(axis: Dim) -> tuple[Tensor, Dim]:
    """:return: ``{axis, keys}``, 1 for a key that is not after the query; keys: another dim of the same lengths"""
    keys = Dim(None, name=f"{axis.name}-keys")
    positions = rf.range_over_dim(axis)
    key_positions, _ = rf.replace_dim(positions, in_dim=axis, out_dim=keys)
    mask = rf.compare(key_positions, "<=", positions, allow_broadcast_all_sources=True)
    return rf.cast(mask, "float32"), keys


def _state_of_sequence(keys: Tensor, values: Tensor, *, axis: Dim) -> rf.State:
    """The slots are the frames of the longest sequence; those of the padding don't count."""
    if axis.is_static():
        slots = Dim(axis.get_dim_value(), name="self-att-slots")
    else:
        slots = Dim(axis.get_dim_value_tensor(), name="self-att-slots")
    sizes = axis.get_size_tensor(device=keys.device)
    positions = rf.range_over_dim(slots, device=keys.device)
    return rf.State(
        k_accum=rf.replace_dim_v2(keys, in_dim=axis, out_dim=slots),
        v_accum=rf.replace_dim_v2(values, in_dim=axis, out_dim=slots),
        valid=rf.cast(rf.compare(positions, "<", sizes, allow_broadcast_all_sources=True), "float32"),
        pos=sizes,
        accum_axis=slots,
    )


def _append(state: rf.State, keys: Tensor, values: Tensor) -> rf.State:
    """:return: state with one more frame, in a slot of its own"""
    if "accum_axis" in state:
        new = Dim(1, name="new-slot")
        slots = state.accum_axis + 1

        def _concat(before: Tensor, frame: Tensor) -> Tensor:
            frame = rf.expand_dim(frame, dim=new)
            return rf.concat((before, state.accum_axis), (frame, new), out_dim=slots, allow_broadcast=True)[0]

        valid = _concat(state.valid, rf.ones(()))
        keys, values = _concat(state.k_accum, keys), _concat(state.v_accum, values)
        return rf.State(k_accum=keys, v_accum=values, valid=valid, pos=state.pos + 1, accum_axis=slots)
    positions = rf.range_over_dim(_fixed_slots(state), device=keys.device)
    here = rf.compare(positions, "==", state.pos, allow_broadcast_all_sources=True)
    keys, values = rf.where(here, keys, state.k_accum), rf.where(here, values, state.v_accum)
    valid = rf.where(here, 1.0, state.valid)
    return rf.State(k_accum=keys, v_accum=values, valid=valid, pos=state.pos + 1)


def _fixed_slots(state: rf.State) -> Dim:
    """With a capacity. A search in which hypotheses wait for each other gives ``valid`` and ``pos`` its own dims."""
    (slots,) = (d for d in state.valid.dims if d not in state.pos.dims)
    return slots
