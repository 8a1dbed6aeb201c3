"""What recog can set, a recipe can set: the same hypotheses, and WERs, from a run and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from returnn_common.cli import main
from returnn_common.cli.recog import command
from returnn_common.recog.nbest import NBest, read_nbest
from tests.cli.forward_here import ForwardHere, make_forward_run
from tests.cli.tiny import WORDS, make_corpus
from tests.cli.trained import AED, make_arpa, make_word_lm

pytest.importorskip("torch")

RECIPES = {"aed": "digits_aed", "ctc": "digits_ctc", "transducer": "digits_transducer"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """with runs of recognisers without any options, and language models"""
    folder = tmp_path_factory.mktemp("recog")
    make_corpus(folder / "corpus", splits={"train": 1, "dev": 1, "test": 1})
    make_word_lm(folder / "lm")
    make_word_lm(folder / "other_lm", words=[*WORDS, "TEN"])
    make_arpa(folder / "words.arpa")
    (folder / "phrases.txt").write_text("NINE NINE\n\n SIX  FIVE \n")
    (folder / "words.txt").write_text("ONE\nTWO\nSEVEN\n")
    (folder / "empty.txt").write_text("\n \n")
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Path]:
    return {name: _run(folder / name, recipe, folder, "") for name, recipe in RECIPES.items()}


def _run(out: Path, recipe: str, folder: Path, options: str) -> Path:
    settings = [*AED, "beam_size=4", f"search_options={options}"]
    return make_forward_run(out, recipe, corpus=folder / "corpus", settings=settings)


def _forward(run: Path, options: str, output: Path) -> NBest:
    """as python -m returnn RECIPE ++task forward"""
    given = {"task": "forward", "corpus": run / "data", "load": run / "checkpoints" / "average.002", "beam_size": 4}
    given.update(search_options=options, recog_split="test", recog_output_file=output / "nbest.py")
    given.update(setting.split("=") for setting in AED)
    arguments = [str(part) for name, value in given.items() for part in (f"++{name}", value)]
    runner = ForwardHere()
    runner(["-m", "returnn", str(run / "config.py"), *arguments], cwd=output, log=output / "log", on_line=print)
    return read_nbest(output / "nbest.py")


def _recog(run: Path, *arguments: str, patch: pytest.MonkeyPatch) -> Path:
    """:return: folder of what the command has recognised"""
    recognise_run = command.recognise_run
    name = f"x{len(list((run / 'recog').iterdir()))}"
    with patch.context() as context:
        context.setattr(command, "recognise_run", lambda *a, **k: recognise_run(*a, **k, runner=ForwardHere()))
        assert main(["recog", str(run), "--split", "test", "--name", name, *arguments]) == 0
    return run / "recog" / name


def _is_close(a: NBest, b: NBest) -> bool:
    """in texts, and scores"""
    return {tag: [text for _, text in one] for tag, one in a.items()} == {
        tag: [text for _, text in one] for tag, one in b.items()
    } and all(
        score == pytest.approx(other, abs=1e-4)
        for tag, one in a.items()
        for (score, _), (other, _) in zip(one, b[tag], strict=True)
    )


CASES: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    # model, in the recipe, on the command line, kind of lists
    "beam": ("aed", {"beam_size": 2}, ["--beam", "2"], ""),
    "of the model": (
        "aed",
        {"max_len": 2, "length_exponent": 0.3},
        ["--set", "max_len=2", "--length-exponent", ".3"],
        "",
    ),
    "ctc_scale": ("aed", {"ctc_scale": 0.3}, ["--ctc-scale", "0.3"], ""),
    "lm": ("aed", {"lm": "F/lm/out", "lm_scale": 0.5}, ["--lm", "F/lm/out", "--lm-scale", "0.5"], ""),
    "lm of CTC": ("ctc", {"lm": "F/lm/out", "lm_scale": 0.5}, ["--lm", "F/lm/out", "--lm-scale", "0.5"], ""),
    "lm of a transducer": (
        "transducer",
        {"lm": "F/lm/out", "lm_scale": 0.5, "internal_lm_scale": 0.2, "max_labels_per_frame": 1, "beam_size": 2},
        ["--lm", "F/lm/out", "--lm-scale", "0.5", "--set", "internal_lm_scale=0.2", "--beam", "2"]
        + ["--set", "max_labels_per_frame=1"],
        "",
    ),
    "arpa": ("aed", {"lm": "F/words.arpa", "lm_scale": 2}, ["--lm", "F/words.arpa", "--lm-scale", "2"], ""),
    "transcript_lm": (
        "aed",
        {"lm": "F/words.arpa", "lm_scale": 1.0, "transcript_lm": "F/lm/out", "transcript_lm_scale": 0.5},
        ["--lm", "F/words.arpa", "--lm-scale", "1.0", "--set", "transcript_lm=F/lm/out"]
        + ["--set", "transcript_lm_scale=0.5"],
        "",
    ),
    "internal_lm": (
        "aed",
        {"internal_lm": "average", "internal_lm_scale": 0.4, "ctc_scale": 0.2},
        ["--set", "internal_lm=average", "--set", "internal_lm_scale=0.4", "--ctc-scale", "0.2"],
        "",
    ),
    "phrases": (
        "ctc",
        {"phrases": ["NINE NINE", "SIX FIVE"], "phrase_bonus": 5.0},
        ["--phrases", "F/phrases.txt", "--phrase-bonus", "5.0"],
        "",
    ),
    "phrases with lm": (
        "aed",
        {"phrases": "F/phrases.txt", "phrase_bonus": 9, "lm": "F/words.arpa", "lm_scale": 1},
        ["--phrases", "F/phrases.txt", "--phrase-bonus", "9", "--lm", "F/words.arpa", "--lm-scale", "1"],
        "",
    ),
    "word_list": ("ctc", {"word_list": ["ONE", "TWO", "SEVEN"]}, ["--word-list", "F/words.txt"], ""),
    "nbest": ("aed", {"nbest": 2}, ["--nbest", "2"], ""),
    "mbr": ("aed", {"mbr": 0.1}, ["--mbr", "0.1"], "mbr"),
    "mbr of nbest": ("aed", {"mbr": 0.0, "nbest": 3}, ["--mbr", "0.0", "--nbest", "3"], "mbr"),
    "rescore": (
        "aed",
        {"rescore": True, "lm": "F/words.arpa", "lm_scale": 2.0, "ctc_scale": 0.3, "nbest": 3},
        ["--rescore", "--lm", "F/words.arpa", "--lm-scale", "2.0", "--ctc-scale", "0.3", "--nbest", "3"],
        "rescored",
    ),
    "all": (
        "ctc",
        {"rescore": True, "lm": "F/lm/out", "lm_scale": 1.0, "mbr": 0.5, "phrases": "F/phrases.txt", "phrase_bonus": 3}
        | {"transcript_lm": "F/words.arpa", "transcript_lm_scale": 0.3, "beam_size": 5, "pruning": {"max_labels": 9}},
        ["--rescore", "--lm", "F/lm/out", "--lm-scale", "1.0", "--mbr", "0.5", "--phrases", "F/phrases.txt"]
        + ["--phrase-bonus", "3", "--set", "transcript_lm=F/words.arpa", "--set", "transcript_lm_scale=0.3"]
        + ["--beam", "5", "--set", "pruning={'max_labels': 9}"],
        "mbr",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_same_as_on_the_command_line(name: str, folder: Path, runs: dict[str, Path], tmp_path: Path, monkeypatch):
    model, options, arguments, kind = CASES[name]
    found = _forward(runs[model], repr(options).replace("F/", f"{folder}/"), tmp_path)
    recog = _recog(runs[model], *(argument.replace("F/", f"{folder}/") for argument in arguments), patch=monkeypatch)
    expected = read_nbest(recog / f"test{kind and '.' + kind}.py.gz")
    assert _is_close(found, expected) and len(found) == 1 and all(found.values())
    assert not _is_close(found, read_nbest(runs[model] / "recog" / "test.py.gz"))  # those of no option


def test_run(folder: Path, runs: dict[str, Path], tmp_path: Path, monkeypatch):
    """its WERs are those of the options; paths are those of where it was started, also later for recog"""
    monkeypatch.chdir(folder)
    options = {"lm": "lm/out", "lm_scale": 0.5, "phrases": "phrases.txt", "phrase_bonus": 2.0, "mbr": 0.3}
    run = _run(tmp_path / "out", "digits_ctc", folder, repr(options))
    recog = ["--lm", "lm/out", "--lm-scale", "0.5", "--phrases", "phrases.txt", "--phrase-bonus", "2.0", "--mbr", "0.3"]
    expected = _recog(runs["ctc"], *recog, patch=monkeypatch)
    monkeypatch.chdir(tmp_path)
    again = _recog(run, patch=monkeypatch)
    wer = json.loads((run / "results.json").read_text())["wer"]["test"]
    for folder in (expected, again):
        found = json.loads((folder / "results.json").read_text())["splits"]["test"]
        assert found["wer"]["mbr"] == wer and found["mbr_scale"] == 0.3
        assert _is_close(read_nbest(run / "recog" / "test.py.gz"), read_nbest(folder / "test.mbr.py.gz"))


def test_tune(folder: Path, runs: dict[str, Path], tmp_path: Path, monkeypatch):
    """scales are found on dev, and searched with"""
    options = {"lm": str(folder / "words.arpa"), "tune": {"lm_scale": "0.5:1.5:1", "ctc_scale": [0.1, 0.9]}, "nbest": 2}
    run = _run(tmp_path / "out", "digits_aed", folder, repr(options))
    best = json.loads((run / "recog" / "tuning" / "dev.tuning.json").read_text())["best"]
    assert best["lm_scale"] in (0.5, 1.5) and best["ctc_scale"] in (0.1, 0.9)
    results = json.loads((run / "results.json").read_text())
    assert results["tuned"] == best
    found = ["--lm", str(folder / "words.arpa"), "--lm-scale", str(best["lm_scale"]), "--nbest", "2"]
    searched = _recog(runs["aed"], *found, "--ctc-scale", str(best["ctc_scale"]), patch=monkeypatch)
    again = _recog(run, patch=monkeypatch)
    for folder in (searched, again):
        assert _is_close(read_nbest(run / "recog" / "test.py.gz"), read_nbest(folder / "test.py.gz"))
    with pytest.raises(ValueError, match="search_options: tune is done by 'returnn-common run', here the scales them"):
        _forward(runs["aed"], repr(options), tmp_path)


def test_command_line_goes_before_the_recipe(folder: Path, runs: dict[str, Path], tmp_path: Path, monkeypatch):
    options = {
        "ctc_scale": 0.3,
        "lm": str(folder / "words.arpa"),
        "lm_scale": 2.0,
        "mbr": 0.0,
        "beam_size": 2,
        "nbest": 2,
    }
    run = _run(tmp_path / "out", "digits_aed", folder, repr(options))
    plain = ["--set", "ctc_scale=None", "--set", "lm=None", "--set", "lm_scale=None", "--set", "mbr=None"]
    recog = _recog(run, *plain, "--beam", "4", "--set", "nbest=None", patch=monkeypatch)
    assert sorted(path.name for path in recog.glob("*.gz")) == ["test.py.gz"]
    assert _is_close(read_nbest(recog / "test.py.gz"), read_nbest(runs["aed"] / "recog" / "test.py.gz"))
    other = _recog(run, "--lm-scale", "0.1", "--ctc-scale", "0.9", "--nbest", "1", patch=monkeypatch)
    content = json.loads((other / "recog.json").read_text())
    assert (content["beam"], content["nbest"], content["lm"]) == (2, 1, str(folder / "words.arpa"))
    assert content["search"] == {"ctc_scale": 0.9, "lm_scale": 0.1}


BAD = {
    "{'lm': 'F/nowhere', 'lm_scale': 1}": "lm F/nowhere: no such folder or file",
    "{'lm': 'F/corpus', 'lm_scale': 1}": "lm F/corpus: expected a folder that 'returnn-common run' has written, or an",
    "{'lm': 'F/aed', 'lm_scale': 1}": "lm F/aed: expected the run of a language model, but digits_aed is a recogniser",
    "{'lm': 'F/other_lm/out', 'lm_scale': 1}": "its vocabulary is not that of the recogniser: 11 labels instead of 10",
    "{'lm': 'F/phrases.txt', 'lm_scale': 1}": "lm F/phrases.txt: read_arpa: ",
    "{'lm': 'F/lm/out'}": "search_options: lm F/lm/out needs lm_scale",
    "{'lm_scale': 0.5}": "search_options: lm_scale 0.5 needs lm, there is no language model",
    "{'lm': 3, 'lm_scale': 1}": "search_options: lm, expected the folder of a run, or an ARPA file, got 3",
    "{'lm_scale': float}": "search_options: expected a dict such as ",
    "{'lm_scale': True}": "search_options: lm_scale, expected a number, got True",
    "{'transcript_lm': 'F/lm/out', 'transcript_lm_scale': -1}": "transcript_lm_scale, expected a number of at least",
    "{'transcript_lm_scale': 1}": "search_options: transcript_lm_scale 1 needs transcript_lm",
    "{'phrases': []}": "search_options: phrases, expected the path of a file, or a list with at least one text, got []",
    "{'phrases': ['ONE']}": "search_options: phrases ('ONE',) needs phrase_bonus",
    "{'phrase_bonus': 1}": "search_options: phrase_bonus 1 needs phrases",
    "{'phrases': ['TEN'], 'phrase_bonus': 1}": "phrases: spell_words: 1 of 1 words can't be written with the voc",
    "{'phrases': 'F/no', 'phrase_bonus': 1}": "search_options: phrases F/no: expected a text file: ",
    "{'word_list': 'F/empty.txt'}": "word_list F/empty.txt: expected at least one line with text, got none",
    "{'word_list': ['ONE', ' ']}": "search_options: word_list, expected the path of a file, or a list with at least",
    "{'mbr': True}": "search_options: mbr, expected a number of at least 0, the scale of the scores, got True",
    "{'nbest': -1}": "search_options: nbest, expected an integer of at least 0, got -1",
    "{'beam_size': 0}": "search_options: beam_size, expected an integer of at least 1, got 0",
    "{'rescore': 1, 'lm': 'F/lm/out', 'lm_scale': 1}": "search_options: rescore, expected True or False, got 1",
    "{'rescore': True}": "search_options: rescore needs lm, or transcript_lm",
    "{'tune': {}}": "search_options: tune, expected True, or a dict such as {'lm_scale': '0:1:0.1', ",
    "{'tune': {'lm_scale': '0:1:0.1'}}": "--tune lm_scale=0:1:0.1: expected OPTION=LOW:HIGH:STEP or OPTION=VALUE,",
    "{'tune': {'ctc_scale': '0:2:1'}}": "scales {'ctc_scale': 2.0}: AedModel: ctc_scale, expected 0 to 1, got 2.0",
    "{'ctc_scala': 1}": "search option 'ctc_scala': AedModel.search has no such option, it has ctc_scale, ",
    "{'ctc_scale': 2}": "AedModel: ctc_scale, expected 0 to 1, got 2",
}


@pytest.mark.parametrize("options", BAD)
def test_what_cannot_work_is_refused_before_the_training(options: str, folder: Path, runs, capsys):
    text = options.replace("F/", f"{folder}/")
    settings = [part for setting in [*AED, f"search_options={text}"] for part in ("--set", setting)]
    arguments = ["run", "digits_aed", "--corpus", str(folder / "corpus"), "--out", str(folder / "no"), *settings]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert BAD[options].replace("F/", f"{folder}/") in err and err.count("\n") == 1
    assert not (folder / "no").exists()


def test_model_without_the_decorator(folder: Path, runs: dict[str, Path], tmp_path: Path):
    options = repr({"lm": f"{folder}/lm/out", "lm_scale": 1})
    config = runs["aed"] / "config.py"
    plain = tmp_path / "config.py"
    plain.write_text(config.read_text().replace("@with_language_models\n", ""))
    for name in ("data", "checkpoints"):
        (tmp_path / name).symlink_to(runs["aed"] / name)
    with pytest.raises(
        ValueError, match=r"lm/out: the model has no recog_lm; in the config, put @with_language_models"
    ):
        _forward(tmp_path, options, tmp_path)
