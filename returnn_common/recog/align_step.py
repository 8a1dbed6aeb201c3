"""
The forward step and the callback for alignments: in which frames the labels of utterances are, with every model that
can tell, as HDF files for RETURNN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from returnn.config import Config, get_global_config
from returnn.datasets.util.vocabulary import Vocabulary
from returnn.forward_iface import ForwardCallbackIface

from .. import nn
from ..nn.config_dict import read_dict
from .alignment_files import AlignmentHdf, AlignmentNotes, ctm_lines, frame_labels, soft_frames, write_lines
from .fusion import fusion_of
from .label_text import label_text
from .search_options import read_search_options
from .times import frame_shift, word_times
from .transcribe import can_align
from .vocabulary import config_vocab

__all__ = ["AlignCallback", "align_callback", "align_step"]


def align_step(*, model: Any, extern_data: nn.TensorDict, **_other: Any) -> None:
    """
    RETURNN's ``forward_step``: runs ``model.align(...)`` or ``model.soft_align(...)``, and marks as outputs "labels"
    ``{batch, labels}``, "scores" ``{batch, 1}`` (natural log of the best alignment's probability, or of all), and
    "starts", "ends", "label_scores" ``{batch, labels}``, "path" ``{batch, time'}``, see
    :class:`returnn_common.search.Alignment`, or "soft_labels" ``{batch, time', labels}`` and "soft_blank"
    ``{batch, time'}``, see :class:`returnn_common.search.SoftAlignment`.

    Reads from the config ``default_input`` (default "data"), and

    - ``align_labels``: "targets" (default), the labels are those of ``target`` (default "classes"); or "search", they
      are the best hypothesis of ``model.search``, with ``beam_size`` and ``search_options`` as for :func:`recog_step`
    - ``align_soft`` (default False)
    - ``align_options``: a dict of further arguments, such as ``{"use_ctc": True}`` of a transducer

    :param model: with the methods ``align`` and ``soft_align``
    :param extern_data: the batch
    :raises ValueError: if the batch has no such entry, the model cannot align, or ``align_labels`` is something else
    """
    config = get_global_config()
    if not can_align(model):
        raise ValueError(f"align_step: {type(model).__name__} cannot align: it is no transducer and has no CTC head")
    source = _entry(extern_data, "default_input", config.value("default_input", "data"))
    spatial_dim = nn.get_spatial_dim(source)
    labels, labels_dim = _labels_to_align(model, source, spatial_dim, extern_data, config)
    known: dict[str, Any] = {"labels": labels, "labels_spatial_dim": labels_dim, **read_dict(config, "align_options")}
    (batch_dim,) = labels.remaining_dims([labels_dim])
    if config.bool("align_soft", False):
        found, frames_dim = model.soft_align(source, in_spatial_dim=spatial_dim, **known)
        outputs = {
            "soft_labels": (found.labels, [batch_dim, frames_dim, labels_dim]),
            "soft_blank": (found.blank, [batch_dim, frames_dim]),
        }
    else:
        found, frames_dim = model.align(source, in_spatial_dim=spatial_dim, **known)
        parts = {name: getattr(found, name) for name in ("starts", "ends", "label_scores")}
        outputs = {name: (part, [batch_dim, labels_dim]) for name, part in parts.items()}
        outputs["path"] = (found.path, [batch_dim, frames_dim])
    # Without another dim than the batch, RETURNN's low-level TensorFlow engine fails: it cuts out NumPy scalars.
    one = nn.Dim(1, name="one")
    outputs["scores"] = (nn.expand_dim(found.scores, one), [batch_dim, one])
    outputs["labels"] = (labels, [batch_dim, labels_dim])
    for name, (value, dims) in outputs.items():
        nn.get_run_ctx().mark_as_output(value, name, dims=dims)


def _entry(extern_data: nn.TensorDict, option: str, key: str) -> nn.Tensor:
    if key not in extern_data.data:
        raise ValueError(f"align_step: {option} is {key!r}, but extern_data has only {sorted(extern_data.data)}")
    return extern_data[key]


def _labels_to_align(
    model: Any, source: nn.Tensor, spatial_dim: nn.Dim, extern_data: nn.TensorDict, config: Config
) -> tuple[nn.Tensor, nn.Dim]:
    """:return: labels {batch, labels}, and the dim labels"""
    kind = config.value("align_labels", "targets")
    if kind == "targets":
        labels = _entry(extern_data, "target", config.value("target", "classes"))
        return labels, nn.get_spatial_dim(labels)
    if kind != "search":
        raise ValueError(f"align_step: align_labels, expected targets or search, got {kind!r}")
    options = read_search_options(config)
    arguments = fusion_of(model, options, config).arguments
    found = model.search(source, in_spatial_dim=spatial_dim, beam_size=options.beam_size, **arguments)
    lengths = nn.gather(found.lengths, indices=0, axis=found.beam_dim)
    labels_dim = nn.Dim(nn.relu(lengths), name="labels")  # of a layer, for the net dict
    labels = nn.gather(found.labels, indices=0, axis=found.beam_dim)
    positions = nn.range_over_dim(labels_dim, dtype="int32", device=labels.device)
    return nn.gather(labels, indices=positions, axis=found.spatial_dim), labels_dim


def align_callback() -> AlignCallback:
    """
    RETURNN's ``forward_callback``: writes the alignments.

    Reads from the config ``align_output_file`` (default "alignments.hdf"), ``align_soft``, ``align_options`` (see
    :func:`align_step`), ``align_ctm_file``, ``align_notes_file`` (default none), see :class:`AlignCallback`, and the
    vocabulary, ``extern_data[target]["vocab"]``.

    :raises ValueError: if ``align_soft`` and ``align_ctm_file`` are given
    """
    config = get_global_config()
    ctm_path = config.value("align_ctm_file", None)
    if config.bool("align_soft", False) and ctm_path:
        raise ValueError("align_callback: align_ctm_file, expected none with align_soft: it is made of the best path")
    return AlignCallback(
        config.value("align_output_file", "alignments.hdf"),
        vocab=config_vocab(config),
        use_ctc=bool(read_dict(config, "align_options").get("use_ctc")),
        ctm_path=ctm_path,
        notes_path=config.value("align_notes_file", None),
    )


class AlignCallback(ForwardCallbackIface):
    """
    Writes a sequence for each utterance that has an alignment to a HDF file, which appears at the end (all or nothing).
    What is in a sequence, see :func:`.alignment_files.frame_labels` and :func:`.alignment_files.soft_frames`.

    :param path: of the file, for RETURNN's HDFDataset
    :param vocab: names of the labels; None: there are none
    :param use_ctc: whether a transducer's alignment is by its CTC head
    :param ctm_path: for the words with their times, NIST's CTM; None: not written
    :param notes_path: for what a report shows, see :class:`.alignment_files.AlignmentNotes`; None: not written
    """

    def __init__(
        self,
        path: str,
        *,
        vocab: Vocabulary | None = None,
        use_ctc: bool = False,
        ctm_path: str | None = None,
        notes_path: str | None = None,
    ):
        self.path = path
        self.vocab = vocab
        self.use_ctc = use_ctc
        self.ctm_path = ctm_path
        self.notes_path = notes_path
        self.notes = AlignmentNotes()
        self._words: dict[str, list[str]] = {}

    def init(self, *, model: Any) -> None:
        """
        :param model: which aligns
        """
        topology = "ctc" if self.use_ctc else getattr(model, "topology", "ctc")
        self.topology, self.blank = topology, int(model.blank_index)
        self.frame_shift = frame_shift(model)
        size = int(model.vocab_dim.dimension) + 1
        names = [*map(str, self.vocab.labels), "<blank>"] if self.vocab else None
        self.hdf = AlignmentHdf(self.path, num_labels=size, names=names if names and len(names) == size else None)
        self.notes.blank, self.notes.topology, self.notes.frame_shift = self.blank, topology, self.frame_shift

    def process_seq(self, *, seq_tag: str, outputs: nn.TensorDict) -> None:
        """
        :param seq_tag:
        :param outputs: of :func:`align_step`, NumPy, without the batch dim
        :raises ValueError: if a tag comes twice
        """
        if seq_tag in self.notes.scores:
            raise ValueError(f"align_callback: {seq_tag!r} comes twice in the dataset")
        values = {name: np.asarray(x.raw_tensor) for name, x in outputs.data.items()}
        labels, score = values["labels"].tolist(), float(values["scores"].item())
        self.notes.scores[seq_tag] = score
        if score == float("-inf"):
            return
        if "soft_labels" in values:
            soft, blank = values["soft_labels"], values["soft_blank"]
            self.hdf.write(seq_tag, soft_frames(soft, blank, labels, blank=self.blank, num_labels=self.hdf.num_labels))
            self.notes.add_example(seq_tag, self._names(labels), num_frames=len(soft), soft=soft)
            return
        starts, ends = values["starts"].tolist(), values["ends"].tolist()
        num_frames = len(values["path"])
        spans = {"starts": starts, "ends": ends}
        self.hdf.write(
            seq_tag,
            frame_labels(labels, **spans, num_frames=num_frames, blank=self.blank, topology=self.topology),
        )
        self.notes.add_example(seq_tag, self._names(labels), num_frames=num_frames, **spans)
        if self.ctm_path:
            words = word_times(
                labels,
                decode=lambda ids: label_text(ids, self.vocab),
                **spans,
                frame_shift=self.frame_shift,
                label_scores=values["label_scores"].tolist(),
            )
            self._words[seq_tag] = ctm_lines(seq_tag, words)

    def _names(self, labels: list[int]) -> list[str]:
        return [str(self.vocab.labels[i] if self.vocab else i) for i in labels]

    def finish(self) -> None:
        """
        Writes the files, the HDF file last.

        :raises ValueError: if no utterance has an alignment
        """
        if all(score == float("-inf") for score in self.notes.scores.values()):
            raise ValueError(
                f"align_callback: expected an utterance that can be aligned, got {len(self.notes.scores)}, "
                "none of which has an alignment with its labels"
            )
        if self.ctm_path:
            write_lines(self.ctm_path, [line for tag in sorted(self._words) for line in self._words[tag]])
        if self.notes_path:
            self.notes.write(self.notes_path)
        self.hdf.close()
