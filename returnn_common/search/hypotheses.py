"""What every search returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from .. import nn
from ._common import check_int, plain

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

    def first(self, num_best: int) -> Hypotheses:
        """
        :param num_best: hypotheses, from 1 to as many as the beam has
        :return: so many of the best, in a beam of that size
        :raise ValueError: another number
        """
        size = self.beam_dim.dimension or 0
        check_int("Hypotheses", "num_best", num_best, at_least=1)
        if num_best > size:
            raise ValueError(f"Hypotheses: num_best, expected at most the beam's {size}, got {num_best}")
        if num_best == size:
            return self
        beam_dim = nn.Dim(num_best, name="best")

        def take(x: nn.Tensor) -> nn.Tensor:
            return nn.gather(x, indices=plain(nn.range_over_dim(beam_dim, device=x.device)), axis=self.beam_dim)

        spatial_dim = nn.Dim(take(self.lengths), name="labels")
        positions = plain(nn.range_over_dim(spatial_dim, dtype="int32", device=self.labels.device))
        return Hypotheses(
            labels=nn.gather(take(self.labels), indices=positions, axis=self.spatial_dim),
            scores=take(self.scores),
            beam_dim=beam_dim,
            spatial_dim=spatial_dim,
        )

    def nbest(self, *i: int) -> list[tuple[float, list[int]]]:
        """
        :param i: batch entry; where there are several batch dims, or none, an index for each, in the order of `scores`
        :return: (score, label ids) of each hypothesis of that entry, best first, without unused beam entries
        :raise RuntimeError: in a graph engine, where the tensors have no values yet
        :raise IndexError: there is no batch entry `i`
        :raise TypeError: another number of indices than batch dims
        """
        scores = self._numpy(self.scores)
        lengths, labels = self._numpy(self.lengths), self._numpy(self.labels)
        batch_dims = [d for d in self.scores.dims if d != self.beam_dim]
        if len(i) != len(batch_dims):
            raise TypeError(f"nbest: expected an index for each of the batch dims {batch_dims}, got {i}")
        for index, size in zip(i, scores.shape, strict=False):
            if not 0 <= index < size:
                raise IndexError(f"nbest: expected a batch entry from 0 to {size - 1}, got {index}")
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
