"""
Arguments of ``returnn-common align``, and the order of its stages.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...recog.search_options import FUSED_OPTIONS, LIST_OPTIONS
from ..errors import CommandError
from ..recog.folder import RecogFolder
from ..recog.options import make_model_of
from ..recog.request import Asked, Request, check_request, checkpoint_name
from ..recog.search import Recognition, config_code, find_loadable_checkpoint, remove_checkpoint, run_returnn
from ..run.command import check_backend
from ..run.process import Runner, run_python
from ..run.progress import ForwardProgress
from ..run.recipe import BACKENDS
from .report import write_alignment_report

__all__ = ["Alignments", "add_parser", "align_run", "main"]


@dataclass(frozen=True)
class Alignments:
    """
    Which alignments are asked for.

    :param out: file for those of one split; None: in the folder of the alignments
    :param soft: how probable each label is in each frame, not the best path
    :param recognised: of what the search finds, not of the transcripts
    :param use_ctc: by the CTC head of a transducer
    """

    out: str | None = None
    soft: bool = False
    recognised: bool = False
    use_ctc: bool = False


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "align",
        help="in which frames the labels of utterances are",
        description="Align the transcripts of splits of the corpus with the model of a run, and write HDF files for "
        "RETURNN's HDFDataset, words with times (CTM), and a report with pictures to OUT_DIR/align/NAME. For models "
        "with CTC, and transducers. See docs/alignments.md.",
    )
    parser.add_argument("run", metavar="OUT_DIR", help="folder that 'returnn-common run' has written")
    parser.add_argument(
        "--split",
        metavar="SPLIT",
        action="append",
        default=[],
        help="to align, also one of training; 'dev' or 'test': all such; may be given more than once (default: dev)",
    )
    parser.add_argument("--out", metavar="FILE", help="the HDF file of the one SPLIT (default: OUT_DIR/align/NAME/...)")
    parser.add_argument(
        "--soft", action="store_true", help="how probable each label is in each frame, over all alignments; no CTM"
    )
    parser.add_argument(
        "--recognised", action="store_true", help="align what the model recognises, not the transcripts"
    )
    parser.add_argument("--use-ctc", action="store_true", help="by the CTC head of a transducer")
    parser.add_argument(
        "--beam", metavar="N", type=int, help="size of the beam for --recognised (default: the recipe's)"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help="average, last, the number of an epoch, or a path (default: average, or last where the run has not ended)",
    )
    parser.add_argument("--backend", choices=list(BACKENDS), help="engine of RETURNN (default: the run's)")
    parser.add_argument("--name", help="of the folder for the results (default: made from the other arguments)")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: see :func:`add_parser`
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    asked = Asked(splits=args.split, beam=args.beam, checkpoint=args.checkpoint, backend=args.backend, name=args.name)
    wanted = Alignments(args.out, soft=args.soft, recognised=args.recognised, use_ctc=args.use_ctc)
    return align_run(args.run, asked, wanted)


def align_run(run: str, asked: Asked, wanted: Alignments, *, runner: Runner = run_python, console: Any = None) -> int:
    """
    :param run: its folder
    :param asked: arguments that the command shares with ``returnn-common recog``
    :param wanted: the others
    :param runner: starts RETURNN
    :param console: of rich
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    from rich.console import Console

    if asked.beam is not None and not wanted.recognised:
        raise CommandError(f"--beam {asked.beam} needs --recognised")
    # Transcripts are not searched for: what the recipe has for that is not needed, nor need it be there still.
    without = {} if wanted.recognised else {name: "None" for name in (*FUSED_OPTIONS, *LIST_OPTIONS)}
    options = {**without, **asked.options}
    request = check_request(run, Asked(**{**vars(asked), "splits": asked.splits or ["dev"], "options": options}))
    if wanted.out is not None and len(request.splits) > 1:
        raise CommandError(f"--out {wanted.out}: expected one --split, got {', '.join(request.splits)}")
    _check_model(request, wanted)
    check_backend(request.backend)
    name = asked.name or _make_name(request, wanted)
    folder = RecogFolder(request.run.folder.path / "align" / name)
    settings = {**request.settings, **{k: v for k, v in vars(wanted).items() if k != "out"}}
    try:
        with folder.open(settings, config=_config_code(request, wanted)):
            _align(Recognition(request, folder, console or Console(), runner), wanted)
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def _check_model(request: Request, wanted: Alignments):
    from ...recog.transcribe import can_align

    if importlib.util.find_spec("torch") is None:
        return
    model, run = make_model_of(request.run), request.run.folder.path
    kind = type(model).__name__
    if not can_align(model):
        raise CommandError(f"{run}: its {kind} cannot align; train one with CTC, such as with aux_ctc_layers")
    if wanted.use_ctc and "use_ctc" not in inspect.signature(model.align).parameters:
        raise CommandError(f"--use-ctc: the {kind} of {run} has nothing else than CTC to align by")
    if wanted.use_ctc and not model.aux_ctc_layers:
        raise CommandError(f"--use-ctc: the {kind} of {run} has no CTC head; train one with aux_ctc_layers")


def _make_name(request: Request, wanted: Alignments) -> str:
    """:return: such as average-soft"""
    parts = [checkpoint_name(request)]
    parts += [name for name in ("soft", "recognised", "use_ctc") if getattr(wanted, name)]
    parts += [f"beam{request.beam}"] if wanted.recognised else []
    parts += [request.backend] if request.backend != request.run.backend else []
    return "-".join(parts)


def _config_code(request: Request, wanted: Alignments) -> str:
    """:return: text of RETURNN's config: that of the run, with other steps"""
    return config_code(request) + "\n".join(
        [
            "from returnn_common.recog import align_callback as forward_callback",
            "from returnn_common.recog import align_step as forward_step",
            f"align_labels = {'search' if wanted.recognised else 'targets'!r}",
            f"align_soft = {wanted.soft!r}",
            f"align_options = { ({'use_ctc': True} if wanted.use_ctc else {})!r}",
            "",
        ]
    )


def _align(recognition: Recognition, wanted: Alignments):
    folder, request, console = recognition.folder, recognition.request, recognition.console
    files: list[Path] = []
    notes: dict[str, Path] = {}
    for split in request.splits:
        hdf = Path(wanted.out).resolve() if wanted.out else folder.path / f"{split}.hdf"
        notes[split] = folder.path / f"{split}.notes.json"
        outputs = [hdf, notes[split], *([] if wanted.soft else [folder.path / f"{split}.ctm"])]
        files += [path for path in outputs if path != notes[split]]
        done = folder.state.get("done", {})
        if split not in done or not all(path.is_file() for path in outputs):
            _align_split(recognition, split, outputs)
            folder.update(done={**folder.state.get("done", {}), split: True})
    remove_checkpoint(folder)
    lines = write_alignment_report(recognition, notes, soft=wanted.soft)
    lines += [f"alignments: {path}" for path in files]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _align_split(recognition: Recognition, split: str, outputs: Sequence[Path]):
    checkpoint = find_loadable_checkpoint(recognition)
    names = ("align_output_file", "align_notes_file", "align_ctm_file")
    arguments = [part for name, path in zip(names, outputs, strict=False) for part in (f"++{name}", str(path))]
    with ForwardProgress(recognition.console, f"aligning {split}") as progress:
        run_returnn(
            recognition,
            *("++task", "forward"),
            *("++load", str(checkpoint)),
            *("++recog_split", split),
            *("++beam_size", str(recognition.request.beam)),
            *("++log_verbosity", "5"),
            *arguments,
            log=recognition.folder.log(split),
            on_line=progress.on_line,
        )
    for path in outputs:
        if not path.is_file():
            raise CommandError(f"the alignment has not written {path}", exit_status=1)
