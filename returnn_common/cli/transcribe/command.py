"""
Arguments of ``returnn-common transcribe``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...datasets.audio import SAMPLE_RATE
from ...recog.live import LiveTranscriber, can_stream
from ...recog.times import frame_shift
from ...recog.transcribe import Transcript
from ..errors import CommandError
from ..run_model import RunModel, choose_device, load_run_model
from .formats import FORMATS, WITH_TIMES
from .output import Output
from .pipeline import Result, transcribe_recordings
from .recordings import Found, Source, find_recordings
from .search import choose_search
from .stream import stream_recordings

__all__ = ["add_parser", "main"]

_DESCRIPTION = """
Recordings to text, with a model that 'returnn-common run' has trained (on any engine; it runs on PyTorch here). FILE is
anything that libsndfile decodes (WAV, FLAC, Ogg, MP3, ...), of any sample rate and number of channels, or a folder of
such. What cannot be read is named, the others are done, and the exit status is 1.
"""
_EPILOG = """
text: TEXT for one FILE, lines NAME<tab>TEXT for several. json: text, score (natural log), and words with start, end and
confidence; a list for several. ctm: lines FILE CHANNEL START DURATION WORD CONFIDENCE. srt: subtitles. Times are in
seconds, and need a transducer or a model with a CTC head. See docs/transcription.md.
"""


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "transcribe", help="recordings to text, subtitles, ...", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("model", metavar="MODEL_DIR", help="folder of a run: the --out of 'returnn-common run'")
    parser.add_argument("recordings", metavar="FILE", nargs="+", help="recording, or folder of recordings")
    parser.add_argument("--format", choices=list(FORMATS), default="text", help="of the output (default: %(default)s)")
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="write into this file; or a file for each recording into this folder, if it is there or ends in / "
        "(default: standard output)",
    )
    parser.add_argument("--no-times", action="store_true", help="json without words: also of models that know no times")
    parser.add_argument(
        "--stream",
        action="store_true",
        help="piece by piece, as if somebody spoke, with what is known so far on standard error; of models with a "
        "streaming encoder; text, or json with --no-times",
    )
    search = parser.add_argument_group("search")
    search.add_argument("--beam", metavar="N", type=int, help="size of the beam (default: the recipe's)")
    search.add_argument(
        "--lm", metavar="LM", help="folder of a run of a language model with the same vocabulary, or an ARPA file"
    )
    search.add_argument("--lm-scale", metavar="X", type=float, help="weight of the language model")
    search.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="another of the recipe's search_options, such as phrases=FILE, phrase_bonus=X, word_list=FILE, mbr=X, or "
        "what else the model's search takes; VALUE None: without it",
    )
    model = parser.add_argument_group("model and memory")
    model.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help="average, last, the number of an epoch, or a path (default: average, or last where the run has not ended)",
    )
    model.add_argument("--device", help="of PyTorch (default: a GPU if there is one)")
    model.add_argument(
        "--batch-seconds",
        metavar="S",
        type=float,
        default=120.0,
        help="recognise so much at a time; less takes less memory (default: %(default)g)",
    )
    model.add_argument(
        "--max-seconds",
        metavar="S",
        type=float,
        default=30.0,
        help="split longer recordings where it is quiet (default: %(default)g)",
    )
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: see :func:`add_parser`
    :return: exit status: 0, or 1 if there is a recording without a transcript
    :raises CommandError: if it cannot go on
    """
    from rich.console import Console

    _check_numbers(args)
    found = find_recordings(args.recordings)
    console = Console(stderr=True, highlight=False, emoji=False)
    for name, problem in found.problems:
        _tell(console, f"{name}: {problem}")
    failed = len(found.problems)
    # Before PyTorch is imported, as for RETURNN in a process of its own, see ..run.process.returnn_env.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if found.sources:
        output = Output(args.output, format=args.format, found=found)
        run = load_run_model(args.model, checkpoint=args.checkpoint, device=choose_device(args.device))
        if args.checkpoint is None and run.checkpoint is not None and not run.checkpoint.name.startswith("average."):
            _tell(console, f"{args.model} has not ended, its last checkpoint is used: {run.checkpoint.name}")
        with run.forward():
            transcribe = _stream if args.stream else _transcribe
            failed += transcribe(found, run, args, output, console)
    if failed and not found.is_single:
        _tell(console, f"{failed} of {len(found.sources) + len(found.problems)} without a transcript")
    return 1 if failed else 0


def _tell(console: Any, message: str):
    console.print(f"returnn-common transcribe: {message}", markup=False, soft_wrap=True)


def _check_numbers(args: argparse.Namespace):
    if args.beam is not None and args.beam < 1:
        raise CommandError(f"--beam {args.beam}: expected at least 1")
    if not args.max_seconds >= 1:
        raise CommandError(f"--max-seconds {args.max_seconds:g}: expected at least 1")
    if not args.batch_seconds > 0:
        raise CommandError(f"--batch-seconds {args.batch_seconds:g}: expected more than 0")
    if args.no_times and args.format not in ("text", "json"):
        raise CommandError(f"--no-times: --format {args.format} is made of times")
    if args.stream and args.format != "text" and not args.no_times:
        other = "add --no-times, or use --format text" if args.format == "json" else "use --format text"
        raise CommandError(f"--stream: --format {args.format} has times, which need whole recordings; {other}")


def _transcribe(found: Found, run: RunModel, args: argparse.Namespace, output: Output, console: Any) -> int:
    """:return: how many have no transcript"""
    transcriber = _make_transcriber(run, args)
    with output, _progress_bar(console, len(found.sources), output=output) as on_progress, _search_errors():
        results = transcribe_recordings(found.sources, transcriber, on_progress=on_progress)
        return _write(results, output, console)


def _stream(found: Found, run: RunModel, args: argparse.Namespace, output: Output, console: Any) -> int:
    """:return: how many have no transcript"""

    def show(source: Source, transcript: Transcript) -> None:
        name = "" if found.is_single else f"{source.name} "
        console.print(f"{name}{transcript.end:.2f} s: {transcript.text}", markup=False, soft_wrap=True)

    with output, _search_errors():
        make_live, piece = _make_live(run, args)
        return _write(stream_recordings(found.sources, make_live, piece=piece, on_partial=show), output, console)


def _write(results: Iterable[Result], output: Output, console: Any) -> int:
    """:return: how many have no transcript"""
    failed, mixed_down = 0, []
    for result in results:
        if result.error is not None:
            failed += 1
            _tell(console, f"{result.source.name}: {result.error}")
            continue
        if result.num_channels > 1:
            mixed_down.append(result)
        output.write(result)
    if mixed_down:
        _tell(console, _describe_mixed_down(mixed_down))
    return failed


def _describe_mixed_down(results: list[Result]) -> str:
    names = ", ".join(f"{result.source.name} ({result.num_channels})" for result in results[:3])
    return f"the average of several channels was taken: {names}{', ...' * (len(results) > 3)}"


def _make_transcriber(run: RunModel, args: argparse.Namespace) -> Any:
    from ...recog.transcribe import Transcriber, can_align

    decode, features = _check_recogniser(run, args.model)
    with_times = args.format in WITH_TIMES and not args.no_times
    if with_times and not can_align(run.model):
        other = "or --no-times for a JSON without them" if args.format == "json" else "or --format text"
        raise CommandError(
            f"--format {args.format}: {args.model} cannot tell when words are spoken, for its "
            f"{type(run.model).__name__} has no CTC head; train one with aux_ctc_layers, {other}"
        )
    search, mbr_scale = _choose_search(run, args)
    return Transcriber(
        run.model,
        decode=decode,
        features=features,
        search=search,
        mbr_scale=mbr_scale,
        with_times=with_times,
        max_seconds=args.max_seconds,
        batch_seconds=args.batch_seconds,
    )


def _choose_search(run: RunModel, args: argparse.Namespace) -> tuple[dict[str, Any], float | None]:
    return choose_search(run, beam=args.beam, lm=args.lm, lm_scale=args.lm_scale, settings=args.set)


def _make_live(run: RunModel, args: argparse.Namespace) -> tuple[Callable[[], LiveTranscriber], int]:
    """:return: what makes one for each recording; and the samples of a chunk of the encoder"""
    decode, _ = _check_recogniser(run, args.model)
    if not can_stream(run.model):
        raise CommandError(
            f"--stream: {args.model} needs whole recordings, for its {type(run.model.encoder).__name__} or its features"
            " look into the future; train one with a streaming encoder, such as --set encoder=streaming of digits_ctc"
        )
    search, mbr_scale = _choose_search(run, args)
    if mbr_scale is not None:
        raise CommandError("--stream: search_options has mbr, which needs whole recordings; add --set mbr=None")
    piece = run.model.encoder.chunk_size * frame_shift(run.model) * SAMPLE_RATE
    return lambda: LiveTranscriber(run.model, decode=decode, search=search), round(piece)


def _check_recogniser(run: RunModel, name: str) -> tuple[Callable[..., str], Callable[..., Any] | None]:
    """:return: decode, features, see :class:`Transcriber`"""
    from ...datasets.features import log_mel

    recipe = run.recipe
    if recipe.evaluation != "wer":
        raise CommandError(f"{name}: a language model transcribes nothing; it can be the --lm of a recogniser")
    vocab = getattr(recipe.dataset, "vocab", None)
    source = recipe.dataset.get_extern_data()[recipe.dataset.get_default_input()]
    if vocab is None or source.get("sparse_dim") is not None or not hasattr(run.model, "search"):
        raise CommandError(f"{name}: its model takes no recordings, or gives no text")
    return vocab.decode, log_mel if len(source["dims"]) == 3 else None


@contextlib.contextmanager
def _progress_bar(console: Any, total: int, *, output: Output) -> Iterator[Callable[[float], None]]:
    """On standard error, if that is a terminal and the transcripts do not appear there as well."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("transcribing"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn()
    disable = not console.is_terminal or output.is_on_terminal
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=disable) as progress:
        task = progress.add_task("", total=total, note=f"0/{total}")
        yield lambda done: progress.update(task, completed=done, note=f"{int(done)}/{total}")


@contextlib.contextmanager
def _search_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # for options that do not go together, or not with this model
        raise CommandError(str(error)) from error
    except RuntimeError as error:
        if "out of memory" in str(error) or "can't allocate memory" in str(error):
            raise CommandError(
                "not enough memory: try a smaller --batch-seconds, or --max-seconds", exit_status=1
            ) from error
        raise
