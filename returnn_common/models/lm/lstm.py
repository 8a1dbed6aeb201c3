"""
LSTM language model (Sundermeyer et al. 2012, "LSTM neural networks for language modeling",
https://www.isca-archive.org/interspeech_2012/sundermeyer12_interspeech.html).
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from ...nn.checks import check_at_least, check_probability
from ...nn.lstm import LSTM

__all__ = ["LSTMLanguageModel", "make_lstm_lm"]


def make_lstm_lm(
    vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 2,
    model_dim: int | nn.Dim = 2048,
    embed_dim: int | nn.Dim = 512,
    dropout: float = 0.2,
) -> LSTMLanguageModel:
    """
    The defaults are the LibriSpeech language model over 10k subwords of Zeyer et al. 2018
    (https://arxiv.org/abs/1805.03294; 2018-asr-attention/librispeech/lm in https://github.com/rwth-i6/returnn-experiments).
    Irie et al. 2019 (https://arxiv.org/abs/1905.04226) compare with 4 layers, ``embed_dim=128``, no dropout.

    :param vocab_dim: of the labels
    :param num_layers: at least 1
    :param model_dim: of each LSTM
    :param embed_dim: of a label's embedding
    :param dropout: of the input of each LSTM and of the last linear transformation
    :return: language model with the contract of :class:`returnn_common.nn.decoder.Decoder`, without encoder
    :raises ValueError: for a size that doesn't fit
    """
    vocab_dim = nn.as_dim(vocab_dim, name="vocab")
    model_dim = nn.as_dim(model_dim, name="lstm-lm")
    embed_dim = nn.as_dim(embed_dim, name="lstm-lm-embedding")
    check_at_least("LSTM language model", 1, num_layers=num_layers)
    check_probability("LSTM language model", dropout=dropout)
    embedding = nn.Embedding(vocab_dim, embed_dim)
    layers = [LSTM(embed_dim if i == 0 else model_dim, model_dim) for i in range(num_layers)]
    return LSTMLanguageModel(embedding, layers, nn.Linear(model_dim, vocab_dim), dropout=dropout)


class LSTMLanguageModel(nn.Module):
    """
    Embedding, LSTMs, linear transformation.

    :param embedding: labels to vectors
    :param layers: the first on these, each on the output of the one before
    :param logits: output of the last to one value per label
    :param dropout: of the input of each layer and of ``logits``
    """

    def __init__(self, embedding: nn.Embedding, layers: Sequence[LSTM], logits: nn.Linear, *, dropout: float):
        super().__init__()
        self.vocab_dim = logits.out_dim
        self.embedding = embedding
        self.layers = nn.ModuleList(layers)
        self.logits = logits
        self.dropout = dropout

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: layer number -> zeros"""
        return nn.State(
            {str(i): layer.default_initial_state(batch_dims=batch_dims) for i, layer in enumerate(self.layers)}
        )

    def __call__(
        self, source: nn.Tensor, /, *, spatial_dim: nn.Dim, state: nn.State, encoder: None = None
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: previous labels, beginning with the start of the sentence: ``{batch, labels}`` over vocab_dim;
            ``{batch}`` for one step
        :param spatial_dim: labels, or ``nn.single_step_dim``
        :param state: of :meth:`default_initial_state`, or of the call before
        :param encoder: None, there is none
        :return: logits of the labels that follow, ``{batch, labels, vocab}`` (one step: ``{batch, vocab}``);
            the state after each sequence's own last label
        :raises ValueError: if labels are over another dim, or an encoder is given
        """
        if source.sparse_dim != self.vocab_dim:
            raise ValueError(f"LSTM language model: expected labels over {self.vocab_dim}, got {source}")
        if encoder is not None:
            raise ValueError(f"LSTM language model: expected no encoder, got {encoder}")
        x = self.embedding(source)
        new_state = nn.State()
        for i, layer in enumerate(self.layers):
            x = nn.dropout(x, self.dropout)
            x, new_state[str(i)] = layer(x, state=state[str(i)], spatial_dim=spatial_dim)
        x = nn.dropout(x, self.dropout)
        return self.logits(x), new_state
