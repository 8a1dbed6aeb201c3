"""
Starts RETURNN, and follows what it logs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["Runner", "process_log", "returnn_env", "run_python"]

Runner = Callable[..., int]  # as run_python

_POLL_SECONDS = 0.1

# Asks Linux to kill the process when its parent ends, also by kill -9: nothing must go on writing then. This survives
# exec. Elsewhere, the lock of the run's folder, which the process has as well, keeps the next run out meanwhile.
_LAUNCHER = f"""
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)}, 0, 0, 0)
except (AttributeError, OSError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this one has ended")
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""

# The same for what torchrun starts. Each process but the first has a log of its own: the first one's is followed.
_PROCESS = f"""
import ctypes, os, sys
try:
    ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)}, 0, 0, 0)
except (AttributeError, OSError):
    pass
if os.getppid() == 1:
    sys.exit("the process that started this one has ended")
rank = int(os.environ["RANK"])
if rank:
    log = os.open(sys.argv[1].replace("RANK", str(rank)), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def run_python(
    arguments: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    on_line: Callable[[str], None],
    on_wait: Callable[[], None] = lambda: None,
    keep_open: int | None = None,
    num_processes: int | None = None,
) -> int:
    """
    Runs Python in a process that ends with this one.

    :param arguments: of Python
    :param cwd: folder to run in
    :param log: file to which all output is appended
    :param on_line: called with each line of it
    :param on_wait: called several times a second
    :param keep_open: a file that the process inherits
    :param num_processes: start so many through torchrun, which ends all when one fails; None: one, without it. The
        others than the first log to :func:`process_log`.
    :return: exit status
    :raises KeyboardInterrupt: after the process was ended
    """
    if num_processes is not None:
        arguments = _through_torchrun(arguments, num_processes=num_processes, log=log)
    with open(log, "ab") as file:
        start = file.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCHER, str(os.getpid()), *arguments],
            cwd=cwd,
            env=returnn_env(num_processes=num_processes or 1),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            pass_fds=[] if keep_open is None else [keep_open],
        )
    try:
        with open(log, "rb") as file:
            file.seek(start)
            rest = b""
            while True:
                status = process.poll()  # before reading, so that nothing is missed
                *lines, rest = (rest + file.read()).split(b"\n")
                for line in lines:
                    on_line(line.decode("utf8", "replace"))
                if status is not None:
                    if rest:
                        on_line(rest.decode("utf8", "replace"))
                    return status
                on_wait()
                time.sleep(_POLL_SECONDS)
    finally:
        _end(process)


def process_log(log: Path, rank: int | str) -> Path:
    """
    :param log: of the first process
    :param rank: number of the process, from 0
    :return: its log
    """
    return log.with_name(f"{log.stem}.process{rank}{log.suffix}") if rank else log


def _through_torchrun(arguments: Sequence[str], *, num_processes: int, log: Path) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_processes), "--no_python"]
    return [*launcher, sys.executable, "-c", _PROCESS, str(process_log(log, "RANK")), *arguments]


def _end(process: subprocess.Popen[bytes]):
    """Ends the process, if it still runs. It can be killed at any moment, but may clean up first."""
    for send in (lambda: None, process.terminate, process.kill):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            send()
        # At first, nothing is sent: the terminal's Ctrl-C reaches it as well.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
    process.wait()


def returnn_env(*, num_processes: int = 1) -> dict[str, str]:
    """
    The environment for RETURNN. Without a GPU, it is told so: it would compile for one where it finds the compiler.
    All cores but one, which loads the data, are used for computing, unless ``OMP_NUM_THREADS`` says otherwise; by
    threads that sleep while they wait for others: if they kept their cores busy, a step would take 50 times as long
    where another process needs a core too. (On two cores, a step of digits_ctc took as long with two threads as with
    one.)

    :param num_processes: which share the cores
    """
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if not os.path.exists("/dev/nvidia0"):
        env.setdefault("DISABLE_CUDA", "1")
    env.setdefault("OMP_NUM_THREADS", str(max(1, _num_cores() // num_processes - 1)))
    env.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # The config imports returnn_common. Where that is no installed package, say where it is.
    root = str(Path(__file__).resolve().parents[3])
    if root not in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, env.get("PYTHONPATH")]))
    return env


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1
