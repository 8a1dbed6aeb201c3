"""What every search returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from .. import nn

__all__ = ["Hypotheses"]


@dataclass
class Hypotheses:
    """
    The best label sequences of each batch entry, best first.

    A beam can have more room than there are hypotheses; the score of the entries not used is -inf.

    :param labels: {batch, beam, spatial}, sparse, without `bos` and `eos`
    :param scores: {batch, beam}, natural log, end of sentence included, before any length normalisation
    :param beam_dim: the beam, static
    :param spatial_dim: the labels, its lengths are {batch, beam}
    """

    labels: nn.Tensor
    scores: nn.Tensor
    beam_dim: nn.Dim
    spatial_dim: nn.Dim

    @property
    def lengths(self) -> nn.Tensor:
        """{batch, beam}, number of labels of each hypothesis (int32); the sizes of `spatial_dim`"""
        return self.spatial_dim.get_size_tensor()

    def nbest(self, i: int) -> list[tuple[float, list[int]]]:
        """
        :param i: batch entry
        :return: (score, label ids) of each hypothesis of that entry, best first, without unused beam entries
        :raise RuntimeError: in a graph engine, where the tensors have no values yet
        :raise IndexError: there is no batch entry `i`
        """
        scores = self._numpy(self.scores)
        lengths, labels = self._numpy(self.lengths), self._numpy(self.labels)
        if not 0 <= i < len(scores):
            raise IndexError(f"nbest: expected a batch entry from 0 to {len(scores) - 1}, got {i}")
        return [
            (float(score), [int(label) for label in seq[:length]])
            for score, length, seq in zip(scores[i], lengths[i], labels[i], strict=True)
            if score > float("-inf")
        ]

    def _numpy(self, x: nn.Tensor) -> numpy.ndarray:
        """:return: dim order batch, beam, spatial"""
        backend = x._raw_backend
        if x.raw_tensor is None or not backend.executing_eagerly():
            raise RuntimeError(
                f"nbest: {x} has no values: in a graph engine, fetch labels, lengths and scores from the session"
            )
        order = [d for d in self.scores.dims if d != self.beam_dim] + [self.beam_dim]
        order += [self.spatial_dim] if self.spatial_dim in x.dims else []
        return backend.raw_to_numpy(x.copy_compatible_to_dims_raw(order))
