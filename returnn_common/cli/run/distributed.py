"""
Training in several processes: the arguments, and what torchrun says when one of them fails.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CommandError
from .log import error_lines

__all__ = ["MODES", "Processes", "choose_processes", "default_num_processes", "failure"]

MODES = ("grad", "grad_explicit", "param")  # of returnn_common.training.distributed, without importing it

_TORCHRUN = re.compile(r"[A-Z]\d{4} [\d:.]+ \d+ \S*torch/distributed/elastic/")


@dataclass(frozen=True)
class Processes:
    """
    :param mode: of :func:`returnn_common.training.distributed.distributed_training`
    :param num: how many, on this machine
    """

    mode: str
    num: int


def choose_processes(
    mode: str | None, num: int | None, *, recipe: str, defaults: Mapping[str, Any], backend: str
) -> Processes | None:
    """
    :param mode: of ``--distributed``; None: not given
    :param num: of ``--nproc``; None: not given
    :param recipe: its name, for messages
    :param defaults: of its options
    :param backend: of RETURNN
    :return: None: one, in the ordinary way
    :raises CommandError: if that is impossible
    """
    if mode is None:
        if num is not None:
            raise CommandError(f"--nproc {num}: only together with --distributed")
        return None
    if backend != "torch":
        raise CommandError(
            f"--distributed: RETURNN trains in several processes with --backend torch only, not with {backend}"
        )
    if "distributed" not in defaults:
        raise CommandError(f"--distributed: the recipe {recipe} has no option 'distributed'")
    if num is not None and num < 1:
        raise CommandError(f"--nproc {num}: expected at least 1")
    return Processes(mode, default_num_processes() if num is None else num)


def default_num_processes() -> int:
    """:return: as many as there are GPUs; 2 without any"""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else glob.glob("/dev/nvidia[0-9]*")
    return len(gpus) or 2


def failure(status: int, logs: Sequence[Path], starts: Sequence[int]) -> CommandError:
    """
    :param status: exit status, negative for a signal
    :param logs: of each process
    :param starts: where this call's part begins
    :return: with what the process says that failed first
    """
    lines = _read_from(logs[0], starts[0])
    who, log, failed = "", logs[0], _failed_process(lines)
    if failed is not None:
        rank, status = failed
        who, log = f"process {rank}, ", logs[rank]
        lines = _without_torchrun(lines) if rank == 0 else _read_from(log, starts[rank])
    how = f"exit status {status}" if status > 0 else f"signal {-status}"
    return CommandError(
        "\n  ".join([f"RETURNN failed ({who}{how}), see {log}:", *error_lines(lines)]),
        exit_status=1,
    )


def _read_from(path: Path, start: int) -> list[str]:
    if not path.is_file():
        return []
    with open(path, encoding="utf8", errors="replace") as file:
        file.seek(start)
        return list(file)


def _failed_process(lines: Iterable[str]) -> tuple[int, int] | None:
    """
    :param lines: of torchrun's log
    :return: number of the process that failed first, from 0, and its exit status, negative for a signal; None if
        torchrun doesn't say
    """
    in_cause, rank = False, None
    for line in lines:
        in_cause = in_cause or line.startswith("Root Cause")
        match = re.match(r"\s+(rank|exitcode)\s*: (-?\d+)", line) if in_cause else None
        if match and match[1] == "rank":
            rank = int(match[2])
        elif match and rank is not None:
            return rank, int(match[2])
    return None


def _without_torchrun(lines: Iterable[str]) -> list[str]:
    """
    :param lines: of the log of the first process and of torchrun, which speaks last
    :return: those of the process
    """
    kept: list[str] = []
    for line in lines:
        if _TORCHRUN.match(line):
            break
        kept.append(line)
    return kept
