"""
LSTM decoder with additive attention (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473) and weight feedback
(Tu et al. 2016, https://arxiv.org/abs/1601.04811), as in Zeyer et al. 2018, "Improved training of end-to-end attention
models for speech recognition" (https://arxiv.org/abs/1805.03294), and RETURNN's setups since.

For label u (from 0), with the encoder's output h_t, the embedding e_u of the label before, and the weights of the
heads k before, alpha::

    s_u          = LSTM([e_u, c_(u-1)], s_(u-1))
    beta_u,t,k   = sigmoid(v_k h_t) / 2 * sum of alpha_u',t,k over u' < u      (weight feedback; the inverse fertility)
    energy_u,t,k = w_k tanh(W_h h_t + b + W_s s_u + W_beta beta_u,t)
    alpha_u,.,k  = softmax over t of energy_u,t,k
    c_u          = for each head k, the sum over t of alpha_u,t,k times the k-th piece of h_t
    readout_u    = the larger of each two neighbours in W_r [s_u, e_u, c_u] + b_r
    logits_u     = W_o readout_u + b_o
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ... import nn
from ...nn.checks import check_probability
from ...nn.lstm import LSTM, LstmState
from ...nn.scan import scan_over

__all__ = ["AdditiveAttention", "LSTMAttentionDecoder", "make_lstm_attention_decoder"]


def make_lstm_attention_decoder(
    encoder_dim: int | nn.Dim,
    vocab_dim: int | nn.Dim,
    *,
    model_dim: int | nn.Dim = 1000,
    embed_dim: int | nn.Dim = 621,
    att_dim: int | nn.Dim = 1024,
    num_heads: int = 1,
    dropout: float = 0.3,
    zoneout: float = 0.0,
) -> LSTMAttentionDecoder:
    """
    The defaults are those of the paper's LibriSpeech setup
    (https://github.com/rwth-i6/returnn-experiments, 2018-asr-attention/librispeech).

    :param encoder_dim: of the encoder's output, a multiple of ``num_heads``
    :param vocab_dim: of the labels, with that for the end of the sentence
    :param model_dim: of the LSTM and of the readout before its maximum, an even number
    :param embed_dim: of a label's embedding
    :param att_dim: of the hidden layer which computes the energies
    :param num_heads: of the attention
    :param dropout: of the readout
    :param zoneout: probability that a cell of the LSTM keeps its value; a third of it for the LSTM's output
        (Krueger et al. 2017, https://arxiv.org/abs/1606.01305); 0.15 is what :class:`returnn.frontend.ZoneoutLSTM`
        calls reasonable, with 0.05 for the output
    :return: decoder with the contract of :class:`returnn_common.nn.decoder.Decoder`
    :raises ValueError: for a size that doesn't fit
    """
    encoder_dim = nn.as_dim(encoder_dim, name="encoder")
    vocab_dim = nn.as_dim(vocab_dim, name="vocab")
    model_dim = nn.as_dim(model_dim, name="lstm-decoder")
    embed_dim = nn.as_dim(embed_dim, name="label-embedding")
    att_dim = nn.as_dim(att_dim, name="attention-energy")
    check_probability("LSTM decoder", dropout=dropout, zoneout=zoneout)
    if model_dim.dimension is None or model_dim.dimension % 2:
        raise ValueError(f"LSTM decoder: expected an even model_dim, got {model_dim.dimension}")
    return LSTMAttentionDecoder(
        nn.Embedding(vocab_dim, embed_dim),
        AdditiveAttention(encoder_dim, model_dim, att_dim, num_heads=num_heads),
        dropout=dropout,
        zoneout=zoneout,
    )


class AdditiveAttention(nn.Module):
    """
    Attention with additive energies and weight feedback, one query at a time.

    :param encoder_dim: of the values
    :param query_dim: of the query
    :param att_dim: of the hidden layer
    :param num_heads: each has its own energies, and its own piece of the values
    :raises ValueError: if encoder_dim is not a multiple of num_heads
    """

    def __init__(self, encoder_dim: nn.Dim, query_dim: nn.Dim, att_dim: nn.Dim, *, num_heads: int):
        super().__init__()
        if num_heads < 1 or encoder_dim.dimension is None or encoder_dim.dimension % num_heads:
            raise ValueError(
                f"AdditiveAttention: encoder_dim {encoder_dim.dimension} is not a multiple of num_heads {num_heads}"
            )
        self.encoder_dim = encoder_dim
        self.heads_dim = nn.FeatureDim("attention-heads", num_heads)
        self.head_dim = nn.FeatureDim("attention-head", encoder_dim.dimension // num_heads)
        self.key = nn.Linear(encoder_dim, att_dim)
        self.query = nn.Linear(query_dim, att_dim, with_bias=False)
        self.feedback = nn.Linear(self.heads_dim, att_dim, with_bias=False)
        self.energy = nn.Linear(att_dim, self.heads_dim, with_bias=False)
        self.inverse_fertility = nn.Linear(encoder_dim, self.heads_dim, with_bias=False)

    def transform_encoder(self, encoder: nn.Tensor, *, axis: nn.Dim) -> nn.State:
        """
        :param encoder: ``{batch, time, encoder_dim}``
        :param axis: time
        :return: what :meth:`__call__` takes: key ``{batch, time, att}``, value ``{batch, time, heads, head}``,
            inverse_fertility ``{batch, time, heads}``, padding ``{batch, time}``, time
        :raises ValueError: if the encoder's output has no such dims
        """
        if self.encoder_dim not in encoder.dims or axis not in encoder.dims:
            raise ValueError(f"AdditiveAttention: expected the dims {axis} and {self.encoder_dim}, got {encoder}")
        frames = nn.range_over_dim(axis, device=encoder.device)
        valid = nn.compare_bc(frames, "<", axis.get_size_tensor(device=encoder.device))
        # Zero instead of anything in the padding, as a weight of zero isn't enough for what isn't finite.
        encoder = nn.where(valid, encoder, 0.0)
        return nn.State(
            key=self.key(encoder),
            value=nn.split_dims(encoder, axis=self.encoder_dim, dims=[self.heads_dim, self.head_dim]),
            inverse_fertility=nn.sigmoid(self.inverse_fertility(encoder)) * 0.5,
            # Finite, so that the weights of a sequence without frames are so, too.
            padding=nn.cast(nn.logical_not(valid), "float32") * -1e30,
            time=axis,
        )

    def __call__(self, query: nn.Tensor, *, encoder: nn.State, accumulated: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        """
        :param query: ``{batch, query_dim}``
        :param encoder: of :meth:`transform_encoder`
        :param accumulated: beta, ``{batch, time, heads}``, zeros at first
        :return: context ``{batch, encoder_dim}``; the next accumulated
        """
        hidden = nn.combine_bc(encoder.key, "+", self.query(query)) + self.feedback(accumulated)
        energy = self.energy(nn.tanh(hidden)) + encoder.padding
        # The padding is masked already; masks that the frontend makes can't be made inside of a loop on JAX.
        weights = nn.softmax(energy, axis=encoder.time, use_mask=False)
        context = nn.matmul(weights, encoder.value, reduce=encoder.time, use_mask=False)
        context, _ = nn.merge_dims(context, dims=[self.heads_dim, self.head_dim], out_dim=self.encoder_dim)
        context.feature_dim = self.encoder_dim
        return context, accumulated + weights * encoder.inverse_fertility


class LSTMAttentionDecoder(nn.Module):
    """
    See the top of this file.

    :param embedding: of the labels
    :param attention: over the encoder's output, with the LSTM's output as query
    :param dropout: of the readout
    :param zoneout: of the LSTM's cell; a third of it of its output
    """

    def __init__(self, embedding: nn.Embedding, attention: AdditiveAttention, *, dropout: float, zoneout: float):
        super().__init__()
        self.encoder_dim = attention.encoder_dim
        self.vocab_dim = embedding.in_dim
        self.embedding = embedding
        self.attention = attention
        model_dim = attention.query.in_dim
        self.input_dim = embedding.out_dim + attention.encoder_dim
        self.lstm = LSTM(self.input_dim, model_dim)
        self.readout = nn.Linear(model_dim + embedding.out_dim + attention.encoder_dim, model_dim)
        self.logits = nn.Linear(nn.FeatureDim("readout", model_dim.dimension // 2), self.vocab_dim)
        self.dropout = dropout
        self.zoneout = LstmState(h=zoneout / 3, c=zoneout) if zoneout else None

    def transform_encoder(self, encoder: nn.Tensor, /, *, axis: nn.Dim) -> nn.State:
        """
        :param encoder: ``{batch, time, encoder_dim}``
        :param axis: time
        :return: see :meth:`AdditiveAttention.transform_encoder`
        :raises ValueError: if the encoder's output has no such dims
        """
        return self.attention.transform_encoder(encoder, axis=axis)

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """
        :param batch_dims: of the labels, without their time
        :return: zeros: the LSTM's state; context ``{batch, encoder_dim}``; accumulated ``{batch, heads}``, which has
            the encoder's time as well from the first call on
        """
        encoder_dim, heads_dim = self.attention.encoder_dim, self.attention.heads_dim
        return nn.State(
            lstm=self.lstm.default_initial_state(batch_dims=batch_dims),
            context=nn.zeros([*batch_dims, encoder_dim], feature_dim=encoder_dim),
            accumulated=nn.zeros([*batch_dims, heads_dim], feature_dim=heads_dim),
        )

    def __call__(
        self, source: nn.Tensor, /, *, spatial_dim: nn.Dim, state: nn.State, encoder: nn.State | None = None
    ) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: previous labels, beginning with the start of the sentence: ``{batch, labels}`` over vocab_dim;
            ``{batch}`` for one step
        :param spatial_dim: labels, or ``nn.single_step_dim``
        :param state: of :meth:`default_initial_state`, or of the call before
        :param encoder: of :meth:`transform_encoder`, where the encoder's output may have been another one for each of
            the labels: ``{batch, labels, time, encoder_dim}``
        :return: logits of the labels that follow, ``{batch, labels, vocab}`` (one step: ``{batch, vocab}``);
            the state after each sequence's own last label
        :raises ValueError: if the labels are over another dim, or there is no encoder
        """
        if encoder is None:
            raise ValueError("LSTM decoder: expected what transform_encoder returned as encoder, got None")
        if source.sparse_dim != self.vocab_dim:
            raise ValueError(f"LSTM decoder: expected labels over {self.vocab_dim}, got {source}")
        if encoder.time not in state.accumulated.dims:
            zeros = nn.zeros([*state.accumulated.dims, encoder.time])
            accumulated = zeros + state.accumulated
            accumulated.feature_dim = self.attention.heads_dim
            state = nn.State({**state, "accumulated": accumulated})
        embedded = self.embedding(source)
        xs: dict[str, Any] = {"embedded": embedded, **self._zoneout_noise(source.dims)}
        per_label = {k: x for k, x in encoder.items() if isinstance(x, nn.Tensor) and spatial_dim in x.dims}
        if per_label:
            xs["encoder"] = per_label
        step = functools.partial(_step, lstm=self.lstm, attention=self.attention, encoder=encoder, zoneout=self.zoneout)
        if spatial_dim == nn.single_step_dim:
            outputs, state = step(xs, state)
        else:
            outputs = {"query": state.lstm.h.copy_template(), "context": state.context.copy_template()}
            outputs, state = scan_over(spatial_dim, step, xs=xs, initial=state, ys=outputs)
        return self._logits(outputs["query"], embedded, outputs["context"]), state

    def _zoneout_noise(self, dims: Sequence[nn.Dim]) -> dict[str, nn.Tensor]:
        """:return: "h" and "c" -> 0 where the old value stays, ``1 / (1 - zoneout)`` elsewhere; ones in evaluation"""
        if self.zoneout is None:
            return {}
        ones = nn.ones([*dims, self.lstm.out_dim], feature_dim=self.lstm.out_dim)
        return {name: nn.dropout(ones, prob) for name, prob in self.zoneout.items()}

    def _logits(self, query: nn.Tensor, embedded: nn.Tensor, context: nn.Tensor) -> nn.Tensor:
        parts = [(x, x.feature_dim) for x in (query, embedded, context)]
        x, _ = nn.concat(*parts, out_dim=self.readout.in_dim)
        x = nn.reduce_out(self.readout(x), mode="max", num_pieces=2, out_dim=self.logits.in_dim)
        return self.logits(nn.dropout(x, self.dropout))


def _step(
    x: dict[str, Any],
    state: nn.State,
    *,
    lstm: LSTM,
    attention: AdditiveAttention,
    encoder: nn.State,
    zoneout: LstmState | None,
) -> tuple[dict[str, nn.Tensor], nn.State]:
    """One label; a function, as scan_over wants it."""
    embedded, context = x["embedded"], state.context
    encoder = nn.State({**encoder, **x.get("encoder", {})})
    source, _ = nn.concat((embedded, embedded.feature_dim), (context, attention.encoder_dim), out_dim=lstm.in_dim)
    query, lstm_state = lstm(source, state=state.lstm, spatial_dim=nn.single_step_dim)
    if zoneout is not None:
        # 1 - zoneout: the expectation of the noise in evaluation, and what its scale in training has too much.
        mixed = {
            name: state.lstm[name] + (lstm_state[name] - state.lstm[name]) * x[name] * (1.0 - prob)
            for name, prob in zoneout.items()
        }
        lstm_state = LstmState(**mixed)
        query = lstm_state.h
    context, accumulated = attention(query, encoder=encoder, accumulated=state.accumulated)
    new_state = nn.State(lstm=lstm_state, context=context, accumulated=accumulated)
    return {"query": query, "context": context}, new_state
