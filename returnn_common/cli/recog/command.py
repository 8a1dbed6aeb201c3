"""
Arguments of ``returnn-common recog``, and the order of its stages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CommandError
from ..run.command import check_backend
from ..run.finished import TrainedRun
from ..run.folder import read_json
from ..run.process import Runner, run_python
from ..run.recipe import BACKENDS
from . import results, search, tune
from .folder import RecogFolder
from .options import make_model_of
from .request import Asked, Request, check_request, choose_splits
from .scales import PartScales, choose_points
from .tune import Tuning

__all__ = ["add_parser", "main", "recognise_run", "tune_run"]

# Options of the search that have arguments of their own here.
_OPTIONS = ("lm_scale", "phrases", "phrase_bonus", "word_list", "ctc_scale", "length_exponent")
_OTHER_ARGUMENTS = {"beam_size": "--beam", **{name: f"--{name}" for name in ("lm", "nbest", "mbr", "rescore", "tune")}}


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
        "same command again after an interruption, and it goes on. The recipe's search_options hold the same: what is "
        "not given here is as they say. See docs/recognition.md.",
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
    parser.add_argument("--phrases", metavar="FILE", help="phrases that are expected, one in each line")
    parser.add_argument("--phrase-bonus", metavar="X", help="for each of them, natural log")
    parser.add_argument("--word-list", metavar="FILE", help="recognise only words of this list, one in each line")
    parser.add_argument("--ctc-scale", metavar="X", help="weight of CTC beside an attention decoder")
    parser.add_argument("--length-exponent", metavar="X", help="of the length normalisation")
    parser.add_argument(
        "--set",
        metavar="OPTION=VALUE",
        action="append",
        default=[],
        help="another of the recipe's search_options, such as transcript_lm=LM, transcript_lm_scale=X (subtracted), "
        "internal_lm_scale=X, or what else the model's search takes; VALUE None: without it",
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
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="the language model is not in the search, but orders its n-best lists anew",
    )
    parser.add_argument(
        "--tune",
        metavar="OPTION=LOW:HIGH:STEP",
        nargs="*",
        help="find the scales with the lowest word error rate, on the n-best lists of all SPLITs together, which no "
        "model does again; also OPTION=VALUE,VALUE,... (default: lm_scale, ctc_scale and length_exponent)",
    )
    parser.add_argument("--tune-random", metavar="N", type=int, help="try N random points instead of a grid")
    parser.add_argument(
        "--apply-to",
        metavar="SPLIT",
        action="append",
        default=[],
        help="with --tune: also recognise this split, and order its lists by the scales that are found",
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
    if (args.tune_random is not None or args.apply_to) and args.tune is None:
        raise CommandError("--tune-random and --apply-to need --tune")
    if args.tune is not None and args.rescore:
        raise CommandError("--rescore and --tune exclude each other")
    options = _search_options(args)
    tuning = None
    if args.tune is not None:
        tuning = Tuning(asked=args.tune, num_random=args.tune_random, apply_to=args.apply_to)
    asked = Asked(
        splits=args.split,
        beam=args.beam,
        lm=args.lm,
        options=options,
        nbest=args.nbest,
        checkpoint=args.checkpoint,
        backend=args.backend,
        name=args.name,
        rescore=True if args.rescore else None,
        tuned=args.tune is not None,
    )
    return recognise_run(args.out, asked, mbr=args.mbr, tuning=tuning)


def _search_options(args: argparse.Namespace) -> dict[str, str]:
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    for setting in args.set:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise CommandError(f"--set {setting}: expected OPTION=VALUE")
        if name in options:
            raise CommandError(f"--set {setting}: {name!r} is given twice")
        if name in _OTHER_ARGUMENTS and text != "None":
            raise CommandError(f"--set {setting}: use {_OTHER_ARGUMENTS[name]}")
        options[name] = text
    return options


def recognise_run(
    out: str,
    asked: Asked,
    *,
    mbr: float | None = None,
    tuning: Tuning | None = None,
    runner: Runner = run_python,
    console: Any = None,
) -> int:
    """
    :param out: folder of a run
    :param asked: the arguments
    :param mbr: scale of the scores for minimum Bayes risk; None: as the recipe's ``search_options`` say
    :param tuning: of scales; None: without
    :param runner: starts RETURNN
    :param console: of rich
    :return: exit status
    :raises CommandError: if it cannot go on
    """
    from rich.console import Console

    if mbr is not None and not 0 <= mbr < float("inf"):
        raise CommandError(f"--mbr {mbr}: expected a scale of at least 0")
    request = check_request(out, asked)
    mbr = request.options.mbr if mbr is None else mbr
    order = None
    if tuning is not None or request.options.rescore:
        order = _make_order(request, tuning)
    check_backend(request.backend)
    folder = RecogFolder(request.run.folder.recog / request.name)
    try:
        with folder.open(request.settings, config=search.config_code(request)):
            recognition = search.Recognition(request, folder, console or Console(), runner)
            _recognise(recognition, mbr=mbr, order=order)
    except KeyboardInterrupt:
        print("Interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def tune_run(run: TrainedRun, wanted: Sequence[str], *, backend: str, runner: Runner, console: Any) -> dict[str, float]:
    """
    Finds scales on the dev splits, as ``--tune`` does it.

    :param run: that has trained
    :param wanted: see :func:`.scales.choose_points`
    :param backend: of RETURNN
    :param runner: starts RETURNN
    :param console: of rich
    :return: the best, by option
    :raises CommandError: if it cannot go on
    :raises KeyboardInterrupt: if it is interrupted
    """
    asked = Asked(
        splits=run.recipe.dataset.dev_splits,
        options={"mbr": "None", "nbest": "None", "rescore": "None"},
        backend=backend,
        name="tuning",
        tuned=True,
    )
    if recognise_run(str(run.folder.path), asked, tuning=Tuning(wanted), runner=runner, console=console):
        raise KeyboardInterrupt
    name = "+".join(run.recipe.dataset.dev_splits)
    found = read_json(RecogFolder(run.folder.recog / "tuning").tuning(name, ".json"))
    assert found is not None
    return found["best"]


@dataclass(frozen=True)
class _Order:
    """Another order of the lists: by given scales, or by the best of some points on the splits that are asked for."""

    scales: PartScales
    points: Sequence[Mapping[str, float]] | None = None
    apply_to: Sequence[str] = ()


def _make_order(request: Request, tuning: Tuning | None) -> _Order:
    scales = PartScales(make_model_of(request.run), request.options, what=str(request.run.folder.path))
    if tuning is None:
        scales({})  # raises for a value that the model refuses
        return _Order(scales)
    apply_to = choose_splits(request.run, tuning.apply_to, what="--apply-to")
    points = choose_points(tuning.asked, scales=scales, num_random=tuning.num_random)
    return _Order(scales, points, apply_to)


def _recognise(recognition: search.Recognition, *, mbr: float | None, order: _Order | None):
    splits = list(dict.fromkeys([*recognition.request.splits, *(order.apply_to if order else ())]))
    for split in splits:
        search.recognise(recognition, split=split, with_components=order is not None)
    kinds: list[str] = []
    if order is not None:
        kinds.append("rescored" if order.points is None else "tuned")
        scales = order.scales({})
        if order.points is not None:
            asked = recognition.request.splits
            scales = tune.tune_scales(recognition, asked, scales=order.scales, points=order.points)
        for split in splits:
            tune.write_reranked(recognition, split, kinds[0], scales)
    if mbr is not None:
        for split in splits:
            results.write_mbr(recognition, split, kind=kinds[-1] if kinds else "", scale=mbr)
        kinds.append("mbr")
    search.remove_checkpoint(recognition.folder)
    scored = {split: results.score(recognition, split, kinds) for split in splits}
    extra = {split: {"mbr_scale": mbr} for split in scored} if mbr is not None else {}
    results.write_results(recognition, scored, extra=extra)
    results.show(recognition, scored)
