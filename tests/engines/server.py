"""
Runs ``python -m returnn ...`` many times without paying for the imports each time: one process per engine imports
everything, and is forked for each run.

    run_module("torch", ["returnn", "my.config", "++task", "train"], cwd=folder)
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_module"]

_ROOT = Path(__file__).resolve().parents[2]
_PRELOAD = {
    "torch": ["torch", "returnn.torch.engine"],
    "tensorflow": ["tensorflow", "torch", "returnn.tf.engine_rf"],
    "tensorflow-net-dict": ["tensorflow", "returnn.tf.engine"],
    "jax": ["jax", "optax", "orbax.checkpoint", "torch", "returnn.jax.engine"],
}


def run_module(engine: str, arguments: Sequence[str], *, cwd: Path) -> str:
    """
    :param engine: what is imported beforehand
    :param arguments: module, and its arguments
    :param cwd: folder to run it in
    :return: what it printed
    :raises AssertionError: if its exit status is not 0
    """
    if engine not in _servers:
        _servers[engine] = _Server(engine)
        atexit.register(_servers[engine].stop)
    return _servers[engine].run(arguments, cwd=cwd)


class _Server:
    """see :func:`run_module`"""

    def __init__(self, engine: str):
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "DISABLE_CUDA": "1", "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        env["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # compiling takes longer than what is compiled
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engines.server", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**env, "PYTHONPATH": path},
            text=True,
        )

    def run(self, arguments: Sequence[str], *, cwd: Path) -> str:
        """see :func:`run_module`"""
        with tempfile.NamedTemporaryFile("r", suffix=".log", errors="replace") as log:
            job = {"arguments": list(arguments), "cwd": str(cwd), "log": log.name}
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            output = log.read()
        assert answer.strip() == "0", f"{' '.join(arguments)}: status {answer.strip() or 'died'}\n{output[-6000:]}"
        return output

    def stop(self) -> None:
        """ends the process"""
        self._process.stdin.close()
        self._process.wait()


_servers: dict[str, _Server] = {}


def _serve(engine: str) -> None:
    import importlib

    for name in [*_PRELOAD[engine], "returnn.__main__", "returnn_common.recog", "returnn_common.training"]:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(job)
        _, status = os.waitpid(pid, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _run(job: dict) -> None:
    """in the forked process: never returns"""
    status = 1
    try:
        log = os.open(job["log"], os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(job["cwd"])
        sys.argv = job["arguments"][:]
        sys.modules.pop("returnn.__main__", None)
        runpy.run_module(job["arguments"][0], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve(sys.argv[1])
