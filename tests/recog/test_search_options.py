"""What a config says about the search, and a language model beside the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from returnn.config import Config, get_global_config, global_config_ctx

from returnn_common import nn
from returnn_common.models.fusion import FusionParts
from returnn_common.recog.fusion import fusion_of
from returnn_common.recog.search_options import (
    FUSED_OPTIONS,
    LIST_OPTIONS,
    SearchOptions,
    check_search_options,
    list_search_options,
    read_search_options,
)
from returnn_common.recog.vocabulary import config_labels
from returnn_common.search import LexiconScorer, PhraseBias
from returnn_common.training.language_model import recipe_model, with_language_model


class _Scorer:
    def __init__(self, size: int):
        self.vocab_dim = nn.FeatureDim("labels", size)


class _Model:
    fusion_parts = FusionParts

    def __init__(self, lm: Any = None):
        if lm is not None:
            self.recog_lm = lm

    def search(self, source, *, in_spatial_dim, beam_size=1, lm=None, lm_scale=0.0, bos=None, eos=None):
        """as that of CTC models"""


class _Decoder(_Model):
    decoder = SimpleNamespace(vocab_dim=nn.FeatureDim("labels", 3))
    bos, eos = 2, 2

    def search(self, source, *, in_spatial_dim, beam_size=1, lm=None, lm_scale=0.0, max_len=None):
        """as that of attention models"""


SCORER = _Scorer(3)
LM = SimpleNamespace(scorer=lambda: SCORER, bos=2, eos=2)
VOCAB = {"class": "Vocabulary", "vocab_file": None, "labels": ["A", "B"], "unknown_label": None}


def _read(model: Any, options: Any, **config: Any) -> dict[str, Any]:
    """:return: arguments of the search"""
    config = Config({"search_options": options, "extern_data": {"classes": {"vocab": VOCAB}}, **config})
    return dict(fusion_of(model, read_search_options(config), config).arguments)


def test_options_of_the_model():
    assert _read(_Decoder(), {"max_len": 3}) == {"max_len": 3}
    assert _read(_Decoder(), "") == _read(_Decoder(), {}) == {}
    assert _read(_Decoder(), "{'max_len': 3}") == {"max_len": 3}  # an option of a recipe
    on_command_line = Config()
    on_command_line.dict["search_options"] = ["{'max_len': 3}"]
    assert read_search_options(on_command_line).of_model == {"max_len": 3}
    options = {"max_len": 3, "lm_scale": 0.0}
    assert _read(_Decoder(), options) == {"max_len": 3} and options == {"max_len": 3, "lm_scale": 0.0}
    assert _read(_Decoder(), {"max_len": None}) == {}


def test_beam_and_lists():
    def read(options: dict[str, Any], **config: Any) -> tuple[int, int]:
        found = read_search_options(Config({"search_options": options, **config}))
        return found.beam_size, found.nbest

    assert read({}) == (1, 0)
    assert read({"beam_size": 3, "nbest": 2}) == (3, 2)
    assert read({}, beam_size=4, recog_nbest=1) == (4, 1)
    assert read({"beam_size": 3, "nbest": 2}, beam_size=4, recog_nbest=0) == (3, 0)  # the command recog sets the latter


def test_language_model():
    assert _read(_Decoder(LM), {"lm_scale": 0.3}) == {"lm_scale": 0.3, "lm": SCORER}
    assert _read(_Model(LM), {"lm_scale": 0.3}) == {"lm_scale": 0.3, "lm": SCORER, "bos": 2, "eos": 2}
    assert _read(_Model(LM), {"lm_scale": 0.3, "eos": 1})["eos"] == 1
    # Its scores are asked for, but not in the search.
    assert _read(_Model(LM), {}, recog_components_file="x") == {}


def test_several_are_one_scorer():
    found = _read(_Decoder(LM), {"lm_scale": 0.3, "phrases": ["A B"], "phrase_bonus": 2.0, "word_list": ["A", "B"]})
    assert found["lm_scale"] == 1.0
    scales = [(type(scorer), scale) for scorer, scale in found["lm"].parts]
    assert scales == [(_Scorer, 0.3), (PhraseBias, 1.0), (LexiconScorer, 1.0)]
    model = _Model()
    model.recog_transcript_lm = LM
    found = _read(model, {"transcript_lm_scale": 0.3, "transcript_lm": "x"})
    assert found["lm"].parts == [(SCORER, -0.3)] and found["lm"].can_exceed_zero


def test_made_once():
    model, config = _Decoder(LM), Config({"search_options": {"lm_scale": 0.3}})
    first = fusion_of(model, read_search_options(config), config)
    assert fusion_of(model, read_search_options(config), config) is first
    config.typed_dict["search_options"] = {"lm_scale": 0.4}
    assert fusion_of(model, read_search_options(config), config).arguments["lm_scale"] == 0.4


def test_options_of_any_search():
    def search(source, **kwargs):
        """takes all"""

    assert list_search_options(search) is None
    assert list_search_options(_Decoder().search) == ["max_len"]
    assert _read(SimpleNamespace(search=search), {"a": 1}) == {"a": 1}
    check_search_options(_Decoder, SearchOptions(of_model={"max_len": 1}))


class _Alone:
    fusion_parts = FusionParts
    vocab_dim = nn.FeatureDim("labels", 2)

    def search(self, source, *, in_spatial_dim, beam_size=1):
        """takes no language model"""


@pytest.mark.parametrize(
    "model, options, message",
    [
        (
            _Decoder(),
            {"ctc_scale": 1},
            "search option 'ctc_scale': _Decoder.search has no such option, it has max_len; and there are lm, tra",
        ),
        (_Decoder(), {"lm_scale": 1}, "search_options: lm_scale 1 needs lm, there is no language model"),
        (_Decoder(LM), {}, "search_options: expected lm_scale, for there is a language model"),
        (_Decoder(), "max_len", r"search_options: expected a dict such as \{'lm_scale': 0.3\}, got 'max_len'"),
        (_Decoder(), "{1: 2}", r"search_options: expected a dict with names as keys, got \{1: 2\}"),
        (_Decoder(), [1], r"search_options: expected a dict with names as keys, got \[1\]"),
        (
            _Decoder(SimpleNamespace(scorer=lambda: _Scorer(3), bos=1, eos=2)),
            {"lm_scale": 1},
            "lm does not fit the model: it has 3 labels, begin 1, end 2, not 3 labels, begin 2, end 2",
        ),
        (
            SimpleNamespace(search=_Model().search),
            {"word_list": ["A"]},
            "SimpleNamespace has no fusion_parts, which makes what .*; see returnn_common.models.fusion",
        ),
        (_Alone(), {"word_list": ["A"]}, "search_options: _Alone.search takes no lm, so that nothing can be added"),
    ],
)
def test_what_cannot_work(model: Any, options: Any, message: str):
    with pytest.raises(ValueError, match=message):
        _read(model, options)


def test_no_vocabulary():
    model = _Decoder()
    for name in ("phrases", "word_list"):
        options = SearchOptions(**{name: ("A",)}, phrase_bonus=1.0)
        with pytest.raises(ValueError, match=r"phrases and word_list need a vocabulary, extern_data\[target\]"):
            fusion_of(model, options, Config())
    with pytest.raises(ValueError, match=f"lm {__file__}: needs a vocabulary"):
        fusion_of(model, SearchOptions(lm=__file__, lm_scale=1.0), Config())


def test_docs():
    """tell all options"""
    text = (Path(__file__).resolve().parents[2] / "docs" / "recognition.md").read_text("utf8")
    table = {name for line in text.splitlines() if line.startswith("| `") for name in line.split("|")[1].split("`")}
    assert table >= {*FUSED_OPTIONS, *LIST_OPTIONS}
    assert {field.name for field in dataclasses.fields(SearchOptions)} == {*FUSED_OPTIONS, *LIST_OPTIONS, "of_model"}


def test_labels_of_a_config():
    """how words are written, and what is between them"""

    def labels(opts: dict[str, Any], **config: Any):
        found = config_labels(Config({"extern_data": {"classes": {"vocab": opts}}, **config}))
        assert found is not None
        return found

    assert config_labels(Config()) is None
    words = labels(VOCAB)
    assert (words.names, words.separator, words.encode("B A A")) == (["A", "B"], None, [1, 0, 0])
    with pytest.raises(ValueError, match="'B C' cannot be written with the labels: 'C'"):
        words.encode("B C")
    unknown = labels({**VOCAB, "unknown_label": "A"})
    with pytest.raises(ValueError, match="'B C' cannot be written with the labels: it would be 'B A'"):
        unknown.encode("B C")
    chars = labels({"class": "CharacterTargets", "vocab_file": None, "labels": ["B", " ", "A"], "unknown_label": None})
    assert chars.separator == 1 and chars.encode("A B") == [2, 1, 0]
    assert labels({"class": "Utf8ByteTargets"}).separator == 32
    ours = SimpleNamespace(encode=lambda text: [7], get_num_classes=lambda: 2, word_boundary="B")
    by_dataset = labels(VOCAB, dataset=SimpleNamespace(vocab=ours))
    assert (by_dataset.encode("x"), by_dataset.separator) == ([7], 1)
    ours.get_num_classes = lambda: 3  # another vocabulary than that of the targets
    assert labels(VOCAB, dataset=SimpleNamespace(vocab=ours)).encode("A") == [0]


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
