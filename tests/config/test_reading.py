from __future__ import annotations

import json

import pytest

import returnn_common
from returnn_common.cli.recipes import list_recipes
from returnn_common.config import diff, read, to_python


def test_a_config_by_hand(tmp_path):
    path = tmp_path / "some.config"
    path.write_text(
        "#!rnn.py\n"
        "from __future__ import annotations\n"
        "import sys\n"
        "from functools import partial\n"
        "from returnn_common.recog import recog_step as forward_step\n"
        "batch_size = 10\n"
        "_half = batch_size // 2\n"
        "make = partial(int, base=_half)\n"
        "globals().update({'from_elsewhere': config.typed_value('batch_size')})\n"
        "def get_model(**_): return sys.version_info\n"
    )
    config = read(path)
    assert list(config) == ["forward_step", "batch_size", "_half", "make", "from_elsewhere", "get_model"]
    assert config["make"]("12") == 7 and config["from_elsewhere"] == 10 and config["get_model"]()


def test_options_are_at_their_defaults(tmp_path):
    """whatever RETURNN's global config has now"""
    from returnn.config import Config, global_config_ctx

    path = tmp_path / "config.py"
    path.write_text("from returnn_common.config import Options\noptions = Options(size=1)\n")
    with global_config_ctx(Config({"size": 2})):
        assert read(path)["options"].size == 1


def test_a_config_in_a_package(tmp_path):
    """which may import relatively, and is executed anew each time"""
    package = tmp_path / "package_of_configs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text("size = 3\n")
    (package / "config.py").write_text("from .base import size\n")
    assert read(package / "config.py") == {"size": 3}
    (package / "config.py").write_text("from .base import size\nother = size + 1\n")
    assert read(package / "config.py") == {"other": 4}


def test_other_formats(tmp_path):
    (tmp_path / "a.config").write_text(json.dumps({"x": 1, "y": {"z": [2]}}))
    assert read(tmp_path / "a.config") == {"x": 1, "y": {"z": [2]}}
    (tmp_path / "b.config").write_text("# old\nx 1\ny a,b\n")
    assert read(tmp_path / "b.config") == {"x": "1", "y": ["a", "b"]}


def test_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match="config .*nowhere.py: no such file"):
        read(tmp_path / "nowhere.py")
    path = tmp_path / "config.py"
    path.write_text("x = undefined\n")
    with pytest.raises(ValueError, match="config .*config.py: NameError: name 'undefined' is not defined"):
        read(path)
    path.write_text("x = (\n")
    with pytest.raises(ValueError, match="config .*config.py: SyntaxError: "):
        read(path)
    path.write_text("__all__ = ['x', 'y']\nx = 1\n")
    with pytest.raises(ValueError, match="config .*config.py: __all__ has y, which are not defined"):
        read(path)
    path = tmp_path / "bad.config"
    path.write_text("{not json\n")
    with pytest.raises(ValueError, match="config .*bad.config: "):
        read(path)


@pytest.mark.parametrize("recipe", list(list_recipes()))
def test_recipes(recipe, tmp_path):
    """can be written as one file each, and read again"""
    config = read(list_recipes()[recipe])
    text = to_python(config)
    (tmp_path / "config.py").write_text(text)
    again = read(tmp_path / "config.py")
    assert to_python(again) == text and not diff(config, again)
    assert returnn_common.__file__ not in text
