"""
The language model inside of a decoder with attention, with a small LSTM in the place of the encoder: it gets the labels
before, and gives what the decoder finds when it attends. Only the LSTM is trained, on transcripts. Zeineldeen et al.
2021, https://arxiv.org/abs/2104.05544, "mini-LSTM".

For label u (from 0), with the embedding e_u of the label before::

    s_u = LSTM(e_u, s_(u-1))
    c_u = W s_u + b
    logits_u = decoder, with c_u as the only frame of the encoder's output

Differs from the paper in that the embedding is its own, not the decoder's, which a decoder doesn't show.

Training and recognition, for a trained ``aed``::

    model = LanguageModel(make_internal_lm(aed.decoder, aed.encoder.out_dim), bos=aed.bos, eos=aed.eos)

    ilm = DecoderScorer(model.decoder)
    scorer = combine([(DecoderScorer(aed.decoder, encoder), 1.0), (lm, 0.5), (ilm, -0.3)])
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from ... import nn
from ...nn.lstm import LSTM, LstmState

__all__ = ["InternalLM", "MiniLSTM", "make_internal_lm", "make_mini_lstm"]


def make_mini_lstm(
    vocab_dim: nn.Dim, encoder_dim: int | nn.Dim, *, model_dim: int | nn.Dim = 50, embed_dim: int | nn.Dim = 50
) -> MiniLSTM:
    """
    :param vocab_dim: of the decoder's labels
    :param encoder_dim: of the encoder's output
    :param model_dim: of the LSTM; the default is the paper's
    :param embed_dim: of a label's embedding
    """
    model_dim = nn.as_dim(model_dim, name="mini-lstm")
    embed_dim = nn.as_dim(embed_dim, name="mini-lstm-embedding")
    encoder_dim = nn.as_dim(encoder_dim, name="encoder")
    return MiniLSTM(nn.Embedding(vocab_dim, embed_dim), LSTM(embed_dim, model_dim), nn.Linear(model_dim, encoder_dim))


def make_internal_lm(
    decoder: nn.Decoder, encoder_dim: nn.Dim, *, model_dim: int | nn.Dim = 50, embed_dim: int | nn.Dim = 50
) -> InternalLM:
    """
    :param decoder: trained. Its parameters are made not trainable, also for whoever else has that decoder.
    :param encoder_dim: of the encoder's output
    :param model_dim: see :func:`make_mini_lstm`
    :param embed_dim: see :func:`make_mini_lstm`
    """
    mini_lstm = make_mini_lstm(decoder.vocab_dim, encoder_dim, model_dim=model_dim, embed_dim=embed_dim)
    for parameter in decoder.parameters():  # pyright: ignore[reportAttributeAccessIssue] the protocol isn't a module
        parameter.trainable = False
    return InternalLM(decoder, mini_lstm)


class MiniLSTM(nn.Module):
    """
    From the labels before, a vector in the place of the encoder's output.

    :param embedding: of the labels
    :param lstm: over them
    :param output: from there to the encoder's dim
    """

    def __init__(self, embedding: nn.Embedding, lstm: LSTM, output: nn.Linear):
        super().__init__()
        self.in_dim = embedding.in_dim
        self.out_dim = output.out_dim
        self.embedding = embedding
        self.lstm = lstm
        self.output = output

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> LstmState:
        """:return: zeros"""
        return self.lstm.default_initial_state(batch_dims=batch_dims)

    def __call__(self, source: nn.Tensor, *, spatial_dim: nn.Dim, state: LstmState) -> tuple[nn.Tensor, LstmState]:
        """
        :param source: previous labels ``{batch, labels}``, or ``{batch}`` for one step
        :param spatial_dim: labels, or ``nn.single_step_dim``
        :param state: before
        :return: ``{batch, labels, encoder_dim}`` (one step: ``{batch, encoder_dim}``); new state
        """
        x, state = self.lstm(self.embedding(source), state=state, spatial_dim=spatial_dim)
        return self.output(x), state


class InternalLM(nn.Module):
    """
    See the top of this file; a language model with the contract of :class:`returnn_common.nn.Decoder`, without encoder.

    :param decoder: takes another encoder output for each label, if its ``transform_encoder`` got one: those of
        :mod:`returnn_common.models.decoder`
    :param mini_lstm: in the place of the encoder
    """

    def __init__(self, decoder: nn.Decoder, mini_lstm: MiniLSTM):
        super().__init__()
        self.decoder = decoder
        self.mini_lstm = mini_lstm
        self.vocab_dim = decoder.vocab_dim
        self.frame_dim = nn.Dim(1, name="context-frame")  # the decoder's state may have it

    def default_initial_state(
        self, *, batch_dims: Sequence[nn.Dim], capacity: int | nn.Tensor | None = None
    ) -> nn.State:
        """
        :param batch_dims: of the labels, without their time
        :param capacity: for the decoder, if it takes one
        :return: "decoder", "mini_lstm"
        """
        func = self.decoder.default_initial_state
        takes_it = capacity is not None and "capacity" in inspect.signature(func).parameters
        return nn.State(
            decoder=func(batch_dims=batch_dims, **({"capacity": capacity} if takes_it else {})),
            mini_lstm=self.mini_lstm.default_initial_state(batch_dims=batch_dims),
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
        :return: logits of the labels that follow, ``{batch, labels, vocab}`` (one step: ``{batch, vocab}``); new state
        :raises ValueError: if an encoder is given
        """
        if encoder is not None:
            raise ValueError(f"InternalLM: expected no encoder, got {encoder}")
        context, mini_state = self.mini_lstm(source, spatial_dim=spatial_dim, state=state.mini_lstm)
        frame = nn.expand_dim(context, self.frame_dim)
        frame.feature_dim = context.feature_dim
        transformed = self.decoder.transform_encoder(frame, axis=self.frame_dim)
        logits, decoder_state = self.decoder(source, spatial_dim=spatial_dim, state=state.decoder, encoder=transformed)
        return logits, nn.State(decoder=decoder_state, mini_lstm=mini_state)
