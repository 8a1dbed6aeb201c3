"""
The two parts of a transducer beside its encoder (Graves 2012, https://arxiv.org/abs/1211.3711): the predictor, which
sees the labels so far, and the joiner, which scores what follows a frame and those labels.

A predictor has ``vocab_dim`` (labels, without blank), ``in_dim`` (the labels, and behind them the start of the
sentence), ``out_dim``, ``default_initial_state(*, batch_dims)`` and
``predictor(labels, *, spatial_dim, state) -> (out, state)``. A joiner has ``encoder_dim``, ``predictor_dim``,
``labels_dim`` (the labels, and behind them blank) and ``joiner(encoded, predicted) -> logits``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import nn
from ...nn.checks import check_at_least, check_probability
from ...nn.lstm import LSTM

__all__ = [
    "Joiner",
    "LSTMPredictor",
    "StatelessPredictor",
    "make_joiner",
    "make_lstm_predictor",
    "make_stateless_predictor",
]


def make_lstm_predictor(
    vocab_dim: int | nn.Dim,
    *,
    num_layers: int = 1,
    model_dim: int | nn.Dim = 640,
    embed_dim: int | nn.Dim = 640,
    dropout: float = 0.1,
) -> LSTMPredictor:
    """
    One LSTM of 640 is the decoder of the medium and large Conformer transducers (Gulati et al. 2020,
    https://arxiv.org/abs/2005.08100, table 1).

    :param vocab_dim: labels, without blank
    :param num_layers: at least 1
    :param model_dim: of each LSTM
    :param embed_dim: of a label's embedding
    :param dropout: of the input of each LSTM
    :return: predictor, see the top of this file
    :raises ValueError: for a size that doesn't fit
    """
    vocab_dim = nn.as_dim(vocab_dim, name="labels")
    model_dim = nn.as_dim(model_dim, name="lstm-predictor")
    embed_dim = nn.as_dim(embed_dim, name="predictor-embedding")
    check_at_least("LSTM predictor", 1, num_layers=num_layers)
    check_probability("LSTM predictor", dropout=dropout)
    layers = [LSTM(embed_dim if i == 0 else model_dim, model_dim) for i in range(num_layers)]
    return LSTMPredictor(vocab_dim, layers, dropout=dropout)


def make_stateless_predictor(
    vocab_dim: int | nn.Dim,
    *,
    context_size: int = 2,
    model_dim: int | nn.Dim = 640,
    dropout: float = 0.1,
) -> StatelessPredictor:
    """
    It sees the last labels only (Ghodsi et al. 2020, https://doi.org/10.1109/ICASSP40776.2020.9054419, "RNN-transducer
    with stateless prediction network": the last one): their embeddings, a convolution over them, and a ReLU.

    :param vocab_dim: labels, without blank
    :param context_size: number of labels that it sees, at least 1
    :param model_dim: of the embeddings and the output
    :param dropout: of the embeddings
    :return: predictor, see the top of this file
    :raises ValueError: for a size that doesn't fit
    """
    vocab_dim = nn.as_dim(vocab_dim, name="labels")
    model_dim = nn.as_dim(model_dim, name="stateless-predictor")
    check_at_least("stateless predictor", 1, context_size=context_size)
    check_probability("stateless predictor", dropout=dropout)
    return StatelessPredictor(vocab_dim, model_dim, context_size=context_size, dropout=dropout)


def make_joiner(
    encoder_dim: int | nn.Dim,
    predictor_dim: int | nn.Dim,
    vocab_dim: int | nn.Dim,
    *,
    kind: str = "additive",
    model_dim: int | nn.Dim = 640,
    dropout: float = 0.0,
) -> Joiner:
    """
    :param encoder_dim: of the encoder's output
    :param predictor_dim: of the predictor's output
    :param vocab_dim: labels, without blank
    :param kind: "additive", "multiplicative" or "gated", see :class:`Joiner`
    :param model_dim: of the hidden layer
    :param dropout: of the hidden layer
    :return: joiner, see the top of this file
    :raises ValueError: for another kind, or a size that doesn't fit
    """
    check_probability("joiner", dropout=dropout)
    return Joiner(
        nn.as_dim(encoder_dim, name="encoder"),
        nn.as_dim(predictor_dim, name="predictor"),
        nn.as_dim(vocab_dim, name="labels"),
        kind=kind,
        model_dim=nn.as_dim(model_dim, name="joiner"),
        dropout=dropout,
    )


class LSTMPredictor(nn.Module):
    """
    Embedding, LSTMs.

    :param vocab_dim: labels, without blank
    :param layers: the first on the embeddings, each on the output of the one before
    :param dropout: of the input of each layer
    """

    def __init__(self, vocab_dim: nn.Dim, layers: Sequence[LSTM], *, dropout: float):
        super().__init__()
        self.vocab_dim = vocab_dim
        self.in_dim = _with_start(vocab_dim)
        self.out_dim = layers[-1].out_dim
        self.embedding = nn.Embedding(self.in_dim, layers[0].in_dim)
        self.layers = nn.ModuleList(layers)
        self.dropout = dropout

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: layer number -> zeros"""
        return nn.State(
            {str(i): layer.default_initial_state(batch_dims=batch_dims) for i, layer in enumerate(self.layers)}
        )

    def __call__(self, source: nn.Tensor, /, *, spatial_dim: nn.Dim, state: nn.State) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: start of the sentence (the last index), labels ``{batch, positions}``, over in_dim; ``{batch}``
            for one step
        :param spatial_dim: positions, or ``nn.single_step_dim``
        :param state: of :meth:`default_initial_state`, or of the call before
        :return: ``{batch, positions, out_dim}`` (one step: ``{batch, out_dim}``);
            the state after each sequence's own last label
        :raises ValueError: if labels are over another dim
        """
        _check_labels("LSTM predictor", source, self.in_dim)
        x = self.embedding(source)
        new_state = nn.State()
        for i, layer in enumerate(self.layers):
            x = nn.dropout(x, self.dropout)
            x, new_state[str(i)] = layer(x, state=state[str(i)], spatial_dim=spatial_dim)
        return x, new_state


class StatelessPredictor(nn.Module):
    """
    ``relu(convolution(embeddings of the last labels))``; before the start of the sentence there are zeros.

    The convolution is one linear transformation per position, the last label's first.

    :param vocab_dim: labels, without blank
    :param out_dim: of the embeddings and the output
    :param context_size: number of labels that it sees
    :param dropout: of the embeddings
    """

    def __init__(self, vocab_dim: nn.Dim, out_dim: nn.Dim, *, context_size: int, dropout: float):
        super().__init__()
        self.vocab_dim = vocab_dim
        self.in_dim = _with_start(vocab_dim)
        self.out_dim = out_dim
        self.embedding = nn.Embedding(self.in_dim, out_dim)
        self.conv = nn.ModuleList([nn.Linear(out_dim, out_dim, with_bias=i == 0) for i in range(context_size)])
        self.context_size = context_size
        self.dropout = dropout

    def default_initial_state(self, *, batch_dims: Sequence[nn.Dim]) -> nn.State:
        """:return: "1", "2", ...: zeros in the place of the embedding of the label so far back ``{batch, out_dim}``"""
        dims = [*batch_dims, self.out_dim]
        return nn.State({str(i): nn.zeros(dims, feature_dim=self.out_dim) for i in range(1, self.context_size)})

    def __call__(self, source: nn.Tensor, /, *, spatial_dim: nn.Dim, state: nn.State) -> tuple[nn.Tensor, nn.State]:
        """
        :param source: start of the sentence (the last index), labels ``{batch, positions}``, over in_dim; ``{batch}``
            for one step
        :param spatial_dim: positions, or ``nn.single_step_dim``
        :param state: of :meth:`default_initial_state`, or of the call before
        :return: ``{batch, positions, out_dim}`` (one step: ``{batch, out_dim}``);
            the state after each sequence's own last label
        :raises ValueError: if labels are over another dim
        """
        _check_labels("stateless predictor", source, self.in_dim)
        x = nn.dropout(self.embedding(source), self.dropout)
        if spatial_dim == nn.single_step_dim:
            last = past = [x, *(state[str(i)] for i in range(1, self.context_size))]
        else:
            past = [x, *(_shift(x, i, spatial_dim=spatial_dim, before=state) for i in range(1, self.context_size))]
            end = nn.relu(spatial_dim.get_size_tensor(device=x.device) - 1)
            last = [nn.gather(y, indices=end, axis=spatial_dim) for y in past[:-1]]
        out = sum((linear(y) for linear, y in zip(self.conv[1:], past[1:], strict=True)), self.conv[0](x))
        out = nn.relu(out)
        out.feature_dim = self.out_dim
        new_state = nn.State()
        for i in range(1, self.context_size):
            new_state[str(i)] = nn.cast(last[i - 1], state[str(i)].dtype)
            new_state[str(i)].feature_dim = self.out_dim
        return out, new_state


def _shift(x: nn.Tensor, amount: int, *, spatial_dim: nn.Dim, before: nn.State) -> nn.Tensor:
    """:return: in the place of each position what was that many before; at first what the state has"""
    positions = nn.range_over_dim(spatial_dim, dtype="int32", device=x.device)
    shifted = nn.gather(x, indices=nn.relu(positions - amount), axis=spatial_dim)
    for i in range(amount):
        is_there = nn.compare(positions, "equal", i)
        value = nn.cast(before[str(amount - i)], x.dtype)
        shifted = nn.where(is_there, value, shifted, allow_broadcast_all_sources=True)
    return shifted


class Joiner(nn.Module):
    """
    With the encoder's output e and the predictor's p, ``logits = W tanh(h) + b``, where h is

    - additive: ``A e + P p`` (Graves et al. 2013, https://arxiv.org/abs/1303.5778, section 3.1)
    - multiplicative: ``A e * P p`` (Saon et al. 2021, https://arxiv.org/abs/2103.09935, section 3, "multiplicative
      integration")

    or, gated, ``logits = W (g * tanh(A e) + (1 - g) * tanh(P p)) + b`` with ``g = sigmoid(G e + H p)`` (Zhang et al.
    2022, https://arxiv.org/abs/2201.10240, "gating"). A and P have a bias each, so that the product has the sum in it;
    additive and g have one.

    :param encoder_dim: of the encoder's output
    :param predictor_dim: of the predictor's output
    :param vocab_dim: labels, without blank
    :param kind: "additive", "multiplicative" or "gated"
    :param model_dim: of the hidden layer
    :param dropout: of the hidden layer
    :raises ValueError: for another kind
    """

    KINDS = ("additive", "multiplicative", "gated")

    def __init__(
        self,
        encoder_dim: nn.Dim,
        predictor_dim: nn.Dim,
        vocab_dim: nn.Dim,
        *,
        kind: str,
        model_dim: nn.Dim,
        dropout: float,
    ):
        super().__init__()
        if kind not in self.KINDS:
            raise ValueError(f"joiner: expected kind as one of {', '.join(self.KINDS)}, got {kind!r}")
        self.encoder_dim = encoder_dim
        self.predictor_dim = predictor_dim
        self.vocab_dim = vocab_dim
        self.labels_dim = nn.FeatureDim("labels-and-blank", (vocab_dim.dimension or 0) + 1)
        self.kind = kind
        self.dropout = dropout
        self.encoder_in = nn.Linear(encoder_dim, model_dim)
        self.predictor_in = nn.Linear(predictor_dim, model_dim, with_bias=kind != "additive")
        if kind == "gated":
            self.encoder_gate = nn.Linear(encoder_dim, model_dim)
            self.predictor_gate = nn.Linear(predictor_dim, model_dim, with_bias=False)
        self.output = nn.Linear(model_dim, self.labels_dim)

    def __call__(self, encoded: nn.Tensor, predicted: nn.Tensor) -> nn.Tensor:
        """
        :param encoded: ``{batch, time, encoder_dim}``
        :param predicted: ``{batch, positions, predictor_dim}``; either may have other dims instead
        :return: unnormalised ``{batch, time, positions, labels and blank}``
        :raises ValueError: if either lacks its features
        """
        for what, x, dim in [("encoded", encoded, self.encoder_dim), ("predicted", predicted, self.predictor_dim)]:
            if dim not in x.dims:
                raise ValueError(f"joiner: expected {what} with {dim}, got {x}")
        a, p = self.encoder_in(encoded), self.predictor_in(predicted)
        if self.kind == "additive":
            hidden = nn.tanh(nn.combine_bc(a, "+", p))
        elif self.kind == "multiplicative":
            hidden = nn.tanh(nn.combine_bc(a, "*", p))
        else:
            gate = nn.sigmoid(nn.combine_bc(self.encoder_gate(encoded), "+", self.predictor_gate(predicted)))
            a, p = nn.tanh(a), nn.tanh(p)
            hidden = nn.combine_bc(p, "+", gate * nn.combine_bc(a, "-", p))
        hidden.feature_dim = self.output.in_dim
        return self.output(nn.dropout(hidden, self.dropout))


def _with_start(vocab_dim: nn.Dim) -> nn.Dim:
    return nn.FeatureDim("labels-and-start", (vocab_dim.dimension or 0) + 1)


def _check_labels(owner: str, source: nn.Tensor, in_dim: nn.Dim):
    if source.sparse_dim != in_dim:
        raise ValueError(f"{owner}: expected start and labels over {in_dim}, got {source}")
