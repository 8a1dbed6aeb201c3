"""
The experiment in ``docs/sisyphus.md``, with jobs that really run (``-m slow``).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path

import pytest

from returnn_common.config import diff, read
from tests.cli.tiny import make_corpus
from tests.sis import sisyphus

DOCS = Path(__file__).resolve().parents[2] / "docs" / "sisyphus.md"
_SMALL = {
    '"/data/digits"': "SOURCE",
    "NUM_EPOCHS = 20": "NUM_EPOCHS = 1",
    "(1, 2)": "(1,)",
    "num_layers=num_layers)": "num_layers=num_layers, model_dim=8)",
    "warmup_epochs=3": "warmup_epochs=0",
    '"max_seqs": 200': '"max_seqs": 2',
}


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """what the experiment registers, small"""
    source = make_corpus(tmp_path / "source")
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", DOCS.read_text("utf8"), re.DOTALL))
    for name, text in files.items():
        if name == "digits_experiment.py":
            for old, new in _SMALL.items():
                assert old in text
                text = text.replace(old, repr(str(source)) if new == "SOURCE" else new)
        path = tmp_path / "recipe" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "recipe")
    monkeypatch.setitem(sys.modules, "sisyphus", sys.modules[sisyphus.__name__])
    monkeypatch.setattr(sisyphus.tk, "outputs", {})
    monkeypatch.setattr(sisyphus.Job, "work", str(tmp_path / "jobs"))
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parents[1]))
    sisyphus.forget_jobs()
    before = set(sys.modules)
    importlib.import_module("digits_experiment")
    yield sisyphus.tk.outputs
    for name in set(sys.modules) - before:
        if name.startswith("digits"):
            del sys.modules[name]


def test_the_jobs(outputs, tmp_path):
    """each once, waiting for those that make its inputs"""
    assert sorted(outputs) == ["digits/1-layers/dev.wer", "digits/1-layers/test.wer"]
    scoring = outputs["digits/1-layers/dev.wer"].creator
    (recognition,) = {path.creator for path in scoring.inputs} - {prepare(scoring)}
    assert type(recognition).__name__ == "RecogJob"
    assert {type(path.creator).__name__ for path in recognition.inputs} == {"TrainJob", "PrepareJob"}
    training = next(path.creator for path in recognition.inputs if type(path.creator).__name__ == "TrainJob")
    assert [type(path.creator).__name__ for path in training.inputs] == ["PrepareJob"]
    assert prepare(scoring) is prepare(training) is prepare(recognition)
    other = outputs["digits/1-layers/test.wer"].creator
    assert other is not scoring and prepare(other) is prepare(scoring)


def prepare(job):
    """:return: the job that made the corpus"""
    (found,) = {path.creator for path in job.inputs if type(path.creator).__name__ == "PrepareJob"}
    return found


def test_the_hashes(outputs, tmp_path):
    """don't depend on the folder of the jobs"""
    ids = {name: path.creator.sis_id for name, path in outputs.items()}
    sisyphus.forget_jobs()
    sisyphus.Job.work = str(tmp_path / "elsewhere")
    importlib.reload(sys.modules["digits_experiment"])
    assert {name: path.creator.sis_id for name, path in outputs.items()} == ids


# Slow: prepares, trains, recognises two splits, each in a process of its own.
@pytest.mark.slow
def test_it_runs(outputs, tmp_path):
    assert sisyphus.run_jobs(outputs) == ["PrepareJob", "TrainJob", "RecogJob", "ScoreJob", "RecogJob", "ScoreJob"]
    assert all(path.get() >= 0 for path in outputs.values())
    assert sisyphus.run_jobs(outputs) == []
    training, dev, test = sorted(Path(sisyphus.Job.work).glob("**/returnn.config"), key=os.path.getmtime)
    changes = {change.path for change in diff(dev, test)}
    assert changes == {"forward_data.sources[0].split", "recog_output_file"}, changes
    assert read(training)["task"] == "train"
