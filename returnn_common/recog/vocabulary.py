"""
What a config says about the labels of its targets: their names, and how text is written with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from returnn.config import Config
from returnn.datasets.util.vocabulary import CharacterTargets, Utf8ByteTargets, Vocabulary

from .label_text import label_text

__all__ = ["TargetLabels", "config_labels", "config_vocab"]


@dataclass(frozen=True)
class TargetLabels:
    """
    :param names: of the labels
    :param encode: text -> label indices; raises a ValueError if it can't
    :param separator: the label between two words; None: words follow each other
    """

    names: list[str]
    encode: Callable[[str], list[int]]
    separator: int | None


def config_vocab(config: Config) -> Vocabulary | None:
    """:return: the vocabulary of the target, if it has one"""
    target = config.typed_value("extern_data", {}).get(config.value("target", "classes"), {})
    vocab = target.get("vocab")
    return Vocabulary.create_vocab(**vocab) if isinstance(vocab, dict) else vocab


def config_labels(config: Config) -> TargetLabels | None:
    """
    Text is encoded by the ``vocab`` of the config's ``dataset``, if it has one for these labels (such as
    :class:`returnn_common.datasets.VocabConfig`), else by RETURNN's class.

    :return: labels of the target, if it has a vocabulary
    """
    vocab = config_vocab(config)
    if vocab is None:
        return None
    names = [str(label) for label in vocab.labels]
    ours = getattr(config.typed_dict.get("dataset"), "vocab", None)
    if not callable(getattr(ours, "encode", None)) or ours.get_num_classes() != len(names):
        ours = None
    boundary = getattr(ours, "word_boundary", None)
    if boundary is None and isinstance(vocab, CharacterTargets):
        boundary = " "
    separator = names.index(boundary) if boundary in names else None
    if isinstance(vocab, Utf8ByteTargets):
        separator = ord(" ")
    return TargetLabels(names, ours.encode if ours is not None else _encoder(vocab), separator)


def _encoder(vocab: Vocabulary) -> Callable[[str], list[int]]:
    def _encode(text: str) -> list[int]:
        try:
            ids = [int(i) for i in vocab.get_seq(text)]
        except KeyError as error:
            raise ValueError(f"{text!r} cannot be written with the labels: {error}") from None
        if label_text(ids, vocab).split() != text.split():
            raise ValueError(f"{text!r} cannot be written with the labels: it would be {label_text(ids, vocab)!r}")
        return ids

    return _encode
