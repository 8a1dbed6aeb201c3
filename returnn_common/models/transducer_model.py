"""
The transducer as a module: losses, search, alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import nn
from ..nn.labels import with_bos_eos
from ..search import (
    Alignment,
    Hypotheses,
    Scorer,
    SoftAlignment,
    TransducerBeamStream,
    TransducerGreedyStream,
    TransducerLmScorer,
    ctc_align,
    ctc_soft_align,
)
from .decoder.separate_blank import with_separate_blank
from .decoder.transducer import Joiner, LSTMPredictor, StatelessPredictor
from .features import LogMel
from .hypothesis_parts import score_parts
from .specaugment import SpecAugment
from .speech import SpeechModel, device_of, last_ctc_log_probs
from .streaming import EncoderStream, SpeechStream, check_encoder_streams
from .transducer_labels import KnownLabels
from .transducer_search import search_encoded, search_options

__all__ = ["TransducerModel"]

TOPOLOGIES = ("rnnt", "monotonic", "ctc")


class TransducerModel(SpeechModel):
    """
    Blank is the last label: index ``vocab_dim.dimension``. The same index is the start of the sentence for the
    predictor.

    :param encoder: DESIGN's encoder contract: ``in_dim``, ``out_dim``, ``downsample_factor``
    :param predictor: see ``models/decoder/transducer.py``
    :param joiner: see there
    :param vocab_dim: labels without blank
    :param features: raw audio to the encoder's input; None: the source is that input
    :param specaugment: on the encoder's input, in training; None: none
    :param topology: "rnnt", "monotonic" or "ctc", see :class:`returnn_common.nn.TransducerTargets`
    :param fast_emission: see there
    :param separate_blank: blank gets its probability by a sigmoid of its own, the labels share the rest by a softmax:
        see :func:`.decoder.separate_blank.with_separate_blank`
    :param aux_ctc_layers: CTC heads on the outputs of these layers of the encoder (1 is the first)
    :param aux_ctc_scale: of the loss of each of them; the transducer's has 1
    :param frames_per_block: for how many frames at once the loss has the logits, see
        :func:`returnn_common.nn.joint_transducer_loss`; None: all, which is faster and takes more memory
    :raises ValueError: for another topology
    """

    def __init__(
        self,
        *,
        encoder: nn.Encoder,
        predictor: LSTMPredictor | StatelessPredictor,
        joiner: Joiner,
        vocab_dim: nn.Dim,
        features: LogMel | None = None,
        specaugment: SpecAugment | None = None,
        topology: str = "rnnt",
        fast_emission: float = 0.0,
        separate_blank: bool = False,
        aux_ctc_layers: Sequence[int] = (),
        aux_ctc_scale: float = 0.3,
        frames_per_block: int | None = None,
    ):
        super().__init__(features=features, specaugment=specaugment, encoder=encoder)
        if topology not in TOPOLOGIES:
            raise ValueError(f"TransducerModel: expected topology as one of {', '.join(TOPOLOGIES)}, got {topology!r}")
        self.predictor = predictor
        self.joiner = joiner
        self.vocab_dim = vocab_dim
        self.labels_dim = joiner.labels_dim
        self.blank_index = joiner.labels_dim.dimension - 1
        self.topology = topology
        self.fast_emission = fast_emission
        self.separate_blank = separate_blank
        self.aux_ctc_layers = tuple(aux_ctc_layers)
        self.aux_ctc_scale = aux_ctc_scale
        self.frames_per_block = frames_per_block
        self.can_align = True
        self.aux_ctc_outputs = nn.ModuleList([nn.Linear(encoder.out_dim, self.labels_dim) for _ in aux_ctc_layers])

    def losses(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, targets: nn.Tensor, targets_spatial_dim: nn.Dim
    ) -> dict[str, nn.Loss]:
        """
        An utterance without an alignment (no frames; "monotonic": fewer frames than labels) costs nothing, has no
        gradient, and is counted in "impossible".

        :param source: see :meth:`encode`
        :param targets: label indices ``{batch, labels}``
        :return: "transducer" and "impossible", see :func:`returnn_common.nn.transducer_losses`; with CTC heads,
            "ctc_LAYER" for each of them, see :func:`returnn_common.nn.ctc_losses`
        """
        collected = {} if self.aux_ctc_layers else None
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected)
        losses = self._know(targets, targets_spatial_dim, encoded=encoded, spatial_dim=spatial_dim).losses()
        if collected is None:
            return losses
        heads = zip(self.aux_ctc_layers, self.aux_ctc_outputs, strict=True)
        ctc = nn.ctc_losses(
            [nn.CtcHead(f"ctc_{i}", linear(collected[str(i - 1)]), self.aux_ctc_scale) for i, linear in heads],
            spatial_dim=spatial_dim,
            targets=targets,
            targets_spatial_dim=targets_spatial_dim,
            blank_index=self.blank_index,
        )
        return {**ctc, **losses}

    def _know(
        self, labels: nn.Tensor, labels_spatial_dim: nn.Dim, *, encoded: nn.Tensor, spatial_dim: nn.Dim
    ) -> KnownLabels:
        start = self.blank_index
        previous, _, positions_dim = with_bos_eos(
            nn.set_sparse_dim(labels, self.predictor.in_dim), spatial_dim=labels_spatial_dim, bos=start, eos=start
        )
        state = self.predictor.default_initial_state(batch_dims=labels.remaining_dims(labels_spatial_dim))
        predicted, _ = self.predictor(previous, spatial_dim=positions_dim, state=state)
        targets = nn.TransducerTargets(
            targets=nn.set_sparse_dim(labels, self.labels_dim),
            input_spatial_dim=spatial_dim,
            targets_spatial_dim=labels_spatial_dim,
            blank_index=self.blank_index,
            topology=self.topology,
            fast_emission=self.fast_emission,
        )
        return KnownLabels(self.join, encoded, predicted, targets, self.frames_per_block)

    def ctc_log_probs(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Dim]:
        """
        :param source: see :meth:`encode`
        :return: log probabilities of the CTC head on the last one of its layers, ``{batch, time', labels + blank}``,
            and the dim time'
        :raises ValueError: if there is no CTC head
        """
        if not self.aux_ctc_layers:
            raise ValueError("TransducerModel: expected aux_ctc_layers, for there is no CTC head")
        collected: dict[str, nn.Tensor] = {}
        _, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim, collected_outputs=collected)
        log_probs = last_ctc_log_probs(collected, layers=self.aux_ctc_layers, outputs=self.aux_ctc_outputs)
        return log_probs, spatial_dim

    def align(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        labels: nn.Tensor,
        labels_spatial_dim: nn.Dim,
        use_ctc: bool = False,
    ) -> tuple[Alignment, nn.Dim]:
        """
        :param source: see :meth:`encode`
        :param labels: of ``vocab_dim``, ``{batch, labels}``, or with a beam as those of :class:`Hypotheses`
        :param use_ctc: by the CTC head that :func:`ctc_log_probs` takes; a transducer may emit labels late
        :return: in which frames they are, see :func:`transducer_align` or :func:`ctc_align`; and the frames' dim
        :raises ValueError: if there is no CTC head to use
        """
        if use_ctc:
            log_probs, spatial_dim = self.ctc_log_probs(source, in_spatial_dim=in_spatial_dim)
            dims = {"spatial_dim": spatial_dim, "labels_spatial_dim": labels_spatial_dim}
            return ctc_align(log_probs, labels=labels, blank=self.blank_index, **dims), spatial_dim
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        return self._know(labels, labels_spatial_dim, encoded=encoded, spatial_dim=spatial_dim).align(), spatial_dim

    def soft_align(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        labels: nn.Tensor,
        labels_spatial_dim: nn.Dim,
        use_ctc: bool = False,
    ) -> tuple[SoftAlignment, nn.Dim]:
        """
        :param source: see :func:`align`, also for the others
        :return: how probable each is in each frame, see :func:`transducer_soft_align` or :func:`ctc_soft_align`; and
            the frames' dim
        :raises ValueError: see there
        """
        if use_ctc:
            log_probs, spatial_dim = self.ctc_log_probs(source, in_spatial_dim=in_spatial_dim)
            dims = {"spatial_dim": spatial_dim, "labels_spatial_dim": labels_spatial_dim}
            return ctc_soft_align(log_probs, labels=labels, blank=self.blank_index, **dims), spatial_dim
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        known = self._know(labels, labels_spatial_dim, encoded=encoded, spatial_dim=spatial_dim)
        return known.soft_align(), spatial_dim

    # What the searches need, see :class:`returnn_common.search.Transducer`.

    def initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """
        :param batch_dims: of the hypotheses
        :return: the predictor's
        """
        return self.predictor.default_initial_state(batch_dims=batch_dims)

    def predict(self, prev_labels: nn.Tensor, state: nn.State) -> tuple[nn.Tensor, nn.State]:
        """
        :param prev_labels: ``{batch}`` over ``labels_dim``, at first blank
        :param state: of :meth:`initial_state`, or of the call before
        :return: the predictor's output ``{batch, features}``, new state
        """
        prev_labels = nn.set_sparse_dim(prev_labels, self.predictor.in_dim)
        return self.predictor(prev_labels, spatial_dim=nn.single_step_dim, state=state)

    def join(self, encoded: nn.Tensor, predicted: nn.Tensor) -> nn.Tensor:
        """
        :param encoded: ``{batch, time, features}``
        :param predicted: ``{batch, positions, features}``
        :return: unnormalised ``{batch, time, positions, labels and blank}``; their softmax is the model's, also with
            ``separate_blank``
        """
        logits = self.joiner(encoded, predicted)
        if not self.separate_blank:
            return logits
        return with_separate_blank(logits, labels_dim=self.labels_dim, blank=self.blank_index)

    def internal_lm(self, vocab_dim: nn.Dim | None = None, *, bos: int | None = None) -> TransducerLmScorer:
        """
        :param vocab_dim: of an external language model to combine it with; None: ``vocab_dim``
        :param bos: its begin of sentence
        :return: what the transducer knows about labels without hearing anything
        :raises ValueError: see :class:`TransducerLmScorer`
        """
        return TransducerLmScorer(
            self,
            encoder_dim=self.joiner.encoder_dim,
            blank=self.blank_index,
            vocab_dim=vocab_dim or self.vocab_dim,
            bos=bos,
        )

    def search(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        beam_size: int = 1,
        method: str = "frames",
        max_labels_per_frame: int | None = None,
        lm: Any = None,
        lm_scale: float = 0.0,
        internal_lm_scale: float = 0.0,
        bos: int | None = None,
        eos: int | None = None,
    ) -> Hypotheses:
        """
        :param source: see :meth:`encode`
        :param beam_size: 1, without ``lm``: :func:`transducer_greedy_search`; else :func:`transducer_beam_search`
        :param method: "frames": hypotheses in the beam stand for the same frames. "alignments": they have the same
            number of labels and blanks together, see :func:`transducer_alignment_search`; for the topology "rnnt"
        :param max_labels_per_frame: see there; with "alignments", there is no limit
        :param lm: a scorer, over the labels, or with one more behind them, e.g. its end of sentence; None: none
        :param lm_scale: its weight; with 0, it is ignored
        :param internal_lm_scale: weight with which :meth:`internal_lm` is subtracted (Variani et al. 2020, section 5;
            Meng et al. 2021, https://arxiv.org/abs/2011.01991, equation 8)
        :param bos: of ``lm``, see :func:`transducer_beam_search`
        :param eos: of ``lm``, see there
        :return: labels of ``vocab_dim``
        :raises ValueError: for a scale, ``bos`` or ``eos`` without ``lm``, an ``lm`` with another vocabulary,
            a number out of range, or another method
        """
        lm_options = (lm, lm_scale, bos, eos)
        options = search_options(self, lm_options, beam_size=beam_size, internal_lm_scale=internal_lm_scale)
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        return search_encoded(
            self,
            encoded,
            spatial_dim=spatial_dim,
            options=options,
            method=method,
            max_labels_per_frame=max_labels_per_frame,
        )

    def stream(
        self,
        *,
        batch_dims: Sequence[nn.Dim],
        beam_size: int = 1,
        max_labels_per_frame: int | None = None,
        lm: Any = None,
        lm_scale: float = 0.0,
        internal_lm_scale: float = 0.0,
        bos: int | None = None,
        eos: int | None = None,
    ) -> SpeechStream:
        """
        Recognition of utterances that come piece after piece. The arguments are those of :meth:`search`, except:

        :param batch_dims: of the utterances
        :return: what takes the pieces, and has the hypotheses at any time
        :raises ValueError: for an encoder that needs the whole utterance; and see :meth:`search`
        """
        encoder = check_encoder_streams("TransducerModel", self.encoder)
        lm_options = (lm, lm_scale, bos, eos)
        options = search_options(self, lm_options, beam_size=beam_size, internal_lm_scale=internal_lm_scale)
        options.update(batch_dims=batch_dims, max_labels_per_frame=max_labels_per_frame, device=device_of(self))
        make = TransducerBeamStream if "beam_size" in options else TransducerGreedyStream
        return SpeechStream(
            EncoderStream(encoder, features=self.features, batch_dims=batch_dims),
            search=make(self, **options),
            device=device_of(self),
        )

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
        :return: "transducer" (over all alignments, however many labels a frame has), "internal_lm" and "lm", each
            ``{batch, beam}``, see :func:`.hypothesis_parts.score_parts`
        :raises ValueError: for an ``lm`` with fewer labels
        """
        encoded, spatial_dim = self.encode(source, in_spatial_dim=in_spatial_dim)
        known = self._know(hypotheses.labels, hypotheses.spatial_dim, encoded=encoded, spatial_dim=spatial_dim)
        end = self.blank_index
        internal_lm = self.internal_lm(nn.FeatureDim("labels-and-end", end + 1), bos=end)
        lm_part = (lm, end if bos is None else bos, end if eos is None else eos)
        return {
            "transducer": known.log_probs(),
            **score_parts(hypotheses, {"internal_lm": (internal_lm, end, end), "lm": lm_part}),
        }

    @property
    def part_names(self) -> tuple[str, ...]:
        """parts that :func:`score_hypotheses` gives without ``lm``"""
        return ("transducer", "internal_lm")

    def part_scales(self, *, lm_scale: float = 0.0, internal_lm_scale: float = 0.0) -> dict[str, float]:
        """
        The arguments are options of :func:`search`.

        :return: with which scale the search has each part of :func:`score_hypotheses`; and "length_exponent", by which
            it orders hypotheses, see :func:`returnn_common.recog.components.combine_scores`
        """
        return {"transducer": 1.0, "internal_lm": -internal_lm_scale, "lm": lm_scale, "length_exponent": 0.0}
