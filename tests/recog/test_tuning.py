"""Stored scores of n-best lists, and the tuning of scales on them, against a brute force over each point."""

from __future__ import annotations

import gzip
import math
import random
from pathlib import Path

import numpy as np
import pytest

from returnn_common.recog.components import Components, ScoredList, combine_scores, read_components, rerank
from returnn_common.recog.nbest import best_texts
from returnn_common.recog.scoring import score_wer
from returnn_common.recog.tuning import grid, random_points, tune

INF = math.inf
VALUES = {
    "decoder": [1.0, 0.5],
    "ctc": [0.0, 0.5],
    "lm": [-0.5, 0.0, 0.3],
    "length": [0.0, 0.7],
    "length_exponent": [0.0, 1.0],
}


def _components(seed: int) -> tuple[Components, dict[str, str]]:
    rng = random.Random(seed)
    lists, references = {}, {}
    for index in range(6):
        num = rng.randrange(5)
        texts = [" ".join(rng.choices("ab", k=rng.randrange(4))) for _ in range(num)]
        scores = [[-9 * rng.random() if rng.random() < 0.9 else -INF for _ in range(3)] for _ in range(num)]
        lengths = np.array([len(text.split()) + 1.0 for text in texts])
        lists[f"u{index}"] = ScoredList(texts, lengths, np.array(scores, "float64").reshape(num, 3))
        references[f"u{index}"] = " ".join(rng.choices("ab", k=rng.randrange(4)))
    references["missing"] = "a b"
    lists["extra"] = ScoredList(["a"], np.array([2.0]), np.array([[0.0, 0.0, 0.0]]))
    return Components(("decoder", "ctc", "lm"), lists), references


def _brute_force(components: Components, references: dict[str, str], point: dict[str, float]) -> int:
    """in plain Python: a score for each hypothesis, and the WER of the best"""
    chosen = {}
    for tag, one in components.lists.items():
        best = -INF
        for text, length, scores in zip(one.texts, one.lengths, one.scores, strict=True):
            parts = [(point[name], s) for name, s in zip(components.names, scores, strict=True) if point[name]]
            if any(score == -INF for _, score in parts):
                continue
            rank = sum(scale * score for scale, score in parts) + point["length"] * length
            rank /= length ** point["length_exponent"]
            if rank > best + 1e-12:
                best, chosen[tag] = rank, text
    return score_wer(chosen, references).errors


@pytest.mark.parametrize("seed", range(4))
def test_each_point_of_the_grid_is_a_brute_force(seed: int):
    components, references = _components(seed)
    tuned = tune(components, references, points=grid(VALUES))
    assert len(tuned) == 2 * 2 * 3 * 2 * 2
    for one in tuned:
        assert one.errors == _brute_force(components, references, one.point), one
        expected = score_wer(best_texts(rerank(components, one.point)), references)
        assert (one.errors, one.wer) == (expected.errors, pytest.approx(expected.wer))
    best = min(_brute_force(components, references, point) for point in grid(VALUES))
    assert tuned[0].errors == best
    assert tuned[0].point == next(p for p in grid(VALUES) if _brute_force(components, references, p) == best)


def test_scales_matter():
    """each of them changes the number of errors somewhere"""
    results = [(one.point, one.errors) for one in tune(*_components(1), points=grid(VALUES))]
    for name in VALUES:
        by_others: dict[str, set[int]] = {}
        for point, errors in results:
            by_others.setdefault(str({k: v for k, v in point.items() if k != name}), set()).add(errors)
        assert any(len(errors) > 1 for errors in by_others.values()), name


def test_scales_of_a_point():
    components, references = _components(0)
    points = [{"share": share} for share in (0.0, 0.3, 1.0)]
    tuned = tune(
        components, references, points=points, scales_of=lambda p: {"ctc": p["share"], "decoder": 1 - p["share"]}
    )
    for one in tuned:
        share = one.point["share"]
        expected = rerank(components, {"ctc": share, "decoder": 1 - share})
        assert one.errors == score_wer(best_texts(expected), references).errors


def test_rerank():
    texts, scores = ["a", "b", "c", "d"], np.array([[-1.0, -4.0], [-2.0, -1.0], [-1.0, -INF], [-2.0, -1.0]])
    components = Components(("am", "lm"), {"u": ScoredList(texts, np.array([2.0, 2.0, 2.0, 2.0]), scores)})
    assert rerank(components, {"am": 1.0, "lm": 1.0}) == {"u": [(-3.0, "b"), (-3.0, "d"), (-5.0, "a")]}
    assert [text for _, text in rerank(components, {"am": 1.0, "lm": 0.0})["u"]] == ["a", "c", "b", "d"]
    # What is ruled out does not become the best by a negative scale.
    assert [text for _, text in rerank(components, {"lm": -1.0})["u"]] == ["a", "b", "d"]


def test_length_exponent_orders_but_does_not_score():
    components = Components(
        ("am",), {"u": ScoredList(["a", "a b c"], np.array([2.0, 4.0]), np.array([[-3.0], [-4.0]]))}
    )
    assert rerank(components, {"am": 1.0}) == {"u": [(-3.0, "a"), (-4.0, "a b c")]}
    assert rerank(components, {"am": 1.0, "length_exponent": 1.0}) == {"u": [(-4.0, "a b c"), (-3.0, "a")]}


@pytest.mark.parametrize(
    "scales, message",
    [
        ({"lm": 1.0}, "scale lm: no such part, there are am, length, length_exponent"),
        ({"am": INF}, "scale am: expected a"),
    ],
)
def test_scales_that_make_no_sense(scales: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        combine_scores(["am"], np.zeros([1, 1]), np.ones(1), scales)


def test_random_points():
    ranges = {"lm": (0.0, 2.0), "ctc": (-1.0, -1.0)}
    points = list(random_points(ranges, num=200))
    assert points == list(random_points(ranges, num=200, seed=1)) != list(random_points(ranges, num=200, seed=2))
    values = [point["lm"] for point in points]
    assert 0 <= min(values) < 0.1 and 1.9 < max(values) <= 2 and {point["ctc"] for point in points} == {-1.0}
    assert list(points[0]) == ["lm", "ctc"]


def test_what_cannot_be_tuned():
    components, references = _components(0)
    with pytest.raises(ValueError, match="tuning: expected references with words, got 1 without any"):
        tune(components, {"u0": ""}, points=grid(VALUES))
    with pytest.raises(ValueError, match="tune: expected at least one point, got none"):
        tune(components, references, points=[])
    with pytest.raises(ValueError, match="grid: lm: expected at least one value, got none"):
        list(grid({"am": [1.0], "lm": []}))
    with pytest.raises(ValueError, match="random_points: num, expected at least 1, got 0"):
        list(random_points({"lm": (0.0, 1.0)}, num=0))
    with pytest.raises(ValueError, match="random_points: lm: expected a range from low to high, got 1.0 to 0.0"):
        list(random_points({"lm": (1.0, 0.0)}, num=1))


def test_file(tmp_path: Path):
    components, _ = _components(2)
    components.write(tmp_path / "sub" / "scores.json.gz")
    read = read_components(tmp_path / "sub" / "scores.json.gz")
    assert read.names == components.names and list(read.lists) == list(components.lists)
    for tag, one in components.lists.items():
        assert read.lists[tag].texts == one.texts
        np.testing.assert_array_equal(read.lists[tag].scores, one.scores)
        np.testing.assert_array_equal(read.lists[tag].lengths, one.lengths)
    first = (tmp_path / "sub" / "scores.json.gz").read_bytes()
    components.write(tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == first


DAMAGED = {
    "no gzip": b"x",
    "no names": gzip.compress(b"{}"),
    "a list": gzip.compress(b"[]"),
    "few scores": gzip.compress(b'{"names":["a"],"utterances":{"u":[["t",1]]}}'),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_file(content: bytes, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="scores .*scores.json.gz: no such file"):
        read_components(tmp_path / "scores.json.gz")
    (tmp_path / "scores.json.gz").write_bytes(content)
    with pytest.raises(ValueError, match="scores.json.gz: expected scores of n-best lists: "):
        read_components(tmp_path / "scores.json.gz")


def test_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from returnn_common.recog.tuning_picture import draw_tuning, lowest_by

    components, references = _components(1)
    tuned = tune(components, references, points=grid(VALUES))
    lowest = lowest_by(tuned, ["lm", "ctc"])
    assert list(lowest) == [(lm, ctc) for lm in VALUES["lm"] for ctc in VALUES["ctc"]]
    for (lm, ctc), wer in lowest.items():
        assert wer == min(one.wer for one in tuned if (one.point["lm"], one.point["ctc"]) == (lm, ctc))
    sizes = []
    for index, points in enumerate([tuned, tune(components, references, points=[{"lm": 0.0}, {"lm": 1.0}])]):
        draw_tuning(points, tmp_path / "sub" / f"{index}.png")
        content = (tmp_path / "sub" / f"{index}.png").read_bytes()
        assert content[:4] == b"\x89PNG"
        sizes.append(int.from_bytes(content[16:20], "big"))
    assert sizes[0] == 6 * sizes[1]  # five scales and a map; one scale
    draws = tune(components, references, points=random_points({"lm": (0.0, 1.0), "ctc": (0.0, 1.0)}, num=70))
    draw_tuning(draws, tmp_path / "random.svg")
    assert "<svg" in (tmp_path / "random.svg").read_text()
