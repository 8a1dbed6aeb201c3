"""CONTRIBUTING's example of how a model is added, followed word for word in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _run(cwd: Path, *arguments: str) -> tuple[int, str]:
    env = {**os.environ, "PYTHONPATH": str(cwd), "PYTHONSAFEPATH": "1"}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return result.returncode, result.stdout


def test_the_example(tmp_path: Path):
    for name in ("returnn_common", "tests", "data", "docs", "pyproject.toml", "README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    path = re.search(r"Its file, such as `(.*)`", text)[1]
    module, line = (
        re.search(rf"<!-- {mark} -->\n```python\n(.*?)```", text, re.DOTALL)[1] for mark in ("file", "line")
    )
    update = re.search(r"`python (-m tests.zoo --update.*?)`", text)[1].split()
    builder = update[-1]
    pytest = ["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]

    (tmp_path / path).write_text(module)
    status, output = _run(tmp_path, *pytest, "tests/test_zoo.py", "-k", "public_builder")
    assert status == 1 and f"models.encoder.tdnn.{builder}" in output, output

    zoo = (tmp_path / "tests/zoo.py").read_text()
    zoo = zoo.replace("\n# Softmax", f"\nfrom {path[:-3].replace('/', '.')} import {builder}\n\n# Softmax", 1)
    zoo = zoo.replace("    # Encoders\n", f"    # Encoders\n{line}", 1)
    (tmp_path / "tests/zoo.py").write_text(zoo)
    status, output = _run(tmp_path, *update)
    assert status == 0, output
    for written in (f"tests/golden/{builder}.json", "data/engines.json", "README.md", "docs/engines.md"):
        assert f"wrote {written}" in output
        assert builder in (tmp_path / written).read_text() or "golden" in written

    tests = f"{builder} or public_builder or up_to_date or stale"
    status, output = _run(tmp_path, *pytest, "tests/test_zoo.py", "-k", tests)
    assert status == 0 and "passed" in output and "skipped" not in output, output
