"""
From the options of a transducer's search to the searches, with its internal language model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import nn
from ..search import (
    Hypotheses,
    combine,
    transducer_alignment_search,
    transducer_beam_search,
    transducer_greedy_search,
)

if TYPE_CHECKING:
    from .transducer_model import TransducerModel

__all__ = ["METHODS", "search_encoded", "search_options"]

METHODS = ("frames", "alignments")


def search_options(
    model: TransducerModel,
    lm_options: tuple[Any, float, int | None, int | None],
    *,
    beam_size: int,
    internal_lm_scale: float,
) -> dict[str, Any]:
    """
    :param model:
    :param lm_options: ``lm``, ``lm_scale``, ``bos``, ``eos``, see :meth:`TransducerModel.search`, also for the others
    :return: of the beam search, or, without "beam_size", of the greedy one
    :raises ValueError: for a scale without ``lm``
    """
    lm, lm_scale, bos, eos = lm_options
    if lm is None and internal_lm_scale:
        raise ValueError(f"TransducerModel: expected an lm for internal_lm_scale {internal_lm_scale}")
    if lm is not None and internal_lm_scale:
        first = bos if bos is not None else (eos or 0)
        parts = [(lm, lm_scale), (model.internal_lm(lm.vocab_dim, bos=first), -internal_lm_scale)]
        lm, lm_scale = combine(parts), 1.0
    options = {"blank": model.blank_index, "topology": model.topology, "vocab_dim": model.vocab_dim}
    if beam_size == 1 and (lm, lm_scale, bos, eos) == (None, 0.0, None, None):
        return options
    return {**options, "beam_size": beam_size, "scorer": lm, "scorer_scale": lm_scale, "bos": bos, "eos": eos}


def search_encoded(
    model: TransducerModel,
    encoded: nn.Tensor,
    *,
    spatial_dim: nn.Dim,
    options: dict[str, Any],
    method: str,
    max_labels_per_frame: int | None,
) -> Hypotheses:
    """
    :param model:
    :param encoded: ``{batch, time, features}``
    :param spatial_dim: time
    :param options: of :func:`search_options`
    :param method: see :meth:`TransducerModel.search`
    :param max_labels_per_frame: see there
    :return: labels of ``vocab_dim``
    :raises ValueError: for another method, or "alignments" with what it has no use for
    """
    options = {**options, "spatial_dim": spatial_dim}
    if method == "alignments":
        if model.topology != "rnnt":
            raise ValueError(
                f"TransducerModel: method 'alignments', expected the topology rnnt, the model has {model.topology}"
            )
        if max_labels_per_frame is not None:
            raise ValueError(
                "TransducerModel: max_labels_per_frame, expected None with the method 'alignments', which has no such "
                f"limit, got {max_labels_per_frame}"
            )
        del options["topology"]
        return transducer_alignment_search(model, encoded, **{"beam_size": 1, **options})
    if method != "frames":
        raise ValueError(f"TransducerModel: method, expected one of {', '.join(METHODS)}, got {method!r}")
    search = transducer_beam_search if "beam_size" in options else transducer_greedy_search
    return search(model, encoded, **options, max_labels_per_frame=max_labels_per_frame)
