"""
Makes subword vocabularies from text. The same text gives the same files, byte for byte, on any number of cores.
"""

from __future__ import annotations

import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["BpeFiles", "add_byte_pieces", "train_bpe", "train_sentencepiece", "train_vocab"]

_SPECIAL = ("<unk>", "<s>", "</s>")  # the first three labels, as SentencePiece has them


def train_sentencepiece(lines: Iterable[str], *, vocab_size: int, model_type: str = "unigram") -> bytes:
    """
    A SentencePiece model (Kudo and Richardson, 2018, https://arxiv.org/abs/1808.06226) that knows all characters of the
    text, and changes nothing of it (identity normaliser) but spaces: several are one, those at the ends are none.

    :param lines: the text
    :param vocab_size: number of pieces, with ``<unk>``, ``<s>`` and ``</s>``, which come first
    :param model_type: "unigram" (Kudo, 2018, https://arxiv.org/abs/1804.10959) or "bpe"
    :return: content of the model file
    :raises ValueError: if the text does not give so many pieces, or has more characters than that
    """
    import sentencepiece

    if model_type not in ("unigram", "bpe"):
        raise ValueError(f"train_sentencepiece: model_type, expected unigram or bpe, got {model_type!r}")
    lines = [line for line in lines if line.strip()]
    _check_text("train_sentencepiece", lines, size="vocab_size", value=vocab_size, at_least=len(_SPECIAL) + 1)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(  # type: ignore[attr-defined]
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            normalization_rule_name="identity",
            character_coverage=1.0,
            max_sentence_length=max(len(line.encode("utf8")) for line in lines),
            num_threads=1,  # sums of floats depend on it
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2].strip()
        raise ValueError(f"train_sentencepiece: vocab_size {vocab_size}, {len(lines)} lines: {reason}") from error
    return model.getvalue()


def add_byte_pieces(model: bytes) -> bytes:
    """
    Gives a SentencePiece model 256 more pieces, at the end, for the bytes of UTF-8: with them it writes the characters
    that it lacks. It then also keeps all spaces. What it could write before, it writes as before.

    :param model: content of the model file
    :return: likewise
    """
    # Protocol buffers that follow each other are one, with the fields of both. Numbers of fields and types are those of
    # sentencepiece_model.proto: 1 pieces {1 piece, 2 score, 3 type}, 2 trainer_spec {35 byte_fallback},
    # 3 normalizer_spec {4 remove_extra_whitespaces}.
    pieces = (_field(1, f"<0x{byte:02X}>".encode()) + b"\x15" + bytes(4) + b"\x18\x06" for byte in range(256))
    options = _field(2, b"\x98\x02\x01") + _field(3, b"\x20\x00")
    return model + b"".join(_field(1, piece) for piece in pieces) + options


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


@dataclass(frozen=True)
class BpeFiles:
    """
    :param codes: content of the file of merge operations, in order
    :param vocab: content of the file of labels, one in a line
    """

    codes: str
    vocab: str


def train_bpe(lines: Iterable[str], *, num_merges: int) -> BpeFiles:
    """
    Byte-pair encoding (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909, algorithm 1): joins the most frequent
    pair of symbols, again and again; of several that are as frequent, the last in the order of their characters. The
    codes are those that ``subword-nmt learn-bpe`` gives for this text, in the format of its version 0.2.

    The labels are ``<unk>``, ``<s>``, ``</s>``, all characters of the text, within and at the end of words, and the
    joined symbols by which the text is then written, the most frequent first.

    :param lines: the text; words are separated by spaces
    :param num_merges: number of pairs to join
    :raises ValueError: if not so many pairs come twice
    """
    counts = Counter(word for line in lines for word in line.split())
    _check_text("train_bpe", counts, size="num_merges", value=num_merges, at_least=1)
    words = [([*word[:-1], word[-1] + "</w>"], count) for word, count in sorted(counts.items())]
    pairs: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    for i, (symbols, count) in enumerate(words):
        for pair in zip(symbols, symbols[1:], strict=False):
            pairs[pair] += count
            places[pair].add(i)
    merges = []
    while len(merges) < num_merges:
        most = max(pairs.values(), default=0)
        if most < 2:
            raise ValueError(f"train_bpe: num_merges, expected at most {len(merges)} for this text, got {num_merges}")
        merges.append(max(pair for pair, count in pairs.items() if count == most))
        for i in places.pop(merges[-1]):
            symbols, count = words[i]
            joined = _join(symbols, merges[-1])
            for pair in zip(symbols, symbols[1:], strict=False):
                pairs[pair] -= count
            for pair in zip(joined, joined[1:], strict=False):
                pairs[pair] += count
                places[pair].add(i)
            words[i] = joined, count
        del pairs[merges[-1]]
    codes = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    return BpeFiles(codes="\n".join(codes) + "\n", vocab="\n".join(_bpe_labels(words)) + "\n")


def _join(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    joined, i = [], 0
    while i < len(symbols):
        both = tuple(symbols[i : i + 2]) == pair
        joined.append("".join(pair) if both else symbols[i])
        i += 2 if both else 1
    return joined


def _bpe_labels(words: list[tuple[list[str], int]]) -> list[str]:
    used: Counter[str] = Counter()
    for symbols, count in words:
        for symbol in symbols:
            used[symbol.removesuffix("</w>") if symbol.endswith("</w>") else f"{symbol}@@"] += count
    characters = sorted({char for label in used for char in label.removesuffix("@@")})
    single = [label for char in characters for label in (char, f"{char}@@")]
    joined = sorted(used.keys() - set(single), key=lambda label: (-used[label], label))
    return [*_SPECIAL, *single, *joined]


def train_vocab(
    kind: str, lines: Sequence[str], *, size: int | None = None, byte_fallback: bool = False
) -> dict[str, bytes]:
    """
    Files as :func:`.files.read_vocab` reads them.

    :param kind: "unigram" or "sentencepiece-bpe", SentencePiece models; "bpe"; "chars" or "words" of the text
    :param lines: the text
    :param size: number of pieces, merges (bpe), or of the most frequent words; None: all words
    :param byte_fallback: of SentencePiece models: whether to add pieces for bytes
    :return: suffix of the file's name -> content
    :raises ValueError: for another kind or size, or if the text does not give so much
    """
    if byte_fallback and kind not in ("unigram", "sentencepiece-bpe"):
        raise ValueError(f"train_vocab: byte_fallback is for SentencePiece models, not for {kind}")
    if kind in ("unigram", "sentencepiece-bpe", "bpe"):
        if size is None:
            raise ValueError(f"train_vocab: {kind} needs a size")
        if kind == "bpe":
            files = train_bpe(lines, num_merges=size)
            return {".codes": files.codes.encode("utf8"), ".vocab": files.vocab.encode("utf8")}
        model = train_sentencepiece(lines, vocab_size=size, model_type=kind.removeprefix("sentencepiece-"))
        return {".model": add_byte_pieces(model) if byte_fallback else model}
    if kind == "chars" and size is not None:
        raise ValueError(f"train_vocab: chars are all those of the text, so expected no size, got {size}")
    if kind not in ("chars", "words"):
        raise ValueError(f"train_vocab: kind, expected unigram, sentencepiece-bpe, bpe, chars or words, got {kind!r}")
    if kind == "chars":
        labels = sorted({char for line in lines for char in line})
    else:
        labels = [word for word, _ in Counter(word for line in lines for word in line.split()).most_common(size)]
    _check_text("train_vocab", labels, size="size", value=1 if size is None else size, at_least=1)
    return {f".{kind}": "".join(f"{label}\n" for label in labels).encode("utf8")}


def _check_text(owner: str, text: object, *, size: str, value: int, at_least: int):
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{owner}: {size}, expected an integer of at least {at_least}, got {value!r}")
    if not text:
        raise ValueError(f"{owner}: expected text, got none")
