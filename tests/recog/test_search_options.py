"""What a config says about the search, and a language model beside the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from returnn.config import Config, get_global_config, global_config_ctx

from returnn_common import nn
from returnn_common.recog.language_model import recipe_model, with_language_model
from returnn_common.recog.search_options import check_search_options, list_search_options, read_search_options


class _Model:
    def __init__(self, lm: Any = None):
        if lm is not None:
            self.recog_lm = lm

    def search(self, source, *, in_spatial_dim, beam_size=1, lm=None, lm_scale=0.0, bos=None, eos=None):
        """as that of CTC models"""


class _Decoder(_Model):
    def search(self, source, *, in_spatial_dim, beam_size=1, lm=None, lm_scale=0.0, max_len=None):
        """as that of attention models"""


LM = SimpleNamespace(scorer=lambda: "scorer", bos=7, eos=8)


def _read(model: Any, options: Any, **config: Any) -> dict[str, Any]:
    return read_search_options(Config({"search_options": options, **config}), model)


def test_options():
    assert _read(_Decoder(), {"max_len": 3}) == {"max_len": 3}
    assert read_search_options(Config(), _Decoder()) == _read(_Decoder(), "") == _read(_Decoder(), {}) == {}
    assert _read(_Decoder(), "{'max_len': 3}") == {"max_len": 3}  # an option of a recipe
    on_command_line = Config()
    on_command_line.dict["search_options"] = ["{'max_len': 3}"]
    assert read_search_options(on_command_line, _Decoder()) == {"max_len": 3}
    options = {"max_len": 3, "lm_scale": 0.0}
    assert _read(_Decoder(), options) == options == {"max_len": 3, "lm_scale": 0.0}


def test_language_model():
    assert _read(_Decoder(LM), {"lm_scale": 0.3}) == {"lm_scale": 0.3, "lm": "scorer"}
    assert _read(_Model(LM), {"lm_scale": 0.3}) == {"lm_scale": 0.3, "lm": "scorer", "bos": 7, "eos": 8}
    assert _read(_Model(LM), {"lm_scale": 0.3, "eos": 1})["eos"] == 1
    # Its scores are asked for, but not in the search.
    assert _read(_Model(LM), {}, recog_components_file="x") == {}


def test_options_of_any_search():
    def search(source, **kwargs):
        """takes all"""

    assert list_search_options(search) is None
    assert list_search_options(_Decoder().search) == ["lm_scale", "max_len"]
    assert _read(SimpleNamespace(search=search), {"a": 1}) == {"a": 1}
    check_search_options(_Decoder, {"max_len": 1})


@pytest.mark.parametrize(
    "model, options, message",
    [
        (
            _Decoder(),
            {"ctc_scale": 1},
            "search option 'ctc_scale': _Decoder.search has no such option, it has lm_scale, m",
        ),
        (_Decoder(), {"beam_size": 1}, "search option 'beam_size': _Decoder.search has no such option"),
        (_Decoder(), {"lm": 1}, "search option 'lm': "),
        (_Decoder, {"x": 1}, "search option 'x': _Decoder.search has no"),
        (_Decoder(), {"lm_scale": 1}, "recog_step: lm_scale 1 expects a language model, there is none"),
        (_Decoder(LM), {}, "recog_step: expected lm_scale in search_options, for there is a language model"),
        (_Decoder(), "max_len", r"search_options: expected a dict such as \{'lm_scale': 0.3\}, got 'max_len'"),
        (_Decoder(), "{1: 2}", r"search_options: expected a dict with names as keys, got \{1: 2\}"),
        (_Decoder(), [1], r"search_options: expected a dict with names as keys, got \[1\]"),
    ],
)
def test_what_cannot_work(model: Any, options: Any, message: str):
    with pytest.raises(ValueError, match=message):
        _read(model, options)


RECIPE = """
from returnn_common.config import Options
from returnn_common import nn
options = Options(size=1)

def get_model(*, epoch, step, **_):
    model = nn.Module()
    model.size = options.size
    model.weight = nn.Parameter([nn.Dim(options.size, name="dim")])
    return model
"""


def test_model_of_another_recipe(tmp_path: Path):
    nn.select_backend_torch()
    (tmp_path / "lm.py").write_text(RECIPE)

    def get_model(*, epoch, step, device):
        model = nn.Module()
        model.called = (epoch, step, device)
        return model

    make_lm = recipe_model(str(tmp_path / "lm.py"), {"size": "3"})
    with global_config_ctx(Config({"size": 5})) as _:
        config = get_global_config()
        both = with_language_model(get_model, make_lm)(epoch=1, step=2, device="cpu")
        assert get_global_config() is config
    assert both.called == (1, 2, "cpu")
    assert both.recog_lm.size == 3  # its own option, not the config's
    assert [name for name, _ in both.named_parameters()] == ["recog_lm.weight"]
    with pytest.raises(ValueError, match="with_language_model: Module has an attribute recog_lm already"):
        with_language_model(lambda **_: both, make_lm)(epoch=1, step=0)
    (tmp_path / "empty.py").write_text("x = 1\n")
    with global_config_ctx(Config()), pytest.raises(ValueError, match="empty.py: expected a function get_model"):
        recipe_model(str(tmp_path / "empty.py"), {})(None, epoch=1, step=0)


def test_language_model_knows_its_model():
    seen = with_language_model(lambda **_: nn.Module(), lambda model, **kwargs: (model, kwargs))(epoch=1, step=0)
    assert seen.recog_lm == (seen, {"epoch": 1, "step": 0})
