"""
Forced alignment with a CTC model: in which frames the labels of a given sequence are.

Shape letters: B batch dims (of the log probs), D further dims of the labels, such as a beam, T frames, V labels with
blank, L labels of the sequence, U = L + 1 prefixes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import nn
from ._common import IMPOSSIBLE, NEG, check_ctc_log_probs, finite, log, plain, type_name

__all__ = ["Alignment", "ctc_align"]


@dataclass
class Alignment:
    """
    The best path of each label sequence, of CTC or a transducer. Frames count from 0.

    :param path: {B, D, T}, int32: for each frame the position in the sequence of the label that is there; -1 for blank
    :param starts: {B, D, L}, int32, first frame of each label
    :param ends: {B, D, L}, int32, the frame behind its last one; blanks that follow are not part of it
    :param frame_scores: {B, D, T}, log prob of what the path has in each frame
    :param scores: {B, D}, natural log, of the path: the sum of `frame_scores`. -inf where there is no path, since the
        labels (and a blank between each two equal ones) are more than the frames, or all paths have the log prob -inf:
        then `path` is all blank, `starts` and `ends` are 0, and `frame_scores` are those of blank.
    :param label_scores: {B, D, L}, natural log of the mean probability that each label has in its frames; 0 where there
        is no path
    """

    path: nn.Tensor
    starts: nn.Tensor
    ends: nn.Tensor
    frame_scores: nn.Tensor
    scores: nn.Tensor
    label_scores: nn.Tensor


def ctc_align(
    log_probs: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    labels: nn.Tensor,
    labels_spatial_dim: nn.Dim,
    blank: int,
) -> Alignment:
    """
    The path with the highest probability among those which give the labels: Viterbi over the CTC topology
    (Graves et al. 2006, "Connectionist Temporal Classification", section 4.1, with the maximum for the sum; as
    Kürzinger et al. 2020, https://arxiv.org/abs/2007.09127, section 2.1, use it, but from the first frame to the last).

    :param log_probs: {B, T, V}. V is its feature dim, or its only static dim beside the batch dim
    :param spatial_dim: T
    :param labels: {B, D, L}, indices of V, or of V without its last label, blank. None of them is blank.
        For :class:`Hypotheses`, D is their beam: each gets its alignment. Empty sequences are all blank.
    :param labels_spatial_dim: L
    :param blank: index of blank in V
    :return: of each label sequence
    :raise ValueError, TypeError: an argument that doesn't fit `log_probs`
    """
    name = "ctc_align"
    vocab_dim = check_ctc_log_probs(name, log_probs, spatial_dim=spatial_dim, blank=blank)
    batch_dims = [d for d in log_probs.dims if d not in (spatial_dim, vocab_dim)]
    check_labels(name, labels, labels_spatial_dim, batch_dims=batch_dims, vocab_dim=vocab_dim, blank=blank)
    aligner = _Aligner(
        log_probs=finite(log_probs),
        spatial_dim=spatial_dim,
        vocab_dim=vocab_dim,
        blank=blank,
        labels=labels,
        labels_spatial_dim=labels_spatial_dim,
        dims=[*batch_dims, *(d for d in labels.dims if d not in (*batch_dims, labels_spatial_dim))],
    )
    return aligner.run()


@dataclass
class _Aligner:
    """
    See :func:`ctc_align`, which checks the arguments.

    For each prefix u of the labels, there are two states: its last label, and a blank behind that. As in a net dict
    integers need care, positions and choices are floats.
    """

    log_probs: nn.Tensor
    spatial_dim: nn.Dim
    vocab_dim: nn.Dim
    blank: int
    labels: nn.Tensor
    labels_spatial_dim: nn.Dim
    dims: list[nn.Dim]

    def __post_init__(self):
        device = self.device = self.log_probs.device
        longest = nn.cast(nn.convert_to_tensor(self.labels_spatial_dim.get_dim_value_tensor()), "int32")
        self.prefix_dim = nn.Dim(nn.copy_to_device(longest, "cpu") + 1, name="prefixes")
        indices = plain(nn.range_over_dim(self.prefix_dim, dtype="int32", device=device))
        self.prefixes = nn.cast(indices, "float32")
        self.before = nn.relu(indices - 1)
        lengths = nn.cast(self.labels_spatial_dim.get_size_tensor(device=device), "float32")
        self.lengths = nn.combine_bc(self._full(0.0), "+", lengths)
        # Label of each prefix; the empty one has none.
        padded, (padded_dim,) = nn.pad(
            plain(self.labels), axes=[self.labels_spatial_dim], padding=[(1, 0)], value=0, handle_dynamic_dims=False
        )
        self.last = nn.gather(padded, indices=indices, axis=padded_dim)  # {B, D, U}
        if self.labels_spatial_dim.need_masking():  # behind the labels, there can be anything
            self.last = nn.where(nn.compare_bc(self.prefixes, "less_equal", self.lengths), self.last, 0)
        # To be added to the scores of what may not go on. All dims in one order: loops in a net dict need that.
        closed = self._full(0.0, self.prefix_dim)
        self.is_empty = closed + nn.where(self.prefixes < 0.5, NEG, 0.0)
        repeated = nn.compare(self.last, "equal", self._shifted(self.last))
        self.is_empty_or_repeated = closed + nn.where(nn.logical_or(repeated, self.prefixes < 0.5), NEG, 0.0)

    def _full(self, value: float, *dims: nn.Dim) -> nn.Tensor:
        return nn.constant(value, dims=[*self.dims, *dims], dtype="float32", device=self.device)

    def _shifted(self, x: nn.Tensor) -> nn.Tensor:
        """:return: that of the prefix one shorter; the empty prefix gets its own"""
        return nn.gather(x, indices=self.before, axis=self.prefix_dim)

    def run(self) -> Alignment:
        log_probs = self.log_probs
        start = {
            "blank": NEG - self.is_empty,  # only the empty prefix, before the first frame
            "label": self._full(NEG, self.prefix_dim),
        }
        template = nn.Tensor("choice", dims=[*self.dims, self.prefix_dim], dtype="float32")
        choices, end = nn.scan_over(
            self.spatial_dim,
            lambda x, state: self._forward(x, state),  # scan_over takes no methods
            xs=log_probs,
            initial=start,
            ys=template,
            may_repeat=True,
        )
        blank, label = (
            nn.gather(end[k], indices=plain(self.lengths), axis=self.prefix_dim) for k in ("blank", "label")
        )
        scores = nn.combine(blank, "maximum", label)
        possible = scores > IMPOSSIBLE
        path, starts, ends, sums = self._backward(
            choices,
            prefix=nn.where(possible, self.lengths, 0.0),
            in_label=nn.where(nn.logical_and(possible, label > blank), self._full(1.0), 0.0),
        )
        path = plain(path)
        spoken = nn.gather(self.last, indices=path + 1, axis=self.prefix_dim)
        spoken = nn.where(path < 0, self.blank, spoken)
        frame_scores = nn.gather(log_probs, indices=spoken, axis=self.vocab_dim)
        mean = log(sums) - log(ends - starts)
        return Alignment(
            path=path,
            starts=self._of_labels(starts),
            ends=self._of_labels(ends),
            frame_scores=nn.where(frame_scores > IMPOSSIBLE, frame_scores, float("-inf")),
            scores=nn.where(possible, scores, float("-inf")),
            label_scores=self._of_labels(nn.where(ends > 0.5, mean, 0.0), "float32"),
        )

    def _forward(self, log_probs: nn.Tensor, state: dict[str, Any]) -> tuple[nn.Tensor, dict[str, Any]]:
        """
        :param log_probs: {B, V}, of this frame
        :param state: score of the best path to each state {B, D, U}
        :return: from where these paths come {B, D, U}: to the label, 0 from itself, 1 the blank before, 2 the label
            before; and 3 more where the path to blank comes from the label, not from blank; and the new state
        """
        blank, label = state["blank"], state["label"]
        before = self.is_empty + self._shifted(blank)
        skipped = self.is_empty_or_repeated + self._shifted(label)
        entering = nn.combine(before, "maximum", skipped)
        choice = nn.where(entering > label, nn.cast(skipped > before, "float32") + 1.0, 0.0)
        choice += nn.cast(label > blank, "float32") * 3.0
        # Not by maximum, but by what was chosen: in a net dict, the choice is then computed in the loop, as it must.
        new_blank = nn.where(choice > 2.5, label, blank)
        new_label = nn.combine(label, "maximum", entering)
        log_prob_blank = nn.gather(log_probs, indices=self.blank, axis=self.vocab_dim)
        log_prob_label = nn.gather(log_probs, indices=self.last, axis=self.vocab_dim)
        # The sums stay finite.
        return choice, {
            "blank": nn.maximum(nn.combine_bc(new_blank, "+", log_prob_blank), NEG),
            "label": nn.maximum(nn.combine_bc(new_label, "+", log_prob_label), NEG),
        }

    def _backward(
        self, choices: nn.Tensor, *, prefix: nn.Tensor, in_label: nn.Tensor
    ) -> tuple[nn.Tensor, nn.Tensor, nn.Tensor, nn.Tensor]:
        """
        :param choices: of :meth:`_forward` {B, D, T, U}
        :param prefix: of the last state {B, D}
        :param in_label: of the last state {B, D}, 1 if it is that of a label, 0 if it is blank
        :return: path {B, D, T}; start and end of each prefix's label, and its probabilities' sum {B, D, U}
        """

        def body(xs: tuple[nn.Tensor, nn.Tensor], state: dict[str, Any]) -> tuple[nn.Tensor, dict[str, Any]]:
            choices, log_probs = xs
            prefix, in_label, end = state["prefix"], state["in_label"], state["end"]  # end: of this frame
            here = nn.logical_and(nn.compare_bc(self.prefixes, "equal", prefix), in_label > 0.5)
            choice = nn.gather(choices, indices=plain(prefix), axis=self.prefix_dim)
            from_label = nn.cast(choice > 2.5, "float32")
            choice -= from_label * 3.0
            path = prefix * in_label - 1.0
            log_prob = nn.gather(log_probs, indices=self.last, axis=self.vocab_dim)
            return path, {
                "prefix": prefix - in_label * nn.cast(choice > 0.5, "float32"),
                "in_label": nn.where(
                    in_label > 0.5, nn.cast(nn.compare(choice, "not_equal", 1.0), "float32"), from_label
                ),
                "starts": nn.where(here, end - 1.0, state["starts"]),
                "ends": nn.where(nn.logical_and(here, state["ends"] < 0.5), end, state["ends"]),
                "sums": state["sums"] + nn.where(here, nn.exp(log_prob), 0.0),
                "end": end - 1.0,
            }

        sizes = nn.cast(self.spatial_dim.get_size_tensor(device=self.device), "float32")
        initial = {
            "prefix": prefix,
            "in_label": in_label,
            "starts": self._full(0.0, self.prefix_dim),
            "ends": self._full(0.0, self.prefix_dim),
            "sums": self._full(0.0, self.prefix_dim),
            "end": nn.combine_bc(self._full(0.0), "+", sizes),
        }
        template = nn.Tensor("path", dims=self.dims, dtype="float32")
        xs = tuple(nn.reverse_sequence(x, axis=self.spatial_dim) for x in (choices, self.log_probs))
        path, first = nn.scan_over(self.spatial_dim, body, xs=xs, initial=initial, ys=template, may_repeat=True)
        path = nn.reverse_sequence(path, axis=self.spatial_dim)
        return path, first["starts"], first["ends"], first["sums"]

    def _of_labels(self, x: nn.Tensor, dtype: str = "int32") -> nn.Tensor:
        """:param x: {B, D, U}, :return: {B, D, L}, 0 behind each sequence's end"""
        positions = plain(nn.range_over_dim(self.labels_spatial_dim, dtype="int32", device=self.device))
        x = nn.gather(x, indices=positions + 1, axis=self.prefix_dim)
        inside = nn.compare_bc(nn.cast(positions, "float32"), "less", self.lengths)
        return nn.cast(nn.where(inside, x, 0.0), dtype)


def check_labels(
    name: str, labels: nn.Tensor, spatial_dim: nn.Dim, *, batch_dims: Sequence[nn.Dim], vocab_dim: nn.Dim, blank: int
):
    if not isinstance(labels, nn.Tensor):
        raise TypeError(f"{name}: labels, expected a Tensor, got {type_name(labels)}")
    if spatial_dim not in labels.dims or not set(batch_dims) <= set(labels.dims):
        raise ValueError(f"{name}: labels, expected a tensor with {[*batch_dims, spatial_dim]}, got {labels}")
    size = vocab_dim.dimension or 0
    sizes = [size, size - 1] if blank == size - 1 else [size]
    if labels.sparse_dim is None or labels.sparse_dim.dimension not in sizes:
        expected = " or ".join(str(n) for n in sizes)
        raise ValueError(f"{name}: labels, expected indices of {expected} labels, got {labels}")
