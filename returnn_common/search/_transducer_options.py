"""
From the options of the searches for transducers to what runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import nn
from ._common import check_int
from ._options import ScorerOptions
from ._transducer_beam import TransducerBeamSearch
from ._transducer_fusion import TransducerFusion

__all__ = ["check_max_labels", "make_beam", "make_fusion"]

TOPOLOGIES = ("rnnt", "monotonic", "ctc")
MAX_LABELS_PER_FRAME = 5


def check_max_labels(name: str, value: int | None, topology: str) -> int:
    """
    :param name: of the search, for the messages
    :param value: "max_labels_per_frame", None for the default
    :param topology: see :func:`returnn_common.search.transducer_greedy_search`
    :return: the limit
    :raise ValueError: an unknown topology, or a limit that doesn't fit
    """
    if topology not in TOPOLOGIES:
        raise ValueError(f"{name}: topology, expected one of {', '.join(TOPOLOGIES)}, got {topology!r}")
    if value is not None:
        check_int(name, "max_labels_per_frame", value, at_least=1)
    if topology != "rnnt":
        if value not in (None, 1):
            raise ValueError(f"{name}: max_labels_per_frame, expected 1 with the topology {topology!r}, got {value}")
        return 1
    return MAX_LABELS_PER_FRAME if value is None else value


def make_fusion(
    scorer_options: ScorerOptions, *, dims: Sequence[nn.Dim], vocab_dim: nn.Dim, blank: int, device: str | None
) -> TransducerFusion | None:
    """
    :param scorer_options: checked
    :return: None without a scorer; see :class:`TransducerFusion` for the others
    """
    scorer, scorer_scale, bos, eos = scorer_options
    if scorer is None or not scorer_scale:
        return None
    return TransducerFusion(
        scorer,
        scale=float(scorer_scale),
        bos=bos if bos is not None else (eos or 0),
        eos=eos,
        dims=dims,
        vocab_dim=vocab_dim,
        blank=blank,
        device=device,
    )


def make_beam(
    transducer: Any,
    *,
    batch_dims: Sequence[nn.Dim],
    device: str | None,
    blank: int,
    beam_size: int,
    recombine: str,
    scorer_options: ScorerOptions,
    **options: Any,
) -> TransducerBeamSearch:
    """
    The arguments are those of :func:`returnn_common.search.transducer_beam_search`, checked, and of
    :class:`TransducerBeamSearch`.
    """
    beam_dim = nn.Dim(beam_size, name="beam")
    dims = [*batch_dims, beam_dim]
    return TransducerBeamSearch(
        transducer=transducer,
        batch_dims=batch_dims,
        device=device,
        blank=blank,
        beam_dim=beam_dim,
        use_sum=recombine == "sum",
        fusion=make_fusion(scorer_options, dims=dims, vocab_dim=transducer.labels_dim, blank=blank, device=device),
        **options,
    )
