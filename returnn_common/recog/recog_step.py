"""
The forward step and the callback for recognition with every model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from returnn.config import get_global_config
from returnn.datasets.util.vocabulary import Vocabulary
from returnn.forward_iface import ForwardCallbackIface

from .. import nn
from .components import LENGTH_EXPONENT, Components, ScoredList, rerank
from .fusion import fusion_of, part_scales
from .label_text import label_text
from .mbr import mbr_nbest
from .nbest import write_nbest
from .search_options import SearchOptions, read_search_options
from .vocabulary import config_vocab

_MAX_EXAMPLE_FRAMES = 300
_PART = "part_"  # at the start of the names of such outputs

__all__ = ["RecogCallback", "recog_callback", "recog_step"]


def recog_step(*, model: Any, extern_data: nn.TensorDict, **_other: Any) -> None:
    """
    RETURNN's ``forward_step``: runs ``model.search(...)``, and marks its hypotheses as outputs,
    "labels" ``{batch, beam, labels}`` and "scores" ``{batch, beam}``, best first.

    Reads from the config ``default_input`` (default "data"), ``beam_size`` (default 1), ``search_options`` (a dict, see
    :class:`.search_options.SearchOptions`: the options of the model's search, language models, phrases, a word list),
    and two names of files:

    - ``recog_posteriors_file``: also marks "log_probs" ``{batch, time', labels and blank}`` (of models that have such)
    - ``recog_components_file``: also marks what each part gives the hypotheses, those of the model, language models,
      phrases: "part_NAME" ``{batch, beam}``, see :meth:`.fusion.Fusion.score_parts`

    :param model: with a method ``search``, see DESIGN's model contract
    :param extern_data: the batch
    :raises ValueError: if the batch has no such entry, the search no such option, or the model no such method
    """
    config = get_global_config()
    key = config.value("default_input", "data")
    if key not in extern_data.data:
        raise ValueError(f"recog_step: default_input is {key!r}, but extern_data has only {sorted(extern_data.data)}")
    source = extern_data[key]
    spatial_dim = nn.get_spatial_dim(source)
    options = read_search_options(config)
    fusion = fusion_of(model, options, config)
    hypotheses = model.search(source, in_spatial_dim=spatial_dim, beam_size=options.beam_size, **fusion.arguments)
    (batch_dim,) = hypotheses.scores.remaining_dims([hypotheses.beam_dim])
    run_ctx = nn.get_run_ctx()
    run_ctx.mark_as_output(hypotheses.labels, "labels", dims=[batch_dim, hypotheses.beam_dim, hypotheses.spatial_dim])
    run_ctx.mark_as_output(hypotheses.lengths, "lengths", dims=[batch_dim, hypotheses.beam_dim])
    run_ctx.mark_as_output(hypotheses.scores, "scores", dims=[batch_dim, hypotheses.beam_dim])
    if config.value("recog_posteriors_file", None) and hasattr(model, "log_probs"):
        log_probs, out_spatial_dim = model.log_probs(source, in_spatial_dim=spatial_dim)
        run_ctx.mark_as_output(log_probs, "log_probs", dims=[batch_dim, out_spatial_dim, model.labels_dim])
    if config.value("recog_components_file", None) or options.rescore:
        for name, scores in fusion.score_parts(model, hypotheses, source, in_spatial_dim=spatial_dim).items():
            run_ctx.mark_as_output(scores, _PART + name, dims=[batch_dim, hypotheses.beam_dim])


def recog_callback() -> RecogCallback:
    """
    RETURNN's ``forward_callback``: writes n-best lists.

    Reads from the config ``recog_output_file`` (default "nbest.py.gz"), ``recog_posteriors_file`` and
    ``recog_components_file`` (default none), see :class:`RecogCallback`, ``search_options`` (of these ``nbest``,
    ``rescore`` and ``mbr``, see :class:`.search_options.SearchOptions`), and the vocabulary,
    ``extern_data[target]["vocab"]``. Without a vocabulary, the text is the labels' indices.
    """
    config = get_global_config()
    options = read_search_options(config)
    return RecogCallback(
        config.value("recog_output_file", "nbest.py.gz"),
        vocab=config_vocab(config),
        num_best=options.nbest,
        rescored=options if options.rescore else None,
        mbr_scale=options.mbr,
        posteriors_path=config.value("recog_posteriors_file", None),
        components_path=config.value("recog_components_file", None),
    )


class RecogCallback(ForwardCallbackIface):
    """
    Collects the hypotheses of every utterance, and writes them at the end (all or nothing)
    as ``{seq_tag: [(score, text), ...]}``, best first, see :func:`write_nbest`.

    :param path: gzip if it ends in ".gz"
    :param vocab: None: the one of the labels' sparse dim, if any
    :param posteriors_path: for one utterance's ``tag``, ``log_probs`` and ``labels``, as .npz, if there are such
        outputs; None: not written.
        It is the longest of at most 300 frames, so that something is to be seen; if there is none, the first.
    :param num_best: hypotheses to write of each utterance, at most; 0: all
    :param components_path: for "search", what the search reports, and each part of the model, the scores of all
        hypotheses, see :class:`.components.Components`; None: not written
    :param rescored: the lists are ordered by the scores that these options give, of which the search had no language
        model, see :func:`.fusion.part_scales`; None: by the search's
    :param mbr_scale: the lists, as ordered by their scores, are ordered by minimum Bayes risk, see
        :func:`.mbr.mbr_nbest`; None: not
    """

    def __init__(
        self,
        path: str,
        *,
        vocab: Vocabulary | None = None,
        posteriors_path: str | None = None,
        num_best: int = 0,
        components_path: str | None = None,
        rescored: SearchOptions | None = None,
        mbr_scale: float | None = None,
    ):
        self.path = path
        self.vocab = vocab
        self.posteriors_path = posteriors_path
        self.num_best = num_best
        self.components_path = components_path
        self.rescored = rescored
        self.mbr_scale = mbr_scale
        self.entries: dict[str, list[tuple[float, str]]] = {}
        self._posteriors: dict[str, Any] = {}
        self._lists: dict[str, ScoredList] = {}
        self._part_names: tuple[str, ...] = ()
        self._scales: dict[str, float] = {}

    def init(self, *, model: Any) -> None:
        """
        :param model: that recognises
        :raises ValueError: if it does not tell the scales of its parts, and the lists are to be rescored
        """
        if self.rescored is not None:
            self._scales = part_scales(model, self.rescored)

    def process_seq(self, *, seq_tag: str, outputs: nn.TensorDict) -> None:
        """
        :param seq_tag:
        :param outputs: of :func:`recog_step`, NumPy, without the batch dim
        :raises ValueError: if a tag comes twice
        """
        if seq_tag in self.entries:
            raise ValueError(f"recog_callback: {seq_tag!r} comes twice in the dataset")
        if self.posteriors_path and "log_probs" in outputs.data and self._is_better_example(outputs):
            self._posteriors = self._take_posteriors(seq_tag, outputs)
        labels, lengths, scores = (outputs[name] for name in ("labels", "lengths", "scores"))
        vocab = self.vocab or (labels.sparse_dim and labels.sparse_dim.vocab)
        used = np.asarray(scores.raw_tensor) > float("-inf")  # else the beam was wider than the number of hypotheses
        texts = [
            label_text(ids[:length], vocab)
            for ids, length, is_used in zip(labels.raw_tensor, lengths.raw_tensor, used, strict=True)
            if is_used
        ]
        entries = list(zip(map(float, scores.raw_tensor[used]), texts, strict=True))
        self.entries[seq_tag] = entries[: self.num_best or None]
        if self.components_path or self.rescored is not None:
            self._part_names = tuple(name.removeprefix(_PART) for name in outputs.data if name.startswith(_PART))
            parts = [scores, *(outputs[_PART + name] for name in self._part_names)]
            values = np.stack([np.asarray(part.raw_tensor)[used] for part in parts], axis=-1)
            self._lists[seq_tag] = ScoredList(texts, np.asarray(lengths.raw_tensor)[used] + 1, values)

    def _is_better_example(self, outputs: nn.TensorDict) -> bool:
        if not self._posteriors:
            return True
        best, new = (len(log_probs) for log_probs in (self._posteriors["log_probs"], outputs["log_probs"].raw_tensor))
        return best < new <= _MAX_EXAMPLE_FRAMES or new <= _MAX_EXAMPLE_FRAMES < best

    def _take_posteriors(self, seq_tag: str, outputs: nn.TensorDict) -> dict[str, Any]:
        vocab: Any = self.vocab or outputs["labels"].sparse_dim.vocab
        log_probs = np.asarray(outputs["log_probs"].raw_tensor)
        labels = [*(vocab.labels if vocab else map(str, range(log_probs.shape[-1] - 1))), "blank"]
        return {"tag": seq_tag, "log_probs": log_probs, "labels": labels}

    def finish(self) -> None:
        """Writes the files, n-best lists last."""
        if self.posteriors_path and self._posteriors:
            path = Path(self.posteriors_path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:  # given a name, savez may append ".npz"
                np.savez(file, **self._posteriors)
        components = Components(("search", *self._part_names), self._lists)
        if self.components_path:
            components.write(self.components_path)
        nbest = self.entries
        if self.rescored is not None:
            known = (*components.names, LENGTH_EXPONENT)
            reranked = rerank(components, {name: scale for name, scale in self._scales.items() if name in known})
            nbest = {tag: one[: self.num_best or None] for tag, one in reranked.items()}
        write_nbest(self.path, nbest if self.mbr_scale is None else mbr_nbest(nbest, scale=self.mbr_scale))
