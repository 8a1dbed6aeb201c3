"""
Smallest reproductions of what RETURNN cannot do on one of its engines, on RETURNN's frontend alone.

Each takes an engine, runs on all of them, and gives what :func:`tests.engines.run_on` gives, or fails as it does.
:mod:`tests.limits` says which is expected where.
"""

from __future__ import annotations

import numpy as np
import returnn.frontend as rf
from returnn.tensor import Dim, batch_dim

from tests.engines import Input, Result, run_on

LENGTHS = [4, 2]
_RNG = np.random.default_rng(1)
X = _RNG.normal(size=(2, 4, 3)).astype("float32")
LABELS = np.array([[0, 1, 1, 2], [2, 0, 0, 0]], "int32")


def _run(engine: str, func, *, make_model=None, train: bool = False, grad_of: str | None = None) -> Result:
    inputs = {"x": Input(X, "batch time feat"), "labels": Input(LABELS, "batch time", sparse="feat")}
    dims = {"time": LENGTHS, "feat": 3}
    return run_on(engine, func, inputs, dims, make_model=make_model, train=train, grad_of=grad_of)


def _call(engine: str, make_module, *, train: bool = False) -> Result:
    """``module(x)``, all dims in x"""

    def func(model, x, labels, time, feat):
        return {"y": (model(x), [batch_dim, time, feat])}

    return _run(engine, func, make_model=lambda feat: make_module(feat), train=train)


def masked_batch_norm(engine: str) -> Result:
    return _call(engine, lambda feat: rf.BatchNorm(feat, use_mask=True), train=True)


def unmasked_batch_norm(engine: str) -> Result:
    """where there is no padding"""

    def func(model, x, feat):
        return {"y": (model(x), [batch_dim, feat])}

    def make_model(feat):
        return rf.BatchNorm(feat, use_mask=False)

    return run_on(engine, func, {"x": Input(X[:, 0], "batch feat")}, {"feat": 3}, make_model=make_model, train=True)


class _Counter(rf.Module):
    def __init__(self):
        super().__init__()
        self.count = rf.Parameter([], auxiliary=True)
        self.count.initial = 0.0

    def __call__(self, source):
        self.count.assign_add(rf.reduce_mean(source, axis=source.dims))
        return source + self.count


class _Around(rf.Module):
    def __init__(self, make):
        super().__init__()
        self.inner = make()

    def __call__(self, source):
        return self.inner(source)


def assign_in_nested_module(engine: str) -> Result:
    return _call(engine, lambda feat: _Around(lambda: _Around(_Counter)), train=True)


def lstm(engine: str) -> Result:
    def func(model, x, time):
        y, _ = model(x, state=model.default_initial_state(batch_dims=[batch_dim]), spatial_dim=time)
        return {"y": (y, [batch_dim, time, model.out_dim])}

    return _run(engine, func, make_model=lambda feat: rf.LSTM(feat, Dim(2, name="out")))


def zoneout_lstm(engine: str) -> Result:
    def func(model, x, time):
        y, _ = model(x, state=model.default_initial_state(batch_dims=[batch_dim]), spatial_dim=time)
        return {"y": (y, [batch_dim, time, model.out_dim])}

    return _run(engine, func, make_model=lambda feat: rf.ZoneoutLSTM(feat, Dim(2, name="out")))


def scan(engine: str) -> Result:
    def func(x, time, feat):
        y, _, _ = rf.scan(
            spatial_dim=time,
            initial=rf.zeros([batch_dim, feat]),
            xs=x,
            ys=rf.Tensor("y", [batch_dim, feat], "float32"),
            body=lambda frame, state: (state + frame, state + frame),
        )
        return {"y": (y, [batch_dim, time, feat])}

    return _run(engine, func)


def gradient_of_while_loop(engine: str) -> Result:
    def func(x, time, feat):
        def body(state):
            i, value = state
            return i + 1, value * 0.5

        _, y = rf.while_loop(lambda state: state[0] < 3, body, (rf.constant(0, dims=[]), x))
        return {"y": (y, [batch_dim, time, feat])}

    return _run(engine, func, grad_of="y")


class _Recurrent(rf.Module):
    def __init__(self, feat):
        super().__init__()
        self.linear = rf.Linear(feat, feat)

    def __call__(self, source):
        initial = rf.constant(0.0, dims=[]), source
        return rf.while_loop(lambda s: s[0] < 3.0, lambda s: (s[0] + 1.0, self.linear(s[1])), initial)[1]


def module_in_while_loop(engine: str) -> Result:
    return _call(engine, _Recurrent)


def state_of_while_loop(engine: str) -> Result:
    """Two parts of a state with dims of their own need each other."""

    def func(x, feat):
        slots = Dim(4, name="slots")
        positions = rf.range_over_dim(slots)

        def body(state):
            here = rf.compare(positions, "==", state["i"], allow_broadcast_all_sources=True)
            kept = rf.where(here, state["x"], state["kept"])
            return {"i": state["i"] + 1, "x": rf.reduce_max(kept, axis=slots) + 0.5, "kept": kept * 0.5}

        initial = {"i": rf.constant(0, dims=[]), "x": x, "kept": rf.zeros([batch_dim, slots, feat])}
        return {"y": (rf.while_loop(lambda state: state["i"] < 3, body, initial)["x"], [batch_dim, feat])}

    return run_on(engine, func, {"x": Input(X[:, 0], "batch feat")}, {"feat": 3})


def specaugment(engine: str) -> Result:
    def func(x, time, feat):
        return {"y": (rf.audio.specaugment(x, spatial_dim=time, feature_dim=feat), [batch_dim, time, feat])}

    return _run(engine, func, train=True)


def log_mel(engine: str) -> Result:
    def func(audio, time):
        mel = Dim(4, name="mel")
        y, frames = rf.audio.log_mel_filterbank_from_raw(audio, in_spatial_dim=time, out_dim=mel)
        return {"y": (y, [batch_dim, frames, mel])}

    audio = np.random.default_rng(1).normal(size=(2, 1000)).astype("float32")
    return run_on(engine, func, {"audio": Input(audio, "batch time")}, {"time": [1000, 700]})


def complex_as_real(engine: str) -> Result:
    def func(audio, time):
        spectrum, frames, freq = rf.stft(audio, in_spatial_dim=time, frame_step=8, frame_length=16, fft_length=16)
        y, parts = rf.complex_as_real(spectrum)
        return {"y": (y, [batch_dim, frames, freq, parts])}

    audio = np.random.default_rng(1).normal(size=(2, 40)).astype("float32")
    return run_on(engine, func, {"audio": Input(audio, "batch time")}, {"time": [40, 30]})


def causal_self_attention(engine: str) -> Result:
    def func(model, x, time):
        y, _ = model(x, axis=time)
        return {"y": (y, [batch_dim, time, model.out_dim])}

    def make_model(feat):
        sizes = {"key_dim_total": Dim(4, name="key"), "value_dim_total": Dim(4, name="value"), "num_heads": 2}
        return rf.CausalSelfAttention(feat, Dim(4, name="out"), **sizes)

    return _run(engine, func, make_model=make_model)


def cum_concat_step(engine: str) -> Result:
    """to a history whose length differs between the sequences"""

    def func(x, time, feat):
        y, out_time = rf.cum_concat_step(rf.reduce_sum(x, axis=time), prev_accum=x, axis=time)
        return {"y": (y, [batch_dim, out_time, feat])}

    return _run(engine, func)


def stack(engine: str) -> Result:
    def func(x, labels, time, feat):
        y, pair_dim = rf.stack([x, x])
        return {"y": (y, [pair_dim, batch_dim, time, feat])}

    return _run(engine, func)


def scatter(engine: str) -> Result:
    def func(x, labels, time, feat):
        y = rf.scatter(rf.reduce_sum(x, axis=feat), indices=labels, indices_dim=time)
        return {"y": (y, [batch_dim, feat])}

    return _run(engine, func)


def scatter_logsumexp(engine: str) -> Result:
    def func(x, labels, time, feat):
        y = rf.scatter_logsumexp(rf.reduce_sum(x, axis=feat), indices=labels, indices_dim=time)
        return {"y": (y, [batch_dim, feat])}

    return _run(engine, func)


def masked_select(engine: str) -> Result:
    """over time alone, so that each sequence gets its own length"""

    def func(x, labels, time, feat):
        mask = rf.cast(labels, "float32") > 0.5
        y, out_time = rf.masked_select(x, mask=mask, dims=[time])
        return {"y": (y, [batch_dim, out_time, feat])}

    return _run(engine, func)


def top_k(engine: str) -> Result:
    """over a dynamic dim, with another dim beside"""

    def func(x, time, feat):
        y, _, k_dim = rf.top_k(x, axis=time, k=2)
        return {"y": (y, [batch_dim, k_dim, feat])}

    return _run(engine, func)


def gather_clipped(engine: str) -> Result:
    """positions with a further dim, beyond the shorter sequence"""

    def func(x, indices, time, feat, beam):
        y = rf.gather(x, indices=indices, axis=time, clip_to_valid=True)
        return {"y": (y, [batch_dim, beam, feat])}

    inputs = {
        "x": Input(X, "batch time feat"),
        "indices": Input(np.array([[0, 3], [1, 3]], "int32"), "batch beam", sparse="time"),
    }
    return run_on(engine, func, inputs, {"time": LENGTHS, "feat": 3, "beam": 2})


def compare_with_integer(engine: str) -> Result:
    def func(x, time, feat):
        return {"y": (x > 0, [batch_dim, time, feat])}

    return _run(engine, func)


def transposed_conv(engine: str) -> Result:
    def func(model, x, time):
        y, out_time = model(x, in_spatial_dim=time)
        return {"y": (y, [batch_dim, out_time, model.out_dim])}

    def make_model(feat):
        return rf.TransposedConv1d(feat, Dim(2, name="out"), 2, padding="valid")

    return _run(engine, func, make_model=make_model)


def weight_dropout(engine: str) -> Result:
    """in training, by a probability so low that no weight is dropped"""

    def make_module(feat):
        return rf.weight_dropout(rf.Linear(feat, Dim(2, name="out")), "weight", drop_prob=1e-9)

    def func(model, x, time):
        return {"y": (model(x), [batch_dim, time, model.out_dim])}

    return _run(engine, func, make_model=make_module, train=True)


def edit_distance(engine: str) -> Result:
    def func(labels, time):
        return {"y": (rf.edit_distance(labels, time, rf.copy(labels), time), [batch_dim])}

    return _run(engine, func)


def expand_sparse(engine: str) -> Result:
    def func(labels, time):
        beam = Dim(2, name="beam")
        return {"y": (rf.expand_dim(labels, beam), [batch_dim, time, beam])}

    return _run(engine, func)


def generic_forward(engine: str):
    """task "forward" with ``forward_step`` and ``forward_callback``"""
    assert engine == "tensorflow-net-dict"
    from returnn.config import Config
    from returnn.tf.engine import Engine

    Engine(Config()).forward_with_callback(dataset=None, callback=None)  # type: ignore[arg-type]


def packed_linear(engine: str) -> Result:
    def func(model, x, time):
        packed = rf.pack(x, dims=[batch_dim, time])
        return {"y": (rf.unpack(model(packed)), [batch_dim, time, model.out_dim])}

    return _run(engine, func, make_model=lambda feat: rf.Linear(feat, Dim(2, name="out")))


def derived_dim(engine: str) -> Result:
    def func(x, time, feat):
        fewer = Dim(rf.relu(time.get_size_tensor() - 1), name="fewer")
        y = rf.gather(x, indices=rf.range_over_dim(fewer), axis=time)
        one = Dim(1, name="one")
        y, more = rf.concat((rf.zeros([batch_dim, one, feat]), one), (y, fewer))
        return {"y": (y, [batch_dim, more, feat])}

    return _run(engine, func)


def adamw(engine: str):
    """the learning rate is a variable, as the engine's updater has it"""
    assert engine == "tensorflow-net-dict"
    import tensorflow as tf
    from returnn.tf.updater import get_optimizer_class

    with tf.Graph().as_default():
        learning_rate = tf.compat.v1.get_variable("learning_rate", initializer=0.1, trainable=False)
        for name in ("adam", "adamw"):
            get_optimizer_class(name)(learning_rate=learning_rate)
