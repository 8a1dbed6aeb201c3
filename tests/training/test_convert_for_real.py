"""A recogniser of digits that was trained on one engine recognises the same on each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_common
from returnn_common.datasets.prepare import prepare_librispeech
from returnn_common.recog.nbest import NBest, read_nbest
from returnn_common.training import convert_checkpoint
from returnn_common.training.checkpoints import read_checkpoint, write_checkpoint
from returnn_common.training.convert import BACKENDS
from tests.cli.tiny import SMALL, make_corpus, make_recipe

ROOT = Path(returnn_common.__file__).resolve().parents[1]

# Four trainings and sixteen recognitions: each starts RETURNN, and builds or compiles a network; minutes for each of
# the four. What takes seconds is in test_convert.py.
pytestmark = pytest.mark.slow


def _returnn(folder: Path, backend: str, *, module: str = "returnn", **options: object):
    env = {**os.environ, "DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    options = {"backend": backend, "corpus": folder / "data", **dict(s.split("=") for s in SMALL[1::2]), **options}
    given = [part for name, value in options.items() for part in (f"++{name}", str(value))]
    command = [sys.executable, "-m", module, str(folder / "tiny_digits.py"), *given]
    result = subprocess.run(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout[-5000:]


def _recognise(folder: Path, backend: str, checkpoint: str) -> NBest:
    module = "returnn_common.recog.net_dict" if backend == "tensorflow-net-dict" else "returnn"
    out = folder / f"{backend}.py.gz"
    _returnn(
        folder,
        backend,
        module=module,
        task="forward",
        load=checkpoint,
        recog_split="test",
        recog_output_file=out,
    )
    return read_nbest(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """a corpus and a recipe"""
    path = tmp_path_factory.mktemp("digits")
    prepare_librispeech(make_corpus(path / "corpus"), path / "data")
    make_recipe(path / "tiny_digits.py", max_seqs=6)
    return path


@pytest.mark.parametrize("source", BACKENDS)
def test_same_hypotheses(source, folder):
    for name in ("torch", "tensorflow", "jax", "optax", "orbax.checkpoint"):
        pytest.importorskip(name)
    model = folder / source / "epoch"
    model.parent.mkdir()
    _returnn(folder, source, model=model, learning_rate_file=model.with_name("learning_rates"), num_epochs=1)
    # Blank, the last label, would win everywhere after so little training.
    checkpoint = read_checkpoint(f"{model}.001")
    bias = "output/bias/param" if source == "tensorflow-net-dict" else "output.bias"
    checkpoint.floats[bias][-1] -= 2.0
    trained = write_checkpoint(checkpoint, model.with_name("trained.001"))
    expected = _recognise(folder, source, trained)
    texts = {tag: hyps[0][1] for tag, hyps in expected.items()}
    assert len(texts) == 2 and all(texts.values()) and len(set(" ".join(texts.values()).split())) > 1
    for target in BACKENDS:
        if target == source:
            continue
        converted = convert_checkpoint(trained, model.with_name(f"for-{target}.001"), backend=target)
        actual = _recognise(folder, target, converted)
        assert {tag: hyps[0][1] for tag, hyps in actual.items()} == texts, target
        for tag, hyps in actual.items():
            assert hyps[0][0] == pytest.approx(expected[tag][0][0], abs=1e-3, rel=1e-4)
