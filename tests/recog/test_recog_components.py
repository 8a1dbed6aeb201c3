"""The scores of the parts of a model, from the step through the callback to the file; how many hypotheses are kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from returnn.config import Config, global_config_ctx
from returnn.tensor import TensorDict

from returnn_common import nn
from returnn_common.recog import read_nbest, recog_callback
from returnn_common.recog.components import read_components
from tests.recog import test_recog_step as shared

torch = pytest.importorskip("torch")
_torch_backend = shared._torch_backend  # the fixture


def _forward(model, tmp_path: Path, **config):
    config = {
        "extern_data": {"classes": {"vocab": shared.OPTIONS}},
        "recog_output_file": str(tmp_path / "n.py.gz"),
        "beam_size": 3,
        **config,
    }
    with global_config_ctx(Config(config)):
        callback = recog_callback()
    outputs = shared._forward(model, shared._batch(shared_dim(model)), callback, **config)
    callback.finish()
    return outputs


def shared_dim(model):
    return getattr(model, "in_dim", None) or model.encoder.in_dim


def test_parts(tmp_path: Path):
    model = shared._model(shared._vocab_dim())
    path = tmp_path / "sub" / "scores.json.gz"
    outputs = _forward(model, tmp_path, recog_components_file=str(path))
    assert list(outputs.data) == ["labels", "lengths", "scores", "part_ctc"]
    read, nbest = read_components(path), read_nbest(tmp_path / "n.py.gz")
    assert read.names == ("search", "ctc") and list(read.lists) == shared.TAGS
    for row, tag in enumerate(shared.TAGS):
        one = read.lists[tag]
        assert one.texts == [text for _, text in nbest[tag]]
        assert one.lengths.tolist() == [len(text.split()) + 1 for text in one.texts]
        np.testing.assert_allclose(one.scores[:, 0], [score for score, _ in nbest[tag]], rtol=1e-6)
        expected = outputs["part_ctc"].raw_tensor[row].numpy()[: len(one.texts)]
        np.testing.assert_allclose(one.scores[:, 1], expected, rtol=1e-5)
        # Each is that of all alignments; the search may have pruned some.
        assert (one.scores[:, 1] >= one.scores[:, 0] - 1e-4).all()


def test_unused_entries_are_in_no_list(tmp_path: Path):
    model = shared._model(shared._vocab_dim(size=2))
    path = tmp_path / "scores.json.gz"
    config = {"extern_data": {"classes": {}}, "recog_components_file": str(path)}
    _forward(model, tmp_path, **config, beam_size=20)
    read, nbest = read_components(path), read_nbest(tmp_path / "n.py.gz")
    shortest = shared.TAGS[2]  # of one frame
    assert 0 < len(nbest[shortest]) < 20
    for tag, one in read.lists.items():
        assert one.texts == [text for _, text in nbest[tag]] and len(one.scores) == len(one.texts) == len(one.lengths)
        assert np.isfinite(one.scores[:, 0]).all()


@pytest.mark.parametrize("num", [0, 1, 2, 9])
def test_number_of_hypotheses(num: int, tmp_path: Path):
    """in the n-best lists; the scores are those of the whole beam"""
    model = shared._model(shared._vocab_dim())
    path = tmp_path / "scores.json.gz"
    _forward(model, tmp_path, recog_nbest=num, recog_components_file=str(path))
    nbest = read_nbest(tmp_path / "n.py.gz")
    assert {len(one) for one in nbest.values()} == {min(num or 3, 3)}
    assert {len(one.texts) for one in read_components(path).lists.values()} == {3}


def test_what_the_language_model_is_asked(tmp_path: Path):
    """its scorer, begin and end of sentence arrive; and options of the search"""
    asked = {}

    def search(source, *, in_spatial_dim, beam_size, lm=None, lm_scale=0.0, bos=None, eos=None):
        asked["search"] = {"lm": lm, "lm_scale": lm_scale, "bos": bos, "eos": eos}
        return model.search(source, in_spatial_dim=in_spatial_dim, beam_size=beam_size)

    def score_hypotheses(hypotheses, source, *, in_spatial_dim, lm, bos, eos):
        asked["score"] = {"lm": lm, "bos": bos, "eos": eos}
        return {"lm": nn.zeros_like(hypotheses.scores)}

    model = shared._model(shared._vocab_dim())
    lm = SimpleNamespace(scorer=lambda: "scorer", bos=5, eos=6)
    stub = SimpleNamespace(search=search, score_hypotheses=score_hypotheses, recog_lm=lm, in_dim=model.encoder.in_dim)
    path = tmp_path / "scores.json.gz"
    _forward(stub, tmp_path, recog_components_file=str(path), search_options={"lm_scale": 0.5})
    assert asked == {
        "search": {"lm": "scorer", "lm_scale": 0.5, "bos": 5, "eos": 6},
        "score": {"lm": "scorer", "bos": 5, "eos": 6},
    }
    assert read_components(path).names == ("search", "lm")
    _forward(stub, tmp_path, recog_components_file=str(path))  # only scored
    assert asked["search"] == {"lm": None, "lm_scale": 0.0, "bos": None, "eos": None}
    assert asked["score"]["lm"] == "scorer"


def test_model_without_parts(tmp_path: Path):
    model = shared._model(shared._vocab_dim())
    stub = SimpleNamespace(search=model.search, in_dim=model.encoder.in_dim)
    with pytest.raises(ValueError, match="recog_step: recog_components_file: SimpleNamespace has no score_hypotheses"):
        _forward(stub, tmp_path, recog_components_file="x")


def test_unknown_option(tmp_path: Path):
    model = shared._model(shared._vocab_dim())
    with pytest.raises(
        ValueError, match="search option 'foo': CtcModel.search has no such option, it has bos, eos, recombine"
    ):
        _forward(model, tmp_path, search_options={"foo": 1})
    assert isinstance(_forward(model, tmp_path, search_options={}), TensorDict)
