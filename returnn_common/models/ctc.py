"""
CTC model (Graves et al. 2006): encoder, one linear layer to the labels and blank, optional heads inside the encoder.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .. import nn
from ..search import (
    Alignment,
    CtcBeamStream,
    CtcGreedyStream,
    CtcPrefixScorer,
    CtcPruning,
    Hypotheses,
    Scorer,
    SoftAlignment,
    ctc_align,
    ctc_beam_search,
    ctc_greedy_search,
    ctc_soft_align,
)
from .features import LogMel
from .hypothesis_parts import score_parts
from .specaugment import SpecAugment
from .speech import SpeechModel, check_layers, choose_front_end, device_of
from .streaming import EncoderStream, SpeechStream, check_encoder_streams

__all__ = ["CtcModel", "make_ctc_model"]


class CtcModel(SpeechModel):
    """
    Blank is the last label: index ``vocab_dim.dimension``.

    :param encoder: DESIGN's encoder contract: ``in_dim``, ``out_dim``, ``downsample_factor``
    :param vocab_dim: labels without blank
    :param features: raw audio to the encoder's input; None: the source is that input
    :param specaugment: on the encoder's input, in training; None: none
    :param aux_layers: further CTC heads on the outputs of these layers (1 is the first), each with its own linear layer
        (Lee and Watanabe 2021, https://arxiv.org/abs/2102.03216)
    :param aux_scale: of each of them
    """

    def __init__(
        self,
        *,
        encoder: nn.Encoder,
        vocab_dim: nn.Dim,
        features: LogMel | None,
        specaugment: SpecAugment | None = None,
        aux_layers: Sequence[int] = (),
        aux_scale: float = 0.3,
    ):
        super().__init__(features=features, specaugment=specaugment, encoder=encoder)
        self.vocab_dim = vocab_dim
        self.blank_index = vocab_dim.dimension
        self.labels_dim = nn.FeatureDim("labels-and-blank", vocab_dim.dimension + 1)
        self.output = nn.Linear(encoder.out_dim, self.labels_dim)
        self.aux_layers = tuple(aux_layers)
        self.aux_scale = aux_scale
        self.aux_outputs = nn.ModuleList([nn.Linear(encoder.out_dim, self.labels_dim) for _ in aux_layers])
        self.can_align = True

    def log_probs(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :return: log probabilities of labels and blank, ``{batch, time', labels + blank}``, and the dim time'
        """
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        return self._log_probs_of(encoded), spatial_dim

    def _log_probs_of(self, encoded: nn.Tensor) -> nn.Tensor:
        return nn.log_softmax(nn.cast(self.output(encoded), "float32"), axis=self.labels_dim)

    def align(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, labels: nn.Tensor, labels_spatial_dim: nn.Dim
    ) -> tuple[Alignment, nn.Dim]:
        """
        :param source: see :meth:`encode`
        :param labels: of ``vocab_dim``, ``{batch, labels}``, or with a beam as those of :class:`Hypotheses`
        :return: in which frames they are, see :func:`ctc_align`; and the frames' dim
        """
        log_probs, spatial_dim = self.log_probs(source, in_spatial_dim=in_spatial_dim)
        dims = {"spatial_dim": spatial_dim, "labels_spatial_dim": labels_spatial_dim}
        return ctc_align(log_probs, labels=labels, blank=self.blank_index, **dims), spatial_dim

    def soft_align(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, labels: nn.Tensor, labels_spatial_dim: nn.Dim
    ) -> tuple[SoftAlignment, nn.Dim]:
        """
        :param source: see :meth:`encode`
        :param labels: see :func:`align`
        :return: how probable each is in each frame, see :func:`ctc_soft_align`; and the frames' dim
        """
        log_probs, spatial_dim = self.log_probs(source, in_spatial_dim=in_spatial_dim)
        dims = {"spatial_dim": spatial_dim, "labels_spatial_dim": labels_spatial_dim}
        return ctc_soft_align(log_probs, labels=labels, blank=self.blank_index, **dims), spatial_dim

    def losses(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, targets: nn.Tensor, targets_spatial_dim: nn.Dim
    ) -> dict[str, nn.Loss]:
        """
        An utterance whose transcript needs more frames than there are costs nothing, has no gradient,
        and is counted in "impossible".

        :param source: see :meth:`encode`
        :param targets: label indices ``{batch, labels}``
        :return: "ctc", "ctc_LAYER" for each further head (per label, natural log; an empty transcript counts as one),
            "impossible" (share of the utterances)
        """
        collected = {} if self.aux_layers else None
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected)
        heads = [nn.CtcHead("ctc", self.output(encoded))]
        for layer, linear in zip(self.aux_layers, self.aux_outputs, strict=True):
            assert collected is not None
            heads.append(nn.CtcHead(f"ctc_{layer}", linear(collected[str(layer - 1)]), self.aux_scale))
        return nn.ctc_losses(
            heads,
            spatial_dim=spatial_dim,
            targets=targets,
            targets_spatial_dim=targets_spatial_dim,
            blank_index=self.blank_index,
        )

    def search(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        beam_size: int = 1,
        lm: Any = None,
        lm_scale: float = 0.0,
        bos: int | None = None,
        eos: int | None = None,
        recombine: str = "sum",
        pruning: Mapping[str, Any] | None = None,
    ) -> Hypotheses:
        """
        :param source: see :meth:`encode`
        :param beam_size: 1, without ``lm`` and ``pruning``: the best label of each frame; else prefix beam search
        :param lm: a scorer, see :func:`ctc_beam_search`, over the labels (without blank); None: none
        :param lm_scale: its weight; with 0, it is ignored
        :param bos: of the scorer, see :func:`ctc_beam_search`
        :param eos: of the scorer, see :func:`ctc_beam_search`
        :param recombine: what prefix beam search takes of a hypothesis' alignments, their "sum" or the best ("max");
            the best label of each frame (``beam_size`` 1 without ``lm``) is one alignment, and its score
        :param pruning: arguments of :class:`CtcPruning`, such as ``{"max_labels": 20}``; None: nothing is left out
        :return: labels of ``vocab_dim``
        :raises ValueError: for a scale, ``bos`` or ``eos`` without ``lm``, an ``lm`` with another vocabulary,
            a beam below 1, another ``recombine``, or what ``pruning`` doesn't have
        """
        log_probs, spatial_dim = self.log_probs(source, in_spatial_dim=in_spatial_dim)
        of_beam = {"beam_size": beam_size, "recombine": recombine, "pruning": pruning}
        options = self._search_options((lm, lm_scale, bos, eos), **of_beam)
        search = ctc_beam_search if "beam_size" in options else ctc_greedy_search
        return search(log_probs, spatial_dim=spatial_dim, **options)

    def stream(
        self,
        *,
        batch_dims: Sequence[nn.Dim],
        beam_size: int = 1,
        lm: Any = None,
        lm_scale: float = 0.0,
        bos: int | None = None,
        eos: int | None = None,
        recombine: str = "sum",
        pruning: Mapping[str, Any] | None = None,
    ) -> SpeechStream:
        """
        Recognition of utterances that come piece after piece. The arguments are those of :meth:`search`, except:

        :param batch_dims: of the utterances
        :return: what takes the pieces, and has the hypotheses at any time
        :raises ValueError: for an encoder that needs the whole utterance; and see :meth:`search`
        """
        encoder = check_encoder_streams("CtcModel", self.encoder)
        of_beam = {"beam_size": beam_size, "recombine": recombine, "pruning": pruning}
        options = self._search_options((lm, lm_scale, bos, eos), **of_beam)
        make = CtcBeamStream if "beam_size" in options else CtcGreedyStream
        return SpeechStream(
            EncoderStream(encoder, features=self.features, batch_dims=batch_dims),
            search=make(self.labels_dim, batch_dims=batch_dims, device=device_of(self), **options),
            to_frames=self._log_probs_of,
            device=device_of(self),
        )

    def _search_options(
        self,
        lm_options: tuple[Any, float, int | None, int | None],
        *,
        beam_size: int,
        recombine: str,
        pruning: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """:return: of the beam search, or, without "beam_size", of the greedy one"""
        options: dict[str, Any] = {"blank": self.blank_index, "vocab_dim": self.vocab_dim}
        if beam_size == 1 and recombine in ("sum", "max") and lm_options == (None, 0.0, None, None) and not pruning:
            return options
        lm, lm_scale, bos, eos = lm_options
        options.update(beam_size=beam_size, recombine=recombine, pruning=_pruning(pruning or {}))
        return {**options, "scorer": lm, "scorer_scale": lm_scale, "bos": bos, "eos": eos}

    def score_hypotheses(
        self,
        hypotheses: Hypotheses,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        lm: Scorer | None = None,
        bos: int | None = None,
        eos: int | None = None,
    ) -> dict[str, nn.Tensor]:
        """
        :param hypotheses: of :func:`search`
        :param source: from which they are
        :param lm: a scorer over the same labels; None: none
        :param bos: of ``lm``; None: behind the labels
        :param eos: of ``lm``; None: behind the labels
        :return: "ctc" and "lm", each ``{batch, beam}``, see :func:`.hypothesis_parts.score_parts`
        :raises ValueError: for an ``lm`` with fewer labels
        """
        log_probs, spatial_dim = self.log_probs(source, in_spatial_dim=in_spatial_dim)
        end = self.blank_index  # a label in its place; blank itself is none
        ctc = CtcPrefixScorer(log_probs, spatial_dim=spatial_dim, blank=self.blank_index, eos=end)
        lm_part = (lm, end if bos is None else bos, end if eos is None else eos)
        return score_parts(hypotheses, {"ctc": (ctc, end, end), "lm": lm_part})

    @property
    def part_names(self) -> tuple[str, ...]:
        """parts that :func:`score_hypotheses` gives without ``lm``"""
        return ("ctc",)

    def part_scales(self, *, lm_scale: float = 0.0) -> dict[str, float]:
        """
        The arguments are options of :func:`search`.

        :return: with which scale the search has each part of :func:`score_hypotheses`; and "length_exponent", by which
            it orders hypotheses, see :func:`returnn_common.recog.components.combine_scores`
        """
        return {"ctc": 1.0, "lm": lm_scale, "length_exponent": 0.0}


def _pruning(options: Mapping[str, Any]) -> CtcPruning:
    known = [field.name for field in dataclasses.fields(CtcPruning)]
    for name in options:
        if name not in known:
            raise ValueError(f"CtcModel: pruning, expected some of {', '.join(known)}, got {name!r}")
    return CtcPruning(**options)


def make_ctc_model(
    in_dim: int | nn.Dim | None,
    vocab_dim: int | nn.Dim,
    *,
    encoder: nn.Encoder | None = None,
    specaugment: str | SpecAugment | None = "LD",
    aux_layers: Sequence[int] = (),
) -> CtcModel:
    """
    :param in_dim: of the log-mels in the source; None: the source is raw audio, and the model computes 80 log-mels
        (or as many as the encoder takes)
    :param vocab_dim: labels without blank, which is added as the last one
    :param encoder: default: :func:`make_conformer_encoder`
    :param specaugment: policy by name, or a module; None: none
    :param aux_layers: encoder layers (1 is the first) with a CTC head of their own
    :raises ValueError: if the encoder takes another ``in_dim``, or has no such layer
    """
    vocab_dim = nn.as_dim(vocab_dim, name="labels")
    features, specaugment, encoder = choose_front_end(
        "make_ctc_model", in_dim, encoder=encoder, specaugment=specaugment
    )
    check_layers("make_ctc_model", encoder, aux_layers, last=False)
    return CtcModel(
        encoder=encoder,
        vocab_dim=vocab_dim,
        features=features,
        specaugment=specaugment,
        aux_layers=aux_layers,
    )
