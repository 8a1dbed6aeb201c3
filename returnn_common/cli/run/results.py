"""
Scores what was recognised, writes results.json, and shows the word error rates.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...datasets import VocabConfig
from ...recog.nbest import best_texts, read_nbest
from ...recog.scoring import WerResult, score_wer
from ..errors import CommandError
from .stages import Run, count_parameters

__all__ = ["counts", "references_of", "score", "show", "show_files", "split_names", "write_json", "write_results"]


def score(run: Run) -> dict[str, WerResult]:
    """
    :return: for each split that was recognised
    :raises CommandError: if a file cannot be read
    """
    results = {}
    for split in run.recipe.eval_splits:
        try:
            hypotheses = best_texts(read_nbest(run.folder.nbest(split)))
            results[split] = score_wer(hypotheses, references_of(run.recipe.dataset, split))
        except (ValueError, OSError) as error:
            raise CommandError(str(error), exit_status=1) from error
    return results


def references_of(dataset: Any, split: str) -> dict[str, str]:
    """
    :param dataset: of a recipe
    :param split: of that
    :return: utterance -> what is recognised when all is right: the transcript, or its phonemes
    """
    references = dataset.get_references(split)
    vocab = getattr(dataset, "vocab", None)
    if not isinstance(vocab, VocabConfig):
        return references
    return {utterance: vocab.as_decoded(text) for utterance, text in references.items()}


def write_results(run: Run, wer: dict[str, WerResult], *, checkpoint: Path) -> dict[str, Any]:
    """
    Writes ``results.json``.

    :param wer: by split
    :param checkpoint: without suffix
    :return: its content
    """
    names = split_names(run)
    state, dataset = run.folder.state, run.recipe.dataset
    content = {
        "recipe": run.name,
        "backend": run.backend,
        "wer": {names[split]: round(result.wer, 4) for split, result in wer.items()},
        "errors": {names[split]: counts(result) for split, result in wer.items()},
        "num_parameters": count_parameters(run, checkpoint),
        "train_seconds": state["train_seconds"],
        "recog_seconds": round(sum(state["recognised"][split] for split in wer), 1),
    }
    if "tuned" in state:
        content["tuned"] = state["tuned"]
    if hasattr(dataset, "get_durations"):
        content["audio_seconds"] = round(sum(sum(dataset.get_durations(split).values()) for split in wer), 2)
    else:
        content["sequence_accuracy"] = {names[split]: round(_accuracy(result), 2) for split, result in wer.items()}
    write_json(run, content)
    return content


def write_json(run: Run, content: dict[str, Any]):
    """Writes ``results.json``, at once."""
    part = run.folder.results.with_name(".results.json.part")
    part.write_text(json.dumps(content, indent=2) + "\n", "utf8")
    os.replace(part, run.folder.results)


def split_names(run: Run) -> dict[str, str]:
    """:return: what each split is called in the results"""
    dev, test = run.recipe.dataset.dev_splits, run.recipe.dataset.test_splits
    if len(dev) == len(test) == 1:
        return {test[0]: "test", dev[0]: "dev"}
    return {split: split for split in run.recipe.eval_splits}


def _accuracy(result: WerResult) -> float:
    """:return: how many sequences have no error, in percent"""
    correct = sum(not utterance.errors for utterance in result.utterances)
    return 100.0 * correct / max(result.num_utterances, 1)


def counts(result: WerResult) -> dict[str, int]:
    """:return: for ``results.json``"""
    return {
        "substitutions": result.substitutions,
        "deletions": result.deletions,
        "insertions": result.insertions,
        "reference_words": result.num_ref_words,
        "utterances": result.num_utterances,
        "missing": len(result.missing),
        "extra": len(result.extra),
    }


def show(run: Run, wer: dict[str, WerResult]):
    """
    Prints a table of the word error rates, and where the report lies.

    :param wer: by split
    """
    from rich.table import Table

    is_speech = hasattr(run.recipe.dataset, "get_durations")
    columns = ["split", "WER [%]", "errors", "sub", "del", "ins", "words", "utterances"]
    if not is_speech:
        columns = ["split", "label error [%]", *columns[2:6], "labels", "sequences", "sequence accuracy [%]"]
    table = Table(*columns)
    for column in table.columns[1:]:
        column.justify = "right"
    for split, result in wer.items():
        errors = [result.errors, result.substitutions, result.deletions, result.insertions]
        counts = [*errors, result.num_ref_words, result.num_utterances]
        accuracy = [] if is_speech else [f"{_accuracy(result):.2f}"]
        table.add_row(split, f"{result.wer:.2f}", *map(str, counts), *accuracy)
    run.console.print(table)
    for split, result in wer.items():
        for warning in result.warnings:
            run.console.print(f"{split}: {warning}", markup=False, highlight=False, soft_wrap=True)
    show_files(run)


def show_files(run: Run):
    """Prints where the results and the report lie."""
    for name, path in [("results", run.folder.results), ("report", run.folder.report)]:
        if path.is_file():
            run.console.print(f"{name}: {path}", markup=False, highlight=False, soft_wrap=True)
