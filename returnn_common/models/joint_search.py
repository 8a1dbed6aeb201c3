"""
Joint search with an attention decoder and CTC (Watanabe et al. 2017, https://doi.org/10.1109/JSTSP.2017.2763455,
"Joint decoding"): the score of a label sequence is `(1 - ctc_scale) * decoder + ctc_scale * CTC + lm_scale * lm`,
each a log prob. What has scale 0 is ignored.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from .. import nn
from ..search import (
    CtcPrefixScorer,
    DecoderScorer,
    Hypotheses,
    Scorer,
    average_context,
    combine,
    ctc_beam_search,
    internal_lm,
    zero_context,
)

__all__ = ["JointSearch", "check_internal_lm", "check_time_sync", "decoder_internal_lm", "subtract_internal_lm"]


@dataclass(frozen=True)
class JointSearch:
    """
    What there is for the search in some utterances.

    :param decoder: over the labels of log_probs, or these without blank
    :param log_probs: of CTC, ``{batch, time, labels and blank}``; None: the decoder alone
    :param vocab_dim: labels and blank
    :param spatial_dim: time
    :param blank: index of blank
    :param bos: begin of sentence, index in the decoder's vocabulary; may be that of blank
    :param eos: end of sentence; likewise
    """

    decoder: Scorer
    log_probs: nn.Tensor | None
    vocab_dim: nn.Dim
    spatial_dim: nn.Dim
    blank: int
    bos: int
    eos: int

    def scorer(self, *, ctc_scale: float) -> Scorer:
        """
        For a search label by label, without language model.

        :param ctc_scale: 0 to 1
        :return: scorer over the decoder's vocabulary
        """
        if not ctc_scale:
            return self.decoder
        return combine([(self.decoder, 1.0 - ctc_scale), (self.ctc_scorer(), ctc_scale)])

    def ctc_scorer(self) -> CtcPrefixScorer:
        """:return: CTC alone, over the decoder's vocabulary"""
        assert self.log_probs is not None
        return CtcPrefixScorer(
            self.log_probs,
            spatial_dim=self.spatial_dim,
            blank=self.blank,
            eos=self.eos,
            vocab_dim=self.decoder.vocab_dim,
        )

    def search_frames(self, *, beam_size: int, ctc_scale: float, lm: Scorer | None, lm_scale: float) -> Hypotheses:
        """
        Frame by frame: hypotheses in the beam stand for the same frames, with any number of labels.

        :param beam_size: see :func:`ctc_beam_search`
        :param ctc_scale: above 0, at most 1
        :param lm: over the decoder's vocabulary
        :param lm_scale: its weight
        """
        log_probs = self.log_probs
        assert log_probs is not None
        # What may be a label for CTC, but is none
        labels = nn.range_over_dim(self.vocab_dim, dtype="int32", device=log_probs.device)
        for index in {self.bos, self.eos} - {self.blank}:
            log_probs = nn.where(nn.compare(labels, "equal", index), float("-inf"), log_probs)
        scorers = [(self.decoder, 1.0 - ctc_scale)]
        if lm is not None and lm_scale:
            scorers.append((lm, lm_scale))
        kwargs: dict[str, Any] = {}
        if any(scale for _, scale in scorers):
            # Over the alignments, probabilities are summed as they are: in there, CTC has scale 1.
            kwargs = {"scorer": combine(scorers), "scorer_scale": 1.0 / ctc_scale, "bos": self.bos, "eos": self.eos}
        found = ctc_beam_search(
            log_probs, spatial_dim=self.spatial_dim, blank=self.blank, beam_size=beam_size, **kwargs
        )
        return dataclasses.replace(found, scores=found.scores * ctc_scale)


def decoder_internal_lm(
    decoder: nn.Decoder, encoded: nn.Tensor, *, spatial_dim: nn.Dim, encoder_dim: nn.Dim, context: str
) -> DecoderScorer:
    """
    :param decoder: that attends
    :param encoded: ``{batch, time, encoder_dim}``
    :param spatial_dim: time
    :param encoder_dim: of the encoder's output
    :param context: what the decoder gets in its place: "zero", or "average" over the time, see :func:`zero_context` and
        :func:`average_context`
    :return: what the decoder knows about labels without hearing anything
    """
    if context == "zero":
        return internal_lm(decoder, zero_context(encoder_dim))
    average = average_context(encoded, spatial_dim=spatial_dim)
    average.feature_dim = encoder_dim
    return internal_lm(decoder, average)


def check_internal_lm(owner: str, *, context: str, scale: float = 0.0) -> None:
    """
    :param owner: for the message
    :param context: see :func:`decoder_internal_lm`
    :param scale: of what is subtracted
    :raises ValueError: for another context, or a scale that is not a number of at least 0
    """
    if context not in ("zero", "average"):
        raise ValueError(f"{owner}: internal_lm, expected 'zero' or 'average', got {context!r}")
    if not 0.0 <= scale < math.inf:
        raise ValueError(f"{owner}: internal_lm_scale, expected a number of at least 0, got {scale}")


def subtract_internal_lm(
    lm: Scorer | None, lm_scale: float, internal: DecoderScorer, *, scale: float
) -> tuple[Scorer, float]:
    """
    :param lm: to add; None: none
    :param lm_scale: its weight
    :param internal: to subtract
    :param scale: its weight
    :return: both, and their weight
    """
    return combine([*([] if lm is None else [(lm, lm_scale)]), (internal, -scale)]), 1.0


def check_time_sync(owner: str, *, ctc_scale: float, **lengths: Any) -> None:
    """
    :param owner: for the message
    :param ctc_scale: of a search frame by frame
    :param lengths: by the names of options about the length
    :raises ValueError: for a scale of 0, or a length that is not None
    """
    if not ctc_scale:
        raise ValueError(f"{owner}: time_sync, expected a ctc_scale above 0, got {ctc_scale}")
    for name, value in lengths.items():
        if value is not None:
            raise ValueError(f"{owner}: {name}, expected None with time_sync, where CTC says how long, got {value}")
