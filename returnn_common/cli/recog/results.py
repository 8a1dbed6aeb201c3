"""
Scores what was recognised, in the order of the search and in others, and shows the word error rates.
"""

from __future__ import annotations

from typing import Any

from ...recog.mbr import mbr_nbest
from ...recog.nbest import NBest, best_texts, read_nbest, write_nbest
from ...recog.scoring import WerResult, oracle_wer, score_wer
from ..errors import CommandError
from ..run.folder import read_json, write_json
from ..run.results import counts
from ..run.results import references_of as dataset_references
from .search import Recognition

__all__ = ["lists_of", "references_of", "score", "show", "write_mbr", "write_results"]

Results = dict[str, dict[str, WerResult]]


def lists_of(recognition: Recognition, split: str, kind: str = "") -> NBest:
    """
    :return: n-best lists, see :meth:`RecogFolder.nbest`
    :raises CommandError: if they cannot be read
    """
    try:
        return read_nbest(recognition.folder.nbest(split, kind))
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_status=1) from error


def references_of(recognition: Recognition, split: str) -> dict[str, str]:
    """
    :return: of a split
    :raises CommandError: if they cannot be read
    """
    dataset = recognition.request.run.recipe.dataset
    if recognition.request.data is not None:
        dataset.path = str(recognition.request.data)
    try:
        return dataset_references(dataset, split)
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_status=1) from error


def write_mbr(recognition: Recognition, split: str, *, kind: str, scale: float):
    """
    Writes the lists of a split in the order of the expected errors, as of kind "mbr".

    :param kind: of the lists to begin with
    :param scale: of their scores
    """
    write_nbest(recognition.folder.nbest(split, "mbr"), mbr_nbest(lists_of(recognition, split, kind), scale=scale))


def score(recognition: Recognition, split: str, kinds: list[str]) -> dict[str, WerResult]:
    """
    :param split: recognised
    :param kinds: of its lists
    :return: by kind, in the order of the table: "search", the others, and for lists "oracle"
    """
    references = references_of(recognition, split)
    first = lists_of(recognition, split)
    results = {"search": score_wer(best_texts(first), references)}
    for kind in kinds:
        results[kind] = score_wer(best_texts(lists_of(recognition, split, kind)), references)
    if any(len(hypotheses) > 1 for hypotheses in first.values()):
        results["oracle"] = oracle_wer(first, references)
    return results


def write_results(recognition: Recognition, results: Results, *, extra: dict[str, Any]) -> dict[str, Any]:
    """
    Writes ``results.json``. What it has of other splits is kept.

    :param results: by split and kind
    :param extra: by split, what else there is to be said
    :return: its content
    """
    request, folder = recognition.request, recognition.folder
    before = (read_json(folder.results) or {}).get("splits", {})
    splits = {
        split: {
            "wer": {kind: round(result.wer, 4) for kind, result in of_split.items()},
            "errors": {kind: counts(result) for kind, result in of_split.items()},
            "seconds": folder.state["done"][split],
            **extra.get(split, {}),
        }
        for split, of_split in results.items()
    }
    content = {"recipe": request.run.name, **request.settings, "splits": {**before, **splits}}
    write_json(folder.results, content)
    return content


def show(recognition: Recognition, results: Results):
    """
    Prints a table of the word error rates, and where the results lie.

    :param results: by split and kind
    """
    from rich.table import Table

    table = Table("split", "hypotheses", "WER [%]", "errors", "sub", "del", "ins", "words", "utterances")
    for column in table.columns[2:]:
        column.justify = "right"
    for split, of_split in results.items():
        for kind, result in of_split.items():
            numbers = [result.errors, result.substitutions, result.deletions, result.insertions]
            numbers += [result.num_ref_words, result.num_utterances]
            table.add_row(split, kind, f"{result.wer:.2f}", *map(str, numbers), end_section=kind == list(of_split)[-1])
    console = recognition.console
    console.print(table)
    for split, of_split in results.items():
        for warning in of_split["search"].warnings:
            console.print(f"{split}: {warning}", markup=False, highlight=False, soft_wrap=True)
    lines = [f"results: {recognition.folder.results}"]
    lines += [f"n-best lists: {recognition.folder.nbest(split)}" for split in results]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
