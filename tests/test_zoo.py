"""
What holds for every model: each entry of ``zoo.py`` is run through all of this.
"""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
import pytest

from tests import zoo_report
from tests.engines import ENGINES
from tests.zoo import ZOO, Entry
from tests.zoo_runs import evaluate, has_dropout, rows, train

# float32. Outputs are compared relative to the largest of them (1 at least), gradients of a parameter as well.
OUTPUT_TOLERANCE = 2e-5  # on one engine; between engines it is the entry's
GRADIENT_TOLERANCE = 1e-3
GARBAGE = 1e3  # in the padding


def _mark(entry: Entry, *, on_other_engines: bool = False) -> Any:
    marks = [pytest.mark.xdist_group(entry.name)]
    if on_other_engines and entry.like:
        marks.append(pytest.mark.slow(f"the modules are those of {entry.like}"))
    return pytest.param(entry, id=entry.name, marks=marks)


every_entry = pytest.mark.parametrize("entry", [_mark(entry) for entry in ZOO])
other_engines = pytest.mark.parametrize("engine", [e for e in ENGINES if e != "torch"])


def _assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float, what: str):
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, expected {expected.shape}"
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual / scale, expected / scale, rtol=0, atol=tolerance, err_msg=what)


def _assert_same_outputs(
    actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], what: str, tolerance: float = OUTPUT_TOLERANCE
):
    assert actual.keys() == expected.keys()
    for name in expected:
        _assert_close(actual[name], expected[name], tolerance, f"{what}: {name}")


@every_entry
def test_batch_equals_single_and_padding_does_not_matter(entry: Entry):
    """also for 1 to 5 frames"""
    lengths = entry.kind.lengths
    zeros, garbage = (evaluate(entry.name, "torch", lengths, fill) for fill in (0.0, GARBAGE))
    for i, n in enumerate(lengths):
        single = rows(evaluate(entry.name, "torch", (n,)), 0)
        assert all(np.isfinite(value).all() for value in single.values())
        _assert_same_outputs(rows(zeros, i), single, f"length {n}, in a batch")
        _assert_same_outputs(rows(garbage, i), single, f"length {n}, with garbage in the padding")


@every_entry
def test_padding_does_not_matter_in_training(entry: Entry):
    zeros, garbage = (train(entry.name, "torch", fill) for fill in (0.0, GARBAGE))
    for i in range(len(entry.kind.train_lengths)):
        _assert_same_outputs(rows(garbage, i), rows(zeros, i), f"row {i}")
    for name in _parameters(entry):
        _assert_close(garbage.grads[name], zeros.grads[name], GRADIENT_TOLERANCE, name)


@other_engines
@pytest.mark.parametrize("entry", [_mark(entry, on_other_engines=True) for entry in ZOO])
def test_engines_agree(entry: Entry, engine: str):
    """in evaluation and in training, outputs and all gradients; with garbage in the padding on this engine only"""
    if engine in entry.limits:
        with pytest.raises(Exception):  # noqa: B017 - what it is, tests/limits.py says
            evaluate(entry.name, engine, entry.kind.lengths, GARBAGE)
            train(entry.name, engine, GARBAGE)
        return
    lengths = entry.kind.lengths
    expected, actual = evaluate(entry.name, "torch", lengths), evaluate(entry.name, engine, lengths, GARBAGE)
    for i, n in enumerate(lengths):
        _assert_same_outputs(rows(actual, i), rows(expected, i), f"evaluation, length {n}", entry.tolerance)
    expected, actual = train(entry.name, "torch"), train(entry.name, engine, GARBAGE)
    for i, n in enumerate(entry.kind.train_lengths):
        _assert_same_outputs(rows(actual, i), rows(expected, i), f"training, length {n}", entry.tolerance)
    assert {n: p.shape for n, p in actual.params.items()} == {n: p.shape for n, p in expected.params.items()}
    for name in _parameters(entry):
        _assert_close(actual.grads[name], expected.grads[name], GRADIENT_TOLERANCE, f"gradient of {name}")


@every_entry
def test_gradients_reach_every_parameter(entry: Entry):
    grads = train(entry.name, "torch").grads
    parameters = _parameters(entry)
    unreached = {name for name in parameters if np.abs(grads[name]).max() < 1e-7 * max(1.0, _largest(grads))}
    excepted = {name for name in parameters for p in entry.no_gradient if fnmatch.fnmatch(name, p)}
    assert unreached <= excepted, "the loss does not depend on them"
    unused = [p for p in entry.no_gradient if not fnmatch.filter(parameters, p)]
    assert not unused, "no such parameters: take the pattern out of the table"


@every_entry
def test_far_beyond_the_training_length(entry: Entry):
    result = rows(evaluate(entry.name, "torch", (entry.kind.long,)), 0)
    assert all(np.isfinite(value).all() for value in result.values())


@every_entry
def test_bfloat16(entry: Entry):
    """as RETURNN's torch_amp does it, with a row that is nearly all padding; outputs and gradients are finite"""
    import torch

    lengths = (entry.kind.lengths[0], 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        # Not through the cache: the same call without autocast is another run.
        evaluated = evaluate.__wrapped__(entry.name, "torch", lengths, GARBAGE)
        trained = train.__wrapped__(entry.name, "torch", GARBAGE)
    for result in (evaluated, trained):
        assert all(np.isfinite(output.array).all() for output in result.outputs.values())
    for name in _parameters(entry):
        assert np.isfinite(trained.grads[name]).all(), name
    # Eight bits of precision, through all layers.
    for i, n in enumerate(lengths):
        exact = rows(evaluate(entry.name, "torch", (n,)), 0)
        for name, value in rows(evaluated, i).items():
            assert np.abs(value - exact[name]).max(initial=0) <= 0.15 * max(1.0, np.abs(exact[name]).max(initial=0))


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in ZOO if has_dropout(e)])
def test_random_in_training_only(entry: Entry):
    lengths = (entry.kind.lengths[0],)
    _assert_same_outputs(
        rows(evaluate(entry.name, "torch", lengths, dropout=0.5), 0),
        rows(evaluate(entry.name, "torch", lengths), 0),
        "evaluation",
    )
    with_dropout, without = (train(entry.name, "torch", dropout=p)["loss"] for p in (0.5, 0.0))
    assert np.abs(with_dropout - without).max() > 1e-4


def _parameters(entry: Entry) -> list[str]:
    """those which are trained"""
    result = train(entry.name, "torch")
    return [name for name in result.grads if name in result.params]


def _largest(grads: dict[str, np.ndarray]) -> float:
    return max((float(np.abs(g).max()) for g in grads.values()), default=0.0)


# What is generated from the table, and what the table must hold.


@every_entry
def test_golden_file(entry: Entry):
    """parameter names and shapes, and values that they lead to: old checkpoints keep loading, and mean the same"""
    zoo_report.check_golden_file(entry)


def test_no_stale_golden_files():
    assert zoo_report.golden_file_names() == {f"{entry.name}.json" for entry in ZOO}


def test_every_public_builder_is_in_the_table():
    assert not zoo_report.missing_builders(), "add a line to tests/zoo.py"


def test_generated_files_are_up_to_date():
    stale = [str(path) for path, text in zoo_report.generated_files().items() if path.read_text() != text]
    assert not stale, "run: python -m tests.zoo --update"
