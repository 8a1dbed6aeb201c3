"""
What RETURNN's engines log, and the names that they give to scores.

A step of the training looks like this with PyTorch, the low-level TensorFlow engine, the TensorFlow layers engine, and
JAX::

    ep 1 train, step 3, ctc 0.664, 0.004 sec/step, elapsed 0:00:02, exp. remaining 0:00:10, complete 21.67%
    ep 1 train, step 3, loss 0.66399, loss:ctc 0.66399, 0.001 sec/step, complete 21.67%
    train epoch 1, step 3, cost:ctc 0.664, loss 3.32, 0.004 sec/step, elapsed 0:00:02, ..., complete 21.67%
    ep 1 train, step 3, ctc 0.667, 8.192 sec/step, elapsed 0:00:39
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Step", "error_lines", "parse_num_parameters", "parse_step", "split_score_name"]

_STEP = re.compile(
    r"(?:ep (?P<epoch>\d+) (?P<what>\S.*?)|(?:pre)?train epoch (?P<train_epoch>\d+)), step (?P<step>\d+)"
    r"(?:, (?P<rest>.*))?"
)
_SCORE = re.compile(r"([^\s,]+) (-?(?:\d[\d.]*(?:e[-+]?\d+)?|inf|nan))", re.IGNORECASE)
_NO_LOSS = re.compile(r"elapsed|complete|num_seqs|batch_size|seq_len|mem_usage|mem_graph|grad_norm|loss$")
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")
_NOISE = re.compile(
    r"Quitting|elapsed: |That were all threads|\(?Excluded thread|Thread |Unhandled exception|EXCEPTION|Traceback |"
    r"Send signal|\(?No module call frames|Module call stack|KeyboardInterrupt"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Step:
    """
    :param what: "train", or the name of the dataset and "eval" or "forward"
    :param epoch: of RETURNN, from 1
    :param step: within the epoch, from 0
    :param losses: by name, without the engine's prefix, without totals
    :param complete: the part of the epoch that is done, from 0 to 1; None: the engine does not say
    """

    what: str
    epoch: int
    step: int
    losses: dict[str, float]
    complete: float | None


def parse_step(line: str) -> Step | None:
    """
    :param line: of RETURNN's log
    :return: None if it is about something else than a step
    """
    match = _STEP.fullmatch(line.rstrip())
    if not match:
        return None
    losses: dict[str, float] = {}
    complete = None
    for item in (match["rest"] or "").split(", "):
        if item.startswith("complete ") and item.endswith("%"):
            complete = min(float(item[len("complete ") : -1]) / 100, 1.0)
        score = _SCORE.fullmatch(item)
        if score and not _NO_LOSS.match(score[1]):
            losses[re.sub(r"^(loss|cost):", "", score[1])] = float(score[2])
    epoch = int(match["epoch"] or match["train_epoch"])
    return Step(match["what"] or "train", epoch, int(match["step"]), losses, complete)


def parse_num_parameters(lines: Iterable[str]) -> int | None:
    """
    :param lines: of RETURNN's log
    :return: how many parameters the model has; None if the log does not say
    """
    found = None
    for line in lines:
        match = re.match(r"net params #: (\d+)", line)
        found = int(match[1]) if match else found
    return found


def split_score_name(name: str) -> tuple[str, str] | None:
    """
    :param name: of a score in RETURNN's learning-rate file, such as "dev_loss_ctc" (PyTorch, JAX), "dev_loss:ctc"
        (TensorFlow low-level), "dev_score_ctc", or "dev_score" for the only one (TensorFlow layers)
    :return: the dataset ("dev") and the loss ("ctc"; "" for the total or the only one)
    """
    match = re.fullmatch(r"(.+?)_(?:loss|score)(?:[:_](.+))?", name)
    return (match[1], match[2] or "") if match else None


def error_lines(lines: Iterable[str], *, num: int = 6) -> list[str]:
    """
    :param lines: of the log of a run of RETURNN that failed
    :param num: at most so many
    :return: the last exception with the place where it was raised, and what comes after; without the traceback, which
        is indented. Where there is none, the last lines that say something.
    """
    kept: list[str] = []
    frame = ""
    start = 0
    in_message = False  # whose further lines may be indented
    for line in lines:
        line = _ANSI.sub("", line).rstrip()
        if line.lstrip().startswith('File "') and line[0].isspace():
            frame = line.strip()
            in_message = False
        elif line and (in_message or not line[0].isspace()) and not _NOISE.match(line):
            if frame and _EXCEPTION.match(line):
                start = len(kept)
                kept.append(frame)
                frame = ""
                in_message = True
            kept.append(line)
    return kept[start:][:num] if start else kept[-num:]
