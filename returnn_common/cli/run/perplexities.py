"""
What comes out of a run of a language model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...recog.perplexity import read_perplexity
from ..errors import CommandError
from .results import show_files, split_names, write_json
from .stages import Run, count_parameters

__all__ = ["read", "show", "tables", "write_results"]

_HEAD = ("split", "perplexity per word", "perplexity per label", "words", "labels", "sentences")


def read(run: Run) -> dict[str, dict[str, Any]]:
    """
    :return: for each split that was evaluated, see :class:`returnn_common.recog.perplexity.PerplexityCallback`
    :raises CommandError: if a file cannot be read
    """
    try:
        return {split: read_perplexity(run.folder.perplexity(split)) for split in run.recipe.eval_splits}
    except (ValueError, OSError) as error:
        raise CommandError(str(error), exit_status=1) from error


def write_results(run: Run, values: dict[str, dict[str, Any]], *, checkpoint: Path) -> dict[str, Any]:
    """
    Writes ``results.json``.

    :param values: by split
    :param checkpoint: without suffix
    :return: its content
    """
    names, state = split_names(run), run.folder.state
    content = {
        "recipe": run.name,
        "backend": run.backend,
        "perplexity_per_word": {names[split]: round(value["per_word"], 4) for split, value in values.items()},
        "perplexity_per_label": {names[split]: round(value["per_label"], 4) for split, value in values.items()},
        "counts": {
            names[split]: {key: value[f"num_{key}"] for key in ("words", "labels", "sentences")}
            for split, value in values.items()
        },
        "num_parameters": count_parameters(run, checkpoint),
        "train_seconds": state["train_seconds"],
        "recog_seconds": round(sum(state["recognised"][split] for split in values), 1),
    }
    write_json(run, content)
    return content


def tables(values: dict[str, dict[str, Any]]) -> dict[str, list[list[str]]]:
    """
    :param values: by split
    :return: for the report
    """
    return {"Perplexity": [list(_HEAD), *_rows(values)]}


def _rows(values: dict[str, dict[str, Any]]) -> list[list[str]]:
    return [
        [
            split,
            *(f"{value[key]:.2f}" for key in ("per_word", "per_label")),
            *(f"{value[f'num_{key}']:,}" for key in ("words", "labels", "sentences")),
        ]
        for split, value in values.items()
    ]


def show(run: Run, values: dict[str, dict[str, Any]]):
    """
    Prints a table of the perplexities, and where the report lies.

    :param values: by split
    """
    from rich.table import Table

    table = Table(*_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in _rows(values):
        table.add_row(*row)
    run.console.print(table)
    show_files(run)
