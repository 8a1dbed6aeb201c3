"""
Each entry of the zoo is trained through ``python -m returnn`` for a few steps, and recognises, on each engine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from returnn_common.models.aed import make_aed_model
from returnn_common.models.transducer import make_transducer_model
from returnn_common.models.transformer import make_transformer
from returnn_common.recog import read_nbest
from returnn_common.training.averaging import read_scores
from tests.engines import ENGINES
from tests.engines.server import run_module
from tests.zoo import ZOO, Entry
from tests.zoo_kinds import (
    AUDIO,
    JOINER,
    LM,
    PREDICTOR,
    SPECTROGRAM,
    SPEECH,
    SPEECH_FROM_AUDIO,
    TEXT,
    TEXT_ALONE,
)

CONFIG = str(Path(__file__).with_name("zoo_config.py"))
# What is only a part of models in lines of their own is trained with them.
TRAINED = [entry for entry in ZOO if entry.kind not in (AUDIO, SPECTROGRAM, PREDICTOR, JOINER)]
# Of each file one, and on the other engines than PyTorch the full models, which takes up to a minute each; what is left
# out here, with other parts or options, is among the slow tests.
_FIRST = {entry.builder.__module__: entry.name for entry in reversed(TRAINED)}
_FULL = (SPEECH, SPEECH_FROM_AUDIO, TEXT, TEXT_ALONE)


def _params() -> Iterator[Any]:
    for engine, entry in itertools.product(ENGINES, TRAINED):
        marks = [pytest.mark.xdist_group(f"training-{engine}")]
        is_first = entry.name == _FIRST[entry.builder.__module__]
        if not is_first or (engine != "torch" and entry.kind not in _FULL):
            marks.append(pytest.mark.slow("a minute each, and the full models are trained anyway"))
        elif engine == "jax" and entry.builder in (make_aed_model, make_transformer, make_transducer_model):
            marks.append(pytest.mark.slow("JAX compiles each operation for each shape, for two minutes"))
        yield pytest.param(engine, entry, id=f"{engine}-{entry.name}", marks=marks)


@pytest.mark.parametrize("engine, entry", list(_params()))
def test_training_and_recognition(engine: str, entry: Entry, tmp_path: Path):
    """losses fall, and every sequence gets a hypothesis"""
    options = ["++zoo_entry", entry.name, "++backend", engine]
    run_module(engine, ["returnn", CONFIG, *options, "++task", "train"], cwd=tmp_path)
    epochs = sorted(read_scores(tmp_path / "learning_rates").items())
    assert len(epochs) == 4
    first, last = (_train_loss(scores) for _, scores in (epochs[0], epochs[-1]))
    assert math.isfinite(last) and last < first, f"train loss {first} in the first epoch, {last} in the last"

    if entry.kind in (LM, TEXT_ALONE):  # nothing to recognise
        return
    module = "returnn_common.recog.net_dict" if engine == "tensorflow-net-dict" else "returnn"
    options += ["++task", "forward", "++load_epoch", "4", "++recog_output_file", "nbest.py"]
    run_module(engine, [module, CONFIG, *options], cwd=tmp_path)
    hypotheses = read_nbest(tmp_path / "nbest.py")
    assert len(hypotheses) == 12
    for tag, nbest in hypotheses.items():
        assert nbest and math.isfinite(nbest[0][0]), tag


def _train_loss(scores: dict[str, float]) -> float:
    return sum(value for name, value in scores.items() if name.startswith(("train_loss", "train_score")))
