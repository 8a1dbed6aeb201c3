"""Tests of reading RETURNN's log. The lines are real ones."""

from __future__ import annotations

import pytest
from rich.console import Console

from returnn_common.cli.run.log import Step, error_lines, parse_num_parameters, parse_step, split_score_name
from returnn_common.cli.run.progress import TrainProgress, epoch_losses, format_seconds

TORCH = (
    "ep 2 train, step 3, ctc 0.475, aux 1.238e-04, num_seqs 7, 0.005 sec/step, elapsed 0:00:00, "
    "exp. remaining 0:00:00, complete 20.00%"
)
STEPS = [
    (TORCH, Step("train", 2, 3, {"ctc": 0.475, "aux": 1.238e-04}, 0.2)),
    (
        "ep 1 train, step 5, loss 0.74882, loss:aux 0.32557, loss:ce 0.65114, 0.002 sec/step, complete 33.33%",
        Step("train", 1, 5, {"aux": 0.32557, "ce": 0.65114}, 0.3333),
    ),
    (
        "train epoch 12, step 0, cost:ctc 8.151, loss 65.21, 0.026 sec/step, elapsed 0:00:02, exp. remaining 0:00:54, "
        "complete 5.00%",
        Step("train", 12, 0, {"ctc": 8.151}, 0.05),
    ),
    (
        "ep 1 train, step 1, aux 0.350, ce nan, 7.178 sec/step, elapsed 0:00:23",
        Step("train", 1, 1, {"aux": 0.350, "ce": pytest.approx(float("nan"), nan_ok=True)}, None),
    ),
    (
        "ep 2 dev eval, step 5, ce 0.433, elapsed 0:00:00, exp. remaining 0:00:00, complete 100.00%",
        Step("dev eval", 2, 5, {"ce": 0.433}, 1.0),
    ),
    (
        "ep 2 dataset_id139946308336720 forward, step 4, 0.002 sec/step, elapsed 0:00:03, exp. remaining 0:00:00, "
        "complete 85.00%",
        Step("dataset_id139946308336720 forward", 2, 4, {}, 0.85),
    ),
]


@pytest.mark.parametrize("line, step", STEPS)
def test_parse_step(line, step):
    assert parse_step(line) == step
    assert parse_step(line + "\n") == step


@pytest.mark.parametrize(
    "line",
    [
        "",
        "start epoch 1 global train step 0 with effective learning rate 0.01 ...",
        "ep 1 train num_seqs: 60",
        "ep 1 train, step 0 timing: data 38.7 ms, device-wait 3.5 ms, other 16208.4 ms (raws 0.0, enqueue 16201.2)",
        "Epoch 1: Total train loss: ce 0.610 aux 0.305",
        "layer /lin/'weight': ['in'(9),F|'out'(2)] float32",
    ],
)
def test_no_step(line):
    assert parse_step(line) is None


def test_num_parameters():
    assert parse_num_parameters(["net params #: 20", "net params #: 57131 (3 params)", "x"]) == 57131
    assert parse_num_parameters(["net params: none"]) is None


@pytest.mark.parametrize(
    "name, expected",
    [
        ("dev_loss_ctc", ("dev", "ctc")),
        ("train_loss:ctc", ("train", "ctc")),
        ("train_loss", ("train", "")),
        ("dev_score", ("dev", "")),
        ("dev-other_loss_ctc_loss", ("dev-other", "ctc_loss")),
        ("dev_error", None),
    ],
)
def test_split_score_name(name, expected):
    assert split_score_name(name) == expected


def test_error_lines_of_an_exception():
    lines = [
        "Learning-rate-control: file lr does not exist yet",
        "Unhandled exception <class 'ValueError'> in thread <_MainThread(MainThread, started 139)>, proc 13257.",
        "",
        "Thread current, main, <_MainThread(MainThread, started 139)>:",
        "(Excluded thread.)",
        "\x1b[31;1mEXCEPTION\x1b[0m",
        "\x1b[34mTraceback (most recent call last):\x1b[0m",
        '  \x1b[34;1mFile\x1b[0m \x1b[36m"returnn/tensor.py"\x1b[0m, \x1b[34mline\x1b[0m 115, in Tensor.__init__',
        "    line: raise ValueError",
        "    locals:",
        "\x1b[31mValueError\x1b[0m: Tensor dtype needs to be specified\n",
        "  and more",
        "Quitting",
        "elapsed: 0:00:01",
    ]
    expected = [
        'File "returnn/tensor.py", line 115, in Tensor.__init__',
        "ValueError: Tensor dtype needs to be specified",
        "  and more",
    ]
    assert error_lines(lines) == expected


def test_error_lines_of_something_else():
    assert error_lines(["one", "two", "", "  three", "four"], num=2) == ["two", "four"]


def _console(**options) -> Console:
    return Console(width=200, record=True, **options)


LEARNING_RATES = """{
1: EpochData(learningRate=0.001, error={
'train_loss': 3.0, 'train_loss:ctc': 2.5, 'train_loss:impossible': 0.0, 'dev_loss:ctc': 2.25, ':meta:x': 1}),
2: EpochData(learningRate=0.002, error={'train_score': 1.5, 'dev_score': 1.25}),
}
"""


def test_epoch_losses(tmp_path):
    path = tmp_path / "learning_rates"
    path.write_text(LEARNING_RATES)
    assert epoch_losses(path, 1) == {"train ctc": 2.5, "train impossible": 0.0, "dev ctc": 2.25}
    assert epoch_losses(path, 2) == {"train": 1.5, "dev": 1.25}
    assert epoch_losses(path, 3) == {}
    assert epoch_losses(tmp_path / "nothing", 1) == {}


def test_a_line_for_each_epoch(tmp_path):
    path = tmp_path / "learning_rates"
    path.write_text(LEARNING_RATES)
    now = 0
    console = _console(force_terminal=False)
    with TrainProgress(console, num_epochs=4, learning_rates=path, clock=lambda: now) as progress:
        for epoch in (1, 2):
            for step in range(4):
                now += 10
                progress.on_line(f"ep {epoch} train, step {step}, ctc 2.0, 0.1 sec/step, complete {25 * step + 25}.00%")
            progress.on_line(f"ep {epoch} dev eval, step 0, ctc 1.0, complete 100.00%")
        progress.finish()
    lines = console.export_text().splitlines()
    # From the first step on, which ends a quarter of an epoch, and until the second epoch begins, 3/4 epochs took 40 s,
    # so that 3 more take 160; then, 7/4 epochs took 70.
    assert lines == [
        "epoch 1/4, train ctc 2.500, dev ctc 2.250, 0:02:40 left",
        "epoch 2/4, train 1.500, dev 1.250, 0:01:20 left",
    ]


def test_a_bar_on_a_terminal(tmp_path):
    console = _console(force_terminal=True)
    with TrainProgress(console, num_epochs=4, learning_rates=tmp_path / "x") as progress:
        progress.on_line(TORCH)
        progress.on_line("ep 3 train, step 0, ctc 0.111, 0.1 sec/step, complete 50.00%")
        (task,) = progress._progress.tasks
        assert task.completed == pytest.approx((2 + 0.5) / 4)
        assert "epoch 3/4, step 1, ctc 0.111, 0:00:" in task.fields["note"]
        progress._progress.refresh()
    assert "epoch 3/4" in console.export_text()


def test_an_engine_that_does_not_say_how_far_it_is(tmp_path):
    with TrainProgress(_console(force_terminal=True), num_epochs=2, learning_rates=tmp_path / "x") as progress:
        for step in range(4):
            progress.on_line(f"ep 1 train, step {step}, ctc 0.359, 16.251 sec/step, elapsed 0:00:16")
        (task,) = progress._progress.tasks
        assert task.completed == 0
        progress.on_line("ep 2 train, step 1, ctc 0.359, 16.251 sec/step, elapsed 0:00:16")
        assert task.completed == pytest.approx(0.75)


@pytest.mark.parametrize("seconds, text", [(0.4, "0:00:00"), (59.6, "0:01:00"), (3723, "1:02:03"), (-3, "0:00:00")])
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text
