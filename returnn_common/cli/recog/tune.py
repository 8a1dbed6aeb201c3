"""
N-best lists in the order of other scales: given ones (rescoring), or those that are best on some splits (tuning).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...recog.components import Components, read_components, rerank
from ...recog.nbest import write_nbest
from ...recog.search_options import LANGUAGE_MODELS
from ...recog.tuning import TunedPoint, tune
from ...recog.tuning_picture import draw_tuning
from ..errors import CommandError
from ..run.folder import write_json, write_text
from .options import search_options_of
from .results import references_of
from .scales import PartScales
from .search import Recognition

__all__ = ["Tuning", "tune_scales", "write_reranked"]

_MAX_ROWS = 10
_ARGUMENTS = ("lm", "lm_scale", "ctc_scale", "length_exponent", "phrases", "phrase_bonus", "word_list")


@dataclass(frozen=True)
class Tuning:
    """
    :param asked: see :func:`.scales.choose_points`
    :param num_random: see there
    :param apply_to: splits that are recognised as well, and ordered by the scales that are found
    """

    asked: Sequence[str] = ()
    num_random: int | None = None
    apply_to: Sequence[str] = ()


def write_reranked(recognition: Recognition, split: str, kind: str, scales: Mapping[str, float]):
    """
    Writes the lists of a split, as of another kind, in the order of other scales.

    :param kind: of the lists
    :param scales: of the parts
    """
    nbest = rerank(_read(recognition, split), scales)
    limit = recognition.request.nbest or None
    write_nbest(recognition.folder.nbest(split, kind), {tag: one[:limit] for tag, one in nbest.items()})


def tune_scales(
    recognition: Recognition, splits: Sequence[str], *, scales: PartScales, points: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """
    Finds the scales with the lowest word error rate on some splits together; writes all that were tried, and a picture.

    :param splits: recognised
    :param scales: of the model
    :param points: to try
    :return: scales of the parts, the best ones
    :raises CommandError: if there is nothing to count
    """
    folder = recognition.folder
    lists, references = {}, {}
    for split in splits:
        components = _read(recognition, split)
        lists.update({f"{split}/{tag}": one for tag, one in components.lists.items()})
        references.update({f"{split}/{tag}": text for tag, text in references_of(recognition, split).items()})
    components = replace(components, lists=lists)
    try:
        tuned = tune(components, references, points=[dict(point) for point in points], scales_of=scales)
    except ValueError as error:
        raise CommandError(str(error)) from error
    name, best = "+".join(splits), tuned[0]
    rows = [list(best.point), *([f"{value:.10g}" for value in one.point.values()] for one in tuned)]
    columns = [["wer", "errors"], *([f"{one.wer:.4f}", str(one.errors)] for one in tuned)]
    text = "".join("\t".join([*row, *more]) + "\n" for row, more in zip(rows, columns, strict=True))
    write_text(folder.tuning(name, ".tsv"), text)
    found = scales(best.point)
    content = {"best": best.point, "scales": found, "wer": round(best.wer, 4), "errors": best.errors}
    write_json(folder.tuning(name, ".json"), {**content, "num_points": len(tuned)})
    try:
        draw_tuning(tuned, folder.tuning(name, ".png"))
    except ModuleNotFoundError:
        recognition.console.print("no picture: matplotlib is not installed", highlight=False)
    _show(recognition, name, tuned)
    return found


def _read(recognition: Recognition, split: str) -> Components:
    try:
        return read_components(recognition.folder.components(split))
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_status=1) from error


def _show(recognition: Recognition, name: str, tuned: list[TunedPoint]):
    from rich.table import Table

    table = Table(*tuned[0].point, "WER [%]", title=f"scales on {name}, the best of {len(tuned)}")
    for column in table.columns:
        column.justify = "right"
    for one in tuned[:_MAX_ROWS]:
        table.add_row(*(f"{value:g}" for value in one.point.values()), f"{one.wer:.2f}")
    console = recognition.console
    console.print(table)
    lines = [f"all: {recognition.folder.tuning(name, '.tsv')}"]
    if recognition.folder.tuning(name, ".png").is_file():
        lines.append(f"picture: {recognition.folder.tuning(name, '.png')}")
    lines.append(f"to search with the best: {_command(recognition, tuned[0].point)}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _command(recognition: Recognition, best: Mapping[str, float]) -> str:
    """:return: that recognises with these scales"""
    request = recognition.request
    options: dict[str, Any] = {**request.given, **best}
    for lm, scale in LANGUAGE_MODELS.items():
        if not options.get(scale):
            options.update({lm: None, scale: None})
    of_recipe = search_options_of(request.run)
    parts = ["returnn-common", "recog", str(request.run.folder.path), "--beam", str(request.beam)]
    for name, value in options.items():
        if value == of_recipe.get(name) or name in ("beam_size", "nbest", "mbr", "rescore"):
            continue
        text = f"{value:g}" if isinstance(value, float) else str(value)
        has_argument = name in _ARGUMENTS and value is not None
        parts += [f"--{name.replace('_', '-')}", text] if has_argument else ["--set", f"{name}={text}"]
    parts += ["--checkpoint", str(request.checkpoint)] if not request.checkpoint.name.startswith("average") else []
    parts += ["--backend", request.backend] if request.backend != request.run.backend else []
    return shlex.join(parts)
