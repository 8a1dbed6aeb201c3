"""
Gathers what the report shows.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...recog.scoring import WerResult
from ...training.averaging import read_scores
from .progress import epoch_losses
from .recipe import RUN_OPTIONS
from .stages import Run

__all__ = ["learning_curves", "learning_rates", "read_audio", "write_report_page"]

_FRAME_SHIFT = 0.010  # seconds, of returnn_common.datasets.features

Points = list[tuple[float, float]]


def write_report_page(
    run: Run, wer: dict[str, WerResult], results: dict[str, Any], *, tables: Mapping[str, Any] | None = None
):
    """
    Writes ``report.html``. Without matplotlib, says so and goes on.

    :param run: all stages of which are done
    :param wer: by split
    :param results: what results.json holds
    :param tables: further ones, see :class:`returnn_common.recog.report.ReportData`
    """
    from ...recog.report import ReportData, write_report

    options = {name: value for name, value in run.recipe.options.items() if name not in RUN_OPTIONS}
    data = ReportData(
        title=f"{run.name} ({run.backend})",
        settings={"recipe": run.name, "backend": run.backend, **options},
        learning_curves=learning_curves(run.folder.learning_rates),
        learning_rates=learning_rates(run.folder.learning_rates),
        wer=wer,
        tables=tables or {},
        example=_example(run, wer),
        **{name: results.get(name) for name in ("num_parameters", "train_seconds", "recog_seconds", "audio_seconds")},
    )
    try:
        write_report(run.folder.report, data)
    except ModuleNotFoundError as error:
        run.console.print(f"no report: {error}", markup=False, highlight=False, soft_wrap=True)


def learning_curves(path: Path) -> dict[str, Points]:
    """
    :param path: RETURNN's learning-rate file
    :return: by "DATASET LOSS", (epoch, value)
    """
    curves: dict[str, Points] = {}
    for epoch in sorted(read_scores(path)):
        for name, value in epoch_losses(path, epoch).items():
            curves.setdefault(name, []).append((epoch, value))
    return curves


def learning_rates(path: Path) -> Points:
    """
    :param path: RETURNN's learning-rate file
    :return: (epoch, learning rate)
    """
    number = r"(?:[\w.]+\()?([-+.\de]+)"  # maybe as np.float64(0.001)
    found = re.findall(rf"(\d+):\s*EpochData\(learningRate={number}", path.read_text("utf8"))
    return [(int(epoch), float(value)) for epoch, value in found]


def _example(run: Run, wer: dict[str, WerResult]) -> Any:
    """:return: the utterance of which the recognition has written probabilities; None if there is none"""
    from ...datasets.features import log_mel
    from ...recog.report import ReportExample

    if not run.folder.posteriors.is_file():
        return None
    split = run.recipe.eval_splits[0]
    with np.load(run.folder.posteriors) as arrays:
        tag, log_probs, labels = str(arrays["tag"]), arrays["log_probs"], [str(label) for label in arrays["labels"]]
    audio = read_audio(Path(run.recipe.dataset.path) / f"{split}.zip", tag)
    utterance = next((utterance for utterance in wer[split].utterances if utterance.seq_tag == tag), None)
    if audio is None or utterance is None or not len(log_probs):
        return None
    samples, sample_rate = audio
    return ReportExample(
        seq_tag=tag,
        spectrogram=log_mel(samples),
        frame_shift=_FRAME_SHIFT,
        posteriors=np.exp(log_probs),
        labels=labels,
        posterior_shift=len(samples) / sample_rate / len(log_probs),
        reference=" ".join(ref for ref, _ in utterance.alignment if ref is not None),
        hypothesis=" ".join(hyp for _, hyp in utterance.alignment if hyp is not None),
    )


def read_audio(path: Path, tag: str) -> tuple[np.ndarray, int] | None:
    """
    :param path: of a split's zip file
    :param tag: of the utterance
    :return: samples and sample rate; None if the utterance is not where ``returnn-common prepare`` puts it
    """
    import soundfile

    if not path.is_file():
        return None
    with zipfile.ZipFile(path) as file:
        for suffix in ("flac", "ogg"):
            try:
                content = file.read(f"{path.stem}/{tag}.{suffix}")
            except KeyError:
                continue
            return soundfile.read(io.BytesIO(content), dtype="float32")
    return None
