from __future__ import annotations

import pytest

from returnn_common.config import diff, read
from tests.config import golden


@pytest.mark.parametrize("name", golden.CONFIGS)
def test_golden_file(name, tmp_path):
    path, new = golden.FOLDER / f"{name}.config", tmp_path / "new.config"
    update = "python -m tests.config.golden --update"
    assert path.exists(), f"no golden file: {update}"
    new.write_text(golden.make_text(name))
    assert not (changes := diff(path, new)), f"{changes}\nIf that is meant: {update}"
    assert path.read_text() == new.read_text(), f"The same config, written in another way. If that is meant: {update}"
    assert read(path)


def test_no_stale_golden_files():
    assert {path.stem for path in golden.FOLDER.glob("*")} == set(golden.CONFIGS)
