"""
The attention-based encoder-decoder as a module: losses, search, alignment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import nn
from ..search import (
    Alignment,
    DecoderScorer,
    Hypotheses,
    Scorer,
    SoftAlignment,
    beam_search,
    combine,
    ctc_align,
    ctc_soft_align,
)
from .features import LogMel
from .hypothesis_parts import score_parts
from .joint_search import (
    JointSearch,
    check_internal_lm,
    check_time_sync,
    decoder_internal_lm,
    subtract_internal_lm,
)
from .specaugment import SpecAugment
from .speech import SpeechModel, last_ctc_log_probs

__all__ = ["AedModel"]


class AedModel(SpeechModel):
    """
    The decoder's vocabulary is that of the targets, or has one label more, the last: begin and end of sentence.
    Blank is the last label of the CTC heads: index ``vocab_dim.dimension``.

    :param encoder: DESIGN's encoder contract: ``in_dim``, ``out_dim``, ``downsample_factor``
    :param decoder: :class:`returnn_common.nn.Decoder`
    :param vocab_dim: of the targets
    :param bos: index of the begin of sentence in the decoder's vocabulary
    :param eos: index of the end of sentence there; may equal ``bos``
    :param features: raw audio to the encoder's input; None: the source is that input
    :param specaugment: on the encoder's input, in training; None: none
    :param aux_ctc_layers: CTC heads on the outputs of these layers of the encoder (1 is the first)
    :param aux_ctc_scale: of the loss of each of them; the decoder's has 1
    :param label_smoothing: of the decoder's loss, see :func:`returnn_common.nn.smoothed_cross_entropy`
    :param label_noise: in what the decoder gets, see :func:`returnn_common.nn.decoder_losses`
    """

    def __init__(
        self,
        *,
        encoder: nn.Encoder,
        decoder: nn.Decoder,
        vocab_dim: nn.Dim,
        bos: int,
        eos: int,
        features: LogMel | None = None,
        specaugment: SpecAugment | None = None,
        aux_ctc_layers: Sequence[int] = (),
        aux_ctc_scale: float = 0.3,
        label_smoothing: float = 0.1,
        label_noise: float = 0.0,
    ):
        super().__init__(features=features, specaugment=specaugment, encoder=encoder)
        self.decoder = decoder
        self.vocab_dim = vocab_dim
        self.bos = bos
        self.eos = eos
        self.blank_index = vocab_dim.dimension
        self.labels_dim = nn.FeatureDim("labels-and-blank", vocab_dim.dimension + 1)
        self.aux_ctc_layers = tuple(aux_ctc_layers)
        self.aux_ctc_scale = aux_ctc_scale
        self.aux_ctc_outputs = nn.ModuleList([nn.Linear(encoder.out_dim, self.labels_dim) for _ in aux_ctc_layers])
        self.label_smoothing = label_smoothing
        self.label_noise = label_noise
        self.can_align = bool(self.aux_ctc_layers)

    def losses(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, targets: nn.Tensor, targets_spatial_dim: nn.Dim
    ) -> dict[str, nn.Loss]:
        """
        :param source: see :meth:`encode`
        :param targets: label indices ``{batch, labels}``, without begin and end of sentence
        :return: "ce" and "fer", see :func:`returnn_common.nn.decoder_losses`; with CTC heads, "ctc_LAYER" for each of
            them, and "impossible", see :func:`returnn_common.nn.ctc_losses`
        """
        collected = {} if self.aux_ctc_layers else None
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected)
        losses = nn.decoder_losses(
            self.decoder,
            self.decoder.transform_encoder(encoded, axis=spatial_dim),
            targets=nn.set_sparse_dim(targets, self.decoder.vocab_dim),
            targets_spatial_dim=targets_spatial_dim,
            bos=self.bos,
            eos=self.eos,
            label_smoothing=self.label_smoothing,
            label_noise=self.label_noise,
        )
        if collected is None:
            return losses
        heads = zip(self.aux_ctc_layers, self.aux_ctc_outputs, strict=True)
        return {
            **losses,
            **nn.ctc_losses(
                [nn.CtcHead(f"ctc_{i}", linear(collected[str(i - 1)]), self.aux_ctc_scale) for i, linear in heads],
                spatial_dim=spatial_dim,
                targets=targets,
                targets_spatial_dim=targets_spatial_dim,
                blank_index=self.blank_index,
            ),
        }

    def ctc_log_probs(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: see :meth:`encode`
        :return: log probabilities of the CTC head on the last one of its layers, ``{batch, time', labels + blank}``,
            and the dim time'
        :raises ValueError: if there is no CTC head
        """
        _, spatial_dim, log_probs = self._encode_with_ctc(source, in_spatial_dim=in_spatial_dim)
        return log_probs, spatial_dim

    def _encode_with_ctc(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim, nn.Tensor]:
        """:return: as of :func:`encode`, and of :func:`ctc_log_probs`"""
        if not self.aux_ctc_layers:
            raise ValueError("AedModel: expected aux_ctc_layers, for there is no CTC head")
        collected: dict[str, nn.Tensor] = {}
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected)
        log_probs = last_ctc_log_probs(collected, layers=self.aux_ctc_layers, outputs=self.aux_ctc_outputs)
        return encoded, spatial_dim, log_probs

    def align(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, labels: nn.Tensor, labels_spatial_dim: nn.Dim
    ) -> tuple[Alignment, nn.Dim]:
        """
        By the CTC head on the last one of its layers; attention says little about when something is spoken.

        :param source: see :meth:`encode`
        :param labels: of ``vocab_dim``, ``{batch, labels}``, or with a beam as those of :class:`Hypotheses`
        :return: in which frames they are, see :func:`ctc_align`; and the frames' dim
        :raises ValueError: if there is no CTC head
        """
        log_probs, spatial_dim = self.ctc_log_probs(source, in_spatial_dim=in_spatial_dim)
        dims = {"spatial_dim": spatial_dim, "labels_spatial_dim": labels_spatial_dim}
        return ctc_align(log_probs, labels=labels, blank=self.blank_index, **dims), spatial_dim

    def soft_align(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, labels: nn.Tensor, labels_spatial_dim: nn.Dim
    ) -> tuple[SoftAlignment, nn.Dim]:
        """
        By the CTC head as well.

        :param source: see :meth:`encode`
        :param labels: see :func:`align`
        :return: how probable each is in each frame, see :func:`ctc_soft_align`; and the frames' dim
        :raises ValueError: if there is no CTC head
        """
        log_probs, spatial_dim = self.ctc_log_probs(source, in_spatial_dim=in_spatial_dim)
        dims = {"spatial_dim": spatial_dim, "labels_spatial_dim": labels_spatial_dim}
        return ctc_soft_align(log_probs, labels=labels, blank=self.blank_index, **dims), spatial_dim

    def search(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        beam_size: int = 12,
        ctc_scale: float = 0.0,
        time_sync: bool = False,
        lm: Any = None,
        lm_scale: float = 0.0,
        internal_lm: str = "zero",
        internal_lm_scale: float = 0.0,
        length_exponent: float | None = None,
        min_len: int | None = None,
        max_len: int | nn.Tensor | None = None,
        num_best: int | None = None,
    ) -> Hypotheses:
        """
        Scores are `(1 - ctc_scale) * decoder + ctc_scale * CTC + lm_scale * lm - internal_lm_scale * internal_lm`,
        each a log prob, see :mod:`.joint_search`.

        :param source: see :meth:`encode`
        :param beam_size: see :func:`beam_search`
        :param ctc_scale: 0 to 1, share of the CTC head that :func:`ctc_log_probs` takes
        :param time_sync: False: hypotheses grow label by label (:func:`beam_search`, with CTC's prefix probabilities).
            True: frame by frame (:func:`ctc_beam_search`, with the decoder as its scorer)
        :param lm: a scorer over the decoder's labels, with the same begin and end of sentence
        :param lm_scale: its weight
        :param internal_lm: what the decoder gets for the encoder's output, to tell what it knows about labels without
            it: "zero", or the "average" over the time
        :param internal_lm_scale: its weight (Variani et al. 2020, https://arxiv.org/abs/2003.07705; Zeineldeen et al.
            2021, https://arxiv.org/abs/2104.05544)
        :param length_exponent: see :func:`beam_search`. None: 1 without CTC, 0 with it, which punishes a wrong length
        :param min_len: see :func:`beam_search`; None: 0
        :param max_len: labels at most, see :func:`beam_search`; None: as many as the encoder has frames
        :param num_best: hypotheses, at most ``beam_size``, which is the default; label by label, fewer are found in
            fewer steps
        :return: labels of ``vocab_dim``
        :raises ValueError: for a scale without ``lm`` or CTC head, or what is out of range, an ``lm`` with another
            vocabulary, or what ``time_sync`` has no use for
        """
        if lm is None and lm_scale:
            raise ValueError(f"AedModel: expected an lm for lm_scale {lm_scale}")
        if time_sync:
            lengths = {"length_exponent": length_exponent, "min_len": min_len, "max_len": max_len}
            check_time_sync("AedModel", ctc_scale=ctc_scale, **lengths)
        _check_ctc_scale(ctc_scale)
        check_internal_lm("AedModel", context=internal_lm, scale=internal_lm_scale)
        joint, encoded = self._joint_search(source, in_spatial_dim=in_spatial_dim, with_ctc=bool(ctc_scale))
        if internal_lm_scale:
            internal = self._internal_lm(encoded, joint.spatial_dim, context=internal_lm)
            lm, lm_scale = subtract_internal_lm(lm, lm_scale, internal, scale=internal_lm_scale)
        if time_sync:
            found = joint.search_frames(beam_size=beam_size, ctc_scale=ctc_scale, lm=lm, lm_scale=lm_scale)
            found = found.first(beam_size if num_best is None else num_best)
        else:
            scorer = joint.scorer(ctc_scale=ctc_scale)
            found = beam_search(
                combine([(scorer, 1.0), (lm, lm_scale)]) if lm_scale else scorer,
                batch_dims=self._batch_dims(encoded, joint.spatial_dim),
                beam_size=beam_size,
                max_len=joint.spatial_dim.get_size_tensor(device=source.device) if max_len is None else max_len,
                bos=self.bos,
                eos=self.eos,
                length_exponent=float(not ctc_scale) if length_exponent is None else length_exponent,
                min_len=0 if min_len is None else min_len,
                num_best=num_best,
            )
        # The end of sentence is never in a hypothesis.
        return dataclasses.replace(found, labels=nn.set_sparse_dim(found.labels, self.vocab_dim))

    def score_hypotheses(
        self,
        hypotheses: Hypotheses,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        lm: Scorer | None = None,
        bos: int | None = None,
        eos: int | None = None,
        internal_lm: str | None = None,
    ) -> dict[str, nn.Tensor]:
        """
        :param hypotheses: of :func:`search`
        :param source: from which they are
        :param lm: a scorer over the same labels; None: none
        :param bos: of ``lm``; None: the model's
        :param eos: of ``lm``; None: the model's
        :param internal_lm: see :func:`search`; None: it is no part
        :return: "decoder", with CTC heads "ctc" (the one of :func:`ctc_log_probs`), "internal_lm" and "lm", each
            ``{batch, beam}``, see :func:`.hypothesis_parts.score_parts`
        :raises ValueError: for an ``lm`` with fewer labels, or another ``internal_lm``
        """
        joint, encoded = self._joint_search(source, in_spatial_dim=in_spatial_dim, with_ctc=bool(self.aux_ctc_layers))
        scorers: dict[str, tuple[Scorer | None, int, int]] = {"decoder": (joint.decoder, self.bos, self.eos)}
        if self.aux_ctc_layers:
            scorers["ctc"] = (joint.ctc_scorer(), self.bos, self.eos)
        if internal_lm is not None:
            check_internal_lm("AedModel", context=internal_lm)
            internal = self._internal_lm(encoded, joint.spatial_dim, context=internal_lm)
            scorers["internal_lm"] = (internal, self.bos, self.eos)
        scorers["lm"] = (lm, self.bos if bos is None else bos, self.eos if eos is None else eos)
        return score_parts(hypotheses, scorers)

    @property
    def part_names(self) -> tuple[str, ...]:
        """parts that :func:`score_hypotheses` gives without ``lm``"""
        return ("decoder", *(["ctc"] if self.aux_ctc_layers else []))

    def part_scales(
        self,
        *,
        ctc_scale: float = 0.0,
        lm_scale: float = 0.0,
        internal_lm_scale: float = 0.0,
        length_exponent: float | None = None,
    ) -> dict[str, float]:
        """
        The arguments are options of :func:`search`.

        :return: with which scale the search has each part of :func:`score_hypotheses`; and "length_exponent", by which
            it orders hypotheses, see :func:`returnn_common.recog.components.combine_scores`
        :raises ValueError: for a ``ctc_scale`` out of range
        """
        _check_ctc_scale(ctc_scale)
        exponent = float(not ctc_scale) if length_exponent is None else length_exponent
        internal = {"internal_lm": -internal_lm_scale} if internal_lm_scale else {}
        return {"decoder": 1.0 - ctc_scale, "ctc": ctc_scale, "lm": lm_scale, **internal, "length_exponent": exponent}

    def scorer(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, ctc_scale: float = 0.0) -> tuple[Scorer, nn.Dim]:
        """
        What :func:`search` gives to :func:`beam_search`, e.g. for the :func:`combine` of several models.

        :param source: see :meth:`encode`
        :param ctc_scale: see :func:`search`
        :return: scorer over the decoder's labels for these utterances, and the encoder's time
        """
        _check_ctc_scale(ctc_scale)
        joint, _ = self._joint_search(source, in_spatial_dim=in_spatial_dim, with_ctc=bool(ctc_scale))
        return joint.scorer(ctc_scale=ctc_scale), joint.spatial_dim

    def _joint_search(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, with_ctc: bool
    ) -> tuple[JointSearch, nn.Tensor]:
        """:return: and the encoder's output"""
        log_probs = None
        if with_ctc:
            encoded, spatial_dim, log_probs = self._encode_with_ctc(source, in_spatial_dim=in_spatial_dim)
        else:
            encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        joint = JointSearch(
            decoder=DecoderScorer(self.decoder, encoder=self.decoder.transform_encoder(encoded, axis=spatial_dim)),
            log_probs=log_probs,
            vocab_dim=self.labels_dim,
            spatial_dim=spatial_dim,
            blank=self.blank_index,
            bos=self.bos,
            eos=self.eos,
        )
        return joint, encoded

    def _batch_dims(self, encoded: nn.Tensor, spatial_dim: nn.Dim) -> list[nn.Dim]:
        return encoded.remaining_dims([spatial_dim, self.encoder.out_dim])

    def _internal_lm(self, encoded: nn.Tensor, spatial_dim: nn.Dim, *, context: str) -> DecoderScorer:
        dims = {"spatial_dim": spatial_dim, "encoder_dim": self.encoder.out_dim}
        return decoder_internal_lm(self.decoder, encoded, **dims, context=context)


def _check_ctc_scale(ctc_scale: float):
    if not 0.0 <= ctc_scale <= 1.0:
        raise ValueError(f"AedModel: ctc_scale, expected 0 to 1, got {ctc_scale}")
