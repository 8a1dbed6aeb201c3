"""All alignments of a transducer, enumerated. NumPy, float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

__all__ = ["alignments", "log_softmax", "loss_and_gradient"]

Arc = tuple[int, int, int]  # frame, number of labels before, index in the vocabulary


def alignments(labels: list[int], *, num_frames: int, blank: int, topology: str) -> Iterator[list[Arc]]:
    """:return: each as the arcs that it passes"""

    def walk(t: int, u: int, last: int) -> Iterator[list[Arc]]:
        if t == num_frames:
            if u == len(labels):
                yield []
            return
        for rest in walk(t + 1, u, blank):
            yield [(t, u, blank), *rest]
        if topology == "ctc" and last != blank:
            for rest in walk(t + 1, u, last):
                yield [(t, u, last), *rest]
        if u < len(labels) and not (topology == "ctc" and last == labels[u]):
            for rest in walk(t if topology == "rnnt" else t + 1, u + 1, labels[u]):
                yield [(t, u, labels[u]), *rest]

    return walk(0, 0, blank)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.logaddexp.reduce(x, axis=-1, keepdims=True)


def loss_and_gradient(
    logits: np.ndarray, labels: list[int], *, blank: int, topology: str = "rnnt", fast_emission: float = 0.0
) -> tuple[float, np.ndarray]:
    """
    :param logits: ``{time, labels + 1, vocab}``
    :return: infinite without an alignment, and the gradient zero
    """
    log_probs = log_softmax(logits.astype("float64"))
    gradient = np.zeros_like(log_probs)
    paths = list(alignments(labels, num_frames=len(logits), blank=blank, topology=topology))
    scores = [sum(log_probs[arc] for arc in path) for path in paths]
    total = np.logaddexp.reduce(scores or [-np.inf])
    if not np.isfinite(total):
        return np.inf, gradient
    for path, score in zip(paths, scores, strict=True):
        for t, u, label in path:
            weight = np.exp(score - total) * (1.0 if label == blank else 1.0 + fast_emission)
            gradient[t, u] += weight * np.exp(log_probs[t, u])
            gradient[t, u, label] -= weight
    return -total, gradient
