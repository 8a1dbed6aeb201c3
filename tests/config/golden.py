"""
Golden files of configs: what :func:`returnn_common.config.to_python` writes.

    python -m tests.config.golden            shows what differs
    python -m tests.config.golden --update   writes them anew
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from returnn_common import nn
from returnn_common.config import diff, to_python
from returnn_common.datasets import WordVocab
from returnn_common.datasets.augment import Chain, Noise, SpeedPerturbation
from returnn_common.models.ctc import make_ctc_model
from returnn_common.recog import recog_callback, recog_step
from returnn_common.training import train_step, warmup_decay
from tests.config import kinds

__all__ = ["CONFIGS", "FOLDER", "make_text"]

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "configs"


def _recogniser() -> dict[str, Any]:
    time_dim, words_dim = nn.Dim(None, name="time"), nn.Dim(2, name="words")
    train = {"class": "OggZipDataset", "path": [Path("/corpus/train.zip")], "partition_epoch": 20}
    return {
        "backend": "torch",
        "extern_data": {
            "data": {"dims": [nn.batch_dim, time_dim], "dtype": "float32"},
            "classes": {
                "dims": [nn.batch_dim, nn.Dim(None, name="targets-time")],
                "sparse_dim": words_dim,
                "dtype": "int32",
                "vocab": WordVocab(["YES", "NO"]).get_opts(),
            },
        },
        "train": {
            "class": "PostprocessingDataset",
            "dataset": train,
            "map_seq": functools.partial(dict, augment=Chain(SpeedPerturbation(0.9, 1.1), Noise(10, 40))),
            "map_outputs": {"data": {"dims": [time_dim], "dtype": "float32"}},
        },
        "make_model": functools.partial(make_ctc_model, num_layers=2),
        "train_step": train_step,
        "forward_step": recog_step,
        "forward_callback": recog_callback,
        "batch_size": {"data": 160_000},
        **warmup_decay(num_epochs=20, peak=1e-3, warmup_epochs=5),
    }


def _kinds() -> dict[str, Any]:
    time_dim, labels_dim = nn.SpatialDim("time"), nn.FeatureDim("labels", 5)
    return {
        "model_outputs": {"output": {"dims": [nn.batch_dim, time_dim.ceildiv_right(4), 2 * labels_dim]}},
        "extern_data": {"data": {"dims": [nn.batch_dim, time_dim], "sparse_dim": labels_dim, "dtype": "int32"}},
        "functions": [kinds.add, kinds.add_twice, kinds.make_adder(1), kinds.make_adder(2), kinds.lambdas[1]],
        "child": kinds.Child,
        "settings": kinds.Settings(3),
        "color": kinds.Color.GREEN,
        "names": {"b", "a"},
    }


CONFIGS: dict[str, Callable[[], str]] = {
    "recogniser": lambda: to_python(_recogniser(), doc="A recogniser of two words."),
    "kinds": lambda: to_python(_kinds(), inline=["tests.config.kinds"]),
}


def make_text(name: str) -> str:
    """:return: what the golden file of that name should have"""
    return CONFIGS[name]()


def main():
    """see the module"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the files")
    args = parser.parse_args()
    for name in CONFIGS:
        path = FOLDER / f"{name}.config"
        if args.update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(make_text(name))
        elif not path.exists() or path.read_text() != make_text(name):
            new = path.with_suffix(".new")
            new.write_text(make_text(name))
            print(f"{name}:\n{diff(path, new) if path.exists() else 'not there'}")
            new.unlink()


if __name__ == "__main__":
    main()
