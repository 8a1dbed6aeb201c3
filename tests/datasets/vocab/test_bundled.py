"""Tests that the vocabularies in data/ are what its README says, and can be made again."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import returnn_common
from returnn_common.data import get_bundled_path
from returnn_common.datasets.vocab import bundled

ROOT = Path(returnn_common.__file__).resolve().parents[1]
VOCABULARIES = [
    path.name for path in get_bundled_path("README.md").parent.glob("*") if path.suffix not in (".md", ".json")
]


def test_checksums():
    readme = get_bundled_path("README.md").read_text("utf8")
    stated = dict(re.findall(r"^\| (\S+) \|.*\| `([0-9a-f]{64})` \|$", readme, re.MULTILINE))
    found = {name: hashlib.sha256(get_bundled_path(name).read_bytes()).hexdigest() for name in VOCABULARIES}
    assert stated == found and len(found) == 7
    assert all(get_bundled_path(name).stat().st_size < 100_000 for name in VOCABULARIES)


def _small_text(shared_data: Path, num_lines: int) -> list[str]:
    with gzip.open(shared_data / "text" / "books.txt.gz", "rt", encoding="utf8") as file:
        return [next(file).rstrip("\n") for _ in range(num_lines)]


def _build(source: Path, dest: Path, **env: str) -> dict[str, bytes]:
    script = (
        "import sys; from pathlib import Path; from returnn_common.datasets.vocab.bundled import build\n"
        "lines = Path(sys.argv[1]).read_text('utf8').splitlines()\n"
        "for name, content in build(lines, sizes=(100,), num_merges=50).items():\n"
        "    (Path(sys.argv[2]) / name).write_bytes(content)\n"
    )
    dest.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    subprocess.run([sys.executable, "-c", script, str(source), str(dest)], env=env, check=True)
    return {path.name: path.read_bytes() for path in dest.iterdir()}


def test_same_files_again(shared_data, tmp_path):
    (tmp_path / "text").write_text("\n".join(_small_text(shared_data, 500)))
    one = _build(tmp_path / "text", tmp_path / "one", PYTHONHASHSEED="1", OMP_NUM_THREADS="1")
    two = _build(tmp_path / "text", tmp_path / "two", PYTHONHASHSEED="2", OMP_NUM_THREADS="4")
    assert one == two
    assert sorted(one) == ["bpe50.codes", "bpe50.vocab", "librispeech.chars", "spm100-bytes.model", "spm100.model"]


@pytest.mark.slow  # half a minute of training for each model
def test_made_from_the_books(shared_data, tmp_path):
    assert bundled.main([str(shared_data / "text" / "books.txt.gz"), str(tmp_path)]) == 0
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {name: get_bundled_path(name).read_bytes() for name in VOCABULARIES}


def test_other_characters():
    with pytest.raises(ValueError, match="text: expected the characters A to Z, apostrophe and space, got '1', 'é'"):
        bundled.build(["CAFé 1"])


def test_usage(capsys):
    assert bundled.main([]) == 2
    assert capsys.readouterr().err == "usage: python -m returnn_common.datasets.vocab.bundled TEXT DEST\n"
