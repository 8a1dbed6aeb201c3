"""Configs for the tests of net dicts: a tiny model, and each entry of the zoo."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from returnn_common import nn
from returnn_common.models.ctc import make_ctc_model
from returnn_common.training import train_step
from tests.zoo import Entry
from tests.zoo_kinds import AUDIO, SPECTROGRAM
from tests.zoo_runs import make

__all__ = [
    "TinyEncoder",
    "has_parameters",
    "make_hdf_training_options",
    "make_tiny_config",
    "make_training_options",
    "make_zoo_config",
]


class TinyEncoder(nn.Module):
    """Linear layers of the same size, behind one that halves the time."""

    def __init__(self, in_dim: nn.Dim, *, num_layers: int = 2, out_dim: int = 4):
        super().__init__()
        self.in_dim, self.out_dim, self.downsample_factor = in_dim, nn.FeatureDim("encoder", out_dim), 2
        self.first = nn.Linear(in_dim, self.out_dim)
        self.layers = nn.ModuleList([nn.Linear(self.out_dim, self.out_dim) for _ in range(num_layers)])

    def __call__(self, source, *, in_spatial_dim, collected_outputs=None):
        """:return: encoded, its time"""
        x, time = nn.pool1d(
            self.first(source), mode="max", pool_size=2, padding="same", strides=2, in_spatial_dim=in_spatial_dim
        )
        for i, layer in enumerate(self.layers):
            x = x + nn.tanh(layer(x))
            if collected_outputs is not None:
                collected_outputs[str(i)] = x
        return x, time


def make_tiny_config(*, num_layers: int = 2, out_dim: int = 4, features: int = 3, labels: int = 5) -> dict[str, Any]:
    """:return: config of a CTC model"""
    features_dim, labels_dim = nn.FeatureDim("features", features), nn.FeatureDim("labels", labels)

    def get_model(**_):
        encoder = TinyEncoder(features_dim, num_layers=num_layers, out_dim=out_dim)
        return make_ctc_model(features_dim, labels_dim, encoder=encoder, specaugment=None)

    time_dim, labels_time_dim = nn.SpatialDim("time"), nn.SpatialDim("labels-time")
    return {
        "task": "train",
        "get_model": get_model,
        "train_step": train_step,
        "behavior_version": 29,
        "batch_size": 1000,
        "extern_data": {
            "data": {"dims": [nn.batch_dim, time_dim, features_dim], "dtype": "float32"},
            "classes": {"dims": [nn.batch_dim, labels_time_dim], "sparse_dim": labels_dim, "dtype": "int32"},
        },
    }


def make_training_options(*, features: int = 3, labels: int = 5) -> dict[str, Any]:
    """:return: what a config needs besides, to train in a moment: labels that are seen in the features"""
    rng = np.random.default_rng(1)
    sequences = []
    for i in range(8):
        classes = (rng.integers(0, labels, 1 + i % 3)).astype("int32")
        frames = np.repeat(classes, 6)
        sequences.append({"data": np.eye(labels, features)[frames].astype("float32"), "classes": classes})
    return {
        "train": {
            "class": "StaticDataset",
            "data": sequences,
            "output_dim": {"data": (features, 2), "classes": (labels, 1)},
        },
        "max_seqs": 4,
        "num_epochs": 3,
        "learning_rate": 0.01,
        "optimizer": {"class": "adam", "epsilon": 1e-8},
        "model": "model",
        "learning_rate_file": "learning_rates",
        "tf_log_dir": None,
        "log_verbosity": 5,
    }


def make_hdf_training_options(folder: Path) -> dict[str, Any]:
    """
    :param folder: gets HDF files
    :return: the same with RETURNN's MetaDataset over HDFDatasets
    """
    from returnn.datasets.hdf import SimpleHDFWriter

    options = make_training_options()
    sequences = options["train"]["data"]
    for key in ("data", "classes"):
        (labels,) = {x[key].shape[-1] if x[key].ndim > 1 else 5 for x in sequences}
        writer = SimpleHDFWriter(str(folder / f"{key}.hdf"), dim=labels, ndim=sequences[0][key].ndim)
        for i, sequence in enumerate(sequences):
            array = sequence[key]
            writer.insert_batch(array[None], seq_len=[len(array)], seq_tag=[f"seq-{i}"])
        writer.close()
    options["train"] = {
        "class": "MetaDataset",
        "datasets": {key: {"class": "HDFDataset", "files": [folder / f"{key}.hdf"]} for key in ("data", "classes")},
        "data_map": {key: (key, "data") for key in ("data", "classes")},
        "seq_order_control_dataset": "data",
    }
    return options


def make_zoo_config(entry: Entry, *, train: bool) -> dict[str, Any]:
    """:return: config which has the zoo's inputs for data, and its outputs or their loss for the step"""
    inputs, sizes = entry.kind.make_inputs(entry.kind.lengths, 0.0)
    dims = {n: nn.FeatureDim(n, s) if isinstance(s, int) else nn.SpatialDim(n) for n, s in sizes.items()}
    dims["batch"] = nn.batch_dim
    extern_data = {
        name: {
            "dims": [dims[d] for d in x.dims.split()],
            "dtype": str(x.array.dtype),
            **({"sparse_dim": dims[x.sparse]} if x.sparse else {}),
        }
        for name, x in inputs.items()
    }

    def get_model(**_):
        return _call(make(entry), dims)

    def call(model: Any, extern_data: nn.TensorDict) -> dict[str, Any]:
        return _call(entry.kind.call, {**dims, **extern_data.data, "model": model})

    def train_loss(model: Any, extern_data: nn.TensorDict):
        nn.get_run_ctx().mark_as_loss(call(model, extern_data)["loss"][0], "loss")

    def forward_step(model: Any, extern_data: nn.TensorDict):
        for name, (tensor, order) in call(model, extern_data).items():
            nn.get_run_ctx().mark_as_output(tensor, f"result_{name}", dims=order)

    step = {"task": "train", "train_step": train_loss} if train else {"task": "forward", "forward_step": forward_step}
    return {"get_model": get_model, **step, "extern_data": extern_data, "behavior_version": 29}


def has_parameters(entry: Entry) -> bool:
    """whether there is something to train"""
    return entry.kind not in (AUDIO, SPECTROGRAM)


def _call(function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    return function(**{name: values[name] for name in inspect.signature(function).parameters if name in values})
