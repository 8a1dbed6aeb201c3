"""
CTC as a scorer for label-synchronous search, so for joint decoding with CTC and attention.

Shape letters: B batch dims (with the beam, once there is one), T frames, V labels of the scorer.

Everything is a log probability. After its last frame, an utterance goes on with frames that are blank for certain,
one at least, which changes no probability.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ._common import IMPOSSIBLE, NEG, check_ctc_log_probs, check_index, finite, mask_of, plain, size_of

__all__ = ["CtcPrefixScorer"]

_SMALL = 1e-30  # a sum of products that is larger has lost nothing to float32's range
_ROUNDS_IN_GRAPH = 16  # of doubling, where the number of frames is not known: at most 2**16 - 1
_NOT_STARTED, _EMPTY = -2, -1  # last labels: before the first step, and of the empty prefix


class CtcPrefixScorer:
    """
    What CTC says about the next label, given those before it: the log of the ratio of two prefix probabilities. That of
    a prefix is the sum over all label sequences that begin with it. End of sentence: the prefix is the whole. So the
    scores of a label sequence and of its end sum up to the log of its CTC probability, over all alignments.

    Watanabe et al. 2017, https://doi.org/10.1109/JSTSP.2017.2763455, algorithm 2, for all labels at once, and without
    a loop over the frames: the probabilities of an extended prefix are a linear recurrence, solved by doubling (Hillis
    and Steele 1986, https://doi.org/10.1145/7902.7903), and the sum over the frames in which the next label can begin
    is a matrix product. In float32, that can miss frames of a label whose score is below -69: the score is too low
    then, and what it lacks comes with those that follow, so that the sum is as it should be.

    In a graph (TensorFlow), it takes at most 65535 frames.

    For :func:`beam_search` it is used in :func:`combine`, e.g. `combine([(decoder, 0.7), (ctc, 0.3)])`.

    :param log_probs: {batch, frames, labels and blank}, normalised. The latter is its feature dim, or its only static
        dim beside the batch dim
    :param spatial_dim: frames
    :param blank: index of blank
    :param eos: end of sentence, index in `vocab_dim`; may be that of blank, if there are as many labels. What CTC has
        for that label is not used.
    :param vocab_dim: V, e.g. that of the attention decoder: the labels of `log_probs`, or these without blank (the
        others in the same order). Default: that of `log_probs`
    :raise ValueError, TypeError: an argument that doesn't fit `log_probs`, or is out of range
    """

    can_exceed_zero = False

    def __init__(
        self, log_probs: nn.Tensor, *, spatial_dim: nn.Dim, blank: int, eos: int, vocab_dim: nn.Dim | None = None
    ):
        name = "CtcPrefixScorer"
        in_vocab_dim = check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
        size = size_of(in_vocab_dim)
        self.vocab_dim = in_vocab_dim if vocab_dim is None else vocab_dim
        if self.vocab_dim.dimension not in (size, size - 1):
            raise ValueError(
                f"{name}: vocab_dim, expected {size} labels, or {size - 1} without blank, got {self.vocab_dim}"
            )
        check_index(name, "eos", eos, self.vocab_dim)
        self.device = log_probs.device
        self.labels = labels = plain(nn.range_over_dim(self.vocab_dim, dtype="int32", device=self.device))
        self.is_eos = is_no_label = nn.compare(labels, "equal", eos)
        log_probs = finite(log_probs)
        log_prob_blank = nn.gather(log_probs, indices=blank, axis=in_vocab_dim)
        if self.vocab_dim.dimension == size:
            is_no_label = nn.logical_or(is_no_label, nn.compare(labels, "equal", blank))
        else:
            labels = labels + nn.cast(nn.compare(labels, "greater_equal", blank), "int32")
        if self.vocab_dim != in_vocab_dim:
            log_probs = nn.gather(log_probs, indices=labels, axis=in_vocab_dim)
        # Its lengths are not used: what is behind them counts like the frames before.
        self.frames_dim = spatial_dim + 1
        self.frames = plain(nn.range_over_dim(self.frames_dim, dtype="int32", device=self.device))
        self.last_frame = nn.reduce_max(self.frames, axis=self.frames_dim, use_mask=False)
        lengths = plain(spatial_dim.get_size_tensor(device=self.device))
        self.is_inside = nn.compare_bc(self.frames, "less", lengths)
        self.log_probs = nn.where(is_no_label, NEG, self._with_end(log_probs, spatial_dim, value=NEG))  # {batch, T, V}
        self.shifts = self._make_shifts()
        self.blank_decays = self._decays(self._with_end(log_prob_blank, spatial_dim, value=0.0))
        # Of each label, the best frame: {batch, V}, and what the others are next to it: {batch, T, V}
        self.best = nn.reduce_max(self.log_probs, axis=self.frames_dim, use_mask=False)
        self.best_frame = plain(nn.reduce_argmax(self.log_probs, axis=self.frames_dim, use_mask=False))
        self.relative_probs = nn.exp(self.log_probs - self.best)

    def _with_end(self, x: nn.Tensor, spatial_dim: nn.Dim, *, value: float) -> nn.Tensor:
        """:return: x, with that value after the end of each utterance"""
        x = nn.where(mask_of(spatial_dim, device=self.device), x, value)
        out_dims = [self.frames_dim]
        return nn.pad(
            x, axes=[spatial_dim], padding=[(0, 1)], out_dims=out_dims, value=value, handle_dynamic_dims=False
        )[0]

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> dict[str, nn.Tensor]:
        """
        :param batch_dims: B
        :return: of the empty prefix
        """
        dims = [*batch_dims, self.frames_dim]
        start = nn.where(nn.compare(self.frames, "equal", 0), 0.0, self._full(NEG, dims=dims))
        return {
            # {B, T}: the alignments of the prefix to the frames up to this one that end in its last label, or in blank
            "label": self._full(NEG, dims=dims),
            "blank": self._solve(self.blank_decays, arriving=start),
            "last": nn.constant(_NOT_STARTED, dims=batch_dims, dtype="int32", device=self.device),
            # {B, V}: log probs of the prefixes that are one label longer, and of the whole
            "extended": self._full(0.0, dims=[*batch_dims, self.vocab_dim]),
        }

    def score(self, prev_labels: nn.Tensor, state: dict[str, nn.Tensor]) -> tuple[nn.Tensor, dict[str, nn.Tensor]]:
        """
        :param prev_labels: {B}; at the first step, it is not used
        :param state: of the step before
        :return: log_probs {B, V}, and the new state
        """
        last = plain(prev_labels)
        prefix = nn.gather(state["extended"], indices=last, axis=self.vocab_dim)
        in_label, in_blank = self._extend(state, last)
        is_first = nn.compare(state["last"], "equal", _NOT_STARTED)
        state = {
            "label": nn.where(is_first, state["label"], in_label),
            "blank": nn.where(is_first, state["blank"], in_blank),
            "last": nn.where(is_first, _EMPTY, last),
        }
        prefix = nn.where(is_first, 0.0, prefix)
        state["extended"] = extended = self._extended(state)
        possible = nn.logical_and(extended > IMPOSSIBLE, prefix > IMPOSSIBLE)
        return nn.where(possible, extended - prefix, float("-inf")), state

    def _extend(self, state: dict[str, nn.Tensor], label: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """
        :param label: {B}
        :return: "label" and "blank" of the prefix with that label, see `initial_state`
        """
        # A label twice in a row has a blank in between.
        repeats = nn.compare(state["last"], "equal", label)
        before = nn.where(repeats, state["blank"], nn.log_add_exp(state["label"], state["blank"]))
        log_probs = nn.gather(self.log_probs, indices=label, axis=self.vocab_dim)
        in_label = self._solve(self._decays(log_probs), arriving=self._before(before, state["last"]))
        in_blank = self._solve(self.blank_decays, arriving=self._shift(in_label, self.shifts[0], value=NEG))
        return in_label, in_blank

    def _extended(self, state: dict[str, nn.Tensor]) -> nn.Tensor:
        """
        :return: {B, V}, log probs of the prefixes that are one label longer, summed over the frame in which that label
            begins; in the place of `eos`, that of the prefix as the whole
        """
        last, blank = state["last"], state["blank"]
        before = self._before(nn.log_add_exp(state["label"], blank), last)
        before = nn.where(self.is_inside, before, NEG)
        peak = nn.reduce_max(before, axis=self.frames_dim, use_mask=False)
        peak_frame = plain(nn.reduce_argmax(before, axis=self.frames_dim, use_mask=False))
        products = nn.matmul(nn.exp(before - peak), self.relative_probs, reduce=self.frames_dim, use_mask=False)
        logs = nn.combine_bc(nn.log(nn.maximum(products, _SMALL)) + peak, "+", self.best)
        # Of sums too small for float32: the largest term, if it is in the frame that is best for prefix or label
        at_peak = nn.gather(self.log_probs, indices=peak_frame, axis=self.frames_dim) + peak
        at_best = nn.combine_bc(nn.gather(before, indices=self.best_frame, axis=self.frames_dim), "+", self.best)
        extended = nn.where(products > _SMALL, logs, nn.combine(at_peak, "maximum", at_best))
        repeated = nn.gather(self.log_probs, indices=nn.relu(last), axis=self.vocab_dim) + self._before(blank, last)
        repeated = nn.reduce_logsumexp(repeated, axis=self.frames_dim, use_mask=False)
        whole = nn.gather(blank, indices=self.last_frame, axis=self.frames_dim)
        # With V, for the net dict
        repeated, whole = (nn.combine_bc(x, "+", self.best * 0.0) for x in (repeated, whole))
        extended = nn.where(nn.compare_bc(last, "equal", self.labels), repeated, extended)
        return nn.maximum(nn.where(self.is_eos, whole, extended), NEG)

    def _before(self, x: nn.Tensor, last: nn.Tensor) -> nn.Tensor:
        """
        :param x: {B, T}, of a prefix up to each frame
        :param last: {B}, its last label
        :return: {B, T}, up to the frame before: before the first one, there is the empty prefix, for certain
        """
        start = nn.where(nn.compare(last, "equal", _EMPTY), 0.0, self._full(NEG, dims=last.dims))
        return nn.where(nn.compare(self.frames, "equal", 0), start, self._shift(x, self.shifts[0], value=NEG))

    def _solve(self, decays: Sequence[nn.Tensor], *, arriving: nn.Tensor) -> nn.Tensor:
        """
        :param decays: of a label or blank
        :param arriving: {B, T}, what each frame is reached from
        :return: x {B, T}: x[t] = log_probs[t] + log(exp(x[t - 1]) + exp(arriving[t])), x[-1] = NEG
        """
        x = nn.combine_bc(decays[0], "+", arriving)  # what has arrived within 1, 2, 4, ... frames
        for shift, decay in zip(self.shifts, decays, strict=True):
            x = nn.log_add_exp(x, self._shift(x, shift, value=NEG) + decay)
        return nn.maximum(x, NEG)

    def _decays(self, log_probs: nn.Tensor) -> list[nn.Tensor]:
        """:return: sums over 1, 2, 4, ... frames up to each, as many as there are shifts"""
        decays = [log_probs]
        for shift in self.shifts[:-1]:
            decays.append(decays[-1] + self._shift(decays[-1], shift, value=0.0))
        return decays

    def _make_shifts(self) -> list[tuple[nn.Tensor, nn.Tensor]]:
        """:return: for `_shift`, by 1, 2, 4, ... frames"""
        num = _ROUNDS_IN_GRAPH
        if nn.is_executing_eagerly():
            num_frames = nn.convert_to_tensor(self.frames_dim.get_dim_value_tensor())
            num = max(1, (int(num_frames.raw_tensor) - 1).bit_length())
        sources = [self.frames - 2**i for i in range(num)]
        return [(nn.relu(source), nn.compare(source, "greater_equal", 0)) for source in sources]

    def _shift(self, x: nn.Tensor, shift: tuple[nn.Tensor, nn.Tensor], *, value: float) -> nn.Tensor:
        """:return: x from some frames before, `value` where there is none"""
        source, is_there = shift
        return nn.where(is_there, nn.gather(x, indices=source, axis=self.frames_dim), value)

    def _full(self, value: float, *, dims: Sequence[nn.Dim]) -> nn.Tensor:
        return nn.constant(value, dims=dims, dtype="float32", device=self.device)
