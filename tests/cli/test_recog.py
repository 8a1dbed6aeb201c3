"""Tests of the command recog: what it refuses, what RETURNN is asked for, and what comes out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from returnn_common.cli import main
from returnn_common.cli.errors import CommandError
from returnn_common.cli.recog import recognise_run
from returnn_common.cli.recog.request import Asked
from returnn_common.cli.run import command as run_command
from returnn_common.cli.run import run_recipe
from returnn_common.recog import write_nbest
from returnn_common.recog.nbest import read_nbest
from returnn_common.training.checkpoints import read_checkpoint
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import WORDS, make_corpus
from tests.cli.trained import AED, RandomReturnn, make_arpa, make_trained, make_word_lm

pytest.importorskip("torch")

LISTS = [(-1.0, "ONE TWO"), (-1.5, "ONE"), (-1.6, "ONE ONE"), (-1.7, "NINE")]


class _Returnn(FakeReturnn):
    """writes lists of `recog_nbest` hypotheses"""

    def forward(self, options: dict[str, str]):
        split = options["recog_split"]
        num = int(options["recog_nbest"]) or None
        write_nbest(options["recog_output_file"], {f"{split}-1-{index:04}": LISTS[:num] for index in range(2)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """with runs of a recogniser and of a language model"""
    folder = tmp_path_factory.mktemp("recog")
    make_corpus(folder / "corpus")
    make_trained("digits_aed", folder / "aed", corpus=folder / "corpus", settings=AED)
    make_trained("digits_ctc", folder / "ctc", corpus=folder / "corpus", settings=AED)
    make_word_lm(folder / "lm")
    make_arpa(folder / "words.arpa")
    return folder


@pytest.fixture
def out(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder / "aed", tmp_path / "aed")
    return tmp_path / "aed"


def _options(runner: FakeReturnn) -> dict[str, str]:
    ((_, options),) = runner.calls
    return options


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nowhere"], "returnn-common recog: nowhere: no such folder\n"),
        (["FOLDER/lm/out"], "FOLDER/lm/out: word_lm is a language model, which recognises nothing"),
        (["FOLDER/aed", "--split", "eval"], "--split eval: no such split, digits_aed has train, dev, test"),
        (["FOLDER/aed", "--beam", "0"], "--beam 0: expected an integer of at least 1"),
        (["FOLDER/aed", "--nbest", "-1"], "--nbest -1: expected an integer of at least 1"),
        (["FOLDER/aed", "--beam", "3", "--nbest", "4"], "--nbest 4: the beam has only 3; give a larger --beam"),
        (["FOLDER/aed", "--checkpoint", "3"], "--checkpoint 3: FOLDER/aed/checkpoints has epochs 1, 2"),
        (["FOLDER/aed", "--set", "x"], "--set x: expected OPTION=VALUE"),
        (["FOLDER/aed", "--set", "lm_scale=1", "--lm-scale", "1"], "--set lm_scale=1: 'lm_scale' is given twice"),
        (["FOLDER/aed", "--set", "beam_size=1"], "--set beam_size=1: use --beam"),
        (["FOLDER/aed", "--set", "lm=x"], "--set lm=x: use --lm"),
        (["FOLDER/aed", "--set", "foo=1"], "FOLDER/aed: search option 'foo': AedModel.search has no such option, it "),
        (["FOLDER/aed", "--ctc-scale", "2"], "FOLDER/aed: AedModel: ctc_scale, expected 0 to 1, got 2"),
        (["FOLDER/ctc", "--ctc-scale", "0.3"], "'ctc_scale': CtcModel.search has no such option, it has bos, "),
        (["FOLDER/aed", "--lm-scale", "0.3"], "--lm-scale 0.3 needs --lm"),
        (["FOLDER/aed", "--lm", "FOLDER/lm/out"], "--lm FOLDER/lm/out needs --lm-scale"),
        (
            ["FOLDER/aed", "--lm", "FOLDER/lm/out", "--lm-scale", "x"],
            "search_options: lm_scale, expected a number, got x",
        ),
        (["FOLDER/aed", "--lm", "nowhere", "--lm-scale", "1"], "--lm nowhere: no such folder or file"),
        (
            ["FOLDER/aed", "--lm", "FOLDER/aed", "--lm-scale", "1"],
            "lm FOLDER/aed: expected the run of a language model, but digits_aed is a recogniser",
        ),
        (["FOLDER/aed", "--lm", __file__, "--lm-scale", "1"], "test_recog.py: read_arpa: "),
        (["FOLDER/aed", "--mbr=-1"], "--mbr -1.0: expected a scale of at least 0"),
        (["FOLDER/aed", "--name", "a/b"], "--name a/b: expected letters, digits and . , = + - _"),
    ],
)
def test_what_cannot_work(arguments: list[str], message: str, folder: Path, capsys):
    before = sorted((folder / "aed" / "recog").iterdir())
    assert main(["recog", *(argument.replace("FOLDER", str(folder)) for argument in arguments)]) == 2
    stderr = capsys.readouterr().err
    assert message.replace("FOLDER", str(folder)) in stderr and stderr.count("\n") == 1
    assert sorted((folder / "aed" / "recog").iterdir()) == before


def test_backend_that_is_not_installed(folder: Path, monkeypatch):
    find_spec = run_command.importlib.util.find_spec
    monkeypatch.setattr(
        run_command.importlib.util, "find_spec", lambda name: find_spec(name) if name != "jax" else None
    )
    with pytest.raises(CommandError, match="--backend jax needs jax, not installed"):
        recognise_run(str(folder / "aed"), Asked(backend="jax"))


@pytest.mark.parametrize(
    "words, message",
    [
        ([*WORDS, "TEN"], "11 labels instead of 10"),
        ([*WORDS[:9], "TEN"], "label 9 is 'TEN' instead of 'NINE'"),
    ],
)
def test_language_model_of_another_vocabulary(words: list[str], message: str, out: Path, tmp_path: Path):
    lm = make_word_lm(tmp_path / "lm", words=words)
    asked = Asked(lm=str(lm), options={"lm_scale": "0.3"})
    with pytest.raises(CommandError, match=rf"lm {lm}: its vocabulary is not that of the recogniser: {message}$"):
        recognise_run(str(out), asked, runner=_Returnn())
    ngram = make_arpa(tmp_path / "words.arpa", words=words[1:])
    message = (
        rf"lm {ngram}: its vocabulary is not that of the recogniser: . of 10 labels are not among its \d+ words: 'ZERO'"
    )
    with pytest.raises(CommandError, match=message):
        recognise_run(str(out), Asked(lm=str(ngram), options={"lm_scale": "0.3"}), runner=_Returnn())


def test_no_ctc_head(out: Path):
    config = (out / "config.py").read_text()
    assert "aux_ctc_layers=[options.num_layers]" in config
    (out / "config.py").write_text(config.replace("aux_ctc_layers=[options.num_layers]", "aux_ctc_layers=[]"))
    runner = _Returnn()
    with pytest.raises(CommandError, match="aed: the model has no ctc for ctc_scale 0.3$"):
        recognise_run(str(out), Asked(options={"ctc_scale": "0.3"}), runner=runner)
    assert runner.calls == []


def test_what_returnn_is_asked_for(out: Path, capsys):
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    runner = _Returnn()
    asked = Asked(splits=["dev"], beam=3, nbest=2, options={"length_exponent": "0.5", "max_len": "9"}, checkpoint="1")
    assert recognise_run(str(out), asked, runner=runner) == 0
    ((module, options),) = runner.calls
    assert module == "returnn"
    folder = out / "recog" / "epoch001-beam3-nbest2-length_exponent0.5-max_len9"
    expected = {
        "task": "forward",
        "backend": "torch",
        "corpus": str(out / "data"),
        "load": str(out / "checkpoints" / "epoch.001"),
        "recog_split": "dev",
        "beam_size": "3",
        "recog_nbest": "2",
        "recog_output_file": str(folder / "dev.py.gz"),
        "model_dim": "8",
    }
    assert {name: options.get(name) for name in expected} == expected
    config = (folder / "config.py").read_text()
    assert f"config.load_file('{out / 'config.py'}')\n" in config
    assert "search_options = {'length_exponent': 0.5, 'max_len': 9}\n" in config and "get_model" not in config
    assert read_nbest(folder / "dev.py.gz")["dev-1-0000"] == LISTS[:2]
    results = json.loads((folder / "results.json").read_text())
    assert (results["recipe"], results["backend"], results["beam"], results["nbest"]) == ("digits_aed", "torch", 3, 2)
    assert results["search"] == {"length_exponent": 0.5, "max_len": 9} and results["lm"] is None
    (split,) = results["splits"].values()
    assert list(split["wer"]) == ["search", "oracle"] and split["wer"]["search"] >= split["wer"]["oracle"]
    assert split["errors"]["search"]["utterances"] == 2 and split["seconds"] >= 0
    printed = capsys.readouterr().out
    assert "recognising dev" in printed and f"{split['wer']['oracle']:.2f}" in printed
    assert str(folder / "results.json") in printed
    assert {path: path.read_bytes() for path in before} == before  # the run's own results


def test_defaults(out: Path):
    """the recipe's beam, all test splits, the averaged model"""
    runner = _Returnn()
    recognise_run(str(out), Asked(), runner=runner)
    options = _options(runner)
    assert (options["recog_split"], options["beam_size"], options["recog_nbest"]) == ("test", "4", "0")
    assert options["load"] == str(out / "checkpoints" / "average.002")
    assert (out / "recog" / "average-beam4" / "test.py.gz").is_file()


def test_search_options_of_the_recipe(out: Path):
    with open(out / "config.py", "a") as file:
        file.write("\nsearch_options = {'length_exponent': 0.7, 'max_len': 5}\nbeam_size = 6\n")
    recognise_run(str(out), Asked(options={"max_len": "4"}, name="x"), runner=_Returnn())
    asked = json.loads((out / "recog" / "x" / "recog.json").read_text())
    assert asked["search"] == {"length_exponent": 0.7, "max_len": 4} and asked["beam"] == 6
    with open(out / "config.py", "a") as file:
        file.write("\nsearch_options = 'x'\n")
    with pytest.raises(CommandError, match=r"config.py: search_options: expected a dict such as \{.*\}, got 'x'"):
        recognise_run(str(out), Asked(), runner=_Returnn())


def test_goes_on(out: Path, capsys):
    asked = Asked(splits=["dev", "test"])
    assert recognise_run(str(out), asked, runner=_Returnn(fail_at=2)) == 130
    assert "Interrupted; run the same command again to go on." in capsys.readouterr().err
    runner = _Returnn()
    assert recognise_run(str(out), asked, runner=runner) == 0
    assert runner.tasks == ["forwardtest"]
    runner = _Returnn()
    assert recognise_run(str(out), asked, runner=runner) == 0 and runner.calls == []
    results = json.loads((out / "recog" / "average-beam4" / "results.json").read_text())
    assert list(results["splits"]) == ["dev", "test"]


def test_another_split_later(out: Path):
    """the results have both"""
    for split in ("dev", "test"):
        recognise_run(str(out), Asked(splits=[split]), runner=_Returnn())
    results = json.loads((out / "recog" / "average-beam4" / "results.json").read_text())
    assert list(results["splits"]) == ["dev", "test"]


def test_the_same_name_for_something_else(out: Path):
    recognise_run(str(out), Asked(beam=2, name="mine"), runner=_Returnn())
    message = r"recog/mine is a recognition with other settings \(beam was 2, is 3\); choose another --name"
    with pytest.raises(CommandError, match=message):
        recognise_run(str(out), Asked(beam=3, name="mine"), runner=_Returnn())
    with pytest.raises(CommandError, match="recog/test.log holds something else already; choose another --name"):
        (out / "recog" / "test.log").touch()
        recognise_run(str(out), Asked(name="test.log"), runner=_Returnn())


def test_returnn_fails(out: Path):
    def _runner(arguments, *, log, **_options) -> int:
        log.write_text("ValueError: AedModel: no CTC head\nQuitting\n")
        return 1

    message = r"RETURNN failed \(exit status 1\), see .*average-beam4/test.log:\n  ValueError: AedModel: no CTC head$"
    with pytest.raises(CommandError, match=message):
        recognise_run(str(out), Asked(), runner=_runner)
    with pytest.raises(CommandError, match="recognition has not written .*test.py.gz"):
        recognise_run(str(out), Asked(), runner=lambda *_, **__: 0)


class _LoadingReturnn(_Returnn):
    """keeps what it would load"""

    def forward(self, options: dict[str, str]):
        super().forward(options)
        self.loaded = read_checkpoint(options["load"]).floats


def test_language_model(folder: Path, out: Path):
    """RETURNN gets a config that makes both models"""
    runner = _Returnn()
    lm = folder / "lm" / "out"
    recognise_run(str(out), Asked(lm=str(lm), options={"lm_scale": "0.25"}), runner=runner)
    recog = out / "recog" / "average-beam4-lm_scale0.25-out"
    config = (recog / "config.py").read_text()
    assert f"search_options = {{'lm_scale': 0.25, 'lm': '{lm}'}}\n" in config
    assert "get_model = with_language_models(get_model)\n" in config
    assert _options(runner)["load"] == str(out / "checkpoints" / "average.002")
    results = json.loads((recog / "results.json").read_text())
    assert (results["lm"], results["lm_checkpoint"]) == (str(lm), str(lm / "checkpoints" / "average.001"))
    assert results["search"] == {"lm_scale": 0.25}


def test_language_model_with_scale_0_is_ignored(folder: Path, out: Path):
    runner = _Returnn()
    recognise_run(str(out), Asked(lm=str(folder / "lm" / "out"), options={"lm_scale": "0"}), runner=runner)
    assert _options(runner)["load"] == str(out / "checkpoints" / "average.002")
    assert "get_model" not in (out / "recog" / "average-beam4" / "config.py").read_text()


def test_ngram_model(folder: Path, out: Path):
    runner = _Returnn()
    recognise_run(str(out), Asked(lm=str(folder / "words.arpa"), options={"lm_scale": "0.5"}), runner=runner)
    assert _options(runner)["load"] == str(out / "checkpoints" / "average.002")
    config = (out / "recog" / "average-beam4-lm_scale0.5-words" / "config.py").read_text()
    assert f"search_options = {{'lm_scale': 0.5, 'lm': '{folder / 'words.arpa'}'}}\n" in config


@pytest.mark.parametrize("backend", ["tensorflow-net-dict", "jax"])
def test_another_engine(backend: str, out: Path):
    pytest.importorskip({"jax": "orbax.checkpoint"}.get(backend, "tensorflow"))
    runner = _LoadingReturnn()
    recognise_run(str(out), Asked(backend=backend), runner=runner)
    module, options = runner.calls[0]
    assert module == ("returnn_common.recog.net_dict" if backend == "tensorflow-net-dict" else "returnn")
    assert options["backend"] == backend
    names = {name.replace("/", ".").removesuffix(".param") for name in runner.loaded}
    assert names == read_checkpoint(out / "checkpoints" / "average.002").floats.keys()
    assert (out / "recog" / f"average-beam4-{backend}" / "results.json").is_file()


def test_recipe_that_makes_its_data(tmp_path: Path):
    settings = ["num_epochs=1", "num_average=1", "num_layers=1", "model_dim=8"]
    out = tmp_path / "out"
    assert run_recipe("copy_task", corpus=None, out=str(out), settings=settings, runner=RandomReturnn()) == 0
    runner = _Returnn()
    recognise_run(str(out), Asked(beam=2, options={"length_exponent": "0"}), runner=runner)
    assert "corpus" not in _options(runner)
    results = json.loads((out / "recog" / "average-beam2-length_exponent0" / "results.json").read_text())
    assert results["splits"]["test"]["errors"]["search"]["extra"] == 2  # what is written here is of another corpus


def test_folder_in_use(out: Path):
    def _runner(arguments, **kwargs) -> int:
        with pytest.raises(
            CommandError, match=r"the recognition .*average-beam4 is in use by process \d+; wait for it"
        ):
            recognise_run(str(out), Asked(), runner=_Returnn())
        raise KeyboardInterrupt

    assert recognise_run(str(out), Asked(), runner=_runner) == 130


def test_minimum_bayes_risk(out: Path, capsys):
    recognise_run(str(out), Asked(), mbr=0.0, runner=_Returnn())
    folder = out / "recog" / "average-beam4"
    assert [text for _, text in read_nbest(folder / "test.mbr.py.gz")["test-1-0000"]][0] == "ONE"
    assert read_nbest(folder / "test.py.gz")["test-1-0000"] == LISTS
    content = json.loads((folder / "results.json").read_text())["splits"]["test"]
    assert list(content["wer"]) == ["search", "mbr", "oracle"] and content["mbr_scale"] == 0.0
    assert "mbr" in capsys.readouterr().out
    runner = _Returnn()
    recognise_run(str(out), Asked(), mbr=50.0, runner=runner)  # another scale needs no other search
    assert runner.calls == []
    assert [text for _, text in read_nbest(folder / "test.mbr.py.gz")["test-1-0000"]][0] == "ONE TWO"


def test_command_line(out: Path, monkeypatch, capsys):
    """each argument arrives"""
    from returnn_common.cli.recog import command

    monkeypatch.setattr(command, "recognise_run", lambda *args, **kwargs: print(args, kwargs) or 0)
    arguments = ["--split", "dev", "--split", "test", "--beam", "3", "--lm", "L", "--lm-scale", "-0.5", "--nbest", "2"]
    arguments += ["--ctc-scale", "0.3", "--length-exponent", "1.5", "--set", "max_len=7", "--checkpoint", "last"]
    assert main(["recog", "OUT", *arguments, "--mbr", "--backend", "jax", "--name", "N"]) == 0
    expected = Asked(
        splits=["dev", "test"],
        beam=3,
        lm="L",
        options={"lm_scale": "-0.5", "ctc_scale": "0.3", "length_exponent": "1.5", "max_len": "7"},
        nbest=2,
        checkpoint="last",
        backend="jax",
        name="N",
    )
    assert capsys.readouterr().out == f"('OUT', {expected!r}) {{'mbr': 1.0, 'tuning': None}}\n"
