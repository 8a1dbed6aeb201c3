"""Models piece by piece: the hypotheses are those of the whole, on features, on audio, and on LibriSpeech."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from returnn.util.basic import BehaviorVersion

from returnn_common import nn
from returnn_common.models.ctc import CtcModel, make_ctc_model
from returnn_common.models.decoder.transducer import make_joiner, make_lstm_predictor, make_stateless_predictor
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.models.encoder.conformer_streaming import make_streaming_conformer_encoder
from returnn_common.models.features import LogMel
from returnn_common.models.lm.lstm import make_lstm_lm
from returnn_common.models.transducer import make_transducer_model
from returnn_common.search import DecoderScorer
from tests.engines import ENGINES, Input, run_on
from tests.models.streaming_tools import assert_same, same_pace, search_pieces, search_whole

torch = pytest.importorskip("torch")

FEATURES, VOCAB = 8, 4
ENCODER: dict[str, Any] = {
    "num_layers": 1,
    "out_dim": 8,
    "num_heads": 2,
    "chunk_size": 2,  # of 8 frames of features
    "left_chunks": 1,
    "subsampling_channels": 4,
    "conv_kernel_size": 3,
    "dropout": 0.0,
}
LENGTHS = [61, 24, 0, 5, 40]


def _make(kind: str, in_dim: Any, vocab: Any, **encoder: Any) -> Any:
    encoder_ = make_streaming_conformer_encoder(in_dim or FEATURES, **{**ENCODER, **encoder})
    if kind == "ctc":
        return make_ctc_model(in_dim, vocab, encoder=encoder_, specaugment=None)
    vocab = nn.as_dim(vocab, name="labels")
    if kind == "lstm":
        predictor = make_lstm_predictor(vocab, embed_dim=8, model_dim=8)
    else:
        predictor = make_stateless_predictor(vocab, context_size=2, model_dim=8)
    joiner = make_joiner(encoder_.out_dim, predictor.out_dim, vocab, model_dim=8)
    parts: dict[str, Any] = {"encoder": encoder_, "predictor": predictor, "joiner": joiner}
    return make_transducer_model(in_dim, vocab, **parts, specaugment=None)


def _randomize(module: nn.Module, seed: int = 1, scale: float = 2.0) -> Any:
    """weights so large that something is recognised"""
    rng = np.random.default_rng(seed)
    for name, param in module.named_parameters():
        shape = [d.dimension for d in param.dims]
        if len(shape) > 1:
            values = rng.normal(size=shape) * scale / np.sqrt(np.prod(shape[:-1]))
        else:
            values = 1.0 + 0.1 * rng.normal(size=shape) if name.endswith("scale") else 0.1 * rng.normal(size=shape)
        param.raw_tensor.data = torch.tensor(values, dtype=torch.float32)
    return module


@pytest.fixture(autouse=True)
def _no_gradients():
    BehaviorVersion.set_min_behavior_version(29)
    nn.select_backend_torch()
    with torch.no_grad():
        yield


def _features(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(n, FEATURES)).astype("float32") for n in lengths]


def _audio(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.normal(size=n) * np.abs(np.sin(np.arange(n) / 900)) * 0.2).astype("float32") for n in lengths]


def _lm(size: int) -> Any:
    return DecoderScorer(_randomize(make_lstm_lm(size, num_layers=1, model_dim=8, embed_dim=8), seed=2))


def _options(kind: str, what: str) -> dict[str, Any]:
    if what == "greedy":
        return {}
    if what == "beam":
        return {"beam_size": 3}
    lm = {"lm": _lm(VOCAB + (kind != "ctc")), "lm_scale": 0.5, "beam_size": 3}
    return lm if kind == "ctc" else {**lm, "eos": VOCAB, "internal_lm_scale": 0.2}


@pytest.mark.parametrize("what", ["greedy", "beam", "lm"])
@pytest.mark.parametrize("kind", ["ctc", "lstm", "stateless"])
def test_pieces_are_the_whole(kind: str, what: str):
    """pieces of one frame, less than a chunk, two chunks, and longer than everything; an empty utterance"""
    model, options = _randomize(_make(kind, FEATURES, VOCAB)), _options(kind, what)
    sequences = _features(LENGTHS)
    expected = search_whole(model, sequences, **options)
    assert expected[0][0][1] and expected[2][0][1] == []
    for size in [1, 16, 100] if (kind, what) == ("stateless", "greedy") else [7]:
        _, found = search_pieces(model, sequences, same_pace(LENGTHS, size), **options)
        assert_same(found, expected)


@pytest.mark.parametrize("kind", ["ctc", "lstm"])
def test_each_at_its_own_pace_and_what_is_known_in_between(kind: str):
    """after each piece: the hypotheses for the chunks that are complete"""
    model, sequences = _randomize(_make(kind, FEATURES, VOCAB)), _features(LENGTHS)
    paces = [[9, 0, 30, 22, 0], [0, 24, 0, 0, 0], [0] * 5, [0, 0, 0, 1, 4], [20, 1, 0, 0, 19]]
    partial, found = search_pieces(model, sequences, paces, beam_size=3)
    assert_same(found, search_whole(model, sequences, beam_size=3))
    for i in range(len(paces[0])):
        heard = [x[: sum(pace[: i + 1]) // 8 * 8] for x, pace in zip(sequences, paces, strict=True)]
        if max(map(len, heard)):
            assert_same(partial[i], search_whole(model, heard, beam_size=3))


@pytest.mark.parametrize("kind, size", [("ctc", 333), ("ctc", 10_000), ("stateless", 1111)])
def test_audio(kind: str, size: int):
    """the features are normalised causally where the encoder streams"""
    model = _randomize(_make(kind, None, VOCAB))
    assert model.features.can_stream and model.features.prior_frames > 0
    lengths = [6000, 3210, 0, 100]
    sequences = _audio(lengths)
    expected = search_whole(model, sequences, beam_size=2)
    _, found = search_pieces(model, sequences, same_pace(lengths, size), beam_size=2)
    assert_same(found, expected)
    assert len(expected[0][0][1]) >= 2


def test_nothing_at_all():
    model = _randomize(_make("lstm", None, VOCAB))
    stream = model.stream(batch_dims=[])
    hyps = stream.hypotheses(stream.finish(stream.initial_state()))
    assert hyps.lengths.raw_tensor.tolist() == [0] and hyps.scores.raw_tensor.tolist() == [0.0]


def test_states_are_values():
    """one state can go on in two ways"""
    model, (x,) = _randomize(_make("ctc", FEATURES, VOCAB)), _features([64])
    stream = model.stream(batch_dims=[], beam_size=2)

    def step(state: Any, x: np.ndarray) -> Any:
        time = nn.Dim(len(x), name="time")
        source = nn.convert_to_tensor(x, dims=[time, model.encoder.in_dim])
        return stream.step(source, in_spatial_dim=time, state=state)

    def best(state: Any) -> list[int]:
        hyps = stream.hypotheses(stream.finish(state))
        return hyps.labels.raw_tensor[0, : hyps.lengths.raw_tensor[0]].tolist()

    first = step(stream.initial_state(), x[:24])
    a, b = step(first, x[24:]), step(first, -x[24:])
    assert best(a) == search_whole(model, [x], beam_size=2)[0][0][1]
    assert best(b) == search_whole(model, [np.concatenate([x[:24], -x[24:]])], beam_size=2)[0][0][1]
    assert best(a) != best(b) != best(first)


@pytest.mark.parametrize("kind", ["ctc", "stateless"])
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "tensorflow-net-dict"])
def test_engines(engine: str, kind: str):
    """
    Chunks of one shape, the last one shorter for one of both. The net dict can't hold back: see "a dim that comes from
    one whose sizes a layer computes" in tests/limits.py; there, its parts are tested each for itself.
    """
    x = np.random.default_rng(0).normal(size=(2, 8, FEATURES)).astype("float32")

    def func(model, x0, x1, time0, time1, x, time):
        stream = model.stream(batch_dims=[nn.batch_dim])
        state = stream.initial_state()
        for piece, piece_time in [(x0, time0), (x1, time1)]:
            state = stream.step(piece, in_spatial_dim=piece_time, state=state)
        outputs = {}
        whole = model.search(x, in_spatial_dim=time)
        for name, hyps in [("whole", whole), ("pieces", stream.hypotheses(stream.finish(state)))]:
            outputs[name] = (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim])
            outputs[f"{name}_scores"] = (hyps.scores, [nn.batch_dim, hyps.beam_dim])
        return outputs

    inputs = {
        "x": Input(x, "batch time feat"),
        "x0": Input(x[:, :4], "batch time0 feat"),
        "x1": Input(x[:, 4:], "batch time1 feat"),
    }
    dims = {"time": [8, 6], "time0": [4, 4], "time1": [4, 2], "feat": FEATURES, "vocab": VOCAB}
    make = lambda feat, vocab: _make(kind, feat, vocab, chunk_size=1)  # noqa: E731
    result = run_on(engine, func, inputs, dims, make_model=make)
    np.testing.assert_array_equal(result["pieces"], result["whole"])
    np.testing.assert_allclose(result["pieces_scores"], result["whole_scores"], atol=1e-4)


@pytest.fixture(scope="session")
def librispeech(shared_data: Path) -> list[np.ndarray]:
    paths = sorted((shared_data / "LibriSpeech").rglob("*.flac"), key=lambda path: path.stat().st_size)
    assert len(paths) >= 20
    return [soundfile.read(path, dtype="float32")[0] for path in paths]


def _check_librispeech(waves: list[np.ndarray], *, size: int, with_beam: bool):
    sizes: dict[str, Any] = {"num_layers": 2, "out_dim": 64, "num_heads": 4, "chunk_size": 16, "left_chunks": 2}
    paces = same_pace([len(x) for x in waves], size)
    for kind in ("ctc", "lstm"):
        model = _randomize(_make(kind, None, 30, **sizes))
        for options in [{}, {"beam_size": 4}] if with_beam else [{}]:
            expected = search_whole(model, waves, **options)
            _, found = search_pieces(model, waves, paces, **options)
            assert_same(found, expected, atol=1e-2)
            assert sum(len(entry[0][1]) for entry in expected) > len(expected)


def test_librispeech(librispeech):
    """random weights; all utterances are in the slow test"""
    _check_librispeech([librispeech[0], librispeech[3][:12_345]], size=16_000, with_beam=False)


@pytest.mark.slow  # minutes
@pytest.mark.parametrize("size", [3_200, 50_000])
def test_all_of_librispeech(librispeech, size: int):
    for i in range(0, len(librispeech), 7):
        _check_librispeech(librispeech[i : i + 7], size=size, with_beam=True)


def test_errors():
    sizes: dict[str, Any] = {"num_layers": 1, "out_dim": 8, "num_heads": 2, "subsampling_channels": 4}
    for make, name in [(make_ctc_model, "CtcModel"), (make_transducer_model, "TransducerModel")]:
        model = make(FEATURES, VOCAB, encoder=make_conformer_encoder(FEATURES, **sizes))
        with pytest.raises(
            ValueError, match=f"{name}: expected an encoder that has a step .* got FusedConformerEncoder"
        ):
            model.stream(batch_dims=[])
        model = _make("ctc" if make is make_ctc_model else "lstm", FEATURES, VOCAB)
        stream, time = model.stream(batch_dims=[]), nn.Dim(3, name="time")
        with pytest.raises(ValueError, match="speech stream: expected features with .* got Tensor"):
            stream.step(nn.zeros([time]), in_spatial_dim=time, state=stream.initial_state())
        with pytest.raises(ValueError, match="Stream: beam_size, expected an int of at least 1, got 0"):
            model.stream(batch_dims=[], beam_size=0)
    with pytest.raises(ValueError, match="TransducerModel: expected an lm for internal_lm_scale 0.5"):
        _make("lstm", FEATURES, VOCAB).stream(batch_dims=[], internal_lm_scale=0.5)
    encoder = make_streaming_conformer_encoder(FEATURES, **ENCODER)
    whole = CtcModel(encoder=encoder, vocab_dim=nn.Dim(VOCAB, name="labels"), features=LogMel(encoder.in_dim))
    with pytest.raises(ValueError, match="LogMel: piece by piece, expected causal=True or normalize=False"):
        whole.stream(batch_dims=[]).initial_state()


def test_same_arguments_as_search():
    for model in (_make("ctc", FEATURES, VOCAB), _make("lstm", FEATURES, VOCAB)):
        search, stream = (dict(inspect.signature(f).parameters) for f in (model.search, model.stream))
        for name in ("source", "in_spatial_dim", "method"):  # by the length of alignments, it needs the end
            search.pop(name, None)
        del stream["batch_dims"]
        assert {k: p.default for k, p in search.items()} == {k: p.default for k, p in stream.items()}
