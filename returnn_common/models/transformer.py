"""
Transformer from text to text (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).
"""

from __future__ import annotations

from typing import Any

from .. import nn
from ..nn.checks import check_probability
from ..search import DecoderScorer, Hypotheses, Scorer, beam_search, combine
from .decoder.transformer import make_transformer_decoder
from .encoder.transformer import make_transformer_text_encoder
from .fusion import FusionParts
from .hypothesis_parts import score_parts

__all__ = ["Transformer", "make_transformer"]

_EXTRA_LABELS = 50  # of an output, beyond the length of its input: section 6.1 of the paper


class Transformer(nn.Module):
    """
    :param encoder: takes labels, e.g. of :func:`make_transformer_text_encoder`; its output is normalised
    :param decoder: :class:`returnn_common.nn.Decoder`
    :param bos: index of the begin of sentence, in the decoder's vocabulary
    :param eos: index of the end of sentence there; may equal ``bos``
    :param label_smoothing: see :func:`returnn_common.nn.smoothed_cross_entropy`
    """

    fusion_parts = FusionParts

    def __init__(self, *, encoder: nn.Encoder, decoder: nn.Decoder, bos: int, eos: int, label_smoothing: float = 0.1):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.vocab_dim = decoder.vocab_dim
        self.bos = bos
        self.eos = eos
        self.label_smoothing = label_smoothing

    def encode(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> Any:
        """
        :param source: label indices ``{batch, time}``
        :param in_spatial_dim: time
        :return: what the decoder takes as ``encoder``
        """
        encoded, time = self.encoder(source, in_spatial_dim=in_spatial_dim)
        return self.decoder.transform_encoder(encoded, axis=time)

    def losses(
        self, source: nn.Tensor, *, in_spatial_dim: nn.Dim, targets: nn.Tensor, targets_spatial_dim: nn.Dim
    ) -> dict[str, nn.Loss]:
        """
        :param source: label indices ``{batch, time}``
        :param targets: label indices ``{batch, labels}``, without begin and end of sentence
        :return: "ce", with smoothed targets in training, and "fer", see :func:`returnn_common.nn.decoder_losses`
        """
        return nn.decoder_losses(
            self.decoder,
            self.encode(source, in_spatial_dim=in_spatial_dim),
            targets=targets,
            targets_spatial_dim=targets_spatial_dim,
            bos=self.bos,
            eos=self.eos,
            label_smoothing=self.label_smoothing,
        )

    def search(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        beam_size: int = 4,
        max_len: int | nn.Tensor | None = None,
        length_exponent: float = 1.0,
        lm: Any = None,
        lm_scale: float = 0.0,
        min_len: int = 0,
        num_best: int | None = None,
    ) -> Hypotheses:
        """
        :param source: label indices ``{batch, time}``
        :param beam_size: 4 as in the paper
        :param max_len: labels at most, see :func:`beam_search`; None: 50 more than the source has
        :param length_exponent: see :func:`beam_search`
        :param lm: a scorer over the same labels, with the same begin and end of sentence
        :param lm_scale: its weight; with 0, it is ignored
        :param min_len: labels at least, see :func:`beam_search`
        :param num_best: hypotheses, see :func:`beam_search`; None: as many as the beam holds
        :raises ValueError: for a scale without ``lm``, or an ``lm`` with another vocabulary
        """
        if lm is None and lm_scale:
            raise ValueError(f"Transformer: expected an lm for lm_scale {lm_scale}")
        if max_len is None:
            max_len = in_spatial_dim.get_size_tensor(device=source.device) + _EXTRA_LABELS
        encoder = self.encode(source, in_spatial_dim=in_spatial_dim)
        scorer = DecoderScorer(self.decoder, encoder=encoder, capacity=_capacity(max_len))
        return beam_search(
            scorer if not lm_scale else combine([(scorer, 1.0), (lm, lm_scale)]),
            batch_dims=source.remaining_dims(in_spatial_dim),
            beam_size=beam_size,
            max_len=max_len,
            bos=self.bos,
            eos=self.eos,
            length_exponent=length_exponent,
            min_len=min_len,
            num_best=num_best,
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
        :param bos: of ``lm``; None: the model's
        :param eos: of ``lm``; None: the model's
        :return: "decoder" and "lm", each ``{batch, beam}``, see :func:`.hypothesis_parts.score_parts`
        :raises ValueError: for an ``lm`` with fewer labels
        """
        scorers = {
            "decoder": (
                DecoderScorer(self.decoder, encoder=self.encode(source, in_spatial_dim=in_spatial_dim)),
                self.bos,
                self.eos,
            ),
            "lm": (lm, self.bos if bos is None else bos, self.eos if eos is None else eos),
        }
        return score_parts(hypotheses, scorers)

    @property
    def part_names(self) -> tuple[str, ...]:
        """parts that :func:`score_hypotheses` gives without ``lm``"""
        return ("decoder",)

    def part_scales(self, *, lm_scale: float = 0.0, length_exponent: float = 1.0) -> dict[str, float]:
        """
        The arguments are options of :func:`search`.

        :return: with which scale the search has each part of :func:`score_hypotheses`; and "length_exponent", by which
            it orders hypotheses, see :func:`returnn_common.recog.components.combine_scores`
        """
        return {"decoder": 1.0, "lm": lm_scale, "length_exponent": length_exponent}


def _capacity(max_len: int | nn.Tensor) -> int | nn.Tensor | None:
    """of the decoder's state; where there is no graph, it may grow"""
    if nn.is_executing_eagerly():
        return None
    if isinstance(max_len, nn.Tensor):
        max_len = nn.copy_to_device(nn.reduce_max(max_len, axis=max_len.dims), "cpu")
    return max_len + 1


def make_transformer(
    in_vocab_dim: int | nn.Dim,
    out_vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 6,
    model_dim: int | nn.Dim = 512,
    num_heads: int = 8,
    positions: str = "absolute",
    dropout: float = 0.1,
    label_smoothing: float = 0.1,
    bos: int = 0,
    eos: int = 0,
) -> Transformer:
    """
    The defaults are the paper's base model (table 3), but with normalisation before each block, as in
    :func:`make_transformer_decoder`. The feed-forward blocks have 4 times ``model_dim``.

    :param in_vocab_dim: labels of the source; their embedding is not shared with the target's
    :param out_vocab_dim: labels of the target, begin and end of sentence included
    :param num_layers: of the encoder, and of the decoder
    :param num_heads: of each attention, divides ``model_dim``
    :param positions: in both: "absolute", sinusoids; or "rotary", queries and keys of the self-attention are turned
        (Su et al. 2021, https://arxiv.org/abs/2104.09864), which only knows distances: for longer sequences than any
        in training
    :param dropout: everywhere
    :param label_smoothing: see :class:`Transformer`
    :param bos: index of the begin of sentence in ``out_vocab_dim``
    :param eos: index of the end of sentence there
    :raises ValueError: for a size or index that doesn't fit, or another ``positions``
    """
    in_vocab_dim = nn.as_dim(in_vocab_dim, name="in-labels")
    out_vocab_dim = nn.as_dim(out_vocab_dim, name="out-labels")
    model_dim = nn.as_dim(model_dim, name="model")
    check_probability("transformer", label_smoothing=label_smoothing)
    for name, index in (("bos", bos), ("eos", eos)):
        if not 0 <= index < (out_vocab_dim.dimension or 0):
            raise ValueError(f"transformer: expected {name} as an index of {out_vocab_dim}, got {index!r}")
    options: dict[str, Any] = {
        "num_layers": num_layers,
        "num_heads": num_heads,
        "positions": positions,
        "dropout": dropout,
    }
    encoder = make_transformer_text_encoder(in_vocab_dim, out_dim=model_dim, **options)
    decoder = make_transformer_decoder(model_dim, out_vocab_dim, model_dim=model_dim, **options)
    return Transformer(encoder=encoder, decoder=decoder, bos=bos, eos=eos, label_smoothing=label_smoothing)
