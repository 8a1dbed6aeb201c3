"""Several checkpoints in one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.training.convert import read_parameters
from returnn_common.training.merge import merge_checkpoints

torch = pytest.importorskip("torch")


def _write(path: Path, params: dict[str, float], *, epoch: int) -> Path:
    values = {name: torch.full([2], value) for name, value in params.items()}
    torch.save({"model": values, "epoch": epoch, "step": 10 * epoch}, f"{path}.pt")
    return path


@pytest.mark.parametrize("backend", ["torch", "tensorflow", "tensorflow-net-dict", "jax"])
def test_parts(backend: str, tmp_path: Path):
    pytest.importorskip({"torch": "torch", "jax": "orbax.checkpoint"}.get(backend, "tensorflow"))
    model = _write(tmp_path / "model", {"a.weight": 1.0, "b": 2.0}, epoch=3)
    lm = _write(tmp_path / "lm", {"a.weight": 3.0}, epoch=7)
    out = merge_checkpoints({"": model, "lm": lm}, tmp_path / "out.003.pt", backend=backend)
    assert out == str(tmp_path / "out.003")
    read = read_parameters(out)
    assert (read.backend, read.epoch, read.step) == (backend, 3, 30)
    assert set(read.dtypes.values()) == {"float32"}
    for name, value in {"a.weight": 1.0, "b": 2.0, "lm.a.weight": 3.0}.items():
        np.testing.assert_array_equal(read.values.pop(name), [value, value])
    assert not read.values


def test_tied_parameters(tmp_path: Path):
    """PyTorch wants each of their names"""
    nn.select_backend_torch()
    dim = nn.Dim(2, name="dim")
    model = nn.Module()
    model.a = model.b = nn.Parameter([dim])
    checkpoint = _write(tmp_path / "model", {"a": 1.0}, epoch=1)
    out = merge_checkpoints({"lm": checkpoint}, tmp_path / "out", backend="torch", models={"lm": model})
    assert sorted(read_parameters(out).values) == ["lm.a", "lm.b"]
    other = _write(tmp_path / "other", {"c": 1.0}, epoch=1)
    with pytest.raises(
        ValueError, match="merge_checkpoints: parameters differ: c only in .*other; a only in the model"
    ):
        merge_checkpoints({"lm": other}, tmp_path / "out", backend="torch", models={"lm": model})


def test_what_cannot_be_merged(tmp_path: Path):
    model = _write(tmp_path / "model", {"a": 1.0, "lm.b": 2.0}, epoch=3)
    lm = _write(tmp_path / "lm", {"b": 3.0}, epoch=7)
    with pytest.raises(ValueError, match="merge_checkpoints: lm.b is in .*lm and in one before it"):
        merge_checkpoints({"": model, "lm": lm}, tmp_path / "out", backend="torch")
    with pytest.raises(ValueError, match="merge_checkpoints: expected at least one checkpoint, got none"):
        merge_checkpoints({}, tmp_path / "out", backend="torch")
    with pytest.raises(ValueError, match="merge_checkpoints: backend must be one of torch, .* got 'x'"):
        merge_checkpoints({"": model}, tmp_path / "out", backend="x")
    with pytest.raises(FileNotFoundError, match="no checkpoint .*nothing"):
        merge_checkpoints({"": tmp_path / "nothing"}, tmp_path / "out", backend="torch")
    assert not (tmp_path / "out.pt").exists()
