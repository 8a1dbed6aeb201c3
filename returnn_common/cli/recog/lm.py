"""
The language model of a recognition: which it is, whether it fits, and how the config gets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import CommandError
from ..run.finished import TrainedRun, choose_checkpoint, load_run

__all__ = ["RecogLm", "find_lm", "labels_of"]


@dataclass(frozen=True)
class RecogLm:
    """
    :param path: absolute
    :param code: lines of a config that give it to the model
    :param run: that has trained it; None: it has no parameters
    :param checkpoint: of that
    """

    path: Path
    code: tuple[str, ...]
    run: TrainedRun | None = None
    checkpoint: Path | None = None


def find_lm(name: str, *, run: TrainedRun, backend: str) -> RecogLm:
    """
    :param name: folder of a run of a language model
    :param run: of the recogniser
    :param backend: for which the recipe of the language model is read
    :return: it
    :raises CommandError: if there is no such, it has not been trained, or it has other labels than the recogniser
    """
    path = Path(name).resolve()
    if path.is_file():
        return _find_ngram(name, path, run=run)
    try:
        lm = load_run(name, backend=backend)
    except CommandError as error:
        raise CommandError(f"--lm {error}") from None
    if lm.recipe.evaluation != "perplexity":
        raise CommandError(f"--lm {name}: expected the run of a language model, but {lm.name} is a recogniser")
    _check_labels(name, labels_of(lm), run=run)
    checkpoint = choose_checkpoint(lm)
    options = {**lm.settings, "backend": backend, **({} if lm.corpus is None else {"corpus": str(lm.corpus)})}
    code = (
        "from returnn_common.recog.language_model import recipe_model, with_language_model",
        f"get_model = with_language_model(get_model, recipe_model({str(lm.folder.config)!r}, {options!r}))",
    )
    return RecogLm(path, code, lm, checkpoint)


def _find_ngram(name: str, path: Path, *, run: TrainedRun) -> RecogLm:
    from ...search import read_arpa

    labels = labels_of(run)
    try:
        ngram = read_arpa(str(path))
    except (ValueError, OSError) as error:
        raise CommandError(f"--lm {name}: {error}") from None
    known = set(ngram.words) - {"<s>", "</s>", ngram.unknown_word}
    missing = [label for label in labels if label not in known]
    if len(missing) == len(labels) or (missing and ngram.unknown_word is None):
        raise CommandError(
            f"--lm {name}: its vocabulary is not that of {run.folder.path}: {len(missing)} of {len(labels)} labels are "
            f"not among its {len(known)} words: {', '.join(map(repr, missing[:5]))}"
        )
    code = (
        "from returnn_common.models.ngram_lm import NgramLm",
        "from returnn_common.recog.language_model import with_language_model",
        "from returnn_common.search import read_arpa",
        "",
        "",
        "def make_lm(model, **_):",
        f"    return NgramLm(read_arpa({str(path)!r}), model, labels={labels!r})",
        "",
        "",
        "get_model = with_language_model(get_model, make_lm)",
    )
    return RecogLm(path, code)


def labels_of(run: TrainedRun) -> list[str]:
    """
    :return: names of the labels of its vocabulary
    :raises CommandError: if it has none
    """
    from returnn.datasets.util.vocabulary import Vocabulary

    vocab = getattr(run.recipe.dataset, "vocab", None)
    if vocab is None:
        raise CommandError(f"{run.folder.path}: its dataset has no vocabulary to compare")
    try:
        return [str(label) for label in Vocabulary.create_vocab(**vocab.get_opts()).labels]
    except OSError as error:
        raise CommandError(f"{run.folder.path}: its vocabulary cannot be read: {error}") from error


def _check_labels(name: str, labels: list[str], *, run: TrainedRun):
    expected = labels_of(run)
    if labels == expected:
        return
    if len(labels) != len(expected):
        how = f"{len(labels)} labels instead of {len(expected)}"
    else:
        index = next(i for i, (a, b) in enumerate(zip(labels, expected, strict=True)) if a != b)
        how = f"label {index} is {labels[index]!r} instead of {expected[index]!r}"
    raise CommandError(f"--lm {name}: its vocabulary is not that of {run.folder.path}: {how}")
