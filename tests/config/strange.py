"""Configs as others write them, on RETURNN's frontend, with what is rare."""

from __future__ import annotations

from typing import Any

import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, batch_dim

__all__ = ["FORWARD", "TRAIN"]


class Inputs(rf.Module):
    """Several inputs, of which two have times of one name; a layer is used twice, under two names."""

    def __init__(self, features: Dim, labels: Dim, speakers: Dim):
        super().__init__()
        out_dim = Dim(5, name="out")
        self.features = rf.Linear(features, out_dim)
        self.speakers = rf.Embedding(speakers, out_dim)
        self.labels = rf.Embedding(labels, out_dim)
        self.output = rf.Linear(out_dim, labels)
        self.shared = self.output


def several_inputs() -> dict[str, Any]:
    """several losses, with scales, one of them is an error"""
    times = [Dim(None, name="time") for _ in range(2)]
    features, labels, speakers = Dim(6, name="features"), Dim(7, name="labels"), Dim(3, name="speakers")
    extern_data = {
        "data": {"dims": [batch_dim, times[0], features], "dtype": "float32"},
        "classes": {"dims": [batch_dim, times[1]], "sparse_dim": labels, "dtype": "int32"},
        "speaker": Tensor("speaker", [batch_dim], "int32", sparse_dim=speakers),
        "weight": {"dims": [batch_dim], "dtype": "float32"},
    }

    def get_model(**_):
        return Inputs(features, labels, speakers)

    def train_step(model, extern_data, **_):
        x = model.features(extern_data["data"]) + model.speakers(extern_data["speaker"])
        squares = rf.reduce_mean(rf.square(x), axis=[times[0], model.features.out_dim])
        logits = model.shared(rf.tanh(model.labels(extern_data["classes"])))
        ce = rf.cross_entropy(target=extern_data["classes"], estimated=logits, axis=labels, estimated_type="logits")
        ctx = rf.get_run_ctx()
        ctx.mark_as_loss(squares * extern_data["weight"], "squares", scale=0.3)
        ctx.mark_as_loss(ce, "ce", custom_inv_norm_factor=times[1].get_size_tensor())
        ctx.mark_as_loss(rf.reduce_sum(ce, axis=times[1]), "error", as_error=True)

    return {"get_model": get_model, "train_step": train_step, "extern_data": extern_data, "behavior_version": 21}


class Unnamed(rf.Module):
    """Dims without names, also two of one size."""

    def __init__(self, in_dim: Dim):
        super().__init__()
        self.first = rf.Linear(in_dim, Dim(4))
        self.second = rf.Linear(self.first.out_dim, Dim(4))
        self.third = rf.Linear(self.second.out_dim, Dim(4, name="unnamed"))


def unnamed_dims() -> dict[str, Any]:
    """RETURNN could not sort them when it makes the layers"""
    time, features = Dim(None), Dim(6)

    def get_model(**_):
        return Unnamed(features)

    def train_step(model, extern_data, **_):
        x = model.third(rf.tanh(model.second(rf.relu(model.first(extern_data["data"])))))
        rf.get_run_ctx().mark_as_loss(rf.reduce_sum(rf.square(x), axis=[model.third.out_dim, time]), "squares")

    extern_data = {"data": {"dims": [batch_dim, time, features], "dtype": "float32"}}
    return {"get_model": get_model, "train_step": train_step, "extern_data": extern_data, "behavior_version": 21}


class Halved(rf.Module):
    """Attention over a time whose lengths are computed."""

    def __init__(self, features: Dim):
        super().__init__()
        self.linear = rf.Linear(features, features)
        self.attention = rf.SelfAttention(
            features, proj_dim=features, key_dim_total=Dim(4, name="k"), value_dim_total=Dim(4, name="v"), num_heads=2
        )


def computed_lengths() -> dict[str, Any]:
    """while RETURNN builds the layers, it finds their dim to be the same as another one, which changes its hash"""
    time, features = Dim(None, name="time"), Dim(6, name="features")

    def get_model(**_):
        return Halved(features)

    def forward_step(model, extern_data, **_):
        x = extern_data["data"]
        half = Dim(rf.maximum(time.get_size_tensor() // 2, 1), name="half")
        frames = rf.range_over_dim(half, device=x.device)
        y = model.attention(rf.gather(model.linear(x), axis=time, indices=frames), axis=half)
        rf.get_run_ctx().mark_as_output(y, "y", dims=[batch_dim, half, features])

    extern_data = {"data": {"dims": [batch_dim, time, features], "dtype": "float32"}}
    return {"get_model": get_model, "forward_step": forward_step, "extern_data": extern_data, "behavior_version": 21}


def dim_math() -> dict[str, Any]:
    """of grouped and strided convolutions, and names that are none in Python"""
    time, features = Dim(None, name="l\u00e4ngth *"), Dim(6, name="2/3-class")

    class Convolutions(rf.Module):
        def __init__(self):
            super().__init__()
            self.first = rf.Conv1d(features, Dim(8, name="def"), 3, padding="same", groups=2, strides=2)
            self.second = rf.Conv1d(self.first.out_dim, 2 * features, 4, padding="valid")

    def get_model(**_):
        return Convolutions()

    def train_step(model, extern_data, **_):
        x, halved = model.first(extern_data["data"], in_spatial_dim=time)
        y, rest = model.second(x, in_spatial_dim=halved)
        parts = [Dim(3, name="a-b"), Dim(4, name="a b")]
        y = rf.split_dims(y, axis=model.second.out_dim, dims=parts)
        rf.get_run_ctx().mark_as_loss(rf.reduce_sum(rf.square(y), axis=[*parts, rest]), "a/b")

    extern_data = {"data": {"dims": [batch_dim, time, features], "dtype": "float32"}}
    return {"get_model": get_model, "train_step": train_step, "extern_data": extern_data, "behavior_version": 21}


def of_the_epoch() -> dict[str, Any]:
    """an LSTM, and as many layers as the epoch says"""
    time, features = Dim(None, name="time"), Dim(6, name="features")

    def get_model(*, epoch: int, **_):
        model = rf.Module()
        model.lstm = rf.LSTM(features, Dim(4, name="hidden"))
        model.layers = rf.Sequential(rf.Linear(model.lstm.out_dim, model.lstm.out_dim) for _ in range(min(epoch, 3)))
        return model

    def train_step(model, extern_data, **_):
        state = model.lstm.default_initial_state(batch_dims=[batch_dim])
        x, _ = model.lstm(extern_data["data"], state=state, spatial_dim=time)
        rf.get_run_ctx().mark_as_loss(rf.reduce_sum(rf.square(model.layers(x)), axis=model.lstm.out_dim), "squares")

    extern_data = {"data": {"dims": [batch_dim, time, features], "dtype": "float32"}}
    return {"get_model": get_model, "train_step": train_step, "extern_data": extern_data, "behavior_version": 21}


TRAIN = {f.__name__: f for f in (several_inputs, unnamed_dims, dim_math, of_the_epoch)}
FORWARD = {f.__name__: f for f in (computed_lengths,)}
