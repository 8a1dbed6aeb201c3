"""Tests of the process that RETURNN runs in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import returnn_common
from returnn_common.cli.run.process import returnn_env, run_python

ROOT = Path(returnn_common.__file__).resolve().parents[1]


def _run(tmp_path: Path, code: str, **options) -> tuple[int, list[str]]:
    lines: list[str] = []
    options = {"on_line": lines.append, **options}
    return run_python(["-c", code], cwd=tmp_path, log=tmp_path / "log", **options), lines


def test_lines_and_status(tmp_path):
    (tmp_path / "log").write_text("before\n")
    code = "import os, sys; print(os.getcwd()); print('err', file=sys.stderr); sys.stdout.write('no end'); sys.exit(3)"
    status, lines = _run(tmp_path, code)
    assert (status, sorted(lines)) == (3, sorted([str(tmp_path), "err", "no end"]))
    assert (tmp_path / "log").read_text().startswith("before\n")


def test_lines_come_at_once(tmp_path):
    """The process waits for a file that only comes once its line was seen."""
    code = "import os, time\nprint('go')\nwhile not os.path.exists('seen'): time.sleep(0.01)"
    waits = []
    status, _ = _run(
        tmp_path, code, on_line=lambda line: (tmp_path / "seen").write_text(line), on_wait=lambda: waits.append(1)
    )
    assert status == 0 and waits
    assert (tmp_path / "seen").read_text() == "go"


def test_half_lines_and_strange_bytes(tmp_path):
    code = (
        "import sys, time\nwrite = sys.stdout.buffer.write\nwrite(b'one ')\nsys.stdout.flush(); time.sleep(0.3)\n"
        "write(b'line\\n\\xff\\n')"
    )
    assert _run(tmp_path, code) == (0, ["one line", "\N{REPLACEMENT CHARACTER}"])


def test_interrupt_ends_the_process(tmp_path):
    """Where the signal has not reached the process itself, as from a terminal, it is ended."""
    pids = []

    def _on_line(line: str):
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, "import os, time; print(os.getpid()); time.sleep(60)", on_line=_on_line)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent")
def test_kill_ends_the_process(tmp_path):
    script = (
        "from pathlib import Path\nfrom returnn_common.cli.run.process import run_python\n"
        "code = 'import os, time; print(os.getpid()); time.sleep(60)'\n"
        "run_python(['-c', code], cwd=Path('.'), log=Path('log'), on_line=lambda line: None)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env=env) as parent:
        log = tmp_path / "log"
        _wait_for(lambda: log.is_file() and log.read_text().endswith("\n"))
        child = int(log.read_text())
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
    _wait_for(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def _wait_for(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_environment(monkeypatch):
    monkeypatch.delenv("DISABLE_CUDA", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    env = returnn_env()
    assert env.get("DISABLE_CUDA") == (None if os.path.exists("/dev/nvidia0") else "1")
    assert 1 <= int(env["OMP_NUM_THREADS"]) <= (os.cpu_count() or 1)
    assert env["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("DISABLE_CUDA", "0")
    assert (returnn_env()["OMP_NUM_THREADS"], returnn_env()["DISABLE_CUDA"]) == ("7", "0")


def test_the_package_is_found(tmp_path):
    status, lines = _run(tmp_path, "import returnn_common; print(returnn_common.__file__)")
    assert (status, lines) == (0, [returnn_common.__file__])
