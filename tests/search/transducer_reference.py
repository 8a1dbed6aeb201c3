"""A tiny transducer, references for its search, and what its tests share."""

from __future__ import annotations

from collections.abc import Callable

import numpy

from returnn_common import nn
from returnn_common.search import transducer_alignment_search, transducer_beam_search, transducer_greedy_search
from tests.engines import Input, run_on

nothing = -numpy.inf


class Table:
    """
    A transducer whose predictor remembers the label before the last one, and gives a row of a table.

    :param size: of labels and blank
    :param blank:
    :param seed: of the table
    """

    def __init__(self, size: int, *, blank: int, seed: int = 0, table: numpy.ndarray | None = None):
        rng = numpy.random.default_rng(seed)
        self.table = rng.standard_normal((size, size, size)).astype("float32") if table is None else table
        self.blank = blank
        self.labels_dim = nn.Dim(size, name="labels-and-blank")
        self.rows_dim = nn.Dim(size * size, name="rows")
        self.features_dim = nn.Dim(size, name="features")
        self.parameter = None  # instead of a constant: in a net dict, a constant cannot be an array

    def make_module(self):
        module = nn.Module()
        self.parameter = nn.Parameter([self.rows_dim, self.features_dim])
        setattr(module, "table", self.parameter)  # noqa: B010
        return module

    def initial_state(self, *, batch_dims):
        return {"before": nn.constant(self.blank, dims=batch_dims, dtype="int32", sparse_dim=self.labels_dim)}

    def predict(self, prev_labels, state):
        size, table = len(self.table), self.parameter
        if table is None:
            table = nn.convert_to_tensor(self.table.reshape(-1, size), dims=[self.rows_dim, self.features_dim])
        row = nn.cast(nn.cast(state["before"], "float32") * float(size) + nn.cast(prev_labels, "float32"), "int32")
        row = nn.gather(table, indices=nn.set_sparse_dim(row, self.rows_dim), axis=self.rows_dim)
        return row, {"before": prev_labels}

    def join(self, encoded, predicted):
        encoded, _ = nn.replace_dim(encoded, in_dim=encoded.feature_dim, out_dim=self.labels_dim)
        predicted, _ = nn.replace_dim(predicted, in_dim=self.features_dim, out_dim=self.labels_dim)
        product = nn.combine_bc(encoded, "*", predicted)
        return nn.combine_bc(nn.combine_bc(product, "+", encoded), "+", predicted)

    def log_probs(self, frame: numpy.ndarray, labels: tuple[int, ...]) -> numpy.ndarray:
        """reference"""
        row = self.table[(self.blank, self.blank, *labels)[-2:]].astype("float64")
        x = frame.astype("float64") * row + frame + row
        return x - numpy.logaddexp.reduce(x)


def random_frames(rng, batch: int, frames: int, size: int) -> numpy.ndarray:
    return (rng.standard_normal((batch, frames, size)) * rng.choice([0.5, 1.5, 3.0], (batch, 1, 1))).astype("float32")


def search(transducer: Table, frames: numpy.ndarray, lengths, *, engine="torch", kind="beam", scorer=None, **kwargs):
    """:return: n-best list of each batch entry"""
    functions = {"beam": transducer_beam_search, "greedy": transducer_greedy_search}
    function = {**functions, "alignment": transducer_alignment_search}[kind]
    if scorer is not None:
        kwargs["scorer"] = scorer

    def make_module():
        module = transducer.make_module()
        if scorer is not None:
            module.scorer = scorer.make_module()
        return module

    def func(x, time, feat):
        x.feature_dim = feat
        hyps = function(transducer, x, spatial_dim=time, blank=transducer.blank, **kwargs)
        return {
            "labels": (hyps.labels, [nn.batch_dim, hyps.beam_dim, hyps.spatial_dim]),
            "scores": (hyps.scores, [nn.batch_dim, hyps.beam_dim]),
        }

    params = {"table": transducer.table.reshape(-1, frames.shape[-1])}
    if scorer is not None:
        params["scorer.table"] = scorer.table.reshape(-1, len(scorer.table))
    dims = {"time": list(lengths), "feat": frames.shape[-1]}
    inputs = {"x": Input(frames, "batch time feat")}
    res = run_on(engine, func, inputs, dims, make_model=make_module, params=params)
    transducer.parameter = None
    found = []
    for i in range(len(frames)):
        rows = zip(res["scores"][i], res["labels"][i], res.outputs["labels"].lengths[2][i], strict=True)
        nbest = [(float(score), [int(c) for c in labels[:n]]) for score, labels, n in rows]
        used = [(score, labels) for score, labels in nbest if score > nothing]
        assert all(not labels for _, labels in nbest[len(used) :]) and nbest[: len(used)] == used
        found.append(used)
    return found


def enumerate_all(
    transducer: Table,
    frames: numpy.ndarray,
    *,
    max_labels: int = 5,
    topology: str = "rnnt",
    recombine: str = "sum",
    max_len: int | None = None,
    extra: Callable[[tuple[int, ...]], float] | None = None,
) -> dict[tuple[int, ...], float]:
    """:return: labels -> score, of all alignments of frames [T, features]; extra: what a scorer adds"""
    scores: dict[tuple[int, ...], list[float]] = {}

    def go_on(t: int, labels: tuple[int, ...], in_frame: int, score: float, last: int):
        if t == len(frames):
            scores.setdefault(labels, []).append(score)
            return
        log_probs = transducer.log_probs(frames[t], labels)
        go_on(t + 1, labels, 0, score + log_probs[transducer.blank], transducer.blank)
        if topology == "ctc" and last != transducer.blank:
            go_on(t + 1, labels, 0, score + log_probs[last], last)
        if in_frame == max_labels or len(labels) == max_len:
            return
        for c in set(range(len(log_probs))) - {transducer.blank}:
            ends = topology != "rnnt"
            if not (topology == "ctc" and c == last):
                go_on(t + ends, (*labels, c), 0 if ends else in_frame + 1, score + log_probs[c], c)

    go_on(0, (), 0, 0.0, transducer.blank)
    add = numpy.logaddexp.reduce if recombine == "sum" else max
    return {k: float(add(v)) + (extra(k) if extra else 0.0) for k, v in scores.items()}


def greedy_path(transducer: Table, frames: numpy.ndarray, *, max_labels: int = 5, topology: str = "rnnt"):
    """:return: labels, score"""
    labels, score, last = (), 0.0, transducer.blank
    for frame in frames:
        for in_frame in range(max_labels + 1):
            log_probs = transducer.log_probs(frame, labels)
            best = int(log_probs.argmax()) if in_frame < max_labels else transducer.blank
            score += log_probs[best]
            if best != transducer.blank and not (topology == "ctc" and best == last):
                labels += (best,)
            last = best
            if best == transducer.blank or topology != "rnnt":
                break
    return labels, score


def dict_search(
    transducer: Table, frames: numpy.ndarray, *, beam_size: int, max_labels: int = 5, topology: str = "rnnt"
) -> list[tuple[tuple[int, ...], float]]:
    """the beam search of one sequence, with label sequences as keys: (labels, score), best first"""
    if beam_size == 1:
        return [greedy_path(transducer, frames, max_labels=max_labels, topology=topology)]
    if topology == "ctc":
        return _dict_ctc_search(transducer, frames, beam_size=beam_size)

    def best(scores: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
        return dict(sorted(scores.items(), key=lambda kv: -kv[1])[:beam_size])

    beam: dict[tuple[int, ...], float] = {(): 0.0}
    for frame in frames:
        level, ended = beam, {}
        for s in range(max_labels + 1):
            log_probs = {k: transducer.log_probs(frame, k) for k in level}
            for k, score in level.items():
                ended[k] = float(numpy.logaddexp(ended.get(k, nothing), score + log_probs[k][transducer.blank]))
            ended = best(ended)
            if s == max_labels:
                break
            labels = set(range(frame.shape[-1])) - {transducer.blank}
            level = best({(*k, c): score + log_probs[k][c] for k, score in level.items() for c in labels})
            if topology == "monotonic":
                for k, score in level.items():
                    ended[k] = float(numpy.logaddexp(ended.get(k, nothing), score))
                ended = best(ended)
                break
            worst = min(ended.values()) if len(ended) == beam_size else nothing
            level = {k: score for k, score in level.items() if score >= worst}
        beam = ended
    return list(best(beam).items())


def _dict_ctc_search(
    transducer: Table, frames: numpy.ndarray, *, beam_size: int
) -> list[tuple[tuple[int, ...], float]]:
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, nothing)}  # ending in blank, in the last label
    add = numpy.logaddexp
    for frame in frames:
        stay, extended = {}, {}
        for k, (blank, label) in beam.items():
            log_probs = transducer.log_probs(frame, k)
            repeat = label + log_probs[k[-1]] if k else nothing
            stay[k] = (add(blank, label) + log_probs[transducer.blank], repeat)
            for c in set(range(len(log_probs))) - {transducer.blank}:
                extended[(*k, c)] = (blank if k and c == k[-1] else add(blank, label)) + log_probs[c]
        for k, score in sorted(extended.items(), key=lambda kv: -kv[1])[:beam_size]:
            blank, label = stay.get(k, (nothing, nothing))
            stay[k] = (blank, float(add(label, score)))
        beam = dict(sorted(stay.items(), key=lambda kv: -add(*kv[1]))[:beam_size])
    return [(k, float(add(*parts))) for k, parts in beam.items() if add(*parts) > nothing]


def dict_alignment_search(
    transducer: Table, frames: numpy.ndarray, *, beam_size: int, max_len: int
) -> list[tuple[tuple[int, ...], float]]:
    """the alignment-length-synchronous search of one sequence: (labels, score), best first"""

    def best(scores: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
        return dict(sorted(scores.items(), key=lambda kv: -kv[1])[:beam_size])

    if not len(frames):
        return [((), 0.0)]
    if beam_size == 1:
        return [_greedy_path_to(transducer, frames, max_len=max_len)]
    beam: dict[tuple[int, ...], float] = {(): 0.0}
    final: dict[tuple[int, ...], float] = {}
    for step in range(len(frames) + max_len):
        stay, extended = {}, {}
        for k, score in beam.items():
            frame = step - len(k)
            log_probs = transducer.log_probs(frames[frame], k)
            if frame == len(frames) - 1:
                final[k] = score + log_probs[transducer.blank]
            else:
                stay[k] = score + log_probs[transducer.blank]
            if len(k) < max_len:
                for c in set(range(len(log_probs))) - {transducer.blank}:
                    extended[(*k, c)] = score + log_probs[c]
        beam, final = stay, best(final)
        for k, score in best(extended).items():
            beam[k] = float(numpy.logaddexp(beam.get(k, nothing), score))
        beam = best(beam)
    return list(best(final).items())


def _greedy_path_to(transducer: Table, frames: numpy.ndarray, *, max_len: int) -> tuple[tuple[int, ...], float]:
    """:return: labels, score; no limit in a frame, but of all labels"""
    labels, score = (), 0.0
    for frame in frames:
        while True:
            log_probs = transducer.log_probs(frame, labels)
            best = int(log_probs.argmax()) if len(labels) < max_len else transducer.blank
            score += log_probs[best]
            if best == transducer.blank:
                break
            labels += (best,)
    return labels, score
