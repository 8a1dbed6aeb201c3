"""
What every decoder and every language model offers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from returnn.frontend import State
from returnn.tensor import Dim, Tensor

__all__ = ["Decoder"]


class Decoder(Protocol):
    """
    Any module with these is a decoder: ours, RETURNN's ``TransformerDecoder``, yours. Nobody inherits from it.
    A language model is a decoder without ``transform_encoder``, whose ``encoder`` is always None.

    vocab_dim: of the labels and of the logits.
    A state is any nested structure that ``nn.nested`` handles; its tensors carry the batch dims.
    """

    vocab_dim: Dim

    def transform_encoder(self, encoder: Tensor, /, *, axis: Dim) -> Any:
        """
        What can be computed once per utterance (e.g. the keys and values of the attention).

        :param encoder: output of the encoder, ``{batch, time, encoder_dim}``
        :param axis: its time
        :return: what ``__call__`` takes as ``encoder``
        """
        ...

    def default_initial_state(self, *, batch_dims: Sequence[Dim]) -> State:
        """
        :param batch_dims: of the labels, without their time
        :return: state before the first label
        """
        ...

    def __call__(
        self, source: Tensor, /, *, spatial_dim: Dim, state: State, encoder: Any = None
    ) -> tuple[Tensor, State]:
        """
        :param source: previous labels, beginning with the start of the sentence: ``{batch, labels}`` over vocab_dim,
            or ``{batch}`` with ``nn.single_step_dim``
        :param spatial_dim: labels, or ``nn.single_step_dim`` for one step
        :param state: of :meth:`default_initial_state`, or of the call before
        :param encoder: of ``transform_encoder``
        :return: logits of the labels that follow, ``{batch, labels, vocab}`` (one step: ``{batch, vocab}``);
            new state
        """
        ...
