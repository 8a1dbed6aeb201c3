"""What builders ask of their arguments."""

from __future__ import annotations

import pytest

from returnn_common import nn
from returnn_common.nn.checks import check_at_least, check_num_heads, check_probability


def test_good_values_pass():
    check_at_least("owner", 1, first=1, second=7)
    check_probability("owner", none=0.0, nearly=0.999)
    check_num_heads("owner", 4, out_dim=nn.FeatureDim("model", 12))


@pytest.mark.parametrize("value", [0, -3, 1.5, True, "2", None])
def test_at_least(value):
    with pytest.raises(ValueError, match=f"owner: expected second >= 1, got {value!r}"):
        check_at_least("owner", 1, first=2, second=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, 2, float("nan")])
def test_probability(value):
    with pytest.raises(ValueError, match=f"owner: expected 0 <= second < 1, got {value}"):
        check_probability("owner", first=0.5, second=value)


@pytest.mark.parametrize("num_heads", [0, -1, 5, 24, 2.0])
def test_num_heads(num_heads):
    with pytest.raises(ValueError, match=f"owner: out_dim 12 is not a multiple of num_heads {num_heads}"):
        check_num_heads("owner", num_heads, out_dim=nn.FeatureDim("model", 12))
