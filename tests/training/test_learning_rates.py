"""Learning-rate schedules: the published curves, and what RETURNN's engines make of them."""

from __future__ import annotations

import math
import pickle

import numpy
import pytest

from returnn_common.training.learning_rates import Noam, OneCycle, noam, one_cycle, warmup_decay


def _curve(options, num_steps):
    schedule, rate = options["dynamic_learning_rate"], options["learning_rate"]
    return [schedule(global_train_step=step, learning_rate=rate) for step in range(num_steps)]


def test_warmup_decay_linear():
    options = warmup_decay(
        num_epochs=10, peak=2.0, warmup_epochs=4, hold_epochs=1, initial_factor=0.5, final_factor=0.2
    )
    expected = [1.0, 1.25, 1.5, 1.75, 2.0, 2.0, 1.6, 1.2, 0.8, 0.4]
    numpy.testing.assert_allclose(options["learning_rates"], expected, rtol=1e-12)
    assert options["learning_rate"] == 1.0


@pytest.mark.parametrize("decay", ["linear", "cosine", "exponential"])
def test_warmup_decay_shapes(decay):
    rates = warmup_decay(num_epochs=9, peak=3.0, warmup_epochs=0, decay=decay, final_factor=0.01)["learning_rates"]
    progress = numpy.arange(9) / 8
    expected = {
        "linear": 3.0 * numpy.interp(progress, [0, 1], [1, 0.01]),
        "cosine": 3.0 * (0.01 + 0.99 * (1 + numpy.cos(math.pi * progress)) / 2),
        "exponential": numpy.geomspace(3.0, 0.03, 9),
    }[decay]
    numpy.testing.assert_allclose(rates, expected, rtol=1e-12)
    assert all(type(rate) is float for rate in rates)  # RETURNN's learning-rate file takes nothing else


def test_warmup_decay_last_epoch_is_final():
    assert warmup_decay(num_epochs=1, peak=0.5, warmup_epochs=0)["learning_rates"] == [0.5]
    rates = warmup_decay(num_epochs=3, peak=1.0, warmup_epochs=2, initial_factor=0.1)["learning_rates"]
    numpy.testing.assert_allclose(rates, [0.1, 0.55, 1.0])


def test_noam_is_equation_3():
    steps = numpy.arange(1, 2001, dtype="float64")
    expected = 512**-0.5 * numpy.minimum(steps**-0.5, steps * 400**-1.5)
    numpy.testing.assert_allclose(_curve(noam(model_dim=512, warmup_steps=400), 2000), expected, rtol=1e-12)
    doubled = _curve(noam(model_dim=512, warmup_steps=400, scale=2.0), 2000)
    numpy.testing.assert_allclose(doubled, 2 * expected, rtol=1e-12)
    assert numpy.argmax(expected) == 400 - 1


def test_one_cycle_is_piecewise_linear():
    curve = _curve(one_cycle(num_steps=101, peak=4.0, warmup_steps=30, initial_factor=0.25, final_factor=0.01), 150)
    expected = numpy.interp(numpy.arange(150), [0, 30, 100], [1.0, 4.0, 0.04])
    numpy.testing.assert_allclose(curve, expected, rtol=1e-12)


def test_one_cycle_with_annihilation():
    options = one_cycle(
        num_steps=101, peak=4.0, warmup_steps=40, annihilation_steps=20, initial_factor=0.25, final_factor=0.01
    )
    expected = numpy.interp(numpy.arange(110), [0, 40, 80, 100], [1.0, 4.0, 1.0, 0.04])
    numpy.testing.assert_allclose(_curve(options, 110), expected, rtol=1e-12)


@pytest.mark.parametrize("decay, anneal", [("linear", "linear"), ("cosine", "cos")])
def test_one_cycle_against_torch(decay, anneal):
    torch = pytest.importorskip("torch")
    num_steps, warmup = 60, 17
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=0.7,
        total_steps=num_steps,
        pct_start=(warmup + 1) / num_steps,
        anneal_strategy=anneal,
        cycle_momentum=False,
        div_factor=10.0,
        final_div_factor=100.0,
    )
    expected = []
    for _ in range(num_steps):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    options = one_cycle(num_steps=num_steps, peak=0.7, warmup_steps=warmup, decay=decay)
    # Torch's cosine is on the way up too; ours is linear there.
    start = warmup if decay == "cosine" else 0
    numpy.testing.assert_allclose(_curve(options, num_steps)[start:], expected[start:], rtol=1e-9)


SCHEDULES = [
    one_cycle(num_steps=50, peak=0.1, warmup_steps=10, decay="cosine", annihilation_steps=5),
    one_cycle(num_steps=50, peak=0.1, warmup_steps=0),
    noam(model_dim=16, warmup_steps=12, scale=3.0),
]


@pytest.mark.parametrize("options", SCHEDULES, ids=["cycle", "no-warmup", "noam"])
def test_pickle_and_repr(options):
    schedule = options["dynamic_learning_rate"]
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert eval(repr(schedule)) == schedule
    assert isinstance(schedule, (OneCycle, Noam))


@pytest.mark.parametrize("options", SCHEDULES, ids=["cycle", "no-warmup", "noam"])
def test_pytorch_updater(options):
    torch = pytest.importorskip("torch")
    from returnn.config import Config
    from returnn.torch.updater import Updater

    config = Config({**options, "optimizer": {"class": "sgd"}})
    rates = []
    for step in range(60):
        # A new updater per step, as after a restart: nothing but the step may matter.
        model = torch.nn.Linear(1, 1)
        updater = Updater(config=config, network=model, device="cpu", initial_learning_rate=options["learning_rate"])
        updater.create_optimizer()
        updater.set_current_train_step(global_train_step=step, epoch=1 + step // 10)
        rates.append(updater.optimizer.param_groups[0]["lr"])
    numpy.testing.assert_allclose(rates, _curve(options, 60), rtol=1e-12)


@pytest.mark.parametrize("options", SCHEDULES, ids=["cycle", "no-warmup", "noam"])
def test_jax_updater(options):
    pytest.importorskip("optax")
    from returnn.config import Config
    from returnn.jax.updater import Updater

    updater = Updater(config=Config({**options, "optimizer": {"class": "sgd"}}))
    rates = [
        updater.get_effective_learning_rate(learning_rate=options["learning_rate"], global_train_step=step, epoch=1)
        for step in range(60)
    ]
    numpy.testing.assert_allclose(rates, _curve(options, 60), rtol=1e-12)


@pytest.mark.parametrize("options", SCHEDULES, ids=["cycle", "no-warmup", "noam"])
def test_tensorflow_layers_updater_trains_with_these_rates(options):
    """Plain SGD on a loss with gradient 1: each step changes the parameter by the rate of that step."""
    tf = pytest.importorskip("tensorflow")
    from returnn.config import Config
    from returnn.tf.updater import Updater

    tf1 = tf.compat.v1
    with tf1.Graph().as_default(), tf1.Session() as session:
        step_var = tf1.get_variable("global_step", initializer=tf1.constant(0, "int64"), trainable=False)
        parameter = tf1.get_variable("parameter", initializer=0.0)
        updater = Updater(
            config=Config({**options, "optimizer": {"class": "GradientDescent"}}),
            objective=tf.identity(parameter),
            global_train_step_var=step_var,
        )
        updater.set_trainable_vars([parameter])
        train_op = updater.get_optim_op()
        session.run(tf1.global_variables_initializer())
        updater.set_learning_rate(options["learning_rate"], session=session)
        values = [0.0]
        for _ in range(60):
            session.run(train_op)
            values.append(session.run(parameter))
    numpy.testing.assert_allclose(-numpy.diff(values), _curve(options, 60), rtol=1e-3, atol=1e-6)


def test_large_step_in_float32_graph():
    tf = pytest.importorskip("tensorflow")
    schedule = Noam(model_dim=1, warmup_steps=1)
    step = 2**24 + 2
    with tf.compat.v1.Graph().as_default(), tf.compat.v1.Session() as session:
        rate = schedule(global_train_step=tf.constant(step, "int64"), learning_rate=tf.constant(1.0))
        value = session.run(rate)
    numpy.testing.assert_allclose(value, (step + 1.0) ** -0.5, rtol=1e-6)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: warmup_decay(num_epochs=5, peak=1.0, warmup_epochs=5), "warmup_epochs=5 .* must be fewer"),
        (lambda: warmup_decay(num_epochs=5, peak=1.0, warmup_epochs=2, hold_epochs=3), "fewer than num_epochs=5"),
        (lambda: warmup_decay(num_epochs=0, peak=1.0, warmup_epochs=0), "num_epochs must be at least 1, got 0"),
        (lambda: warmup_decay(num_epochs=5, peak=1.0, warmup_epochs=-1), "warmup_epochs must be at least 0, got -1"),
        (lambda: warmup_decay(num_epochs=5, peak=0.0, warmup_epochs=1), "peak must be positive and finite, got 0.0"),
        (lambda: warmup_decay(num_epochs=5, peak=math.nan, warmup_epochs=1), "peak must be .* got nan"),
        (lambda: warmup_decay(num_epochs=5, peak=1.0, warmup_epochs=1, decay="step"), "decay must be .* got 'step'"),
        (lambda: warmup_decay(num_epochs=5, peak=1.0, warmup_epochs=1, final_factor=0.0), "final_factor must be above"),
        (lambda: warmup_decay(num_epochs=5, peak=1.0, warmup_epochs=1, initial_factor=2.0), "initial_factor .* got 2"),
        (lambda: one_cycle(num_steps=10, peak=1.0, warmup_steps=9), "leave no way down within num_steps=10"),
        (lambda: one_cycle(num_steps=10, peak=1.0, warmup_steps=4, annihilation_steps=5), "annihilation_steps=5 leave"),
        (lambda: one_cycle(num_steps=1, peak=1.0, warmup_steps=0), "num_steps must be at least 2, got 1"),
        (lambda: one_cycle(num_steps=10, peak=1.0, warmup_steps=2, decay="exponential"), "one_cycle: decay must be"),
        (lambda: one_cycle(num_steps=10, peak=-1.0, warmup_steps=2), "one_cycle: peak must be positive"),
        (lambda: noam(model_dim=0), "noam: model_dim must be at least 1, got 0"),
        (lambda: noam(model_dim=8, warmup_steps=0), "noam: warmup_steps must be at least 1, got 0"),
        (lambda: noam(model_dim=8, scale=math.inf), "noam: scale must be positive and finite, got inf"),
    ],
)
def test_bad_numbers(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_types():
    with pytest.raises(TypeError, match="num_epochs must be an int, got 5.0"):
        warmup_decay(num_epochs=5.0, peak=1.0, warmup_epochs=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="global_train_step must be an int or a TensorFlow tensor, got 'three'"):
        Noam(model_dim=4)(global_train_step="three", learning_rate=1.0)
