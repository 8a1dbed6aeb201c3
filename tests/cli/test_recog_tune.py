"""Tests of the command recog with n-best lists in another order: rescoring, and the tuning of scales."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from returnn_common.cli import main
from returnn_common.cli.errors import CommandError
from returnn_common.cli.recog import command, recognise_run
from returnn_common.cli.recog.request import Asked, check_request
from returnn_common.cli.recog.tune import Tuning
from returnn_common.recog import write_nbest
from returnn_common.recog.components import Components, ScoredList, rerank
from returnn_common.recog.nbest import best_texts, read_nbest
from returnn_common.recog.scoring import score_wer
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import WORDS, make_corpus
from tests.cli.trained import AED, make_arpa, make_trained

pytest.importorskip("torch")


def _components(split: str, names: tuple[str, ...]) -> Components:
    """random, but the same each time"""
    rng = np.random.default_rng(len(split))
    lists = {}
    for index in range(2):
        texts = [" ".join(rng.choice(WORDS, size=n)) for n in range(5)]
        lengths = np.arange(5) + 1
        lists[f"{split}-1-{index:04}"] = ScoredList(
            texts, lengths, rng.normal(size=(5, len(names))) - 2 * lengths[:, None]
        )
    return Components(names, lists)


class _Returnn(FakeReturnn):
    """writes the scores of parts when it is asked for them"""

    names = ("search", "decoder", "ctc", "lm")

    def forward(self, options: dict[str, str]):
        components = _components(options["recog_split"], self.names)
        if "recog_components_file" in options:
            components.write(options["recog_components_file"])
        write_nbest(options["recog_output_file"], rerank(components, {"search": 1.0}))


class _WithoutLm(_Returnn):
    names = ("search", "decoder", "ctc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recog")
    make_corpus(folder / "corpus")
    make_trained("digits_aed", folder / "aed", corpus=folder / "corpus", settings=AED)
    make_arpa(folder / "words.arpa")
    return folder


@pytest.fixture
def out(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder / "aed", tmp_path / "aed")
    return tmp_path / "aed"


@pytest.fixture
def lm(folder: Path) -> str:
    return str(folder / "words.arpa")


def _references(folder: Path, split: str) -> dict[str, str]:
    lines = (folder / "corpus" / split / "1" / "1" / "1-1.trans.txt").read_text().splitlines()
    return dict(line.split(" ", 1) for line in lines)


def test_rescoring(out: Path, lm: str):
    """the language model is not in the search, but in the scores"""
    runner = _Returnn()
    asked = Asked(beam=5, lm=lm, options={"lm_scale": "2", "ctc_scale": "0.25"}, rescore=True)
    recognise_run(str(out), asked, runner=runner, mbr=1.0)
    folder = out / "recog" / "average-beam5-ctc_scale0.25-words"
    assert f"search_options = {{'ctc_scale': 0.25, 'lm': '{lm}'}}\n" in (folder / "config.py").read_text()
    ((_, options),) = runner.calls
    assert options["recog_components_file"] == str(folder / "test.scores.json.gz")
    scales = {"decoder": 0.75, "ctc": 0.25, "lm": 2.0, "length_exponent": 0.0}
    expected = rerank(_components("test", _Returnn.names), scales)
    found = read_nbest(folder / "test.rescored.py.gz")
    assert {tag: [text for _, text in one] for tag, one in found.items()} == {
        tag: [text for _, text in one] for tag, one in expected.items()
    }
    for tag, one in found.items():
        np.testing.assert_allclose([score for score, _ in one], [score for score, _ in expected[tag]])
    content = json.loads((folder / "results.json").read_text())["splits"]["test"]
    assert list(content["wer"]) == ["search", "rescored", "mbr", "oracle"]
    # Another scale: the same search.
    asked = Asked(beam=5, lm=lm, options={"lm_scale": "0.1", "ctc_scale": "0.25"}, rescore=True)
    runner = _Returnn()
    recognise_run(str(out), asked, runner=runner)
    assert runner.calls == [] and read_nbest(folder / "test.rescored.py.gz") != found


def test_tuning(folder: Path, out: Path, lm: str, capsys):
    """the best of the grid on dev, by hand; and test in the order of its scales"""
    runner = _Returnn()
    asked = Asked(splits=["dev"], beam=5, lm=lm, tuned=True)
    tuning = Tuning(["lm_scale=0:2:0.5", "ctc_scale=0,0.5", "length_exponent=0:1:1"], apply_to=["test"])
    recognise_run(str(out), asked, tuning=tuning, runner=runner)
    assert runner.tasks == ["forwarddev", "forwardtest"]
    recog = out / "recog" / "average-beam5-words"
    wer = {}
    components, references = _components("dev", _Returnn.names), _references(folder, "dev")
    for lm_scale in (0.0, 0.5, 1.0, 1.5, 2.0):
        for ctc_scale in (0.0, 0.5):
            for exponent in (0.0, 1.0):
                scales = {"decoder": 1 - ctc_scale, "ctc": ctc_scale, "lm": lm_scale, "length_exponent": exponent}
                point = (lm_scale, ctc_scale, exponent)
                wer[point] = score_wer(best_texts(rerank(components, scales)), references).wer
    rows = [line.split("\t") for line in (recog / "dev.tuning.tsv").read_text().splitlines()]
    assert rows[0] == ["lm_scale", "ctc_scale", "length_exponent", "wer", "errors"]
    assert {tuple(map(float, row[:3])): float(row[3]) for row in rows[1:]} == {
        point: pytest.approx(value, abs=1e-3) for point, value in wer.items()
    }
    content = json.loads((recog / "dev.tuning.json").read_text())
    best = min(wer, key=wer.__getitem__)
    assert tuple(content["best"].values()) == best and content["num_points"] == 20
    assert len(set(wer.values())) > 1 and content["wer"] == pytest.approx(wer[best], abs=1e-3)
    for split in ("dev", "test"):
        expected = rerank(_components(split, _Returnn.names), content["scales"])
        assert best_texts(read_nbest(recog / f"{split}.tuned.py.gz")) == best_texts(expected)
    results = json.loads((recog / "results.json").read_text())["splits"]
    assert results["dev"]["wer"]["tuned"] == pytest.approx(wer[best], abs=1e-3)
    assert list(results["test"]["wer"]) == ["search", "tuned", "oracle"]
    printed = capsys.readouterr().out
    assert "scales on dev, the best of 20" in printed
    pytest.importorskip("matplotlib")
    assert (recog / "dev.tuning.png").read_bytes()[:4] == b"\x89PNG" and "dev.tuning.png" in printed


def test_the_command_that_is_suggested(out: Path, lm: str, capsys, monkeypatch):
    """searches with the scales that were found"""
    asked = Asked(
        splits=["dev"],
        beam=5,
        lm=lm,
        tuned=True,
        checkpoint="1",
        options={"max_len": "9"},
    )
    recognise_run(str(out), asked, tuning=Tuning(["lm_scale=0.5", "ctc_scale=0.25"]), runner=_Returnn())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("to search with the best: ")]
    arguments = shlex.split(line.partition(": ")[2])
    assert arguments[:2] == ["returnn-common", "recog"]
    calls = []
    monkeypatch.setattr(command, "recognise_run", lambda *args, **kwargs: calls.append((args, kwargs)) or 0)
    assert main(arguments[1:]) == 0
    ((folder, asked), kwargs) = calls[0]
    assert (folder, asked.beam, asked.lm, kwargs["tuning"]) == (str(out), 5, lm, None)
    assert asked.checkpoint == str(out / "checkpoints" / "epoch.001")
    assert asked.options == {"lm_scale": "0.5", "ctc_scale": "0.25", "max_len": "9"}


def test_defaults(out: Path, lm: str):
    """what the model has parts for, and no more"""
    for names, arguments in {
        ("search", "decoder", "ctc", "lm"): {"lm": lm, "tuned": True},
    }.items():
        runner = type("_Runner", (_Returnn,), {"names": names})()
        recognise_run(str(out), Asked(splits=["dev"], **arguments), tuning=Tuning(), runner=runner)
    points = [json.loads(path.read_text())["num_points"] for path in sorted((out / "recog").rglob("*.tuning.json"))]
    assert points == [11 * 10 * 9]


def test_search_again_for_the_scores(out: Path):
    """lists that are there have none"""
    recognise_run(str(out), Asked(splits=["dev"], beam=5), runner=_WithoutLm())
    runner = _WithoutLm()
    recognise_run(str(out), Asked(splits=["dev"], beam=5), tuning=Tuning(), runner=runner)
    assert runner.tasks == ["forwarddev"]
    runner = _WithoutLm()
    recognise_run(str(out), Asked(splits=["dev"], beam=5), tuning=Tuning(num_random=7), runner=runner)
    assert runner.calls == []
    rows = (out / "recog" / "average-beam5" / "dev.tuning.tsv").read_text().splitlines()
    assert len(rows) == 8 and len(set(rows)) == 8


def test_several_splits_are_tuned_together(folder: Path, out: Path):
    recognise_run(str(out), Asked(splits=["dev", "test"]), tuning=Tuning(["ctc_scale=0.5"]), runner=_WithoutLm())
    content = json.loads((out / "recog" / "average-beam4" / "dev+test.tuning.json").read_text())
    scales = {"decoder": 0.5, "ctc": 0.5}
    errors = [
        score_wer(best_texts(rerank(_components(split, _WithoutLm.names), scales)), _references(folder, split)).errors
        for split in ("dev", "test")
    ]
    assert content["errors"] == sum(errors)


@pytest.mark.parametrize(
    "tuning, message",
    [
        (
            Tuning(["lm_scale=0:1:0.1"]),
            "--tune lm_scale=0:1:0.1: expected OPTION=LOW:HIGH:STEP .* of ctc_scale, length_ex",
        ),
        (Tuning(["ctc_scale"]), "--tune ctc_scale: expected OPTION="),
        (Tuning(["ctc_scale=0", "ctc_scale=1"]), "--tune ctc_scale=1: expected OPTION=.* each OPTION once"),
        (Tuning(["ctc_scale=a"]), "--tune ctc_scale=a: expected numbers"),
        (Tuning(["ctc_scale=inf"]), "--tune ctc_scale=inf: expected numbers"),
        (Tuning(["ctc_scale=0:1"]), "--tune ctc_scale=0:1: expected LOW:HIGH:STEP, from LOW to HIGH in steps above 0"),
        (Tuning(["ctc_scale=1:0:0.1"]), "--tune ctc_scale=1:0:0.1: expected LOW:HIGH:STEP"),
        (Tuning(["ctc_scale=0:1:0"]), "--tune ctc_scale=0:1:0: expected LOW:HIGH:STEP"),
        (Tuning(["ctc_scale=0:1:1e-5", "length_exponent=0:1:0.1"]), r"--tune: \d+ points are too many"),
        (Tuning(["ctc_scale=1:0"], num_random=3), "--tune ctc_scale=1:0: expected a range from LOW to HIGH"),
        (Tuning(num_random=0), "--tune-random 0: expected at least 1"),
        (Tuning(["ctc_scale=2"]), "scales {'ctc_scale': 2.0}: AedModel: ctc_scale, expected 0 to 1, got 2.0"),
        (Tuning(apply_to=["eval"]), "--apply-to eval: no such split, digits_aed has train, dev, test"),
    ],
)
def test_what_cannot_be_tuned(tuning: Tuning, message: str, out: Path):
    runner = _WithoutLm()
    with pytest.raises(CommandError, match=message):
        recognise_run(str(out), Asked(splits=["dev"]), tuning=tuning, runner=runner)
    assert runner.calls == []


def test_damaged_scores(out: Path):
    runner = _WithoutLm()
    recognise_run(str(out), Asked(splits=["dev"]), tuning=Tuning(["ctc_scale=0"]), runner=runner)
    (out / "recog" / "average-beam4" / "dev.scores.json.gz").write_bytes(b"x")
    with pytest.raises(CommandError, match="dev.scores.json.gz: expected scores of n-best lists"):
        recognise_run(str(out), Asked(splits=["dev"]), tuning=Tuning(["ctc_scale=0"]), runner=runner)


def test_model_without_parts(out: Path):
    text = """

def get_model(**kwargs):
    from returnn_common import nn

    class Other(nn.Module):
        def search(self, source, **_):
            pass

    return Other()
"""
    with open(out / "config.py", "a") as file:
        file.write(text)
    with pytest.raises(CommandError, match="aed: Other has no part_scales, which this needs"):
        recognise_run(str(out), Asked(splits=["dev"]), tuning=Tuning(), runner=_WithoutLm())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--tune-random", "3"], "--tune-random and --apply-to need --tune"),
        (["--apply-to", "dev"], "--tune-random and --apply-to need --tune"),
        (["--rescore", "--lm", "x", "--tune"], "--rescore and --tune exclude each other"),
        (["--rescore"], "--rescore needs --lm"),
        (["--rescore", "--lm", "LM"], "--lm LM --rescore needs --lm-scale"),
    ],
)
def test_arguments_that_do_not_fit(arguments: list[str], message: str, out: Path, lm: str, capsys):
    assert main(["recog", str(out), *(argument.replace("LM", lm) for argument in arguments)]) == 2
    assert message.replace("LM", lm) in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, rescore, tuning",
    [
        (["--lm-scale", "0.3"], None, None),
        (["--lm-scale", "0.3", "--rescore"], True, None),
        (["--tune"], None, Tuning([], None, [])),
        (["--tune", "--tune-random", "9", "--lm-scale", "0.3", "--apply-to", "test"], None, Tuning([], 9, ["test"])),
    ],
)
def test_command_line(arguments: list[str], rescore: bool | None, tuning: Tuning | None, monkeypatch):
    calls = []
    monkeypatch.setattr(command, "recognise_run", lambda *args, **kwargs: calls.append((args, kwargs)) or 0)
    assert main(["recog", "OUT", "--lm", "L", *arguments]) == 0
    ((_, asked), kwargs) = calls[0]
    assert (asked.rescore, asked.tuned, kwargs["tuning"]) == (rescore, tuning is not None, tuning)


@pytest.mark.parametrize("lm_scale, in_search", [("0", False), ("0.0", False), (None, False), ("0.3", True)])
def test_whether_the_language_model_is_in_the_search(lm_scale: str | None, in_search: bool, out: Path, lm: str):
    """when its scale is tuned"""
    asked = Asked(lm=lm, options={} if lm_scale is None else {"lm_scale": lm_scale}, tuned=True)
    options = check_request(str(out), asked).search_options
    assert options == {"lm": lm, **({"lm_scale": 0.3} if in_search else {})}
