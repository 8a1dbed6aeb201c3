"""
The recipe of language models: its options; perplexity on each engine; minutes of training against a 3-gram.
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sentencepiece

import returnn_common
from returnn_common import nn
from returnn_common.cli import main
from returnn_common.cli.recipes import list_recipes
from returnn_common.cli.run.recipe import load_recipe
from returnn_common.models.lm.lstm import LSTMLanguageModel
from returnn_common.recog.perplexity import read_perplexity
from returnn_common.training.averaging import read_scores
from tests.engines import ENGINES
from tests.engines.server import run_module
from tests.recipes.test_recipes import _load

ROOT = Path(returnn_common.__file__).resolve().parents[1]
RECIPE = list_recipes()["librispeech_lm"]
WORDS = "A CAT THAT SAT ON THE MAT ATE THE HAT OF THE RAT".split()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """60 lines, of which 6 are in dev and 6 in test"""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{' '.join(WORDS[i % 5 : 5 + i % 7])}\n" for i in range(60)))
    return path


@pytest.mark.parametrize(
    "options",
    [{"num_layers": "2"}, {"model_dim": "32"}, {"embed_dim": "64"}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_model(options: dict[str, str]):
    pytest.importorskip("torch")
    nn.select_backend_torch()
    tiny = {"num_layers": "1", "model_dim": "16", "embed_dim": "32"}
    sizes = [
        sum(p.raw_tensor.numel() for p in _load(RECIPE, {**tiny, **given})["get_model"](epoch=1, step=0).parameters())
        for given in ({}, options)
    ]
    assert sizes[1] > sizes[0]


def test_positions_and_dropout():
    pytest.importorskip("torch")
    nn.select_backend_torch()
    tiny = {"num_layers": "1", "model_dim": "16"}
    decoders = [
        _load(RECIPE, {**tiny, **options})["get_model"](epoch=1, step=0).decoder
        for options in ({}, {"positions": "rotary", "dropout": "0.3"}, {"lm": "lstm", "dropout": "0.3"})
    ]
    attentions = [decoder.layers["0"].self_att for decoder in decoders[:2]]
    assert [attention.rotary for attention in attentions] == [False, True]
    assert [attention.att_dropout for attention in attentions] == [0.0, 0.3]
    assert isinstance(decoders[2], LSTMLanguageModel) and decoders[2].dropout == 0.3


def test_sizes_of_the_paper():
    """10k subwords: 24 layers of 1024 have 314 M parameters in the published config's own count"""
    recipe = load_recipe(RECIPE)
    assert recipe.options["num_layers"] == recipe.options["model_dim"] == 0 and recipe.options["embed_dim"] == 128
    layers = 24 * (4 * 1024**2 + 2 * 1024 * 4096)
    vocabulary = 10_025 * (128 + 1024) + 128 * 1024
    assert round((layers + vocabulary) / 1e6) == 314


def test_unknown_kind():
    with pytest.raises(ValueError, match="expected lm as transformer or lstm, got 'rnn'"):
        _load(RECIPE, {"lm": "rnn"})["get_model"](epoch=1, step=0)


def test_options_of_the_data(corpus: Path):
    given = {"corpus": str(corpus), "hold_out_every": "10", "max_chars": "13", "recog_split": "test"}
    recipe = _load(RECIPE, given)
    dataset = recipe["dataset"]
    assert max(len(text) for text in dataset.get_references("train").values()) <= 13
    assert len({tag.split(":")[1] for tag in dataset.get_references("dev")}) == 6
    assert repr(recipe["forward_data"]["map_dataset"]).startswith("Lines('test'")
    assert recipe["train"]["partition_epoch"] == 10 and recipe["dataset_random_seed_offset"] == 1
    assert _load(RECIPE, {**given, "batch_labels": "70"})["batch_size"] == {"data": 70}
    buckets = _load(RECIPE, {**given, "backend": "jax"})["jax_jit"]["buckets"]
    assert buckets == [{"batch_dim": 200, "data": 14}]


@pytest.mark.parametrize("engine", [pytest.param(e, marks=pytest.mark.xdist_group(f"training-{e}")) for e in ENGINES])
def test_perplexity_on_each_engine(engine: str, corpus: Path, tmp_path: Path):
    """through RETURNN: that of dev is the one whose logarithm RETURNN has reported in training"""
    options = {
        **{"corpus": corpus, "backend": engine, "hold_out_every": 10, "max_chars": 39},
        **{"num_layers": 1, "model_dim": 8, "embed_dim": 8, "epoch_split": 1, "num_epochs": 1, "num_average": 1},
        **{"model": tmp_path / "model" / "epoch", "learning_rate_file": tmp_path / "scores", "tf_log_dir": "None"},
    }
    given = [part for name, value in options.items() for part in (f"++{name}", str(value))]
    run_module(engine, ["returnn", str(RECIPE), *given, "++task", "train"], cwd=tmp_path)
    module = "returnn_common.recog.net_dict" if engine == "tensorflow-net-dict" else "returnn"
    output = ["++task", "forward", "++load_epoch", "1", "++recog_output_file", "dev.json"]
    run_module(engine, [module, str(RECIPE), *given, *output], cwd=tmp_path)
    result = read_perplexity(tmp_path / "dev.json")
    references = load_recipe(RECIPE, options={k: str(v) for k, v in options.items()}).dataset.get_references("dev")
    assert result["num_sentences"] == len(references) == 6
    assert result["num_labels"] == sum(len(text) + 1 for text in references.values())
    assert result["num_words"] == sum(len(text.split()) + 1 for text in references.values())
    scores = read_scores(tmp_path / "scores")[1]
    for key, loss, only in [("per_label", "ce", "dev_score"), ("per_word", "ce_word", "dev_error")]:
        names = [f"dev_loss_{loss}", f"dev_loss:{loss}", only]  # as the engines call them
        (reported,) = (scores[name] for name in names if name in scores)
        assert math.log(result[key]) == pytest.approx(reported, rel=1e-4)


class NGram:
    """
    Additive smoothing: ``p(w | h) = (count(h, w) + k) / (count(h) + k * V)`` (e.g. Chen and Goodman 1999,
    https://doi.org/10.1006/csla.1999.0128, equation 4, there with any k as "add-delta").

    :param sentences: to count in
    :param order: 3: h has two labels
    :param vocab_size: V, end of sentence included, which is the last label
    """

    def __init__(self, sentences: Sequence[Sequence[int]], *, order: int, vocab_size: int):
        self.order, self.vocab_size = order, vocab_size
        self.pairs: Counter[tuple[tuple[int, ...], int]] = Counter()
        self.histories: Counter[tuple[int, ...]] = Counter()
        for history, label in (pair for sentence in sentences for pair in self._split(sentence)):
            self.pairs[history, label] += 1
            self.histories[history] += 1

    def _split(self, sentence: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        end, size = self.vocab_size - 1, self.order - 1
        padded = [*[end] * size, *sentence, end]
        return ((tuple(padded[i : i + size]), padded[i + size]) for i in range(len(sentence) + 1))

    def nll(self, sentences: Sequence[Sequence[int]], k: float) -> float:
        """:return: of all, natural log, end of sentence included"""
        return -sum(
            math.log((self.pairs[history, label] + k) / (self.histories[history] + k * self.vocab_size))
            for sentence in sentences
            for history, label in self._split(sentence)
        )


def test_n_gram():
    """it sums to 1, and by hand: twice b and once end of sentence after a"""
    model = NGram([[0, 1], [0, 1], [0]], order=2, vocab_size=3)
    assert model.nll([[0]], k=0.5) == pytest.approx(-math.log(3.5 / 4.5 * 1.5 / 4.5))
    for history in (0, 1):
        total = sum((model.pairs[(history,), label] + 0.5) / (model.histories[(history,)] + 1.5) for label in range(3))
        assert total == pytest.approx(1)


# Trains for minutes.
@pytest.mark.slow
def test_better_than_a_3_gram(shared_data: Path, tmp_path: Path, monkeypatch, capsys):
    """LSTM, 500 subwords, 10 thousand lines of books: on held-out lines, against a 3-gram over the same subwords"""
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    with gzip.open(shared_data / "text" / "books.txt.gz", "rt") as file:
        lines = [next(file) for _ in range(10_000)]
    (tmp_path / "text.txt").write_text("".join(lines))
    parts = {"train": [], "dev": [], "test": []}
    for i, line in enumerate(lines, 1):
        parts["dev" if i % 50 == 0 else "test" if i % 50 == 25 else "train"].append(line.strip())
    sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
        sentence_iterator=iter(parts["train"]),
        model_prefix=str(tmp_path / "sp"),
        vocab_size=500,
        character_coverage=1.0,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sp.model"))  # type: ignore[call-arg]
    ids = {split: processor.encode(part) for split, part in parts.items()}
    model = NGram(ids["train"], order=3, vocab_size=501)
    k = min([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0], key=lambda k: model.nll(ids["dev"], k))

    settings = [
        *("lm=lstm", "num_layers=1", "model_dim=256", "dropout=0.1", "peak_learning_rate=4e-3", "batch_labels=1500"),
        *("num_epochs=5", "num_average=1", "epoch_split=1", "hold_out_every=50"),
        f"vocab={tmp_path / 'sp.model'}",
    ]
    given = [part for setting in settings for part in ("--set", setting)]
    out = tmp_path / "out"
    assert main(["run", "librispeech_lm", "--corpus", str(tmp_path / "text.txt"), "--out", str(out), *given]) == 0
    results = json.loads((out / "results.json").read_text())
    for split in ("dev", "test"):
        counts = results["counts"][split]
        assert counts["labels"] == sum(len(sentence) + 1 for sentence in ids[split])
        assert counts["words"] == sum(len(line.split()) + 1 for line in parts[split])
        n_gram = math.exp(model.nll(ids[split], k) / counts["words"])
        with capsys.disabled():
            print(f"\n{split}: perplexity per word {results['perplexity_per_word'][split]:.1f}, 3-gram {n_gram:.1f}")
        assert results["perplexity_per_word"][split] < 0.7 * n_gram
