"""
CTC prefix beam search beside pyctcdecode and flashlight-text: CPU time per utterance on one thread, and search errors.

All get the same log probs, random but peaked as those of a trained model, and have the same beam, without a language
model. A search error is an utterance for which another one found labels with a better score, where the score is the
exact sum over all alignments. The programs take turns. Those that are not installed are left out.

    pip install pyctcdecode flashlight-text
    python benchmarks/ctc_search.py
    python benchmarks/ctc_search.py --peak 8 20 --rounds 9
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything loads a library that reads it
os.environ.setdefault("DISABLE_CUDA", "1")

import argparse
import functools
import itertools
import logging
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy
import torch

# isort: split
from benchmarks._common import Comparison, save

# isort: split
from returnn_common import nn
from returnn_common.search import CtcPruning, ctc_beam_search

Labels = list[int]
Search = Callable[[numpy.ndarray], list[Labels]]
"""log probs [utterance, frame, label] -> best labels of each; blank is the last label"""


def make_log_probs(args: argparse.Namespace) -> numpy.ndarray:
    """:return: in each frame one label stands out, in two of three frames blank"""
    rng = numpy.random.default_rng(0)
    shape = args.utterances, args.frames
    logits = rng.standard_normal((*shape, args.labels)) * 1.5
    best = rng.integers(0, args.labels - 1, shape)
    best = numpy.where(rng.random(shape) < 2 / 3, args.labels - 1, best)
    utterance, frame = numpy.indices(shape)
    logits[utterance, frame, best] += rng.uniform(args.peak[0], args.peak[1], shape)
    return (logits - numpy.logaddexp.reduce(logits, axis=-1, keepdims=True)).astype("float32")


def search_ours(log_probs: numpy.ndarray, *, beam: int, batch: int, pruning: CtcPruning) -> list[Labels]:
    """in batches of so many utterances"""
    nn.select_backend_torch()
    nn.init_forward_step_run_ctx(step=0)
    found = []
    for start in range(0, len(log_probs), batch):
        x = log_probs[start : start + batch]
        batch_dim, vocab_dim = nn.Dim(len(x), name="utterances"), nn.Dim(x.shape[-1], name="labels")
        lengths = nn.convert_to_tensor(numpy.full([len(x)], x.shape[1], "int32"), dims=[batch_dim])
        time_dim = nn.Dim(lengths, name="time")
        with torch.no_grad():
            hypotheses = ctc_beam_search(
                nn.convert_to_tensor(x, dims=[batch_dim, time_dim, vocab_dim], feature_dim=vocab_dim),
                spatial_dim=time_dim,
                blank=x.shape[-1] - 1,
                beam_size=beam,
                pruning=pruning,
            )
        found += [hypotheses.nbest(i)[0][1] for i in range(len(x))]
    return found


def make_pyctcdecode(args: argparse.Namespace) -> Search:
    """with its own pruning: labels with a log prob above -5, prefixes up to 10 below the best one"""
    logging.disable(logging.WARNING)
    from pyctcdecode.alphabet import Alphabet  # type: ignore[import-not-found]
    from pyctcdecode.decoder import BeamSearchDecoderCTC  # type: ignore[import-not-found]

    characters = [chr(0x4E00 + i) for i in range(args.labels - 1)]
    decoder = BeamSearchDecoderCTC(Alphabet([*characters, ""], False))
    return lambda log_probs: [
        [ord(c) - 0x4E00 for c in decoder.decode_beams(x, beam_width=args.beam)[0][0]] for x in log_probs
    ]


def make_flashlight(args: argparse.Namespace) -> Search:
    """with as many labels per frame as ours"""
    from flashlight.lib.text import decoder as fl  # type: ignore[import-not-found]

    blank = args.labels - 1
    options = fl.LexiconFreeDecoderOptions(
        beam_size=args.beam,
        beam_size_token=args.max_labels,
        beam_threshold=1e9,
        lm_weight=0.0,
        sil_score=0.0,
        log_add=True,
        criterion_type=fl.CriterionType.CTC,
    )
    decoder = fl.LexiconFreeDecoder(options, fl.ZeroLM(), -1, blank, [])

    def search(log_probs: numpy.ndarray) -> list[Labels]:
        found = []
        for x in map(numpy.ascontiguousarray, log_probs):
            path = decoder.decode(x.ctypes.data, *x.shape)[0].tokens
            found.append([c for c, _ in itertools.groupby(path) if 0 <= c < blank])
        return found

    return search


def exact_scores(log_probs: numpy.ndarray, found: list[Labels]) -> numpy.ndarray:
    """:return: log prob of each label sequence, over all alignments"""
    x = torch.from_numpy(log_probs).transpose(0, 1).double()
    lengths = torch.full([x.shape[1]], x.shape[0])
    labels = torch.tensor(list(itertools.chain.from_iterable(found)))
    sizes = torch.tensor([len(seq) for seq in found])
    blank = x.shape[-1] - 1
    return -torch.nn.functional.ctc_loss(x, labels, lengths, sizes, blank=blank, reduction="none").numpy()


def make_searches(args: argparse.Namespace) -> dict[str, Search]:
    """:return: all that there are"""
    top = CtcPruning(max_labels=args.max_labels)
    skip = CtcPruning(max_labels=args.max_labels, blank_threshold=args.blank_threshold)
    ours = functools.partial(search_ours, beam=args.beam)
    searches: dict[str, Search] = {
        f"ours, top {args.max_labels} labels": functools.partial(ours, batch=1, pruning=top),
        f"ours, top {args.max_labels}, batch of {args.batch}": functools.partial(ours, batch=args.batch, pruning=top),
        f"ours, top {args.max_labels}, blank > {args.blank_threshold:g} left out": functools.partial(
            ours, batch=1, pruning=skip
        ),
        f"ours, the same, batch of {args.batch}": functools.partial(ours, batch=args.batch, pruning=skip),
        f"ours, nothing left out, batch of {args.batch}": functools.partial(
            ours, batch=args.batch, pruning=CtcPruning()
        ),
    }
    for package, make in (("pyctcdecode", make_pyctcdecode), ("flashlight-text", make_flashlight)):
        try:
            searches[f"{package} {metadata.version(package)}"] = make(args)
        except ImportError as exc:
            print(f"without {package}: {exc}")
    return searches


def main():
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(
        utterances=16, frames=250, labels=1000, beam=20, max_labels=20, batch=8, rounds=5
    ).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--blank-threshold", type=float, default=0.95, help="default 0.95")
    parser.add_argument("--peak", type=float, nargs=2, default=[7.0, 15.0], help="of one label's logit; default 7 15")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to this file, a line each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    log_probs = make_log_probs(args)
    print(
        f"{args.utterances} utterances of {args.frames} frames, {args.labels} labels, beam {args.beam}, one thread; "
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {numpy.__version__}"
    )
    print(
        f"In a frame, the best label has a probability of {numpy.exp(log_probs.max(-1)).mean():.2f} on average, "
        f"and {(log_probs > -5).sum(-1).mean():.1f} labels have a log prob above -5."
    )
    searches = make_searches(args)
    found = {name: search(log_probs) for name, search in searches.items()}  # also warms up
    times: dict[str, list[float]] = {name: [] for name in searches}
    for _ in range(args.rounds):
        for name, search in searches.items():
            start = time.process_time()
            search(log_probs)
            times[name].append((time.process_time() - start) * 1000 / len(log_probs))
    scores = {name: exact_scores(log_probs, hypotheses) for name, hypotheses in found.items()}
    best = numpy.max(list(scores.values()), axis=0)
    print(f"{'':48} ms per utterance: median (least to most)   search errors")
    for name, ms in times.items():
        errors = (scores[name] < best - 1e-3).mean()
        print(f"{name:48} {statistics.median(ms):24.1f} ({min(ms):.1f} to {max(ms):.1f}) {errors:16.1%}")
    if args.json is not None:
        seconds = {name: [x / 1000 for x in ms] for name, ms in times.items()}
        peers = [name for name in times if not name.startswith("ours")]
        title = f"CTC search, top {args.max_labels} labels, one by one, per utterance"
        save(Comparison(title, seconds, next(iter(times)), peers, {}), args.json)


if __name__ == "__main__":
    main()
