"""
The forward step and the callback for recognition with every model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from returnn.config import get_global_config
from returnn.datasets.util.vocabulary import BytePairEncoding, Vocabulary
from returnn.forward_iface import ForwardCallbackIface

from .. import nn
from .nbest import write_nbest

_MAX_EXAMPLE_FRAMES = 300

__all__ = ["recog_step", "recog_callback", "RecogCallback"]


def recog_step(*, model: Any, extern_data: nn.TensorDict, **_other: Any) -> None:
    """
    RETURNN's ``forward_step``: runs ``model.search(...)``, and marks its hypotheses as outputs,
    "labels" ``{batch, beam, labels}`` and "scores" ``{batch, beam}``, best first.

    Reads ``default_input`` (default "data"), ``beam_size`` (default 1) and ``recog_posteriors_file`` from the config;
    with the latter, also marks "log_probs" ``{batch, time', labels and blank}`` (of models that have such).

    :param model: with a method ``search``, see DESIGN's model contract
    :param extern_data: the batch
    :raises ValueError: if the batch has no such entry
    """
    config = get_global_config()
    key = config.value("default_input", "data")
    if key not in extern_data.data:
        raise ValueError(f"recog_step: default_input is {key!r}, but extern_data has only {sorted(extern_data.data)}")
    source = extern_data[key]
    spatial_dim = nn.get_spatial_dim(source)
    hypotheses = model.search(source, in_spatial_dim=spatial_dim, beam_size=config.int("beam_size", 1))
    (batch_dim,) = hypotheses.scores.remaining_dims([hypotheses.beam_dim])
    run_ctx = nn.get_run_ctx()
    run_ctx.mark_as_output(hypotheses.labels, "labels", dims=[batch_dim, hypotheses.beam_dim, hypotheses.spatial_dim])
    run_ctx.mark_as_output(hypotheses.lengths, "lengths", dims=[batch_dim, hypotheses.beam_dim])
    run_ctx.mark_as_output(hypotheses.scores, "scores", dims=[batch_dim, hypotheses.beam_dim])
    if config.value("recog_posteriors_file", None) and hasattr(model, "log_probs"):
        log_probs, out_spatial_dim = model.log_probs(source, in_spatial_dim=spatial_dim)
        run_ctx.mark_as_output(log_probs, "log_probs", dims=[batch_dim, out_spatial_dim, model.labels_dim])


def recog_callback() -> RecogCallback:
    """
    RETURNN's ``forward_callback``: writes n-best lists.

    Reads ``recog_output_file`` (default "nbest.py.gz"), ``recog_posteriors_file`` (default none), and the vocabulary,
    ``extern_data[target]["vocab"]``, from the config. Without a vocabulary, the text is the labels' indices.
    """
    config = get_global_config()
    target = config.typed_value("extern_data", {}).get(config.value("target", "classes"), {})
    vocab = target.get("vocab")
    return RecogCallback(
        config.value("recog_output_file", "nbest.py.gz"),
        vocab=Vocabulary.create_vocab(**vocab) if isinstance(vocab, dict) else vocab,
        posteriors_path=config.value("recog_posteriors_file", None),
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
    """

    def __init__(self, path: str, *, vocab: Vocabulary | None = None, posteriors_path: str | None = None):
        self.path = path
        self.vocab = vocab
        self.posteriors_path = posteriors_path
        self.entries: dict[str, list[tuple[float, str]]] = {}
        self._posteriors: dict[str, Any] = {}

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
        entries = []
        for ids, length, score in zip(labels.raw_tensor, lengths.raw_tensor, scores.raw_tensor, strict=True):
            if score == float("-inf"):
                continue  # the beam was wider than the number of hypotheses
            entries.append((float(score), _text(ids[:length], vocab)))
        self.entries[seq_tag] = entries

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
        write_nbest(self.path, self.entries)


def _text(ids: Any, vocab: Vocabulary | None) -> str:
    if vocab is None:
        return " ".join(str(int(i)) for i in ids)
    text = vocab.get_seq_labels([int(i) for i in ids])
    if isinstance(vocab, BytePairEncoding):
        text = f"{text} ".replace("@@ ", "").strip()
    return text
