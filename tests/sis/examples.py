"""
Ten objects whose hashes are frozen.

    python -m tests.sis.examples    prints their hashes
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from returnn_common import nn
from returnn_common.config import NetDict, make_net_dict
from returnn_common.datasets import CharacterVocab, Librispeech, WordVocab
from returnn_common.datasets.augment import Chain, Noise, SpeedPerturbation
from returnn_common.models.aed import make_aed_model
from returnn_common.models.ctc import make_ctc_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.lm.transformer import make_transformer_lm
from returnn_common.recog import recog_step
from returnn_common.sis import stable_hash
from returnn_common.training import train_step

__all__ = ["EXAMPLES", "make_config", "net_dict"]

_SIZES = {"num_layers": 1, "num_heads": 2, "subsampling_channels": 4, "out_dim": 8}


def get_model(*, epoch: int, in_dim: nn.Dim, vocab_dim: nn.Dim, num_layers: int = 2, **_other: Any) -> nn.Module:
    """called by RETURNN"""
    encoder = make_conformer_encoder(in_dim, **{**_SIZES, "num_layers": num_layers}, conv_norm="layer")
    return make_ctc_model(in_dim, vocab_dim, encoder=encoder, specaugment=None)


def make_config(*, train: Any = None, **options: Any) -> dict[str, Any]:
    """:return: of a recogniser, with options for :func:`get_model`"""
    time_dim, features_dim, labels_dim = nn.Dim(None, name="time"), nn.Dim(8, name="f"), nn.Dim(29, name="labels")
    return {
        "get_model": functools.partial(get_model, in_dim=features_dim, vocab_dim=labels_dim, **options),
        "train_step": train_step,
        "forward_step": recog_step,
        "train": train or {"class": "OggZipDataset", "path": ["train.zip"]},
        "batch_size": 10_000,
        "extern_data": {
            "data": {"dims": [nn.batch_dim, time_dim, features_dim], "dtype": "float32"},
            "classes": {
                "dims": [nn.batch_dim, nn.Dim(None, name="targets-time")],
                "sparse_dim": labels_dim,
                "dtype": "int32",
            },
        },
    }


@functools.cache
def net_dict() -> NetDict:
    """:return: of :func:`make_config`; not to be changed"""
    return make_net_dict({**make_config(num_layers=1), "behavior_version": 21})


def _aed_model(encoder: nn.Encoder) -> nn.Module:
    words_dim = nn.FeatureDim("labels-and-end", 11)
    decoder = make_transformer_decoder(encoder.out_dim, words_dim, num_layers=1, model_dim=8, num_heads=2)
    return make_aed_model(80, 10, encoder=encoder, decoder=decoder)


EXAMPLES: dict[str, Callable[[], Any]] = {
    "conformer": lambda: make_conformer_encoder(80, **_SIZES),
    "aed": lambda: _aed_model(make_conformer_encoder(80, **_SIZES)),
    "lm": lambda: make_transformer_lm(nn.FeatureDim("labels", 10), num_layers=1, model_dim=8, num_heads=2),
    "dims": lambda: [time := nn.SpatialDim("time"), nn.FeatureDim("f", 4), time.ceildiv_right(2), nn.Dim(4, name="g")],
    "librispeech": lambda: Librispeech(path="/data", vocab=WordVocab(["YES", "NO"]), audio="log-mel"),
    "characters": lambda: CharacterVocab("ABC"),
    "augmentation": lambda: Chain(SpeedPerturbation(0.9, 1.1), Noise(10, 40)),
    "builder": lambda: functools.partial(make_ctc_model, 80, num_layers=2),
    "config": make_config,
    "net dict": net_dict,
}


def main():
    """see the module"""
    from tests.sis import examples  # functions of __main__ have no hash

    nn.select_backend_torch()
    for name, make in examples.EXAMPLES.items():
        print(f'    "{name}": "{stable_hash(make())}",')


if __name__ == "__main__":
    main()
