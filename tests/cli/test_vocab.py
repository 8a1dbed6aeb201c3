"""Tests of ``returnn-common vocab``: files, standard input and output, exit statuses."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from returnn_common.cli import main
from returnn_common.datasets import SentencePieceVocab, make_vocab

_TEXT = "THE CAT'S HAT\nHE SAW THE HATS THAT THE CATS HAD\n\nA BAD BANANA\n"


class Shell:
    """Runs the command with this standard input."""

    def __init__(self, monkeypatch, capfdbinary):
        self._monkeypatch, self._capture = monkeypatch, capfdbinary

    def __call__(self, *arguments: object, stdin: str | bytes = "") -> tuple[int, str, str]:
        content = stdin.encode("utf8") if isinstance(stdin, str) else stdin
        self._monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        try:
            status = main(["vocab", *map(str, arguments)])
        except SystemExit as error:
            status = error.code
        out, err = self._capture.readouterr()
        return status, out.decode("utf8"), err.decode("utf8")


@pytest.fixture
def shell(monkeypatch, capfdbinary) -> Shell:
    return Shell(monkeypatch, capfdbinary)


@pytest.mark.parametrize("name", ["chars", "bytes", "spm1k", "bpe1k"])
def test_encode_and_decode(name, shell):
    vocab = make_vocab(name)
    status, encoded, err = shell("encode", name, stdin=_TEXT)
    assert (status, err) == (0, "")
    assert encoded == "".join(" ".join(map(str, vocab.encode(line))) + "\n" for line in _TEXT.splitlines())
    assert shell("decode", name, stdin=encoded) == (0, _TEXT, "")


def test_files_and_transcripts(shell, tmp_path):
    text = "".join(f"1-1-{i} {line}\n".replace(" \n", "\n") for i, line in enumerate(_TEXT.splitlines()))
    with gzip.open(tmp_path / "text.gz", "wb") as file:
        file.write(text.encode())
    ids, back = tmp_path / "ids", tmp_path / "back"
    assert shell("encode", "spm1k", tmp_path / "text.gz", "--transcripts", "--out", ids) == (0, "", "")
    assert ids.read_text().splitlines()[2] == "1-1-2"
    assert shell("decode", "spm1k", ids, "--transcripts", "--out", back) == (0, "", "")
    assert back.read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "ids", "text.gz"]


def test_pieces(shell):
    assert shell("encode", "chars", "--pieces", stdin="A B'\n")[1] == "A \u2581 B '\n"
    assert shell("encode", "bpe1k", "--pieces", stdin="BANANA")[1] == "B@@ AN@@ AN@@ A\n"
    assert shell("encode", "chars", "--byte-fallback", "--pieces", stdin="É")[1] == "<0xC3> <0x89>\n"


@pytest.mark.parametrize("name, value", [("spm1k", "0.1"), ("bpe1k", "0.3")])
def test_sampling(name, value, shell):
    command = ("encode", name, "--sampling", value)
    drawn = [shell(*command, "--seed", seed, stdin=_TEXT)[1] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert shell("decode", name, stdin=drawn[2])[1] == _TEXT
    assert drawn[0] != shell("encode", name, stdin=_TEXT)[1]


@pytest.mark.parametrize(
    "kind, options, suffixes, num_labels",
    [
        ("unigram", ["--size", 22], [".model"], 22),
        ("unigram", ["--size", 22, "--byte-fallback"], [".model"], 22 + 256),
        ("sentencepiece-bpe", ["--size", 22], [".model"], 22),
        ("bpe", ["--size", 6], [".codes", ".vocab"], None),
        ("chars", [], [".chars"], 12),
        ("words", [], [".words"], 12),
        ("words", ["--size", 3], [".words"], 3),
    ],
)
def test_train(kind, options, suffixes, num_labels, shell, tmp_path):
    (tmp_path / "text").write_text(_TEXT * 9)
    out = tmp_path / "out" / "my"
    out.parent.mkdir()
    status, printed, err = shell("train", kind, out, tmp_path / "text", *options)
    assert (status, err) == (0, "")
    files = {path.name: path.read_bytes() for path in out.parent.iterdir()}
    assert sorted(files) == [f"my{suffix}" for suffix in suffixes]
    vocab = make_vocab(f"{out}{suffixes[0]}")
    assert num_labels in (None, vocab.get_num_classes())
    assert printed.endswith(f": {vocab.get_num_classes()} labels, from 36 lines\n")
    if kind != "words":
        assert vocab.decode(vocab.encode("THE CATS HAT")) == "THE CATS HAT"
    if options != ["--size", 3]:
        assert vocab.decode(vocab.encode("THE BANANA" if kind == "words" else "A THAT")) in ("THE BANANA", "A THAT")
    # again: not without --force, and then with the same content; from standard input as from a file
    status, _, err = shell("train", kind, out, *options, stdin=_TEXT * 9)
    assert status == 2 and f"my{suffixes[0]} is there already; choose another name, or --force" in err
    assert shell("train", kind, out, *options, "--force", stdin=_TEXT * 9)[0] == 0
    assert files == {path.name: path.read_bytes() for path in out.parent.iterdir()}


def test_train_on_transcripts(shell, tmp_path):
    assert shell("train", "chars", tmp_path / "x", "--transcripts", stdin="123-4 AB\n123-5 B\n")[0] == 0
    assert (tmp_path / "x.chars").read_text() == " \nA\nB\n"[2:]


def test_show(shell, tmp_path):
    status, out, _ = shell("show", "bpe1k")
    assert (status, out.splitlines()[1:]) == (0, ["labels: 1057", "begin of sentence: 1", "end of sentence: 2"])
    out = shell("show", "chars", "--labels")[1]
    assert out.splitlines()[2:5] == ["begin of sentence: none", "end of sentence: none", "0\tA"]
    assert out.splitlines()[-1] == "27\t' '"
    assert shell("show", "chars", "--byte-fallback")[1].splitlines()[1] == "labels: 284"


def test_show_whether_it_fits(shell, tmp_path):
    status, out, _ = shell("show", "chars", "--text", "-", stdin="AB C\nA\n")
    assert status == 0
    assert out.splitlines()[4:] == [
        "texts: 2",
        "words: 3",
        "labels of the words: 5",
        "labels per word: 1.667",
        "texts that cannot be written: 0",
    ]
    (tmp_path / "t").write_text("1-1 AB CAFÉ\n1-2 AB\n1-3 É É\n")
    status, out, _ = shell("show", "chars", "--transcripts", "--text", tmp_path / "t")
    assert status == 1
    assert out.splitlines()[4:] == [
        "texts: 3",
        "words: 1",
        "labels of the words: 2",
        "labels per word: 2.0",
        "texts that cannot be written: 2",
        "lacks: 'É' U+00C9 (3 times, in 1-1, 1-3)",
    ]
    status, out, _ = shell("show", "chars", "--json", "--labels", "--text", tmp_path / "t", "--transcripts")
    shown = json.loads(out)
    assert (status, shown["lacks"], len(shown["names"])) == (1, {"É": {"1-1": 1, "1-3": 2}}, 28)


def test_bad_input(shell, tmp_path):
    for arguments, stdin, status, message in [
        (["show", "spm2k"], "", 2, "returnn-common vocab: make_vocab: expected one of chars, bytes, spm1k"),
        (["show", "no.model"], "", 2, "SentencePieceVocab: no such file: no.model"),
        (["show", "chars", "--text", "none"], "", 2, "No such file or directory: 'none'"),
        (["encode", "chars", tmp_path], "", 2, "Is a directory"),
        (["encode", "chars"], "A\nAÉ\n", 1, "standard input, line 2: CharacterVocab("),
        (["encode", "chars", "--transcripts"], "u1 A\nu2 É\n", 1, "returnn-common vocab: u2: CharacterVocab("),
        (["encode", "chars"], b"A\n\xff\n", 1, "standard input, line 2: expected UTF-8 (invalid start byte)"),
        (["encode", "chars", "--sampling", "0.1"], "", 2, "sampling is for subwords, not for 'chars'"),
        (["decode", "chars"], "1\n2 x\n", 1, "standard input, line 2: expected label indices, got 'x'"),
        (["decode", "chars"], "28\n", 1, "line 1: CharacterVocab("),
        (["show", "chars", "--transcripts", "--text", "-"], "a A\na B\n", 1, "utterance a comes twice"),
        (["train", "unigram", tmp_path / "x", "--size", "900"], _TEXT, 2, "Vocabulary size too high (900)"),
        (
            ["train", "bpe", tmp_path / "x", "--byte-fallback"],
            _TEXT,
            2,
            "byte_fallback is for SentencePiece models, not",
        ),
        (
            ["train", "chars", tmp_path / "x", "--size", "9"],
            _TEXT,
            2,
            "chars are all those of the text, so expected no",
        ),
        (["train", "words", tmp_path / "x", "--size", "0"], _TEXT, 2, "size, expected an integer of at least 1, got 0"),
        (["train", "words", tmp_path / "x"], "\n", 2, "train_vocab: expected text, got none"),
        (["train", "unigram", tmp_path / "x"], "", 2, "train_sentencepiece: expected text, got none"),
        (["train", "wordpiece", tmp_path / "x"], "", 2, "invalid choice: 'wordpiece'"),
    ]:
        found, _, err = shell(*arguments, stdin=stdin)
        assert (found, err.count("\n")) == (status, 1), err
        assert message in err
    assert list(tmp_path.iterdir()) == [], "nothing half-written stays"


def test_nothing_is_replaced_where_a_line_fails(shell, tmp_path):
    (tmp_path / "out").write_text("before")
    assert shell("encode", "chars", "--out", tmp_path / "out", stdin="A\nÉ\n")[0] == 1
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "before")]


def test_a_trained_model_is_read_again(shell, tmp_path):
    path = Path(tmp_path / "my.model")
    shell("train", "unigram", path.with_suffix(""), "--size", 22, stdin=_TEXT * 9)
    status, out, _ = shell("encode", path, stdin="A HAT\n")
    assert (status, out.split()) == (0, list(map(str, SentencePieceVocab(path).encode("A HAT"))))
