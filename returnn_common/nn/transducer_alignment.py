"""
When a transducer emits its labels: of all alignments, or in the best one.
"""

from __future__ import annotations

from collections.abc import Sequence

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from ._lattice import NEG
from ._transducer_targets import TransducerTargets
from ._transducer_topologies import TransducerOccupancies, occupancies_of

__all__ = ["TransducerOccupancies", "transducer_occupancies"]


def transducer_occupancies(
    scores: Sequence[Tensor], *, targets: TransducerTargets, positions_dim: Dim, best: bool = False
) -> TransducerOccupancies:
    """
    :param scores: log probabilities ``{batch, time, positions}``, minus infinity allowed, of blank, the next label, and
        with the topology "ctc" the last label once more; as of :func:`joint_transducer_scores`
    :param targets: labels, and which alignments they may have
    :param positions_dim: one more than there are labels
    :param best: of the best alignment (Viterbi), not of all (forward-backward)
    :raises ValueError: for another number of scores, or scores without that dim
    """
    expected = 3 if targets.topology == "ctc" else 2
    if len(scores) != expected or any(positions_dim not in x.dims for x in scores):
        raise ValueError(
            f"transducer_occupancies: expected {expected} scores with {positions_dim} for the topology "
            f"{targets.topology!r}, got {list(scores)}"
        )
    finite = [rf.maximum(x, NEG) for x in scores]
    return occupancies_of(finite, targets.sizes(positions_dim), targets.topology, best=best)
