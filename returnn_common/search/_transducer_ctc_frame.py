"""
A frame of the beam search for transducers of the topology "ctc".

Differs from `_transducer_beam.py` in that a label may go on in the next frame, so that there must be a blank between
two equal ones. So each hypothesis has two scores, of its alignments that end in blank and in its last label, as in
`_ctc_prefix_beam.py`.

Shape letters: B batch dims, K beam, V labels with blank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import nn
from ._common import IMPOSSIBLE, NEG

if TYPE_CHECKING:
    from ._transducer_beam import TransducerBeamSearch

__all__ = ["ctc_frame"]


def ctc_frame(
    beam: TransducerBeamSearch, encoded: nn.Tensor, is_frame: nn.Tensor, state: dict[str, Any]
) -> dict[str, Any]:
    """
    :param beam: what extends the hypotheses
    :param encoded: {B, features}, of this frame
    :param is_frame: {B}, whether there is one
    :param state: of the hypotheses up to the frame before; with "blank_score" and "label_score" {B, K}, whose sum is
        "score"
    :return: of the best K hypotheses up to this frame
    """
    slots, tail, known = beam.slots(), beam._tail(state), state["known"]
    log_probs = beam._log_probs(encoded, is_frame, known["predicted"])
    last = tail[0]
    stay_blank = state["score"] + nn.gather(log_probs, indices=beam.blank, axis=beam.vocab_dim)
    stay_label = state["label_score"] + nn.gather(log_probs, indices=nn.relu(last), axis=beam.vocab_dim)
    # Behind the end, all stays as it is: frames can follow.
    stay_blank = nn.where(is_frame, stay_blank, state["blank_score"])
    stay_label = nn.where(is_frame, stay_label, state["label_score"])
    is_last = nn.compare_bc(beam.label_range, "equal", last)
    start = nn.where(is_last, state["blank_score"], state["score"], allow_broadcast_all_sources=True)
    level = {"score": start, "length": state["length"], "origin": slots, "tail": tail}
    extended, source, label = beam._extend(level, log_probs, known)
    entered = extended["score"]
    if beam.is_greedy:
        stay_label = nn.where(stay_label > stay_blank, stay_label, NEG)
        stay = nn.combine(stay_blank, "maximum", stay_label)
        entered = nn.where(entered > stay, entered, NEG)
        stay_label = nn.where(entered > IMPOSSIBLE, NEG, stay_label)
        is_over = nn.logical_or(entered > IMPOSSIBLE, stay_label > IMPOSSIBLE)
        stay_blank = nn.where(is_over, NEG, stay_blank)
    ended = beam._as_ended(level, beam._add(stay_blank, stay_label), 0, slots)
    new = beam._as_ended(extended, entered, 1, slots)
    arriving, is_double = beam.arrivals(ended, new, beam._starts_same(state["history"]))
    stay_label = beam._add(stay_label, arriving)
    new_score = nn.where(is_double, NEG, new["score"])
    scores, take = beam._best_of_both(beam._add(stay_blank, stay_label), new_score)
    joined: dict[str, Any] = {name: take(ended[name], new[name]) for name in ("length", "origin", "level", "slot")}
    joined["score"] = nn.where(scores > IMPOSSIBLE, scores, NEG)
    joined["tail"] = [take(a, b) for a, b in zip(ended["tail"], new["tail"], strict=True)]
    after = beam._known_after(known, source=source, label=label)
    blank_score, label_score = take(stay_blank, nn.zeros_like(new_score) + NEG), take(stay_label, new_score)
    return {
        **beam._next_state(state, joined, [known, after]),
        "blank_score": nn.where(blank_score > IMPOSSIBLE, blank_score, NEG),
        "label_score": nn.where(label_score > IMPOSSIBLE, label_score, NEG),
    }
