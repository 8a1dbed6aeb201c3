"""Tests of the command line itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_common
from returnn_common.cli import main

ROOT = Path(returnn_common.__file__).resolve().parents[1]
COMMANDS = [
    "demo",
    "run",
    "recog",
    "align",
    "transcribe",
    "recipes",
    "prepare",
    "vocab",
    "score",
    "checkpoint",
    "config",
    "net-dict",
    "params",
    "engines",
]


def _python(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)


def test_help_lists_the_commands_and_imports_nothing_heavy():
    script = (
        "import sys; from returnn_common.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as exc: assert exc.code == 0\n"
        "print([name for name in ('numpy', 'returnn', 'rich', 'torch') if name in sys.modules])"
    )
    result = _python("-c", script)
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines if line[:4] == "    " and line[4:5].isalpha()] == COMMANDS, result
    assert lines[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command(command, capsys):
    with pytest.raises(SystemExit) as error:
        main([command, "--help"])
    assert error.value.code == 0
    assert f"usage: returnn-common {command}" in capsys.readouterr().out


def test_as_a_module():
    assert _python("-m", "returnn_common.cli", "--version").stdout == f"returnn-common {returnn_common.__version__}\n"
    result = _python("-m", "returnn_common.cli", "recipes", "nothing")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "returnn-common: the following arguments are required: COMMAND (see returnn-common --help)"),
        (["nothing"], "argument COMMAND: invalid choice: 'nothing' (choose from"),
        (["run"], "returnn-common run: the following arguments are required: RECIPE, --out (see"),
        (["run", "x", "--corpus", "c", "--out", "o", "--backend", "keras"], "--backend: invalid choice: 'keras'"),
        (["demo", "x"], "unrecognized arguments: x"),
    ],
)
def test_bad_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    assert stderr.count("\n") == 1


def test_nobody_reads_the_output():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "returnn_common.cli", "recipes", "digits_ctc"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")
