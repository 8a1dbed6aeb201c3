"""Text corpora: which lines are in which split, in RETURNN's data loading; what is refused."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from returnn.datasets import init_dataset
from returnn.datasets.basic import Dataset

from returnn_common.datasets import (
    BpeVocab,
    ByteVocab,
    CharacterVocab,
    PhonemeVocab,
    SentencePieceVocab,
    TextCorpus,
    VocabConfig,
    WordVocab,
    make_vocab,
)
from tests.datasets.reading import EVAL_DEFAULTS

LINES = [f"LINE {'ABCDEFGHIJ'[i % 10]}{' AND MORE' * (i % 4)}" for i in range(1, 31)]  # by number, from 1


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), "utf8")
    return path


def _read(options: dict, epoch: int = 1) -> dict[str, list[int]]:
    """:return: tag -> labels, in the dataset's order"""
    dataset = init_dataset(options, default_kwargs=EVAL_DEFAULTS)
    assert isinstance(dataset, Dataset)
    dataset.init_seq_order(epoch=epoch)
    result, i = {}, 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        data = dataset.get_data(i, "data")
        assert data.dtype == np.int32
        result[dataset.get_tag(i)] = data.tolist()
        i += 1
    return result


def _numbers(dataset: TextCorpus, split: str) -> list[int]:
    return [int(tag.split(":")[1]) for tag in dataset.get_references(split)]


def test_lines_are_held_out(corpus: Path):
    dataset = TextCorpus(corpus, hold_out_every=10)
    assert _numbers(dataset, "dev") == [10, 20, 30] and _numbers(dataset, "test") == [5, 15, 25]
    assert _numbers(dataset, "train") == [i for i in range(1, 31) if i % 5]
    for split in ("train", "dev", "test"):
        assert dataset.get_references(split) == {f"corpus.txt:{i}": LINES[i - 1] for i in _numbers(dataset, split)}
    smallest = TextCorpus(corpus, hold_out_every=3)
    assert [_numbers(smallest, split)[:2] for split in ("train", "dev", "test")] == [[2, 5], [3, 6], [1, 4]]
    dataset.check()


def test_what_returnn_loads(corpus: Path):
    """each split, its text as labels, sorted where it isn't trained on"""
    dataset = TextCorpus(corpus, hold_out_every=10)
    for split in ("train", "dev", "test"):
        loaded = _read(dataset.get_forward_dataset(split))
        assert {tag: dataset.vocab.decode(ids) for tag, ids in loaded.items()} == dataset.get_references(split)
        lengths = [len(ids) for ids in loaded.values()]
        assert lengths == sorted(lengths) and len(set(lengths)) > 1
    assert set(_read(dataset.get_train_dataset())) == set(dataset.get_references("train"))
    assert {name: _read(opts) for name, opts in dataset.get_eval_datasets().items()} == {
        name: _read(dataset.get_forward_dataset(name)) for name in ("dev", "test")
    }


def test_training_epochs_are_parts_in_another_order(corpus: Path):
    dataset = TextCorpus(corpus, hold_out_every=10, train_epoch_split=3, train_seq_ordering="random")
    parts = [list(_read(dataset.get_train_dataset(), epoch)) for epoch in range(1, 7)]
    everything = sorted(dataset.get_references("train"))
    assert [len(part) for part in parts] == [8] * 6
    assert sorted(sum(parts[:3], [])) == sorted(sum(parts[3:], [])) == everything
    assert sum(parts[:3], []) != sum(parts[3:], [])
    assert parts == [list(_read(dataset.get_train_dataset(), epoch)) for epoch in range(1, 7)]
    assert TextCorpus(corpus, train_seq_ordering="default").get_train_dataset()["seq_ordering"] == "default"
    assert TextCorpus(corpus, random_seed=3).get_config_opts()["dataset_random_seed_offset"] == 3


def test_separate_files(tmp_path: Path, corpus: Path):
    """one, several, packed ones, and lines held out for only one split"""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"{name.upper()}\n")
    with gzip.open(tmp_path / "c.txt.gz", "wt") as file:
        file.write("C\n\nD\n")
    dev = [tmp_path / "a.txt", str(tmp_path / "b.txt")]
    dataset = TextCorpus(corpus, dev_path=dev, test_path=tmp_path / "c.txt.gz")
    assert dataset.get_references("dev") == {"a.txt:1": "A", "b.txt:1": "B"}
    assert dataset.get_references("test") == {"c.txt.gz:1": "C", "c.txt.gz:3": "D"}
    assert _numbers(dataset, "train") == list(range(1, 31))
    dataset = TextCorpus(corpus, dev_path=tmp_path / "a.txt", hold_out_every=10)
    assert _numbers(dataset, "test") == [5, 15, 25]
    assert _numbers(dataset, "train") == [i for i in range(1, 31) if i % 10 != 5]


def test_folder(tmp_path: Path):
    for name, text in [("one.txt", "A"), ("two.txt", "B"), ("dev.txt", "C"), ("notes.md", "no")]:
        (tmp_path / name).write_text(f"{text}\n")
    with gzip.open(tmp_path / "test.txt.gz", "wt") as file:
        file.write("D\n")
    dataset = TextCorpus(tmp_path)
    texts = {split: list(dataset.get_references(split).values()) for split in ("train", "dev", "test")}
    assert texts == {"train": ["A", "B"], "dev": ["C"], "test": ["D"]}
    dataset.check()


def test_same_names_in_two_folders(tmp_path: Path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(f"{name.upper()}\n")
    paths = [str(tmp_path / name / "a.txt") for name in ("x", "y")]
    dataset = TextCorpus(paths)
    assert dataset.get_references("train") == {f"{paths[0]}:1": "X", f"{paths[1]}:1": "Y"}


@pytest.mark.parametrize("packed", [False, True])
def test_spaces_and_empty_lines(packed: bool, tmp_path: Path):
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    content = b"\n  A  B\t\r\n \t \n\nC\n \nD "  # no newline at the end
    path.write_bytes(gzip.compress(content) if packed else content)
    dataset = TextCorpus(path)
    expected = {f"{path.name}:2": "A B", f"{path.name}:5": "C", f"{path.name}:7": "D"}
    assert dataset.get_references("train") == expected
    assert _read(dataset.get_train_dataset()) == {tag: dataset.vocab.encode(text) for tag, text in expected.items()}


def test_many_lines_in_pieces(tmp_path: Path, monkeypatch):
    """as found in a large file"""
    monkeypatch.setattr("returnn_common.datasets._text_lines._BYTES_AT_ONCE", 7)
    path = tmp_path / "a.txt"
    lines = ["A" * (i % 9) for i in range(100)]
    path.write_text("\n".join(lines))
    assert list(TextCorpus(path, dev_path=path, test_path=path).get_references("train").values()) == [
        line for line in lines if line
    ]


def test_long_lines_are_split_at_words(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("ÄÖ ÜÄ  ÖÜ\nA\nAAAAAA B\n", "utf8")
    dataset = TextCorpus(path, dev_path=path, test_path=path, vocab=CharacterVocab("ABÄÖÜ "), max_chars=6)
    expected = {"a.txt:1:1": "ÄÖ ÜÄ", "a.txt:1:2": "ÖÜ", "a.txt:2": "A", "a.txt:3:1": "AAAAAA", "a.txt:3:2": "B"}
    assert dataset.get_references("train") == expected
    assert {tag: dataset.vocab.decode(ids) for tag, ids in _read(dataset.get_train_dataset()).items()} == expected
    dataset.max_chars = 9
    assert list(dataset.get_references("train")) == ["a.txt:1", "a.txt:2", "a.txt:3"]
    dataset.max_chars = 5
    message = "a.txt: line 3: expected words of at most max_chars = 5 characters, got one of 6, AAAAAA..."
    with pytest.raises(ValueError, match=message):
        dataset.check()


def test_splits_of_long_lines_stay_together(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("A\nA\nA A A A\nA\n")
    dataset = TextCorpus(path, hold_out_every=3, max_chars=3)
    assert list(dataset.get_references("dev")) == ["a.txt:3:1", "a.txt:3:2"]


def test_another_process_reads_it_itself(corpus: Path):
    options = TextCorpus(corpus, hold_out_every=10).get_forward_dataset("dev")
    before = _read(options)
    packed = pickle.dumps(options)
    assert b"MORE" not in packed
    assert _read(pickle.loads(packed)) == before


def test_config(corpus: Path):
    dataset = TextCorpus(corpus, hold_out_every=10)
    opts = dataset.get_config_opts()
    assert (opts["default_input"], opts["target"]) == ("data", None)
    assert set(opts["extern_data"]) == {"data"} and opts["extern_data"] is dataset.get_extern_data()
    data = opts["extern_data"]["data"]
    assert (data["sparse_dim"].dimension, data["vocab"]) == (28, CharacterVocab().get_opts())
    assert dataset.get_main_name() == "dev" and _read(opts["dev"]) == _read(dataset.get_forward_dataset("dev"))
    assert repr(dataset).startswith("TextCorpus(") and str(corpus) in str(opts["train"])


@pytest.fixture(scope="module")
def subwords(tmp_path_factory) -> list[VocabConfig]:
    """SentencePiece, BPE"""
    folder = tmp_path_factory.mktemp("subwords")
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(LINES), model_prefix=str(folder / "sp"), vocab_size=23, minloglevel=2
    )
    (folder / "codes").write_text("#version: 0.2\nL I\nLI N\nLIN E</w>\nA N\n")
    letters = "ABCDEFGHIJLMNOR"
    labels = ["LINE", "AN@@", "LI@@", "LIN@@", *letters, *(f"{letter}@@" for letter in letters)]
    (folder / "vocab").write_text("".join(f"{label}\n" for label in labels))
    return [SentencePieceVocab(folder / "sp.model"), BpeVocab(folder / "codes", folder / "vocab")]


def test_words_are_counted_by_labels(corpus: Path, subwords: list[VocabConfig]):
    """with each kind of vocabulary, against the text"""
    words = WordVocab(sorted({word for line in LINES for word in line.split()}))
    (corpus.parent / "dict").write_text("line L AY N\nand AE N D\n")
    phonemes = PhonemeVocab(corpus.parent / "dict")
    for vocab in [CharacterVocab(), words, *subwords, ByteVocab(), make_vocab("bpe1k", byte_fallback=True), phonemes]:
        dataset = TextCorpus(corpus, hold_out_every=10, vocab=vocab)
        dataset.check()
        starts = dataset.get_word_starts()
        assert len(starts) == vocab.get_num_classes() + 1
        references = dataset.get_references("train")
        for tag, ids in _read(dataset.get_train_dataset()).items():
            assert sum(starts[i] for i in [-1, *ids]) == len(references[tag].split()), (vocab, references[tag], ids)


def test_words_cannot_be_counted_without_boundaries(corpus: Path):
    (corpus.parent / "dict").write_text("a AH\n")
    dataset = TextCorpus(corpus, vocab=PhonemeVocab(corpus.parent / "dict", word_boundary=None))
    with pytest.raises(ValueError, match="TextCorpus: to count words, PhonemeVocab.* needs a word_boundary"):
        dataset.get_word_starts()


@pytest.mark.parametrize(
    "content, vocab, message",
    [
        (b"", None, "TextCorpus: split 'train': no lines in .*a.txt"),
        (b"\n  \n", None, "TextCorpus: split 'train': no lines in .*a.txt"),
        (b"A\nB\n", None, "TextCorpus: split 'dev': no lines, of 2 with hold_out_every = 3, in .*a.txt"),
        (b"A\nB\nC\n\xff\n", None, r"a.txt: line 4: expected UTF-8, got b'\\xff'"),
        (
            "A\nB\nCÉÉ\nD\nÉ?\n".encode(),
            None,
            r"1 of 2 lines cannot be written with CharacterVocab\(.*\), which lacks '\?' \(1 time, in a.txt:5\), 'É' ",
        ),
        (
            "A\nBÉ\nC\nD\nEÉÉ\n".encode(),
            CharacterVocab("ABCDE "),
            r"2 of 2 lines cannot be written with .*, which lacks 'É' U\+00C9 \(3 times, in a.txt:2, a.txt:5\)$",
        ),
        (
            b"A\nA A\nA\nA\nA\n",
            CharacterVocab("A"),
            r"1 of 2 lines cannot be written with CharacterVocab\('A'\), which lacks ' ' \(1 time, in a.txt:2\)$",
        ),
        (b"A\nB\nC\nD\nE\n", WordVocab(["A"]), r"cannot be written with WordVocab\(\['A'\]\), which lacks 'B'"),
    ],
)
def test_text_that_does_not_fit(content: bytes, vocab: VocabConfig | None, message: str, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        TextCorpus(tmp_path / "a.txt", hold_out_every=3, vocab=vocab).check()


def test_too_few_lines_for_the_parts(corpus: Path):
    message = "train_epoch_split: expected at most the number of training lines, 24, got 25"
    with pytest.raises(ValueError, match=message):
        TextCorpus(corpus, hold_out_every=10, train_epoch_split=25).check()


def test_files_that_are_not_there(tmp_path: Path, corpus: Path):
    with pytest.raises(FileNotFoundError, match="TextCorpus: no such file or folder: .*nowhere"):
        TextCorpus(tmp_path / "nowhere").check()
    with pytest.raises(FileNotFoundError, match="TextCorpus: no such file or folder: .*nowhere"):
        TextCorpus(corpus, dev_path=tmp_path / "nowhere").check()
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no text file \(.txt, .txt.gz\) in the folder .*folder"):
        TextCorpus(tmp_path / "folder").check()
    (tmp_path / "folder" / "dev.txt").write_text("A\n")
    with pytest.raises(FileNotFoundError, match="no text to train on in .*folder, only .*dev.txt"):
        TextCorpus(tmp_path / "folder").check()
    with pytest.raises(ValueError, match="path: expected a file, a folder, or several, got an empty list"):
        TextCorpus([]).check()


def test_file_that_goes_away(corpus: Path):
    lines = TextCorpus(corpus).get_forward_dataset("train")["map_dataset"]
    corpus.rename(corpus.with_suffix(".old"))
    with pytest.raises(FileNotFoundError, match="TextCorpus: no such file or folder: .*corpus.txt"):
        len(lines)


@pytest.mark.parametrize("cut", [False, True])
def test_damaged_archive(cut: bool, tmp_path: Path):
    packed = gzip.compress(b"A\n" * 10_000)
    (tmp_path / "a.txt.gz").write_bytes(packed[:-20] if cut else b"A\n")
    with pytest.raises(ValueError, match="TextCorpus: .*a.txt.gz cannot be unpacked: "):
        TextCorpus(tmp_path / "a.txt.gz").check()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hold_out_every": 2}, "TextCorpus: hold_out_every: expected an integer of at least 3, got 2"),
        ({"max_chars": 0}, "TextCorpus: max_chars: expected an integer of at least 1, got 0"),
        ({"train_epoch_split": True}, "TextCorpus: train_epoch_split: expected an integer of at least 1, got True"),
        ({"random_seed": -1}, "TextCorpus: random_seed: expected an integer of at least 0, got -1"),
    ],
)
def test_options_that_make_no_sense(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        TextCorpus("a.txt", **options)


def test_wrong_vocabulary():
    with pytest.raises(TypeError, match="TextCorpus: vocab: expected a VocabConfig or a name, got int 3"):
        TextCorpus("a.txt", vocab=3)  # type: ignore[arg-type]


def test_unknown_split(corpus: Path):
    with pytest.raises(ValueError, match="TextCorpus: split: expected one of train, dev, test, got 'eval'"):
        TextCorpus(corpus).get_forward_dataset("eval")


def test_subwords_are_drawn_in_training(corpus: Path):
    """depending on seed, epoch and line; never in evaluation"""

    def _train(epoch: int, seed: int = 0) -> dict[str, list[int]]:
        dataset = TextCorpus(corpus, hold_out_every=10, vocab=vocab, random_seed=seed)
        return {tag: list(ids) for tag, ids in _read(dataset.get_train_dataset(), epoch=epoch).items()}

    vocab = make_vocab("spm1k", sampling=0.1)
    first = _train(1)
    assert first == _train(1) != _train(2)
    assert first != _train(1, seed=1)
    plain = TextCorpus(corpus, hold_out_every=10, vocab="spm1k")
    references = plain.get_references("train")
    assert {tag: vocab.decode(ids) for tag, ids in first.items()} == references
    for split in ("dev", "train"):
        drawn = _read(TextCorpus(corpus, hold_out_every=10, vocab=vocab).get_forward_dataset(split))
        assert {tag: list(ids) for tag, ids in drawn.items()} == {
            tag: vocab.encode(text) for tag, text in plain.get_references(split).items()
        }
