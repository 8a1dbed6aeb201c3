"""
Arguments of ``returnn-common recog``, and the order of its stages.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ..errors import CommandError
from ..run.command import check_backend
from ..run.process import Runner, run_python
from ..run.recipe import BACKENDS
from . import results, search
from .folder import RecogFolder
from .request import Asked, check_request

__all__ = ["add_parser", "main", "recognise_run"]

_OPTIONS = ("lm_scale", "ctc_scale", "length_exponent")  # of searches, which have arguments of their own here


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "recog",
        help="recognise with a run's model, in other ways than the run did",
        description="Recognise splits of the corpus with the model of a run that has ended, or still trains, and write "
        "n-best lists and word error rates to OUT_DIR/recog/NAME. What the run itself has recognised stays. Run the "
        "same command again after an interruption, and it goes on. See docs/search.md.",
    )
    parser.add_argument("out", metavar="OUT_DIR", help="folder that 'returnn-common run' has written")
    parser.add_argument(
        "--split",
        metavar="SPLIT",
        action="append",
        default=[],
        help="to recognise; 'dev' or 'test': all such; may be given more than once (default: test)",
    )
    parser.add_argument("--beam", metavar="N", type=int, help="size of the beam (default: the recipe's)")
    parser.add_argument(
        "--lm", metavar="LM", help="folder of a run of a language model with the same vocabulary, or an ARPA file"
    )
    parser.add_argument("--lm-scale", metavar="X", help="weight of the language model")
    parser.add_argument("--ctc-scale", metavar="X", help="weight of CTC beside an attention decoder")
    parser.add_argument("--length-exponent", metavar="X", help="of the length normalisation")
    parser.add_argument(
        "--set", metavar="OPTION=VALUE", action="append", default=[], help="a further option of the model's search"
    )
    parser.add_argument("--nbest", metavar="N", type=int, help="hypotheses to write (default: all in the beam)")
    parser.add_argument(
        "--checkpoint",
        metavar="WHICH",
        help="average, last, the number of an epoch, or a path (default: average, or last where the run has not ended)",
    )
    parser.add_argument(
        "--mbr",
        metavar="SCALE",
        nargs="?",
        const=1.0,
        type=float,
        help="also choose by minimum Bayes risk from the n-best lists; SCALE of their scores (default: 1)",
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
    asked = Asked(
        splits=args.split,
        beam=args.beam,
        lm=args.lm,
        options=_search_options(args),
        nbest=args.nbest,
        checkpoint=args.checkpoint,
        backend=args.backend,
        name=args.name,
    )
    return recognise_run(args.out, asked, mbr=args.mbr)


def _search_options(args: argparse.Namespace) -> dict[str, str]:
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    for setting in args.set:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CommandError(f"--set {setting}: expected OPTION=VALUE")
        if name in options:
            raise CommandError(f"--set {setting}: {name!r} is given twice")
        if name in ("beam_size", "lm"):
            raise CommandError(f"--set {setting}: use --{name.removesuffix('_size')}")
        options[name] = text
    return options


def recognise_run(
    out: str, asked: Asked, *, mbr: float | None = None, runner: Runner = run_python, console: Any = None
) -> int:
    """
    :param out: folder of a run
    :param asked: the arguments
    :param mbr: scale of the scores for minimum Bayes risk; None: without
    :param runner: starts RETURNN
    :param console: of rich
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    from rich.console import Console

    if mbr is not None and not 0 <= mbr < float("inf"):
        raise CommandError(f"--mbr {mbr}: expected a scale of at least 0")
    request = check_request(out, asked)
    check_backend(request.backend)
    folder = RecogFolder(request.run.folder.recog / request.name)
    try:
        with folder.open(request.settings, config=search.config_code(request)):
            recognition = search.Recognition(request, folder, console or Console(), runner)
            _recognise(recognition, mbr=mbr)
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def _recognise(recognition: search.Recognition, *, mbr: float | None):
    kinds: list[str] = []
    if mbr is not None:
        kinds.append("mbr")
    scored = {}
    for split in recognition.request.splits:
        search.recognise(recognition, split=split, with_components=False)
        if mbr is not None:
            results.write_mbr(recognition, split, kind="", scale=mbr)
        scored[split] = results.score(recognition, split, kinds)
    search.remove_checkpoint(recognition.folder)
    extra = {split: {"mbr_scale": mbr} for split in scored} if mbr is not None else {}
    results.write_results(recognition, scored, extra=extra)
    results.show(recognition, scored)
