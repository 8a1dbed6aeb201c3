"""What the options of digits_transducer change, and the encoders of both recipes that were trained with CTC."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.models.decoder.transducer import LSTMPredictor, StatelessPredictor
from returnn_common.models.transducer import TransducerModel
from returnn_common.training.import_weights import save_parameters
from tests.recipes.test_recipes import RECIPES, TINY, _load


def _model(name: str = "digits_transducer", *, epoch: int = 1, **options: str) -> TransducerModel:
    nn.select_backend_torch()
    return _load(RECIPES[name], {**TINY, **options})["get_model"](epoch=epoch, step=0)


def test_options():
    model = _model()
    assert isinstance(model.predictor, StatelessPredictor) and model.predictor.context_size == 2
    other = _model(context_size="1").predictor
    assert isinstance(other, StatelessPredictor) and other.context_size == 1
    assert (model.joiner.kind, model.topology, model.separate_blank) == ("additive", "rnnt", False)
    options = {"predictor": "lstm", "joiner": "gated", "topology": "monotonic", "separate_blank": "True"}
    model = _model(**options, ctc_scale="0.7")
    assert isinstance(model.predictor, LSTMPredictor)
    assert (model.joiner.kind, model.topology, model.separate_blank) == ("gated", "monotonic", True)
    assert model.aux_ctc_scale == 0.7
    with pytest.raises(ValueError, match="expected predictor as stateless or lstm, got 'gru'"):
        _model(predictor="gru")


@pytest.mark.parametrize("corpus", ["digits", "librispeech"])
def test_starts_from_the_encoder_of_a_ctc_model(corpus: str, tmp_path: Path):
    ctc, transducer = _model(f"{corpus}_ctc"), f"{corpus}_transducer"
    params = {name: p.raw_tensor.detach().numpy() + 0.5 for name, p in ctc.named_parameters()}
    path = save_parameters(params, tmp_path / "ctc", backend="torch")
    started = dict(_model(transducer, init_from=str(path)).named_parameters())
    resumed = dict(_model(transducer, init_from=str(path), epoch=2).named_parameters())
    names = [name for name in params if name.startswith("encoder.")]
    assert len(names) > 10
    for name in names:
        np.testing.assert_allclose(started[name].raw_tensor.detach().numpy(), params[name], rtol=1e-6)
    assert any(np.abs(resumed[name].raw_tensor.detach().numpy() - params[name]).max() > 0.1 for name in names)
