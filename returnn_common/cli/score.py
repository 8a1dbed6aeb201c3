"""``returnn-common score``: word error rate of a file of hypotheses against a file of references."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from ..recog.nbest import NBest, read_nbest
from ..recog.scoring import UtteranceScore, WerResult, format_alignment, oracle_wer, read_texts, score_wer

__all__ = ["add_parser", "main"]

_EPILOG = """
HYP and REF are files of lines 'UTT-ID TEXT', as LibriSpeech's .trans.txt, or Python dicts, plain or gzip:
{tag: text}, or n-best lists {tag: [(score, text), ...]}, best first.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser("score", help="word error rate of hypotheses", description=__doc__, epilog=_EPILOG)
    parser.add_argument("hyp", metavar="HYP", help="hypotheses")
    parser.add_argument("ref", metavar="REF", help="references")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="show the N utterances with the most errors")
    parser.add_argument("--oracle", action="store_true", help="also score the best choice from the n-best lists")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    Print a table of the errors, and what is missing or extra.

    :param args: ``hyp``, ``ref``, ``worst``, ``oracle``
    :return: exit status: 0, or 2 after bad input, with a line on stderr
    """
    try:
        references = read_texts(args.ref)
        hypotheses = read_texts(args.hyp)
        lists = read_nbest(args.hyp) if args.oracle else {}
        _check(args, hypotheses, references)
    except (OSError, ValueError) as exc:
        print(f"returnn-common score: {' '.join(str(exc).split())}", file=sys.stderr)
        return 2
    _show(score_wer(hypotheses, references), lists=lists, references=references, worst=args.worst)
    return 0


def _check(args: argparse.Namespace, hypotheses: dict[str, str], references: dict[str, str]) -> None:
    if not references:
        raise ValueError(f"{args.ref}: expected references, found none")
    if hypotheses and not hypotheses.keys() & references.keys():
        raise ValueError(
            f"no utterance of {args.hyp} is in {args.ref}: "
            f"names such as {next(iter(hypotheses))!r} against {next(iter(references))!r}"
        )


def _show(result: WerResult, *, lists: NBest, references: dict[str, str], worst: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=True, highlight=False)  # long lines are left to the terminal: files keep them whole
    table = Table("", "WER [%]", "errors", "sub", "del", "ins", "words", "utterances")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = [("best", result)]
    if lists:
        rows.append(("oracle", oracle_wer(lists, references)))
    for name, row in rows:
        counts = [row.errors, row.substitutions, row.deletions, row.insertions, row.num_ref_words, row.num_utterances]
        table.add_row(name, _percent(row.wer), *map(str, counts))
    console.print(table)
    listed = [
        ("without a hypothesis, counted as deletions", result.missing),
        ("without a reference, not counted", result.extra),
    ]
    for title, tags in listed:
        if tags:
            console.print(f"{len(tags)} {title}:", *tags, markup=False)
    for utterance in result.worst(worst):
        console.print(f"\n{_headline(utterance)}\n{format_alignment(utterance.alignment)}", markup=False)


def _headline(utterance: UtteranceScore) -> str:
    counts = f"{utterance.errors} errors in {utterance.num_ref_words} words"
    return f"{utterance.seq_tag}: {counts} ({_percent(utterance.wer)} %)"


def _percent(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else str(value)
