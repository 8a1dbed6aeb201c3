"""
The command ``returnn-common prepare``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..datasets.prepare import (
    AUDIO_FORMATS,
    MIRRORS,
    PrepareReport,
    download_librispeech,
    prepare_folder,
    prepare_librispeech,
)
from ..datasets.prepare.statistics import SplitStatistics, prepared_splits, read_statistics
from ..datasets.transcripts_table import TableColumns
from .errors import CommandError

__all__ = ["add_parser", "main"]

_PAGE = "statistics.html"


def add_parser(subparsers: argparse._SubParsersAction):
    """
    Adds ``prepare librispeech SRC DEST``, ``prepare folder SRC DEST`` and ``prepare statistics CORPUS``.

    :param subparsers: of the main command; the handler is set as ``func``
    """
    parser = subparsers.add_parser(
        "prepare",
        help="make a corpus ready for training",
        description="Make a corpus ready for training. Run it again after an interruption, and it goes on.",
    )
    corpora = parser.add_subparsers(dest="corpus", metavar="CORPUS", required=True)
    librispeech = corpora.add_parser(
        "librispeech",
        help="LibriSpeech, or any corpus in its layout",
        description="LibriSpeech, or any corpus in its layout (SPLIT/SPEAKER/CHAPTER/*.flac, .wav or .ogg, with "
        "*.trans.txt), in folders or archives, to one file for each split, DEST/SPLIT.zip. What cannot be used is "
        "listed, and the exit status is 1 then. What is missing in an official split is listed.",
    )
    librispeech.add_argument(
        "src", metavar="SRC", help="the corpus' folder, with folders or archives (dev-clean.tar.gz); or an archive"
    )
    librispeech.add_argument(
        "--complete", action="store_true", help="exit status 1 also if an official split is not complete"
    )
    librispeech.add_argument(
        "--download",
        action="store_true",
        help="get the official archives first that are not in SRC (all seven, 60 GB, or those of --splits); after an "
        "interruption, only the rest of them",
    )
    librispeech.add_argument(
        "--mirror",
        action="append",
        metavar="URL",
        help=f"where to download from, instead of {MIRRORS[0]} and its mirrors; may be repeated",
    )
    _add_common(librispeech)
    librispeech.set_defaults(func=main, prepare=_prepare_librispeech)
    folder = corpora.add_parser(
        "folder",
        help="your own recordings, with a table of their transcripts",
        description="Your own recordings (.flac, .wav, .ogg, .mp3), with a table of their transcripts for each split: "
        "train.tsv, .csv or .jsonl gives DEST/train.zip. What cannot be used is listed, and the exit status is 1 then.",
    )
    folder.add_argument("src", metavar="SRC", help="a table, or a folder of tables")
    folder.add_argument(
        "--audio-folder", metavar="DIR", help="where paths in the tables start (default: the table's folder)"
    )
    folder.add_argument(
        "--columns",
        type=_columns,
        metavar="KEY=NAME,...",
        help="names of the columns for path, text, name, speaker, where they are unusual, such as path=file,text=de",
    )
    _add_common(folder)
    folder.set_defaults(func=main, prepare=_prepare_folder)
    statistics = corpora.add_parser(
        "statistics",
        help="durations, words, characters, speakers of a prepared corpus",
        description="Durations, words, characters, speakers, rates of a prepared corpus, the longest and shortest "
        "utterances, histograms; also as a page, which 'prepare' writes by itself to DEST/statistics.html.",
    )
    statistics.add_argument("corpus_folder", metavar="CORPUS", help="what prepare has written")
    statistics.add_argument("--splits", type=_names, metavar="NAME,...", help="only these (default: all)")
    statistics.add_argument("--html", metavar="PAGE", help="where to write the page (default: CORPUS/statistics.html)")
    statistics.set_defaults(func=_statistics)


def _add_common(parser: argparse.ArgumentParser):
    parser.add_argument("dest", metavar="DEST", help="folder to write to")
    parser.add_argument("--splits", type=_names, metavar="NAME,...", help="only these (default: all that there are)")
    parser.add_argument(
        "--audio-format", choices=AUDIO_FORMATS, default="flac", help="ogg: Ogg Vorbis, smaller, with losses"
    )
    parser.add_argument(
        "--num-workers", type=int, default=2, metavar="N", help="recordings decoded at a time (default: %(default)s)"
    )


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names separated by commas, got {text!r}")
    return names


def _columns(text: str) -> TableColumns:
    try:
        return TableColumns(**dict(pair.split("=", 1) for pair in text.split(",")))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(
            f"expected path=NAME,text=NAME,name=NAME,speaker=NAME or some of them, got {text!r}"
        ) from None


def main(args: argparse.Namespace) -> int:
    """
    :param args: of ``librispeech`` or ``folder``
    :return: exit status: 0 all is well; 1 something was skipped, or the call was interrupted; 2 nothing could be done
    """
    try:
        report = args.prepare(args)
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return 1
    except (ValueError, OSError, RuntimeError) as error:
        print(f"returnn-common prepare: {error}", file=sys.stderr)
        return 2
    _print_report(report)
    page = Path(args.dest, _PAGE)
    if len(report.up_to_date) < len(report.splits) or not page.is_file():
        _write_page(Path(args.dest), page, prepared_splits(Path(args.dest)))
    return 1 if report.problems or (args.corpus == "librispeech" and args.complete and report.missing) else 0


def _statistics(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from .statistics_page import HEAD, RATED, summary_row

    folder = Path(args.corpus_folder)
    found = prepared_splits(folder)
    missing = sorted(set(args.splits or ()) - set(found))
    if missing or not found:
        raise CommandError(
            f"{folder}: no prepared split {', '.join(missing) or 'at all'} in it, only {', '.join(found) or 'none'}"
        )
    page = Path(args.html) if args.html else folder / _PAGE
    table = Table(*HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    try:
        splits = _write_page(folder, page, args.splits or found)
    except ValueError as error:
        raise CommandError(str(error)) from error
    for split in splits:
        table.add_row(*summary_row(split))
    Console().print(table)
    for split in splits:
        for kind, extremes in split.extremes.items():
            rate = f", {extremes[0].value:.1f} characters/s" if kind in RATED else ""
            print(f"{kind} of {split.name}: {extremes[0].name}, {extremes[0].seconds:.2f} s{rate}")
    print(f"More: {page}")
    return 0


def _write_page(folder: Path, page: Path, names: Sequence[str]) -> list[SplitStatistics]:
    from .statistics_page import write_statistics

    splits = [read_statistics(folder / f"{name}.zip") for name in names]
    write_statistics(page, splits, title="Statistics of the corpus")
    return splits


def _prepare_librispeech(args: argparse.Namespace) -> PrepareReport:
    if args.download:
        with _progress_bar(of_bytes=True) as on_progress:
            download_librispeech(args.src, splits=args.splits, mirrors=args.mirror or MIRRORS, on_progress=on_progress)
    elif args.mirror:
        raise ValueError("--mirror: expected together with --download")
    with _progress_bar() as on_progress:
        return prepare_librispeech(args.src, args.dest, **_common(args), on_progress=on_progress)


def _prepare_folder(args: argparse.Namespace) -> PrepareReport:
    options = {"audio_folder": args.audio_folder, "columns": args.columns, **_common(args)}
    with _progress_bar() as on_progress:
        return prepare_folder(args.src, args.dest, **options, on_progress=on_progress)


def _common(args: argparse.Namespace) -> dict[str, Any]:
    return {"splits": args.splits, "audio_format": args.audio_format, "num_workers": args.num_workers}


@contextmanager
def _progress_bar(*, of_bytes: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error; nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    count = DownloadColumn() if of_bytes else MofNCompleteColumn()
    columns = TextColumn("{task.description}"), BarColumn(), count, TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def _on_progress(done: int, total: int, what: str):
            progress.update(task, completed=done, total=total or None, description=what)

        yield _on_progress


def _print_report(report: PrepareReport):
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("split")
    for name in ("utterances", "hours", "skipped"):
        table.add_column(name, justify="right")
    table.add_column("")
    for name, split in report.splits.items():
        skipped = sum(problem.name.startswith(f"{name}/") for problem in report.problems)
        note = "up to date" if name in report.up_to_date else "written"
        table.add_row(name, str(split.num_utterances), f"{split.seconds / 3600:.2f}", str(skipped), note)
    Console().print(table)
    # Names and reasons come from files: not for rich to interpret, wrap or colour.
    for note in [*report.missing, *report.notes()]:
        print(note)
    for problem in report.problems:
        print(f"skipped: {problem.name}: {problem.message} [{problem.kind}]")
    if report.problems:
        print(f"{len(report.problems)} problem{'s' * (len(report.problems) > 1)}: what is listed above was skipped.")
