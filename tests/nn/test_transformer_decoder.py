"""RETURNN's Transformer decoder, with what a beam search needs to be fast."""

from __future__ import annotations

import numpy as np
from returnn.frontend.decoder.transformer import TransformerDecoder as ReturnnDecoder

from returnn_common import nn
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.nn.transformer_decoder import TransformerDecoder
from tests.engines import Input, run_on

DIM, VOCAB = 8, 5


def test_keys_and_values_of_the_encoder_lie_together():
    """RETURNN's numbers; those of a head are one block, so that no step has to bring them together"""

    def _func(model, x, time):
        assert isinstance(model, TransformerDecoder)
        found = model.transform_encoder(x, axis=time)
        expected = ReturnnDecoder.transform_encoder(model, x, axis=time)
        outputs = {}
        for name, layer in model.layers.items():
            for key in ("k", "v"):
                new, old = found[name].cross_att[key], expected[name].cross_att[key]
                assert found[name].cross_att.kv_axis is time
                assert new.dims[:3] == (nn.batch_dim, layer.cross_att.num_heads, time)
                batch, head, frame, feature = new.raw_tensor.stride()
                assert feature == 1 and head >= 5 * frame and batch == 2 * head
                assert old.raw_tensor.stride()[1] > old.raw_tensor.stride()[2], "else this would be for nothing"
                outputs[f"new-{name}-{key}"] = (new, old.dims)
                outputs[f"old-{name}-{key}"] = (old, old.dims)
        return outputs

    x = np.random.default_rng(1).normal(size=(3, 5, DIM)).astype("float32")
    result = run_on(
        "torch",
        _func,
        {"x": Input(x, "batch time feat")},
        {"time": [5, 2, 3], "feat": DIM, "vocab": VOCAB},
        make_model=lambda feat, vocab: make_transformer_decoder(feat, vocab, num_layers=2, model_dim=DIM, num_heads=2),
    )
    for name in result.outputs:
        np.testing.assert_array_equal(result[name], result[name.replace("new-", "old-")])
