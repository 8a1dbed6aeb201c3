"""The report as HTML text. Everything that comes from outside goes through :func:`_text`."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ._report_alignments import ReportAlignment, draw_alignment
from ._report_figures import NUM_COLORS, draw_curves, draw_example, to_printable
from ._report_style import STYLE
from .scoring import UtteranceScore, WerResult

if TYPE_CHECKING:
    from .report import ReportData, ReportExample

__all__ = ["render_page"]


def render_page(data: ReportData) -> str:
    """
    :param data: checked
    :return: the whole page
    """
    sections = [
        _tiles(data),
        _learning(data) if data.learning_curves or not data.alignments else "",
        *(_section(title, _table(head, rows)) for title, (head, *rows) in data.tables.items()),
        _wer_table(data),
        _example(data.example) if data.example is not None else "",
        _alignments(data.alignments) if data.alignments else "",
        *(_worst(split, result, data.num_worst) for split, result in data.wer.items()),
        _settings(data),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(data.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{_text(data.title)}</h1>
{"".join(section for section in sections if section)}</main>
</body>
</html>
"""


def _tiles(data: ReportData) -> str:
    tiles = [(f"WER {split}", _percent(result.wer), "%") for split, result in data.wer.items()]
    if data.num_parameters is not None:
        tiles.append(("parameters", f"{data.num_parameters:,}", ""))
    for name, seconds in [("training", data.train_seconds), ("recognition", data.recog_seconds)]:
        if seconds is not None:
            tiles.append((name, _duration(seconds), ""))
    if data.audio_seconds is not None:
        tiles.append(("recognised audio", _duration(data.audio_seconds), ""))
        if data.recog_seconds is not None and data.audio_seconds > 0:
            tiles.append(("real-time factor", f"{data.recog_seconds / data.audio_seconds:.3f}", ""))
    items = "".join(
        f'<div class="tile"><dt>{_text(name)}</dt><dd>{_text(value)}{unit and f" <small>{unit}</small>"}</dd></div>'
        for name, value, unit in tiles
    )
    return f'<dl class="tiles">{items}</dl>\n' if tiles else ""


def _learning(data: ReportData) -> str:
    curves = {name: points for name, points in data.learning_curves.items() if len(points)}
    parts = []
    if curves:
        caption = _legend((name, index % NUM_COLORS) for index, name in enumerate(curves))
        last = [f"{name} {_number(points[-1][1])} (epoch {_number(points[-1][0])})" for name, points in curves.items()]
        parts.append(_figure(draw_curves(curves, y_label="value"), caption, "Last: " + ", ".join(last)))
    if len(data.learning_rates):
        svg = draw_curves({"": data.learning_rates}, y_label="learning rate", height=1.9)
        parts.append(_figure(svg, "", "Learning rate"))
    points = [point for series in (*curves.values(), data.learning_rates) for point in series]
    odd = sum(not math.isfinite(value) for _, value in points)
    if odd:
        parts.append(f'<p class="warning">NaN or infinite, and not drawn: {_count(odd, "value")}.</p>')
    return _section("Learning curves", "\n".join(parts) or '<p class="note">Nothing was recorded.</p>')


def _wer_table(data: ReportData) -> str:
    if not data.wer and (data.tables or data.alignments):
        return ""
    if not data.wer:
        return _section("Word error rate", '<p class="note">Nothing was recognised.</p>')
    columns = ["split", "WER [%]", "errors", "substitutions", "deletions", "insertions", "words", "utterances"]
    rows = []
    for split, result in data.wer.items():
        counts = [result.errors, result.substitutions, result.deletions, result.insertions]
        counts += [result.num_ref_words, result.num_utterances]
        rows.append([split, _percent(result.wer), *(f"{count:,}" for count in counts)])
    notes = [f"{split}: {warning}" for split, result in data.wer.items() for warning in result.warnings]
    warnings = "".join(f'<p class="warning">{_text(note)}</p>' for note in notes)
    return _section("Word error rate", _table(columns, rows) + warnings)


def _worst(split: str, result: WerResult, num: int) -> str:
    worst = result.worst(num)
    title = f"Worst utterances of {split}"
    if not worst:
        message = "No utterance has an error." if result.num_utterances else "There are no utterances."
        return _section(title, f'<p class="note">{message}</p>') if num > 0 else ""
    num_wrong = len(result.worst(result.num_utterances))
    marks = [("ok", "correct"), ("sub", "substitution (S)"), ("del", "deletion (D)"), ("ins", "insertion (I)")]
    legend = "".join(f'<span class="key {mark}">{name}</span>' for mark, name in marks)
    note = f"{len(worst)} of {num_wrong} utterances with errors, of {result.num_utterances}."
    return _section(title, f'<p class="note">{note} {legend}</p>' + "".join(map(_utterance, worst)))


def _utterance(utterance: UtteranceScore) -> str:
    counts = f"{_count(utterance.errors, 'error')} in {_count(utterance.num_ref_words, 'word')}"
    counts += f", {_percent(utterance.wer)} %"
    head = f'<h3>{_text(utterance.seq_tag)} <span class="note">{_text(counts)}</span></h3>'
    pairs = "".join(_pair(ref, hyp) for ref, hyp in utterance.alignment)
    sides = '<span class="pair side"><span>reference</span><span>recognised</span><b></b></span>'
    return f'<article>{head}<div class="alignment">{sides}{pairs}</div></article>\n'


def _pair(ref: str | None, hyp: str | None) -> str:
    if ref is None or hyp is None:
        kind, mark = ("ins", "I") if ref is None else ("del", "D")
    else:
        kind, mark = ("ok", "") if ref == hyp else ("sub", "S")
    words = "".join(f"<span>{_text(word) if word is not None else '–'}</span>" for word in (ref, hyp))
    return f'<span class="pair {kind}">{words}<b>{mark}</b></span>'


def _example(example: ReportExample) -> str:
    texts = _table(["", "text"], [["reference", example.reference], ["recognised", example.hypothesis]])
    if not (len(example.spectrogram) or len(example.posteriors)):
        return _section("One utterance", f"{texts}<p class='note'>{_text(example.seq_tag)} has no frames.</p>")
    shifts = [_number(1000 * shift) for shift in (example.frame_shift, example.posterior_shift)]
    caption = (
        f"{example.seq_tag}: log-mel spectrogram ({len(example.spectrogram)} frames of {shifts[0]} ms) "
        f"and CTC posteriors ({len(example.posteriors)} frames of {shifts[1]} ms). "
        "The dotted line is blank; the names stand where a label is the most probable."
    )
    return _section("One utterance", texts + _figure(draw_example(example), "", caption))


def _alignments(alignments: Sequence[ReportAlignment]) -> str:
    figures = []
    for alignment in alignments:
        kind = "the best alignment" if alignment.soft is None else "how probable each label is in each frame"
        frames = f"{alignment.num_frames} frames of {_number(1000 * alignment.frame_shift)} ms"
        figures.append(_figure(draw_alignment(alignment), "", f"{alignment.seq_tag}: {kind}, {frames}"))
    return _section("Alignments", "\n".join(figures))


def _settings(data: ReportData) -> str:
    if not data.settings:
        return ""
    rows = [[name, str(value)] for name, value in data.settings.items()]
    return _section("Settings", _table(["name", "value"], rows))


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{_text(title)}</h2>\n{content}\n</section>\n"


def _figure(svg: str, legend: str, caption: str) -> str:
    return f"<figure>{legend}{svg}<figcaption>{_text(caption)}</figcaption></figure>"


def _legend(entries: Iterable[tuple[str, int]]) -> str:
    keys = "".join(
        f'<span class="key"><i style="background: var(--series-{color})"></i>{_text(name)}</span>'
        for name, color in entries
    )
    return f'<div class="legend">{keys}</div>'


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>\n" for row in rows)
    kind = "texts" if len(columns) == 2 else "numbers"
    table = f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _text(text: str) -> str:
    return html.escape(to_printable(text))


def _percent(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else _number(value)


def _number(value: float) -> str:
    return "∞" if value == math.inf else f"{value:.4g}"


def _count(num: int, noun: str) -> str:
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return _number(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
