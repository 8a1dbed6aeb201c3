"""Alignments by transducer models: what the search finds, and what the loss has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.search import transducer_beam_search
from tests.models.transducer_tiny import VOCAB, run


@pytest.mark.parametrize("options", [{}, {"topology": "monotonic", "frames_per_block": 2}, {"separate_blank": True}])
def test_scores_are_those_of_a_full_search(options: dict):
    """of all hypotheses of a beam: the best alignments with the maximum, all with the sum"""

    def func(model, x, time):
        encoded, spatial_dim = model.encode(x, in_spatial_dim=time)
        limit = 1 if model.topology == "monotonic" else 2
        search: dict[str, Any] = {"spatial_dim": spatial_dim, "blank": VOCAB, "max_labels_per_frame": limit}
        search.update(topology=model.topology, vocab_dim=model.vocab_dim, beam_size=60)
        num_compared = 0
        for recombine in ("max", "sum"):
            hyps = transducer_beam_search(model, encoded, **search, recombine=recombine)
            known = {"labels": hyps.labels, "labels_spatial_dim": hyps.spatial_dim}
            align = model.align if recombine == "max" else model.soft_align
            alignment, frames_dim = align(x, in_spatial_dim=time, **known)
            assert frames_dim == spatial_dim
            dims = [nn.batch_dim, hyps.beam_dim]
            scores = alignment.scores.copy_compatible_to_dims_raw(dims).detach().numpy()
            for i in range(3):
                for k, (score, labels) in enumerate(hyps.nbest(i)):
                    if len(labels) <= 2:
                        assert scores[i, k] == pytest.approx(score, abs=1e-4)
                        num_compared += 1
                    else:
                        assert scores[i, k] > score - 1e-4
        assert num_compared > 20
        return {}

    run(func, **options)


def test_soft_alignment_has_each_label_once():
    def func(model, x, time, y, labels):
        soft, frames = model.soft_align(x, in_spatial_dim=time, labels=y, labels_spatial_dim=labels)
        best, _ = model.align(x, in_spatial_dim=time, labels=y, labels_spatial_dim=labels)
        dims = [nn.batch_dim, labels]
        return {
            "total": (nn.reduce_sum(soft.labels, axis=frames), dims),
            "starts": (best.starts, dims),
            "ends": (best.ends, dims),
        }

    result = run(func)
    np.testing.assert_allclose(result["total"], [[1, 1], [1, 1], [1, 0]], atol=1e-5)
    np.testing.assert_array_equal(result["ends"] - result["starts"], [[1, 1], [1, 1], [1, 0]])


def test_every_transducer_can_align():
    run(lambda model: {} if model.can_align and not model.aux_ctc_layers else 1 / 0)
