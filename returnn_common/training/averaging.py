"""
Averaging of checkpoints, and the choice of which to average.

Averaging the parameters of several checkpoints of one training, as in the Transformer paper
(Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 6.1), mostly recognises better than the best of them.
"""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy

from .checkpoints import Checkpoint, compare_parameters, find_checkpoint, read_checkpoint, write_checkpoint

__all__ = ["average_checkpoints", "select_checkpoints", "read_scores"]


def average_checkpoints(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> str:
    """
    Write the mean of checkpoints, as a checkpoint for the engine that they are of, found from the files.

    Floating-point parameters are averaged in float64 and cast back. All others (counters, random state), and the
    epoch and step, come from the checkpoint with the highest step. ``out`` appears whole or not at all.
    RETURNN's option ``load`` takes it. As the epoch, RETURNN takes a number at the end of the name (``average.012``),
    if there is one; the TensorFlow layers engine needs that, or the option ``load_epoch``.

    :param paths: checkpoints, with or without suffix
    :param out: path to write, with or without suffix; replaced if it exists
    :return: ``out`` without suffix
    :raise FileNotFoundError: a checkpoint is missing
    :raise ValueError: no checkpoints, one twice, of different engines, or parameters differ in name, type or shape
    """
    if isinstance(paths, (str, os.PathLike)):
        raise TypeError(f"average_checkpoints: paths must be a list of paths, got {paths!r}")
    if not paths:
        raise ValueError("average_checkpoints: no checkpoints given")
    found = [find_checkpoint(path) for path in paths]
    engines = sorted({engine for engine, _ in found})
    if len(engines) > 1:
        raise ValueError(f"average_checkpoints: checkpoints of different engines: {', '.join(engines)}")
    real = [os.path.realpath(base) for _, base in found]
    twice = sorted({base for base in real if real.count(base) > 1})
    if twice:
        raise ValueError(f"average_checkpoints: given twice: {', '.join(twice)}")

    last = total = None
    # Sorted, so that rounding doesn't depend on the order given either.
    for path in sorted(os.fspath(path) for path in paths):
        checkpoint = read_checkpoint(path)
        if last is None or total is None:
            last, first_path = checkpoint, path
            total = {name: value.copy() for name, value in checkpoint.floats.items()}
            continue
        _check_same_parameters(last, first_path, checkpoint, path)
        for name, value in checkpoint.floats.items():
            total[name] += value
        if checkpoint.step >= last.step:
            last, first_path = checkpoint, path
    assert last is not None and total is not None
    last.floats = {name: numpy.asarray(value / len(paths)) for name, value in total.items()}
    return write_checkpoint(last, out)


def select_checkpoints(
    learning_rate_file: str | os.PathLike[str],
    model_prefix: str | os.PathLike[str],
    *,
    num: int,
    mode: str = "best",
    by: str | None = None,
) -> list[str]:
    """
    Choose checkpoints of a training by what RETURNN wrote into its learning-rate file.

    :param learning_rate_file: RETURNN's option ``learning_rate_file`` of that training
    :param model_prefix: RETURNN's option ``model`` of that training
    :param num: how many
    :param mode: "best" (lowest score) or "last"
    :param by: for "best", the score, such as "dev_loss_ctc". The engines name it differently: "dev_loss:ctc"
        (TensorFlow low-level), "dev_score_ctc", or "dev_score" when it is the only loss (TensorFlow layers);
        any of these names finds any other
    :return: paths without suffix, best first, or in order of the epochs
    :raise FileNotFoundError: the learning-rate file or a chosen checkpoint does not exist
    :raise ValueError: too few epochs with that score, no such score, or the file can't be read
    """
    if num < 1:
        raise ValueError(f"select_checkpoints: num must be at least 1, got {num}")
    if mode not in ("best", "last"):
        raise ValueError(f"select_checkpoints: mode must be 'best' or 'last', got {mode!r}")
    if (mode == "best") != (by is not None):
        raise ValueError(f"select_checkpoints: mode 'best' needs by=SCORE, and mode 'last' takes none, got by={by!r}")
    scores = {epoch: errors for epoch, errors in read_scores(learning_rate_file).items() if errors}
    if by is None:
        chosen = sorted(scores)
        what = "finished epochs"
    else:
        values = _values_of_score(scores, by, learning_rate_file)
        # Not a number is no score: such an epoch is never among the best.
        chosen = sorted((e for e in values if math.isfinite(values[e])), key=lambda e: (values[e], e))
        what = f"epochs with a finite {by}"
    if len(chosen) < num:
        raise ValueError(f"select_checkpoints: {learning_rate_file} has {len(chosen)} {what}, {num} asked for")
    chosen = chosen[:num] if mode == "best" else chosen[-num:]
    bases = [f"{os.fspath(model_prefix)}.{epoch:03d}" for epoch in chosen]
    missing = [base for base in bases if not any(os.path.exists(base + s) for s in (".pt", ".index", ".orbax"))]
    if missing:
        raise FileNotFoundError(f"select_checkpoints: no checkpoint for chosen epochs: {', '.join(missing)}")
    return bases


def read_scores(learning_rate_file: str | os.PathLike[str]) -> dict[int, dict[str, float]]:
    """
    :param learning_rate_file: as RETURNN writes it: ``{1: EpochData(learningRate=..., error={name: score}), ...}``
    :return: by epoch, the scores by name. An epoch that is not finished has none
    :raise FileNotFoundError: there is no such file
    :raise ValueError: not such a file. It is read as data, never run
    """
    with open(learning_rate_file, encoding="utf8") as file:
        text = file.read()
    try:
        epochs = _literal(ast.parse(text.strip(), mode="eval").body)
        if not isinstance(epochs, dict) or not all(isinstance(epoch, int) for epoch in epochs):
            raise ValueError("no dict of epochs")
        result = {}
        for epoch, data in epochs.items():
            errors = data.get("error") or {}
            if isinstance(errors, float):
                errors = {"old_format_score": errors}
            # RETURNN keeps other information about the epoch beside the scores, marked by the prefix.
            result[epoch] = {name: float(v) for name, v in errors.items() if not name.startswith(":meta:")}
        return result
    except (SyntaxError, ValueError, AttributeError, TypeError) as exc:
        raise ValueError(f"{learning_rate_file} is not a learning-rate file of RETURNN's: {exc}") from exc


def _literal(node: ast.expr) -> Any:
    """Value of a literal, where calls may make numbers (``float('nan')``, ``np.float32(1.0)``) and EpochData."""
    if isinstance(node, ast.Dict):
        return {
            _literal(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key is not None
        }
    if isinstance(node, ast.Name) and node.id in ("nan", "inf"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_literal(node.operand)
    if isinstance(node, ast.Call):
        function = ast.unparse(node.func)
        if function == "EpochData" and not node.args:
            return {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
        number = function.split(".")[-1].rstrip("0123456789")
        if number in ("float", "int") and len(node.args) == 1 and not node.keywords:
            return float(_literal(node.args[0]))
        raise ValueError(f"unexpected call of {function}")
    return ast.literal_eval(node)


def _values_of_score(
    scores: dict[int, dict[str, float]], by: str, learning_rate_file: str | os.PathLike[str]
) -> dict[int, float]:
    """:return: by epoch, the score called ``by``, under whichever name the engine gave it"""
    names = sorted({name for errors in scores.values() for name in errors})
    wanted = _canonical(by)
    # The layers engine leaves out the loss's name when there is only one.
    total = wanted.partition("_loss")[0] + "_loss"
    for matches in (
        [name for name in names if name == by],
        [name for name in names if _canonical(name) == wanted],
        [name for name in names if name == total.replace("_loss", "_score")],
        [name for name in names if wanted == total and _canonical(name).startswith(total + "_")],
    ):
        if len(matches) == 1:
            return {epoch: errors[matches[0]] for epoch, errors in scores.items() if matches[0] in errors}
    raise ValueError(f"{learning_rate_file} has no score {by!r}; it has: {', '.join(names) or 'none'}")


def _canonical(name: str) -> str:
    """:return: "dev_loss_ctc" for "dev_loss:ctc" and "dev_score_ctc" """
    return name.replace(":", "_").replace("_score", "_loss", 1)


def _check_same_parameters(first: Checkpoint, first_path: str, other: Checkpoint, path: str) -> None:
    """:raise ValueError: naming the parameters that differ"""

    def _describe(checkpoint: Checkpoint) -> dict[str, str]:
        kinds = {name: f"{checkpoint.dtypes[name]} {list(v.shape)}" for name, v in checkpoint.floats.items()}
        kinds.update({name: f"{v.dtype} {list(v.shape)}" for name, v in checkpoint.others.items()})
        return kinds

    differences = compare_parameters(_describe(first), _describe(other), a_name=first_path, b_name=path)
    if differences:
        raise ValueError(f"average_checkpoints: parameters differ: {differences}")
