"""Models of each kind, and what is given to their search."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from returnn_common import nn
from returnn_common.cli.run_model import load_run_model
from tests.cli.trained import make_arpa
from tests.cli.transcribe.helpers import SMALL, make_model_of, record, run_command
from tests.recog.tones import WORDS


@pytest.mark.parametrize("recipe", ["digits_aed", "digits_transducer"])
def test_models_with_a_ctc_head_beside(folder, capsys, recipe):
    """times of each word that the other part of the model says"""
    model = make_model_of(folder, recipe, {**SMALL, "beam_size": 2})
    record(folder / "a.wav", "two four one")
    status, out, _ = run_command(capsys, model, "--format", "json", "a.wav")
    entry = json.loads(out)
    assert status == 0 and [word["word"] for word in entry["words"]] == entry["text"].split() != []
    assert run_command(capsys, model, "a.wav")[1] == entry["text"] + "\n"
    other = json.loads(run_command(capsys, model, "--format", "json", "--beam", "8", "a.wav")[1])
    assert other["score"] != entry["score"]


def test_transducer_alone(folder, capsys):
    """its times are its own"""
    heads = ("aux_ctc_layers=[options.num_layers],", "aux_ctc_layers=[],")
    model = make_model_of(folder, "digits_transducer", {**SMALL, "beam_size": 2, "topology": "monotonic"}, heads)
    record(folder / "a.wav", "two four one")
    words = json.loads(run_command(capsys, model, "--format", "json", "a.wav")[1])["words"]
    assert len(words) > 1 and all(0 < word["confidence"] <= 1 for word in words)
    assert all(a["end"] <= b["start"] + 1e-6 for a, b in itertools.pairwise(words))
    lines = run_command(capsys, model, "--format", "ctm", "a.wav")[1].splitlines()
    assert [line.split()[4] for line in lines] == [word["word"] for word in words]
    assert " --> " in run_command(capsys, model, "--format", "srt", "a.wav")[1]


def test_run_that_has_not_ended(model, folder, capsys):
    """its last checkpoint is used, and that is said"""
    shutil.copytree(model, "run")
    average = Path("run") / "checkpoints" / "average.001.pt"
    average.rename(average.with_name("epoch.001.pt"))
    record(folder / "a.wav", "two")
    message = "returnn-common transcribe: run has not ended, its last checkpoint is used: epoch.001\n"
    assert run_command(capsys, "run", "a.wav") == (0, "two\n", message)
    assert run_command(capsys, "run", "a.wav", "--checkpoint", "last") == (0, "two\n", "")


def test_model_without_a_ctc_head(folder, capsys):
    options = {**SMALL, "search_options": ""}
    model = make_model_of(folder, "digits_aed", options, ("aux_ctc_layers=[options.num_layers],", "aux_ctc_layers=[],"))
    record(folder / "a.wav", "two")
    status, text, err = run_command(capsys, model, "a.wav")
    assert (status, err) == (0, "")
    for format, other in {
        "json": "or --no-times for a JSON without them",
        "ctm": "or --format text",
        "srt": "",
    }.items():
        status, out, err = run_command(capsys, model, "--format", format, "a.wav")
        assert (status, out) == (2, "") and other in err
        assert f"--format {format}: {model} cannot tell when words are spoken, for its AedModel has no CTC head" in err
    entry = json.loads(run_command(capsys, model, "--format", "json", "--no-times", "a.wav")[1])
    assert entry["text"] + "\n" == text and "words" not in entry


def test_log_mel_from_the_dataset(folder, capsys):
    """of a model that takes features: they are computed as its dataset does it, which is as a model does it"""
    record(folder / "a.wav", "two four one")
    causal = 'causal=options.encoder == "streaming", '
    mels = (f"LogMel(40, prior_frames=50, {causal}frequency_warp=0.15)", "LogMel(80, normalize=False)")
    inside = make_model_of(folder / "inside", "digits_ctc", SMALL, mels)
    outside = make_model_of(
        folder / "outside",
        "digits_ctc",
        SMALL,
        ("    train_splits=", '    audio="log-mel",\n    train_splits='),
        ("        augment=Chain(SpeedPerturbation(0.8, 1.25), Noise(10, 40), Equalizer(3.0)),\n", ""),
        mels,
        ("features=features, ", "features=None, "),
    )
    entries = [json.loads(run_command(capsys, model, "--format", "json", "a.wav")[1]) for model in (inside, outside)]
    assert entries[0]["text"] == entries[1]["text"] != ""
    assert entries[0]["score"] == pytest.approx(entries[1]["score"], rel=1e-3)


ARPA = """
\\data\\
ngram 1=6

\\1-grams:
-1.0 </s>
-99 <s>
-4.0 one
-0.5 two
-0.5 three
-0.5 four

\\end\\
"""


def test_ngram_lm(model, folder, capsys):
    """changes the score by what it says, and the text if it weighs enough"""
    (folder / "lm.arpa").write_text(ARPA)
    record(folder / "a.wav", "one two two")

    def run(*arguments: str):
        status, out, err = run_command(capsys, model, "--format", "json", "--beam", "8", *arguments, "a.wav")
        assert (status, err) == (0, "")
        entry = json.loads(out)
        assert [word["word"] for word in entry["words"]] == entry["text"].split()
        return entry["text"], entry["score"]

    text, score = run()
    assert text == "one two two"
    log_prob = math.log(10) * (-4.0 - 0.5 - 0.5 - 1.0)
    assert run("--lm", "lm.arpa", "--lm-scale", "0.5") == (text, pytest.approx(score + 0.5 * log_prob, abs=1e-2))
    assert run("--lm", "lm.arpa", "--lm-scale", "0") == (text, score)
    assert "one" not in run("--lm", "lm.arpa", "--lm-scale", "1000")[0]


def test_neural_lm(model, folder, capsys):
    vocabulary = "make_vocab(options.vocab, sampling=options.vocab_sampling or None)"
    words = ("import TextCorpus, make_vocab", "import TextCorpus, WordVocab")
    options = {**SMALL, "lm": "lstm", "embed_dim": 4}
    lm = make_model_of(folder / "lm", "librispeech_lm", options, words, (vocabulary, f"WordVocab({WORDS})"))
    record(folder / "a.wav", "one two two")
    plain, with_lm = (
        json.loads(run_command(capsys, model, "--format", "json", "--beam", "8", "a.wav", *arguments)[1])
        for arguments in ([], ["--lm", lm, "--lm-scale", "0.1"])
    )
    run = load_run_model(lm)
    with run.forward():
        time = nn.Dim(
            nn.convert_to_tensor(np.array([3], "int32"), dims=[batch := nn.Dim(1, name="batch")]), name="time"
        )
        labels = nn.convert_to_tensor(
            np.array([[0, 1, 1]], "int32"), dims=[batch, time], sparse_dim=nn.Dim(len(WORDS), name="words")
        )
        nll = float(run.model.nll(labels, in_spatial_dim=time)[0].raw_tensor)
    assert with_lm["text"] == plain["text"] == "one two two" and nll > 1
    assert with_lm["score"] == pytest.approx(plain["score"] - 0.1 * nll, abs=1e-2)


def test_search_options(folder, capsys):
    """of the recipe, changed by those that are given"""
    options = {**SMALL, "beam_size": 2}
    searched = ("search_options = options.search_options", 'search_options = {"max_len": 2}')
    model = make_model_of(folder / "model", "digits_aed", options, searched)
    record(folder / "a.wav", "two four one")
    assert len(run_command(capsys, model, "a.wav")[1].split()) <= 2
    assert len(run_command(capsys, model, "a.wav", "--set", "max_len=1")[1].split()) <= 1
    longest = run_command(capsys, model, "a.wav", "--set", "max_len=20", "--set", "length_exponent=0.0")[1]
    assert longest != run_command(capsys, model, "a.wav")[1]
    for settings, message in [
        (["max_len"], "--set max_len: expected OPTION=VALUE"),
        (["max_len=1", "max_len=2"], "--set max_len=2: 'max_len' is given twice"),
        (["beam_size=3"], "--set beam_size=3: use --beam"),
        (["lm_scale=0.3"], "--set lm_scale=0.3: use --lm-scale"),
        (["max_len=none"], "beam_search: max_len, expected an int"),
        (["speed=9"], "search option 'speed': AedModel.search has no such option, it has "),
    ]:
        arguments = [part for setting in settings for part in ("--set", setting)]
        status, out, err = run_command(capsys, model, "a.wav", *arguments)
        assert (status, out) == (2, "") and message in err


def test_search_options_beside_the_model(folder, capsys):
    """language models, phrases and the like, of the recipe and of the command line"""
    make_arpa(folder / "lm.arpa")
    (folder / "words.txt").write_text("ONE\nSIX\n")
    options = {"beam_size": 4, "word_list": ["TWO", "SIX"], "mbr": 0.0, "lm": str(folder / "lm.arpa"), "lm_scale": 2}
    searched = ("search_options = options.search_options", f"search_options = {options!r}")
    model = make_model_of(folder / "model", "digits_ctc", {**SMALL, "search_options": ""}, searched)
    record(folder / "a.wav", "two four one")

    def transcribe(*arguments: str) -> tuple[str, float]:
        status, out, err = run_command(capsys, model, "a.wav", "--format", "json", "--no-times", *arguments)
        assert (status, err) == (0, "")
        return json.loads(out)["text"], json.loads(out)["score"]

    text, score = transcribe()
    assert set(text.split()) <= {"TWO", "SIX"} and text
    assert set(transcribe("--set", "word_list=words.txt")[0].split()) <= {"ONE", "SIX"}
    assert transcribe("--set", "word_list=None", "--set", "lm=None", "--set", "lm_scale=None")[0] != text
    assert transcribe("--lm-scale", "0.5")[1] != score
    best = transcribe("--set", "mbr=None")
    assert best[0] != text and best[1] > score  # of equally probable hypotheses, that in the middle
    phrase = ["--set", "phrases=['SIX SIX SIX']", "--set", "phrase_bonus=30"]
    assert "SIX SIX SIX" in transcribe(*phrase)[0] and "SIX SIX SIX" not in text
    for arguments, message in [
        (
            ["--set", "rescore=True"],
            "search_options: rescore is for 'returnn-common recog'; take it away by --set resc",
        ),
        (["--set", "phrases=no.txt", "--set", "phrase_bonus=1"], "no.txt: expected a text file: "),
    ]:
        status, out, err = run_command(capsys, model, "a.wav", *arguments)
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1


def test_lm_that_does_not_fit(model, folder, capsys):
    record(folder / "a.wav", "one")
    (folder / "lm.arpa").write_text(ARPA.replace("two", "zwei"))
    for lm, message in {
        "lm.arpa": "its vocabulary is not that of",
        "no": "/no: no such folder",
        model: "recogniser",
    }.items():
        status, out, err = run_command(capsys, model, "a.wav", "--lm", lm, "--lm-scale", "1")
        assert (status, out) == (2, "") and message in err


def test_models_that_transcribe_nothing(folder, capsys):
    record(folder / "a.wav", "two")
    lm = make_model_of(folder / "lm", "librispeech_lm", {**SMALL, "lm": "lstm", "embed_dim": 4})
    status, _, err = run_command(capsys, lm, "a.wav")
    assert status == 2 and f"{lm}: a language model transcribes nothing; it can be the --lm of a recogniser" in err
    copy = make_model_of(folder / "copy", "copy_task", SMALL)
    status, _, err = run_command(capsys, copy, "a.wav")
    assert status == 2 and f"{copy}: its model takes no recordings, or gives no text" in err
