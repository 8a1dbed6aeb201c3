"""
Causal self-attention in a beam search, step by step: one pool of slots for all hypotheses of an utterance.

Each step adds one slot per hypothesis; a mask says which of them are a hypothesis' own history, as in the attention
over a tree of continuations of Cai et al. 2024 (https://arxiv.org/abs/2401.10774, section 3.1). To select hypotheses
selects from the mask alone: keys and values don't have the beam dim. Now and then, the slots that no hypothesis needs
any more are dropped. As hypotheses in a beam soon have the same beginning, not many more remain than there were steps.
Until then, the new slots stay apart from the older ones, which so are not copied in each step.

Shapes: old, new: slots from before and after slots were dropped last; slots: both, old ones first; heads, d: attention
heads, and the features of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

__all__ = ["append", "attend", "initial_state", "is_shared"]

_MASKED = -1e30  # finite: it survives bfloat16, and its gradient is 0, not NaN
_STEPS_BETWEEN = 16  # old slots are copied only once in so many steps; masked ones cost as much as others


def initial_state(module: rf.CausalSelfAttention, *, batch_dims: Sequence[Dim], beam_dim: Dim) -> rf.State:
    """
    :param module: says which heads, and of which size
    :param batch_dims: with the beam
    :param beam_dim: static
    :return: ``old_keys``, ``old_values`` ``{batch, heads, old, d}`` and ``new_keys``, ``new_values``
        ``{batch, heads, new, d}``; ``mask`` ``{batch, beam, slots}``: added to the scores of the slots, 0 for one that
        counts, else very negative; ``pos`` ``{}``: number of frames so far; ``old``, ``new``, ``slots``: static dims
    :raises ValueError: if the beam is none of the batch dims
    """
    if beam_dim not in batch_dims:
        raise ValueError(f"CausalSelfAttention: expected beam_dim among batch_dims {list(batch_dims)}, got {beam_dim}")
    # Each part begins with a slot that never counts: dims of size 0 don't work everywhere.
    old, new, slots = _dim("old", 1), _dim("new", 1), _dim("slots", 2)
    batch_dims = [d for d in batch_dims if d != beam_dim]
    before = [*batch_dims, module.num_heads]
    return rf.State(
        old_keys=rf.zeros([*before, old, module.key_dim_per_head]),
        old_values=rf.zeros([*before, old, module.value_dim_per_head]),
        new_keys=rf.zeros([*before, new, module.key_dim_per_head]),
        new_values=rf.zeros([*before, new, module.value_dim_per_head]),
        mask=rf.zeros([*batch_dims, beam_dim, slots]) + _MASKED,
        pos=rf.zeros((), dtype="int32"),
        old=old,
        new=new,
        slots=slots,
    )


def is_shared(state: rf.State) -> bool:
    """:return: whether the state is of :func:`initial_state`"""
    return "slots" in state


def append(state: rf.State, keys: Tensor, values: Tensor) -> rf.State:
    """
    :param state: hypotheses selected or not
    :param keys: ``{batch, beam, heads, d}``, the new frame of each hypothesis
    :param values: likewise
    :return: state with these frames
    """
    (beam,) = (d for d in state.mask.dims if d not in state.old_keys.dims and d != state.slots)
    if _size(state.new) > _STEPS_BETWEEN * _size(beam):
        state = _drop_unused(state, beam=beam)
    frames = _dim("frames", _size(beam))
    own, others = (rf.range_over_dim(d, device=keys.device) for d in (beam, frames))
    is_own = rf.cast(rf.compare(own, "==", others, allow_broadcast_all_sources=True), state.mask.dtype)
    mask = (1.0 - is_own) * _MASKED
    new, slots = _dim("new", _size(state.new) + _size(beam)), _dim("slots", _size(state.slots) + _size(beam))
    keys, values = (rf.replace_dim(x, in_dim=beam, out_dim=frames)[0] for x in (keys, values))
    return rf.State(
        {
            **state,
            "new_keys": rf.concat((state.new_keys, state.new), (keys, frames), out_dim=new)[0],
            "new_values": rf.concat((state.new_values, state.new), (values, frames), out_dim=new)[0],
            "mask": rf.concat((state.mask, state.slots), (mask, frames), out_dim=slots, allow_broadcast=True)[0],
            "pos": state.pos + 1,
            "new": new,
            "slots": slots,
        }
    )


def attend(module: rf.CausalSelfAttention, queries: Tensor, state: rf.State) -> Tensor:
    """
    :param module: of which heads, and their dropout
    :param queries: ``{batch, beam, heads, d}``
    :param state: with the frame of the queries
    :return: ``{batch, beam, heads, d}``
    """
    features = module.key_dim_per_head
    queries = queries * features.dimension**-0.5
    old = rf.matmul(queries, state.old_keys, reduce=features)
    new = rf.matmul(queries, state.new_keys, reduce=features)
    energies, _ = rf.concat((old, state.old), (new, state.new), out_dim=state.slots)
    weights = rf.softmax(energies + state.mask, axis=state.slots)
    weights = rf.dropout(weights, module.att_dropout)
    old, new = rf.split(weights, axis=state.slots, out_dims=(state.old, state.new))
    attended = rf.matmul(old, state.old_values, reduce=state.old, use_mask=False)
    return attended + rf.matmul(new, state.new_values, reduce=state.new, use_mask=False)


def _drop_unused(state: rf.State, *, beam: Dim) -> rf.State:
    """:return: with old slots alone, as many as the utterance needs that needs the most"""
    slots = state.slots
    used = rf.cast(rf.reduce_max(state.mask, axis=beam) > -1.0, "float32")
    most = rf.reduce_sum(used, axis=slots)
    most = rf.reduce_max(most, axis=most.dims) if most.dims else most
    old = _dim("old", max(1, int(rf.copy_to_device(most, "cpu").raw_tensor)))
    # The used ones in their order, then others, which no hypothesis sees.
    position = rf.range_over_dim(slots, dtype="float32", device=used.device) / float(_size(slots))
    _, order, _ = rf.top_k(used * 2.0 - position, axis=slots, k_dim=old)
    new, kept = _dim("new", 1), _dim("slots", _size(old) + 1)

    def _gather(before: Tensor, after: Tensor) -> Tensor:
        both, _ = rf.concat((before, state.old), (after, state.new), out_dim=slots)
        return rf.gather(both, indices=order, axis=slots)

    def _nothing(x: Tensor) -> Tensor:
        return rf.zeros([new if d == state.new else d for d in x.dims], dtype=x.dtype, device=x.device)

    mask = rf.gather(state.mask, indices=order, axis=slots)
    none = rf.zeros([new if d == old else d for d in mask.dims], dtype=mask.dtype, device=mask.device) + _MASKED
    return rf.State(
        old_keys=_gather(state.old_keys, state.new_keys),
        old_values=_gather(state.old_values, state.new_values),
        new_keys=_nothing(state.new_keys),
        new_values=_nothing(state.new_values),
        mask=rf.concat((mask, old), (none, new), out_dim=kept)[0],
        pos=state.pos,
        old=old,
        new=new,
        slots=kept,
    )


def _dim(name: str, size: int) -> Dim:
    return Dim(size, name=f"self-att-{name}")


def _size(dim: Dim) -> int:
    assert dim.dimension is not None
    return dim.dimension
