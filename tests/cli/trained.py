"""Runs that have ended, with models of random parameters, so that nothing has to be trained."""

from __future__ import annotations

import json
from pathlib import Path

from returnn_common.cli.recipes import find_recipe
from returnn_common.cli.run import run_recipe
from returnn_common.cli.run.finished import load_run
from returnn_common.cli.run_model import make_model
from tests.cli.fake_returnn import FakeReturnn
from tests.cli.tiny import WORDS

AED = ["model_dim=8", "num_layers=1", "num_epochs=2", "num_average=2"]
LM = ["lm=lstm", "num_layers=1", "model_dim=8", "embed_dim=8", "epoch_split=1", "num_epochs=1", "hold_out_every=3"]


class RandomReturnn(FakeReturnn):
    """In place of RETURNN: checkpoints are of the recipe's model, each with other parameters."""

    def __call__(self, arguments, **kwargs) -> int:
        self.config = Path(arguments[2])
        return super().__call__(arguments, **kwargs)

    def train(self, options: dict[str, str]):
        import torch

        super().train(options)
        names = load_run(self.config.parent).recipe.options
        model = make_model(self.config, {name: options[name] for name in names if name in options}).model
        for epoch in range(1, int(options["num_epochs"]) + 1):
            generator = torch.Generator().manual_seed(epoch)
            params = {
                name: torch.randn(param.raw_tensor.shape, generator=generator) * 0.5
                for name, param in model.named_parameters()
            }
            torch.save({"model": params, "epoch": epoch, "step": epoch}, f"{options['model']}.{epoch:03}.pt")

    def forward(self, options: dict[str, str]):
        if "data" not in options["recog_output_file"] and options["recog_output_file"].endswith(".json"):
            content = {"per_word": 2.0, "per_label": 2.0, "num_words": 1, "num_labels": 1, "num_sentences": 1}
            Path(options["recog_output_file"]).write_text(json.dumps(content))
        else:
            super().forward(options)


def make_trained(recipe: str, out: Path, *, corpus: Path, settings: list[str]) -> Path:
    """
    :param recipe: name, or path
    :param out: folder to make
    :param corpus: or text
    :param settings: options
    :return: the folder
    """
    if recipe == "digits_aed":  # of the search, only what a test asks for
        settings = ["search_options=", *settings]
    status = run_recipe(recipe, corpus=str(corpus), out=str(out), settings=settings, runner=RandomReturnn())
    assert status == 0
    return out


def make_word_lm(folder: Path, *, words: list[str] = WORDS) -> Path:
    """
    :param folder: to write to
    :param words: of the vocabulary
    :return: folder of a run of a language model over words
    """
    folder.mkdir(parents=True)
    recipe = folder / "word_lm.py"
    text = find_recipe("librispeech_lm").read_text("utf8")
    old = "make_vocab(options.vocab, sampling=options.vocab_sampling or None)"
    assert old in text and "TextCorpus, make_vocab" in text
    text = text.replace(old, f"WordVocab({words!r})")
    recipe.write_text(text.replace("TextCorpus, make_vocab", "TextCorpus, WordVocab"))
    (folder / "text.txt").write_text(f"{words[0]} {words[1]}\n" * 9)
    return make_trained(str(recipe), folder / "out", corpus=folder / "text.txt", settings=LM)


def make_arpa(path: Path, *, words: list[str] = WORDS) -> Path:
    """
    :param path: to write
    :param words: which all have the same probability, but the first is likely to come twice
    :return: the path
    """
    unigrams = [f"-1.1\t{word}\t-0.1" for word in words]
    lines = ["\\data\\", f"ngram 1={len(words) + 2}", "ngram 2=1", "", "\\1-grams:", "-1.1\t</s>", "-99\t<s>\t-0.1"]
    path.write_text("\n".join([*lines, *unigrams, "", "\\2-grams:", f"-0.1\t{words[0]} {words[0]}", "", "\\end\\", ""]))
    return path
