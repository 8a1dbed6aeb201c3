"""
Training and evaluation of a language model: cross-entropy of each label, end of sentence included, and perplexities.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .. import nn
from ..nn.labels import with_bos_eos
from ..search import DecoderScorer

__all__ = ["LanguageModel", "Perplexity", "perplexity"]


class LanguageModel(nn.Module):
    """
    :param decoder: of :func:`make_transformer_lm`, ...: a :class:`returnn_common.nn.Decoder` without encoder
    :param bos: index of the begin of sentence
    :param eos: index of the end of sentence; may equal ``bos``
    :param word_starts: for each label of the vocabulary, whether a word starts with it (subwords: that with the mark,
        or that behind one without continuation mark) or right behind it (characters: the space, and the begin of
        sentence); None: each label is a word
    :raises ValueError: if word_starts has another size than the vocabulary
    """

    def __init__(self, decoder: nn.Decoder, *, bos: int, eos: int, word_starts: Sequence[bool] | None = None):
        super().__init__()
        self.decoder = decoder
        self.vocab_dim = decoder.vocab_dim
        self.bos = bos
        self.eos = eos
        self.word_starts = None if word_starts is None else np.array(word_starts, dtype="float32")
        size = self.vocab_dim.dimension
        if self.word_starts is not None and self.word_starts.shape != (size,):
            raise ValueError(f"LanguageModel: expected word_starts for {size} labels, got {len(self.word_starts)}")

    def nll(self, source: nn.Tensor, *, in_spatial_dim: nn.Dim) -> tuple[nn.Tensor, nn.Tensor, nn.Tensor]:
        """
        :param source: label indices ``{batch, time}``, without begin and end of sentence. Their dim may be that of a
            vocabulary without these: the first labels of the model's.
        :param in_spatial_dim: time
        :return: negative log likelihood of each sentence (natural log, end of sentence included), its number of labels
            and its number of words (both with end of sentence as one); each ``{batch}``, float32
        :raises ValueError: if the source has more labels
        """
        size = self.vocab_dim.dimension
        if source.sparse_dim is None or (source.sparse_dim.dimension or 0) > (size or 0):
            raise ValueError(f"LanguageModel: expected labels over {self.vocab_dim}, got {source}")
        source = nn.set_sparse_dim(source, self.vocab_dim)
        previous, targets, time = with_bos_eos(source, spatial_dim=in_spatial_dim, bos=self.bos, eos=self.eos)
        batch_dims = source.remaining_dims(in_spatial_dim)
        state = self.decoder.default_initial_state(batch_dims=batch_dims)
        logits, _ = self.decoder(previous, spatial_dim=time, state=state)
        cross_entropy = nn.cross_entropy(
            estimated=nn.cast(logits, "float32"), target=targets, axis=self.vocab_dim, estimated_type="logits"
        )
        num_labels = nn.cast(time.get_size_tensor(device=source.device), "float32")
        return nn.reduce_sum(cross_entropy, axis=time), num_labels, self._num_words(previous, time, num_labels)

    def scorer(self) -> DecoderScorer:
        """:return: for a search, over the same labels"""
        return DecoderScorer(self.decoder)

    def _num_words(self, previous: nn.Tensor, time: nn.Dim, num_labels: nn.Tensor) -> nn.Tensor:
        if self.word_starts is None:
            return num_labels
        starts = nn.convert_to_tensor(self.word_starts, dims=[self.vocab_dim], device=previous.device)
        return nn.reduce_sum(nn.gather(starts, indices=previous, axis=self.vocab_dim), axis=time) + 1.0

    def losses(
        self,
        source: nn.Tensor,
        *,
        in_spatial_dim: nn.Dim,
        targets: nn.Tensor | None = None,
        targets_spatial_dim: nn.Dim | None = None,
    ) -> dict[str, nn.Loss]:
        """
        :param source: see :meth:`nll`
        :param in_spatial_dim: time
        :param targets: None: the source is what is to be predicted (``target = None`` in the config)
        :param targets_spatial_dim: None
        :return: "ce": natural logarithm of the perplexity per label, which is trained; "ce_word": of that per word.
            Over a data set, RETURNN reports exactly the logarithm of its perplexity.
        :raises ValueError: if there are targets
        """
        if targets is not None or targets_spatial_dim is not None:
            raise ValueError(f"LanguageModel: expected no targets (config: target = None), got {targets}")
        nll, num_labels, num_words = self.nll(source, in_spatial_dim=in_spatial_dim)
        return {
            "ce": nn.Loss(nll, inv_norm_factor=num_labels),
            "ce_word": nn.Loss(nn.stop_gradient(nll), inv_norm_factor=num_words, as_error=True),
        }


@dataclass(frozen=True)
class Perplexity:
    """
    :param per_label: over labels, end of sentence included
    :param per_word: over words, end of sentence included
    :param num_labels: end of sentence included
    :param num_words: end of sentence included
    """

    per_label: float
    per_word: float
    num_labels: int
    num_words: int


def perplexity(nll: Iterable[float], *, num_labels: Iterable[float], num_words: Iterable[float]) -> Perplexity:
    """
    ``exp(sum of nll / sum of counts)``, of a whole text; all three as :meth:`LanguageModel.nll` gives them.

    :param nll: of each sentence, natural log
    :param num_labels: of each sentence
    :param num_words: of each sentence
    :raises ValueError: if there is nothing
    """
    total, labels, words = (float(np.sum(np.fromiter(x, dtype="float64"))) for x in (nll, num_labels, num_words))
    if not labels or not words:
        raise ValueError(f"perplexity: expected at least one sentence, got {labels:g} labels and {words:g} words")
    return Perplexity(
        per_label=math.exp(total / labels),
        per_word=math.exp(total / words),
        num_labels=round(labels),
        num_words=round(words),
    )
