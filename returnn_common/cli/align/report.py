"""
What is shown of alignments: how many there are, and a page with pictures of a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...recog.alignment_files import AlignmentNotes
from ..recog.search import Recognition
from ..run.report import read_audio

__all__ = ["write_alignment_report"]

_NUM_TAGS = 5


def write_alignment_report(recognition: Recognition, notes: Mapping[str, Path], *, soft: bool) -> list[str]:
    """
    Writes ``report.html``. Without matplotlib, says so and goes on.

    :param recognition: the folder is that of the alignments
    :param notes: by split, files of :class:`AlignmentNotes`
    :param soft: whether these are of soft alignments
    :return: lines for the console
    """
    from ...recog.report import ReportData, write_report

    lines, rows, alignments = [], [["split", "utterances", "without an alignment", "mean log prob"]], []
    for split, path in notes.items():
        of_split = AlignmentNotes.read(path)
        without = of_split.without_alignment
        scores = [score for score in of_split.scores.values() if score > float("-inf")]
        rows.append([split, str(len(of_split.scores)), str(len(without)), f"{np.mean(scores):.2f}"])
        lines.append(f"{split}: {len(scores)} of {len(of_split.scores)} utterances aligned")
        if without:
            more = f", ... ({len(without)})" if len(without) > _NUM_TAGS else ""
            lines.append(f"{split}: no alignment, for there are too few frames: {', '.join(without[:_NUM_TAGS])}{more}")
        alignments += [_picture(recognition, split, example, of_split) for example in of_split.examples]
    request, page = recognition.request, recognition.folder.path / "report.html"
    settings = {"checkpoint": request.checkpoint, "backend": request.backend, "soft": soft}
    data = ReportData(
        title=f"Alignments: {request.run.name}",
        settings=settings,
        tables={"Alignments of splits": rows},
        alignments=alignments,
    )
    try:
        write_report(page, data)
    except ModuleNotFoundError as error:
        return [*lines, f"no report: {error}"]
    return [*lines, f"report: {page}"]


def _picture(recognition: Recognition, split: str, example: dict, notes: AlignmentNotes):
    """:return: with a spectrogram, if the audio is where ``returnn-common prepare`` puts it"""
    from ...datasets.features import log_mel
    from ...recog.report import ReportAlignment

    data = recognition.request.data
    audio = None if data is None else read_audio(data / f"{split}.zip", example["tag"])
    return ReportAlignment(
        seq_tag=example["tag"],
        labels=example["labels"],
        num_frames=example["num_frames"],
        frame_shift=notes.frame_shift,
        starts=example.get("starts"),
        ends=example.get("ends"),
        soft=np.array(example["soft"]) if "soft" in example else None,
        spectrogram=None if audio is None else log_mel(audio[0]),
    )
