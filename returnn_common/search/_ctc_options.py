"""
From the options of CTC prefix beam search to what runs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .. import nn
from ._ctc_fusion import CtcFusion
from ._ctc_prefix_beam import PrefixBeamSearch
from ._ctc_pruning import CtcPruning
from ._options import ScorerOptions

__all__ = ["make_prefix_beam"]


def make_prefix_beam(
    *,
    vocab_dim: nn.Dim,
    blank: int,
    beam_size: int,
    recombine: str,
    scorer_options: ScorerOptions,
    pruning: CtcPruning,
    batch_dims: Sequence[nn.Dim],
    device: str | None,
    may_go_on: bool = False,
) -> PrefixBeamSearch:
    """
    The arguments are those of :func:`returnn_common.search.ctc_beam_search`, checked, and of :class:`PrefixBeamSearch`.
    """
    scorer, scorer_scale, bos, eos = scorer_options
    beam_dim = nn.Dim(beam_size, name="beam")
    fusion = None
    if scorer is not None and scorer_scale:
        fusion = CtcFusion(
            scorer,
            scale=float(scorer_scale),
            bos=bos if bos is not None else (eos or 0),
            eos=eos,
            dims=[*batch_dims, beam_dim],
            beam_dim=beam_dim,
            vocab_dim=vocab_dim,
            blank=blank,
            device=device,
        )
    return PrefixBeamSearch(
        batch_dims=batch_dims,
        device=device,
        vocab_dim=vocab_dim,
        blank=blank,
        beam_dim=beam_dim,
        other_dim=nn.Dim(beam_size, name="other-beam"),
        fusion=fusion,
        use_sum=recombine == "sum",
        pruning=pruning,
        may_go_on=may_go_on,
    )
