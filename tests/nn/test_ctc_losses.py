"""CTC heads: what is refused. Their values are those of the models, see tests/models/test_ctc.py and test_aed.py."""

from __future__ import annotations

import numpy as np
import pytest

from returnn_common import nn
from tests.engines import Input, run_on


def test_head_over_other_frames():
    def func(x, y, time, frames, labels):
        nn.ctc_losses(
            [nn.CtcHead("ctc_1", x)], spatial_dim=frames, targets=y, targets_spatial_dim=labels, blank_index=2
        )

    inputs = {
        "x": Input(np.zeros((2, 5, 3), "float32"), "batch time classes"),
        "y": Input(np.zeros((2, 1), "int32"), "batch labels", sparse="vocab"),
    }
    dims = {"time": [5, 3], "frames": [3, 2], "classes": 3, "labels": [1, 1], "vocab": 2}
    with pytest.raises(ValueError, match="ctc_losses: ctc_1: expected logits over .*frames.*, got .*time"):
        run_on("torch", func, inputs, dims)
