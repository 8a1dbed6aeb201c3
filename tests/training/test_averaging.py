"""Averaging of checkpoints in each engine's format, and their selection."""

from __future__ import annotations

import os

import numpy
import pytest

from returnn_common.training.averaging import average_checkpoints, read_scores, select_checkpoints
from returnn_common.training.checkpoints import find_checkpoint, read_checkpoint, write_checkpoint

ENGINES = ["torch", "tensorflow", "jax"]


def _write(engine, base, params, *, step):
    """As RETURNN's engines write them."""
    if engine == "torch":
        torch = pytest.importorskip("torch")
        params = {name: torch.from_numpy(numpy.array(value)) for name, value in params.items()}
        torch.save({"model": params, "epoch": step // 10, "step": step, "returnn_version": "1.2"}, f"{base}.pt")
    elif engine == "tensorflow":
        tf1 = pytest.importorskip("tensorflow").compat.v1
        with tf1.Graph().as_default(), tf1.Session() as session:
            values = {**params, "global_step": numpy.int64(step)}
            variables = {name: tf1.Variable(value) for name, value in values.items()}
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver(variables).save(session, str(base))
    else:
        checkpoint = pytest.importorskip("orbax.checkpoint")
        tree = {**params, "_step": numpy.array(step), "_epoch": numpy.array(step // 10)}
        checkpoint.PyTreeCheckpointer().save(os.path.abspath(base) + ".orbax", tree)
    return str(base)


def _read(engine, base):
    """Independently of our own reader: (parameters, step)."""
    if engine == "torch":
        import torch

        content = torch.load(f"{base}.pt", weights_only=True)
        return {name: value.numpy() for name, value in content["model"].items()}, content["step"]
    if engine == "tensorflow":
        import tensorflow

        reader = tensorflow.compat.v1.train.NewCheckpointReader(str(base))
        values = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        return values, values.pop("global_step")
    import orbax.checkpoint

    values = orbax.checkpoint.PyTreeCheckpointer().restore(os.path.abspath(base) + ".orbax")
    values.pop("_epoch")
    return values, values.pop("_step")


def _params(seed, extra=()):
    rng = numpy.random.default_rng(seed)
    params = {
        "encoder.weight": rng.normal(size=(3, 4)).astype("float32"),
        "scale": rng.normal(size=()).astype("float32"),
        "encoder.half": rng.normal(size=(5,)).astype("float16"),
        "counter": rng.integers(0, 1000, size=(3,)),
    }
    return {**params, **dict(extra)}


@pytest.mark.parametrize("engine", ENGINES)
def test_average(engine, tmp_path):
    all_params = {step: _params(step) for step in (30, 10, 20)}
    paths = [_write(engine, tmp_path / f"model.{s:03d}", p, step=s) for s, p in all_params.items()]
    out = average_checkpoints(paths, tmp_path / "sub" / "average.003")
    assert out == str(tmp_path / "sub" / "average.003")
    params, step = _read(engine, out)
    assert step == 30
    assert set(params) == set(all_params[30])
    for name, value in params.items():
        stack = [p[name] for p in all_params.values()]
        expected = all_params[30][name] if name == "counter" else numpy.mean(stack, axis=0, dtype="float64")
        assert value.dtype == all_params[30][name].dtype and value.shape == all_params[30][name].shape
        tolerance = 1e-3 if value.dtype == "float16" else 1e-6
        numpy.testing.assert_allclose(value, expected.astype(value.dtype), rtol=tolerance, err_msg=name)
    # The order given changes nothing; an existing checkpoint is replaced; nothing else is left behind.
    average_checkpoints(paths[:1], tmp_path / "again" / "average")
    average_checkpoints(paths[::-1], tmp_path / "again" / "average")
    again, _ = _read(engine, tmp_path / "again" / "average")
    for name, value in params.items():
        numpy.testing.assert_array_equal(again[name], value, err_msg=name)
    suffixes = {".pt", ".orbax", ".index", ".meta", ".data-00000-of-00001"}
    assert all(any(f == "average" + s for s in suffixes) for f in os.listdir(tmp_path / "again"))


def test_pytorch_keeps_what_the_engine_reads(tmp_path):
    torch = pytest.importorskip("torch")
    paths = [_write("torch", tmp_path / f"model.{s}", _params(s), step=s) for s in (10, 20)]
    average_checkpoints([p + ".pt" for p in paths], tmp_path / "out.pt")
    content = torch.load(tmp_path / "out.pt", weights_only=True)
    assert content["epoch"] == 2 and content["step"] == 20 and content["returnn_version"] == "1.2"


def test_bfloat16(tmp_path):
    torch = pytest.importorskip("torch")
    values = [torch.tensor([1.0, 3.0], dtype=torch.bfloat16), torch.tensor([2.0, 4.0], dtype=torch.bfloat16)]
    for i, value in enumerate(values):
        torch.save({"model": {"w": value}, "epoch": 1, "step": i}, tmp_path / f"m.{i}.pt")
    average_checkpoints([tmp_path / "m.0", tmp_path / "m.1"], tmp_path / "out")
    result = torch.load(tmp_path / "out.pt", weights_only=True)["model"]["w"]
    assert result.dtype == torch.bfloat16 and result.tolist() == [1.5, 3.5]


def test_sum_is_in_float64(tmp_path):
    """In float32, 1e8 + 1 is 1e8."""
    values = {1: 1e8, 2: 1.0, 3: -1e8}
    for step, value in values.items():
        _write("torch", tmp_path / f"m.{step}", {"w": numpy.full((1,), value, "float32")}, step=step)
    average_checkpoints([tmp_path / f"m.{step}" for step in values], tmp_path / "out")
    numpy.testing.assert_allclose(_read("torch", tmp_path / "out")[0]["w"], [1 / 3], rtol=1e-6)


def test_jax_engine_reads_it(tmp_path):
    pytest.importorskip("orbax.checkpoint")
    from returnn.jax.checkpoint import load_checkpoint

    _write("jax", tmp_path / "m.1", _params(1), step=1)
    average_checkpoints([tmp_path / "m.1"], tmp_path / "out")
    numpy.testing.assert_array_equal(load_checkpoint(f"{tmp_path}/out.orbax")["scale"], _params(1)["scale"])
    assert os.path.exists(tmp_path / "out.orbax" / "_CHECKPOINT_METADATA")  # RETURNN looks for this one


def test_tensorflow_names_the_files_that_returnn_looks_for(tmp_path):
    _write("tensorflow", tmp_path / "m.1", _params(1), step=1)
    average_checkpoints([tmp_path / "m.1.meta"], tmp_path / "out.index")
    assert sorted(f for f in os.listdir(tmp_path) if f.startswith("out")) == [
        "out.data-00000-of-00001",
        "out.index",
        "out.meta",
    ]


def test_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    _write("torch", tmp_path / "m.1", _params(1), step=1)
    before = sorted(os.listdir(tmp_path))

    def _save(obj, path):
        with open(path, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", _save)
    with pytest.raises(KeyboardInterrupt):
        average_checkpoints([tmp_path / "m.1"], tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "other, message",
    [
        (_params(2, {"new": numpy.zeros(2, "float32")}), "new only in .*b"),
        ({n: v for n, v in _params(2).items() if n != "scale"}, "scale only in .*a"),
        (
            _params(2, {"scale": numpy.zeros(3, "float32")}),
            r"scale is .*float32.* \[\] in .*a, .*32.* \[3\] in",
        ),
        (_params(2, {"scale": numpy.zeros((), "float64")}), r"scale is .*float32.* \[\] in .*a, .*float64.* \[\] in"),
    ],
    ids=["extra", "missing", "shape", "dtype"],
)
def test_refuses_other_models(engine, other, message, tmp_path):
    _write(engine, tmp_path / "a", _params(1), step=1)
    _write(engine, tmp_path / "b", other, step=2)
    with pytest.raises(ValueError, match=message):
        average_checkpoints([tmp_path / "a", tmp_path / "b"], tmp_path / "out")


def test_bad_paths(tmp_path):
    _write("torch", tmp_path / "a", _params(1), step=1)
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*nope: looked for .*nope.pt, .*.index, .*.orbax"):
        average_checkpoints([tmp_path / "a", tmp_path / "nope"], tmp_path / "out")
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*a.orbax: looked for .*a.orbax$"):
        average_checkpoints([tmp_path / "a.orbax"], tmp_path / "out")
    with pytest.raises(ValueError, match="no checkpoints given"):
        average_checkpoints([], tmp_path / "out")
    with pytest.raises(TypeError, match="paths must be a list of paths, got '.*a'"):
        average_checkpoints(str(tmp_path / "a"), tmp_path / "out")
    with pytest.raises(ValueError, match="given twice: .*a"):
        average_checkpoints([tmp_path / "a", tmp_path / "a.pt"], tmp_path / "out")
    (tmp_path / "a.orbax").mkdir()
    with pytest.raises(ValueError, match="a is ambiguous, there is one of each of torch, jax: add the suffix"):
        find_checkpoint(tmp_path / "a")
    assert find_checkpoint(tmp_path / "a.pt") == ("torch", str(tmp_path / "a"))
    (tmp_path / "b.index").touch()
    with pytest.raises(ValueError, match="checkpoints of different engines: tensorflow, torch"):
        average_checkpoints([tmp_path / "a.pt", tmp_path / "b"], tmp_path / "out")


def test_foreign_files(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save([1], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="list.pt is not a checkpoint of RETURNN's PyTorch engine"):
        read_checkpoint(tmp_path / "list")
    checkpoint = pytest.importorskip("orbax.checkpoint")
    checkpoint.PyTreeCheckpointer().save(str(tmp_path / "nested.orbax"), {"a": {"b": numpy.zeros(1)}})
    with pytest.raises(ValueError, match="nested.orbax is not a checkpoint of RETURNN's JAX engine"):
        read_checkpoint(tmp_path / "nested")
    tf = pytest.importorskip("tensorflow")
    with tf.compat.v1.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.Variable([1.0])
        session.run(variable.initializer)
        tf.compat.v1.train.Saver({"_CHECKPOINTABLE_OBJECT_GRAPH": variable}).save(session, str(tmp_path / "objects"))
    with pytest.raises(ValueError, match="objects is not a checkpoint of RETURNN's TensorFlow engines"):
        read_checkpoint(tmp_path / "objects")


@pytest.mark.parametrize("engine", ENGINES)
def test_write_what_was_read(engine, tmp_path):
    _write(engine, tmp_path / "a", _params(1), step=7)
    assert write_checkpoint(read_checkpoint(tmp_path / "a"), tmp_path / "b") == str(tmp_path / "b")
    params, step = _read(engine, tmp_path / "b")
    assert step == 7
    for name, value in _params(1).items():
        numpy.testing.assert_array_equal(params[name], value, err_msg=name)


# As the engines wrote them, shortened: PyTorch and JAX, TensorFlow low-level, layers with two losses and with one.
SCORES = {
    "dev_loss_ctc": "{':meta:device': 'cpu', ':meta:distributed': None, 'dev_loss_ctc': %s, 'train_loss_ctc': 9.5}",
    "dev_loss:ctc": "{'dev_loss': 5.0, 'dev_loss:ctc': %s, 'dev_loss:sq': 1.0, 'train_loss': 1.0}",
    "dev_score_ctc": "{':meta:effective_learning_rate': np.float32(1e-05), 'dev_score_ctc': %s, 'dev_score_sq': -1.0}",
    "dev_score": "{':meta:epoch_num_train_steps': 4, 'dev_score': %s, 'train_score': -1.0}",
}


def _training(folder, key, values, *, missing=()):
    lines = [f"{e}: EpochData(learningRate=0.01, error={SCORES[key] % v}),\n" for e, v in enumerate(values, 1)]
    lines.append(f"{len(values) + 1}: EpochData(learningRate=0.01, error={{}}),\n")  # not trained yet
    path = folder / "learning_rates"
    path.write_text("{\n" + "".join(lines) + "}\n")
    for epoch in range(1, len(values) + 1):
        if epoch not in missing:
            (folder / f"model.{epoch:03d}.pt").touch()
    return path


VALUES = ["3.0", "-1.5", "float('nan')", "2.0", "float('-inf')", "float('inf')", "2.0", "2.5"]


@pytest.mark.parametrize("key", list(SCORES))
@pytest.mark.parametrize("by", list(SCORES))
def test_select_best(key, by, tmp_path):
    path = _training(tmp_path, key, VALUES)
    if (key, by) == ("dev_score_ctc", "dev_score"):
        # Two losses, and the layers engine writes no total: nothing to guess from.
        with pytest.raises(ValueError, match="has no score 'dev_score'; it has: dev_score_ctc, dev_score_sq"):
            select_checkpoints(path, tmp_path / "model", num=4, by=by)
        return
    # The total of TensorFlow low-level is the same in each epoch here: then the first ones.
    expected = [1, 2, 3, 4] if (key, by) == ("dev_loss:ctc", "dev_score") else [2, 4, 7, 8]
    chosen = select_checkpoints(path, tmp_path / "model", num=4, by=by)
    assert chosen == [f"{tmp_path}/model.{epoch:03d}" for epoch in expected]


def test_select_last(tmp_path):
    path = _training(tmp_path, "dev_loss_ctc", VALUES, missing=[1])
    chosen = select_checkpoints(path, tmp_path / "model", num=3, mode="last")
    assert chosen == [f"{tmp_path}/model.{epoch:03d}" for epoch in (6, 7, 8)]


def test_select_errors(tmp_path):
    path = _training(tmp_path, "dev_loss_ctc", VALUES, missing=[4, 7])
    model = tmp_path / "model"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint for chosen epochs: .*model.004, .*model.007$"):
        select_checkpoints(path, model, num=4, by="dev_loss_ctc")
    with pytest.raises(ValueError, match="has 5 epochs with a finite dev_loss_ctc, 6 asked for"):
        select_checkpoints(path, model, num=6, by="dev_loss_ctc")
    with pytest.raises(ValueError, match="has 8 finished epochs, 9 asked for"):
        select_checkpoints(path, model, num=9, mode="last")
    with pytest.raises(ValueError, match="has no score 'dev_loss_aed'; it has: dev_loss_ctc, train_loss_ctc"):
        select_checkpoints(path, model, num=1, by="dev_loss_aed")
    with pytest.raises(ValueError, match="num must be at least 1, got 0"):
        select_checkpoints(path, model, num=0, by="dev_loss_ctc")
    with pytest.raises(ValueError, match="mode must be 'best' or 'last', got 'first'"):
        select_checkpoints(path, model, num=1, mode="first")
    with pytest.raises(ValueError, match="mode 'best' needs by=SCORE, and mode 'last' takes none, got by=None"):
        select_checkpoints(path, model, num=1)
    with pytest.raises(ValueError, match="mode 'last' takes none, got by='dev_score'"):
        select_checkpoints(path, model, num=1, mode="last", by="dev_score")
    with pytest.raises(FileNotFoundError, match="nothing"):
        select_checkpoints(tmp_path / "nothing", model, num=1, mode="last")


@pytest.mark.parametrize(
    "text, message",
    [
        ("{1: EpochData(", "is not a learning-rate file of RETURNN's"),
        ("[1]", "no dict of epochs"),
        ("{1: 2.0}", "is not a learning-rate file"),
        ("{1: EpochData(learningRate=0.1, error={'a': __import__('os').getpid()})}", "unexpected call of"),
    ],
)
def test_bad_learning_rate_file(text, message, tmp_path):
    path = tmp_path / "learning_rates"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_scores(path)


def test_read_scores_as_returnn_does(tmp_path):
    from returnn.learning_rate_control import ConstantLearningRate

    path = _training(tmp_path, "dev_score_ctc", VALUES)
    reference = ConstantLearningRate(default_learning_rate=1.0, filename=str(path)).epoch_data
    scores = read_scores(path)
    assert list(scores) == list(reference)
    for epoch, data in reference.items():
        numpy.testing.assert_equal(scores[epoch], data.error)
