from __future__ import annotations

import pytest

from returnn_common.cli import main


def test_diff_of_files(tmp_path, capfd):
    a, b = tmp_path / "a.config", tmp_path / "b.config"
    a.write_text("#!rnn.py\nsize = 1\ndef f(): return 1\n")
    b.write_text("#!rnn.py\nsize = 2\nnew = {'x': 1}\ndef f(): return 1\n")
    assert main(["config", "diff", str(a), str(a)]) == 0
    assert capfd.readouterr().out == ""
    assert main(["config", "diff", str(a), str(b)]) == 1
    assert capfd.readouterr().out == '  size: 1 -> 2\n+ new: {"x": 1}\n'


def test_diff_of_recipes(capfd):
    assert main(["config", "diff", "digits_ctc", "digits_aed"]) == 1
    assert "  options.beam_size: 1 -> 4\n" in capfd.readouterr().out


def test_errors(tmp_path, capfd):
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0\n")
    assert main(["config", "diff", str(bad), str(bad)]) == 2
    assert "returnn-common config: config " in (err := capfd.readouterr().err) and "ZeroDivisionError" in err
    assert main(["config", "diff", "nothing", str(bad)]) == 2
    assert "unknown recipe 'nothing'" in capfd.readouterr().err
    for missing in (str(tmp_path), str(tmp_path / "missing"), "missing.config"):
        assert main(["config", "diff", str(bad), missing]) == 2
        assert f"config {missing}: no such file" in capfd.readouterr().err
    bad.write_text("import sys\nsys.exit(0)\n")
    assert main(["config", "diff", str(bad), str(bad)]) == 2
    assert "bad.py: SystemExit: 0" in capfd.readouterr().err
    bad.write_bytes(b"#!rnn.py\nx = '\xff'\n")
    assert main(["config", "diff", str(bad), str(bad)]) == 2
    assert "bad.py: 'utf-8' codec can't decode" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["config"])
