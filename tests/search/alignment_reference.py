"""All alignments of labels with frames, enumerated: what each label has of them. NumPy, float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.nn.transducer_reference import Arc, alignments

__all__ = ["Expected", "expected_alignment"]


@dataclass
class Expected:
    """of a label sequence; without an alignment, all is zero, and the scores are -inf"""

    best_score: float
    path: list[int]
    starts: list[int]
    ends: list[int]
    frame_scores: np.ndarray
    label_scores: list[float]
    total_score: float
    soft_labels: np.ndarray
    soft_blank: np.ndarray


def expected_alignment(log_probs: np.ndarray, labels: list[int], *, blank: int, topology: str) -> Expected:
    """:param log_probs: ``{time, labels + 1, vocab}``"""
    frames, size = len(log_probs), len(labels)
    paths = list(alignments(labels, num_frames=frames, blank=blank, topology=topology))
    scores = np.array([sum(float(log_probs[arc]) for arc in path) for path in paths] or [-np.inf])
    soft_labels, soft_blank = np.zeros((frames, size)), np.zeros(frames)
    total = float(np.logaddexp.reduce(scores))
    if total == -np.inf:
        nothing, zeros = log_probs[:, 0, blank], [0] * size
        return Expected(-np.inf, [-1] * frames, zeros, zeros, nothing, [0.0] * size, total, soft_labels, soft_blank)
    for path, score in zip(paths, scores, strict=True):
        for t, label in _labels_of(path, size, blank):
            soft_labels[t, label] += np.exp(score - total)
        soft_blank[[t for t, _, symbol in path if symbol == blank]] += np.exp(score - total)
    best = paths[int(scores.argmax())]
    spans: list[list[int]] = [[] for _ in labels]
    probs: list[list[float]] = [[] for _ in labels]
    path, frame_scores = [-1] * frames, np.zeros(frames)
    for arc in best:
        frame_scores[arc[0]] += log_probs[arc]
    spoken = [arc for arc in best if arc[2] != blank]
    for arc, (t, label) in zip(spoken, _labels_of(best, size, blank), strict=True):
        path[t] = label
        spans[label].append(t)
        probs[label].append(float(np.exp(log_probs[arc])))
    return Expected(
        best_score=float(scores.max()),
        path=path,
        starts=[span[0] for span in spans],
        ends=[span[-1] + 1 for span in spans],
        frame_scores=frame_scores,
        label_scores=[float(np.log(np.mean(x))) for x in probs],
        total_score=total,
        soft_labels=soft_labels,
        soft_blank=soft_blank,
    )


def _labels_of(path: list[Arc], num_labels: int, blank: int) -> list[tuple[int, int]]:
    """:return: frame and number of each label, once for each frame that it is in"""
    after = [u for _, u, _ in path[1:]] + [num_labels]
    # A label that goes on does not change the position.
    return [(t, u if v > u else u - 1) for (t, u, symbol), v in zip(path, after, strict=False) if symbol != blank]
