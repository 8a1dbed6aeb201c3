"""
Perplexity of a language model over a whole dataset, through RETURNN's task "forward" on each engine.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from returnn.config import get_global_config
from returnn.forward_iface import ForwardCallbackIface

from .. import nn

__all__ = ["PerplexityCallback", "ppl_callback", "ppl_step", "read_perplexity"]


def ppl_step(*, model: Any, extern_data: nn.TensorDict, **_other: Any) -> None:
    """
    RETURNN's ``forward_step``: marks for each sentence, ``{batch, 1}`` and float32, its negative log likelihood "nll"
    (natural log), "num_labels" and "num_words", each with the end of sentence.

    Reads ``default_input`` (default "data") from the config.

    :param model: with a method ``nll``, see :class:`returnn_common.models.language_model.LanguageModel`
    :param extern_data: the batch
    :raises ValueError: if the batch has no such entry
    """
    key = get_global_config().value("default_input", "data")
    if key not in extern_data.data:
        raise ValueError(f"ppl_step: default_input is {key!r}, but extern_data has only {sorted(extern_data.data)}")
    source = extern_data[key]
    values = model.nll(source, in_spatial_dim=nn.get_spatial_dim(source))
    # Without another dim than the batch, RETURNN's low-level TensorFlow engine fails: it cuts out NumPy scalars.
    one = nn.Dim(1, name="one")
    for name, value in zip(("nll", "num_labels", "num_words"), values, strict=True):
        dims = [*value.dims, one]
        nn.get_run_ctx().mark_as_output(nn.expand_dim(value, one), name, dims=dims)


def ppl_callback() -> PerplexityCallback:
    """
    RETURNN's ``forward_callback``: writes the perplexities as JSON.

    Reads ``recog_output_file`` (default "perplexity.json") from the config.
    """
    return PerplexityCallback(get_global_config().value("recog_output_file", "perplexity.json"))


class PerplexityCallback(ForwardCallbackIface):
    """
    Sums over all sentences, and writes at the end (all or nothing) a dict with "per_label" and "per_word",
    ``exp(nll / number)``, and "nll", "num_labels", "num_words", "num_sentences".

    :param path: of the file
    """

    def __init__(self, path: str):
        self.path = path
        self._sentences: dict[str, tuple[float, float, float]] = {}

    def process_seq(self, *, seq_tag: str, outputs: nn.TensorDict) -> None:
        """
        :param seq_tag:
        :param outputs: of :func:`ppl_step`, NumPy, without the batch dim
        :raises ValueError: if a tag comes twice, or the nll is no number
        """
        if seq_tag in self._sentences:
            raise ValueError(f"ppl_callback: {seq_tag!r} comes twice in the dataset")
        nll, num_labels, num_words = (
            float(outputs[name].raw_tensor.item()) for name in ("nll", "num_labels", "num_words")
        )
        if not math.isfinite(nll):
            raise ValueError(f"ppl_callback: expected a finite nll of {seq_tag!r}, got {nll}")
        self._sentences[seq_tag] = nll, num_labels, num_words

    def finish(self) -> None:
        """
        Writes the file.

        :raises ValueError: if there was no sentence
        """
        if not self._sentences:
            raise ValueError("ppl_callback: expected at least one sentence, got none")
        nll, num_labels, num_words = map(math.fsum, zip(*self._sentences.values(), strict=True))
        content = {
            "per_label": math.exp(nll / num_labels),
            "per_word": math.exp(nll / num_words),
            "nll": nll,
            "num_labels": round(num_labels),
            "num_words": round(num_words),
            "num_sentences": len(self._sentences),
        }
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(content, indent=2) + "\n", "utf8")
        os.replace(part, path)


def read_perplexity(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    :param path: of a file that :class:`PerplexityCallback` has written
    :return: its content
    :raises ValueError: if it is something else
    """
    try:
        content = json.loads(Path(path).read_text("utf8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or "per_word" not in content:
        raise ValueError(f"{path}: expected perplexities, got {content!r:.50}")
    return content
