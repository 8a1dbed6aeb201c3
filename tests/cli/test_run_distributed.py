"""Tests of the command run with --distributed: its arguments, what is started, and how its processes end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from returnn_common.cli import main
from returnn_common.cli.errors import CommandError
from returnn_common.cli.run import run_recipe
from returnn_common.cli.run.distributed import MODES, choose_processes, default_num_processes, failure
from returnn_common.cli.run.process import process_log, returnn_env, run_python
from returnn_common.training import distributed
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import make_corpus, make_recipe

SETTINGS = ["model_dim=8", "num_layers=1", "num_epochs=2", "num_average=2"]


class FakeTorchrun(FakeReturnn):
    """also notes how many processes it should be"""

    def __init__(self):
        super().__init__()
        self.num_processes: list[int | None] = []

    def __call__(self, arguments, *, num_processes=None, **options) -> int:
        self.num_processes.append(num_processes)
        return super().__call__(arguments, **options)


def test_modes_are_those_of_the_recipes():
    assert MODES == distributed.MODES


@pytest.mark.parametrize(
    "mode, num, backend, defaults, message",
    [
        (None, 2, "torch", {"distributed": ""}, "--nproc 2: only together with --distributed"),
        ("grad", 0, "torch", {"distributed": ""}, "--nproc 0: expected at least 1"),
        ("grad", 2, "jax", {"distributed": ""}, "several processes with --backend torch only, not with jax"),
        ("grad", 2, "torch", {"num_epochs": 1}, "the recipe my_recipe has no option 'distributed'"),
    ],
)
def test_impossible(mode, num, backend, defaults, message):
    with pytest.raises(CommandError, match=message):
        choose_processes(mode, num, recipe="my_recipe", defaults=defaults, backend=backend)


def test_number_of_processes(monkeypatch):
    def choose(mode, num):
        return choose_processes(mode, num, recipe="x", defaults={"distributed": ""}, backend="torch")

    assert choose(None, None) is None
    chosen = choose("param", 3)
    assert chosen is not None and (chosen.mode, chosen.num) == ("param", 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2,3,5")
    assert default_num_processes() == 4
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("glob.glob", lambda pattern: [])
    assert default_num_processes() == 2
    chosen = choose("grad", None)
    assert chosen is not None and chosen.num == 2


def test_arguments(tmp_path, capsys):
    arguments = ["run", "digits_ctc", "--corpus", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*arguments, "--nproc", "2"]) != 0
    assert "--nproc 2: only together with --distributed" in capsys.readouterr().err
    assert main([*arguments, "--distributed", "--backend", "tensorflow"]) != 0
    assert "with --backend torch only, not with tensorflow" in capsys.readouterr().err
    assert main([*arguments, "--set", "distributed=grad"]) != 0
    assert "--set distributed=grad: use --distributed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*arguments, "--distributed", "somehow"])


def test_only_the_training_is_distributed(tmp_path):
    corpus, recipe, out = make_corpus(tmp_path / "corpus"), make_recipe(tmp_path / "tiny.py"), tmp_path / "out"
    fake = FakeTorchrun()

    def run(distributed):
        options = {"corpus": str(corpus), "out": str(out), "settings": SETTINGS, "runner": fake}
        return run_recipe(str(recipe), distributed=distributed, **options)

    assert run(("grad_explicit", 3)) == 0
    assert fake.tasks == ["train", "forwarddev", "forwardtest"]
    assert fake.num_processes == [3, None, None]
    assert [options.get("distributed") for _, options in fake.calls] == ["grad_explicit", None, None]
    asked = json.loads((out / "run.json").read_text())
    assert (asked["distributed"], asked["processes"]) == ("grad_explicit", 3)
    with pytest.raises(CommandError, match="begun with other settings .*processes was 3, is 2"):
        run(("grad_explicit", 2))
    with pytest.raises(CommandError, match="begun with other settings .*distributed was 'grad_explicit', is None"):
        run((None, None))


TORCHRUN = """W1130 02:46:15.036000 30209 torch/distributed/elastic/multiprocessing/api.py:1028] Sending ...
Traceback (most recent call last):
  File "torch/distributed/run.py", line 1032, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : {other} (local_rank: {other})
  exitcode  : -15 (pid: 30331)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_02:46:15
  rank      : {rank} (local_rank: {rank})
  exitcode  : {status} (pid: 30332)
"""
ERROR = 'Traceback (most recent call last):\n  File "x.py", line 3, in f\nValueError: bad {}\n'


def test_failure_is_that_of_the_first_process_that_fails(tmp_path):
    log = tmp_path / "train.log"
    logs = [process_log(log, 0), process_log(log, 1)]
    assert [path.name for path in logs] == ["train.log", "train.process1.log"]
    before = "ValueError: of an earlier call\n"
    logs[1].write_text(before + ERROR.format("one"))
    log.write_text(before + "ep 1 train, step 0\n" + TORCHRUN.format(rank=1, other=0, status=1))
    starts = [len(before), len(before)]
    assert str(failure(1, logs, starts)) == (
        f'RETURNN failed (process 1, exit status 1), see {logs[1]}:\n  File "x.py", line 3, in f\n  ValueError: bad one'
    )
    log.write_text(before + ERROR.format("zero") + TORCHRUN.format(rank=0, other=1, status=1))
    assert str(failure(1, logs, starts)) == (
        f'RETURNN failed (process 0, exit status 1), see {log}:\n  File "x.py", line 3, in f\n  ValueError: bad zero'
    )
    log.write_text(before + TORCHRUN.format(rank=1, other=0, status=-9))
    logs[1].unlink()
    assert str(failure(1, logs, starts)) == f"RETURNN failed (process 1, signal 9), see {logs[1]}:"
    log.write_text(before + "no such module\n")  # torchrun itself has failed
    assert str(failure(2, logs, starts)) == f"RETURNN failed (exit status 2), see {log}:\n  no such module"


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("returnn_common.cli.run.process._num_cores", lambda: 16)
    assert returnn_env()["OMP_NUM_THREADS"] == "15"
    assert returnn_env(num_processes=4)["OMP_NUM_THREADS"] == "3"
    assert returnn_env(num_processes=16)["OMP_NUM_THREADS"] == "1"


# Each says which process it is, and would go on for long.
CODE = """
import os, signal, time
print("process", os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid(), flush=True)
if os.environ["RANK"] == "1" and os.path.exists("kill"):
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def _read_pid(log: Path, rank: int) -> int:
    """waits until the process is there"""
    end = time.monotonic() + 300
    while True:
        words = process_log(log, rank).read_text().split() if process_log(log, rank).is_file() else []
        if "process" in words and len(words) >= words.index("process") + 4:
            start = words.index("process")
            assert words[start : start + 3] == ["process", str(rank), "2"]
            return int(words[start + 3])
        assert time.monotonic() < end, words
        time.sleep(0.05)


def _wait_for_end(pid: int):
    end = time.monotonic() + 60
    while True:
        try:
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return
        assert time.monotonic() < end, f"{pid} still runs"
        time.sleep(0.05)


def test_kill_of_one_process_ends_all(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "kill").touch()
    log = tmp_path / "train.log"
    status = run_python(["-c", CODE], cwd=tmp_path, log=log, on_line=lambda line: None, num_processes=2)
    assert status == 1
    for rank in (0, 1):
        _wait_for_end(_read_pid(log, rank))
    error = failure(status, [log, process_log(log, 1)], [0, 0])
    assert str(error).startswith(f"RETURNN failed (process 1, signal 9), see {process_log(log, 1)}:")


def test_interrupt_ends_all_processes(tmp_path):
    pytest.importorskip("torch")
    log = tmp_path / "train.log"
    pids: list[int] = []

    def _on_line(line: str):
        if line.startswith("process 0"):
            pids.extend(_read_pid(log, rank) for rank in (0, 1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_python(["-c", CODE], cwd=tmp_path, log=log, on_line=_on_line, num_processes=2)
    assert len(set(pids)) == 2
    for pid in pids:
        _wait_for_end(pid)
