"""Stands in for RETURNN in tests of what is around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from returnn_common.recog import write_nbest
from tests.cli.tiny import SPLITS, WORDS


class FakeReturnn:
    """
    In place of RETURNN: writes what RETURNN would write, so that the stages around it are real.

    :param fail_at: at which call to be interrupted
    """

    def __init__(self, fail_at: int | None = None):
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.fail_at = fail_at

    def __call__(self, arguments, *, cwd, log, on_line, on_wait=lambda: None, keep_open=None) -> int:
        assert arguments[0] == "-m" and Path(arguments[2]).is_file() and cwd.is_dir()
        options = {key.removeprefix("++"): value for key, value in zip(arguments[3::2], arguments[4::2], strict=True)}
        self.calls.append((arguments[1], options))
        with open(log, "a") as file:
            file.write("net params #: 1234\n")
        on_wait()
        if len(self.calls) == self.fail_at:
            raise KeyboardInterrupt
        {"train": self.train, "forward": self.forward}[options["task"]](options)
        return 0

    def train(self, options: dict[str, str]):
        import torch

        rates = []
        for epoch in range(1, int(options["num_epochs"]) + 1):
            params = {"weight": torch.full([2], float(epoch))}
            torch.save({"model": params, "epoch": epoch, "step": epoch}, f"{options['model']}.{epoch:03}.pt")
            rates.append(f"{epoch}: EpochData(learningRate=0.{epoch}, error={{'dev_loss_ctc': {epoch}.5}}),\n")
        Path(options["learning_rate_file"]).write_text("{\n" + "".join(rates) + "}\n")

    def forward(self, options: dict[str, str]):
        num = SPLITS[options["recog_split"]]
        tags = [f"{options['recog_split']}-1-{index:04}" for index in range(num)]
        write_nbest(options["recog_output_file"], {tag: [(0.0, "ONE")] for tag in tags[1:]})
        if "recog_posteriors_file" in options:
            log_probs = np.full([7, 11], -np.log(11), "float32")
            labels = [*WORDS, "<blank>"]
            np.savez(options["recog_posteriors_file"], tag=tags[1], log_probs=log_probs, labels=labels)

    @property
    def tasks(self) -> list[str]:
        return [options["task"] + options.get("recog_split", "") for _, options in self.calls]
