"""
The command ``returnn-common vocab``: trains vocabularies, encodes and decodes with them, and shows what they are.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from .errors import CommandError

__all__ = ["add_parser", "main"]

_KINDS = ("unigram", "bpe", "sentencepiece-bpe", "chars", "words")
_VOCAB_HELP = "chars, bytes, spm1k, spm5k, bpe1k, phonemes; or a file .model, .codes, .chars, .words, .dict"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "vocab",
        help="train, apply and show vocabularies",
        description="Vocabularies by name or from files. Texts are UTF-8, or gzip of it (.gz); - is standard input.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    train = actions.add_parser("train", help="from text", description=_train.__doc__)
    train.add_argument("kind", choices=_KINDS, metavar="KIND", help=", ".join(_KINDS))
    train.add_argument("out", metavar="OUT", help="path to write, without suffix")
    train.add_argument("text", nargs="*", default=["-"], metavar="TEXT", help="files to train on (default: -)")
    train.add_argument(
        "--size", type=int, metavar="N", help="number of pieces, merges of bpe, or most frequent words (default: 1000)"
    )
    train.add_argument("--byte-fallback", action="store_true", help="SentencePiece: add 256 pieces, for any text")
    train.add_argument("--force", action="store_true", help="replace OUT if it is there")

    encode = actions.add_parser("encode", help="texts to label indices", description=_encode.__doc__)
    encode.add_argument("--pieces", action="store_true", help="names of labels instead of indices; \u2581 for a space")
    encode.add_argument(
        "--sampling", type=float, metavar="X", help="draw as in training: SentencePiece alpha, BPE dropout"
    )
    encode.add_argument("--seed", type=int, default=0, metavar="N", help="to draw with (default: 0)")
    decode = actions.add_parser("decode", help="label indices to texts", description=_decode.__doc__)
    show = actions.add_parser("show", help="what it is, and whether it fits a text", description=_show.__doc__)
    show.add_argument("--labels", action="store_true", help="list all labels")
    show.add_argument("--text", nargs="+", default=[], metavar="FILE", help="count how it is written")
    show.add_argument("--json", action="store_true", help="print JSON")
    for action in encode, decode, show:
        action.add_argument("vocab", metavar="VOCAB", help=_VOCAB_HELP)
        action.add_argument(
            "--byte-fallback", action="store_true", help="with labels for bytes, where it can have them"
        )
    for action in encode, decode:
        action.add_argument("file", nargs="?", default="-", metavar="FILE", help="to read, line by line (default: -)")
        action.add_argument("--out", metavar="FILE", help="to write (default: standard output)")
    for action, function in (train, _train), (encode, _encode), (decode, _decode), (show, _show):
        action.add_argument("--transcripts", action="store_true", help="each line begins with the name of an utterance")
        action.set_defaults(run=function)
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``run``, one of the functions below, and what it takes
    :return: exit status
    :raises CommandError: for bad arguments, or texts that do not fit
    """
    try:
        return args.run(args)
    except (ValueError, FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise CommandError(" ".join(str(error).split())) from error


def _train(args: argparse.Namespace) -> int:
    """Writes OUT.model (unigram, sentencepiece-bpe), OUT.codes and OUT.vocab (bpe, as subword-nmt), OUT.chars or
    OUT.words. The same text gives the same files."""
    from ..datasets import make_vocab
    from ..datasets.vocab.training import train_vocab

    size = 1000 if args.size is None and args.kind not in ("chars", "words") else args.size
    lines = [text for name in args.text for _, text in _read(name, transcripts=args.transcripts)]
    files = train_vocab(args.kind, lines, size=size, byte_fallback=args.byte_fallback)
    paths = {f"{args.out}{suffix}": content for suffix, content in files.items()}
    for path in paths:
        if os.path.exists(path) and not args.force:
            raise CommandError(f"{path} is there already; choose another name, or --force")
    for path, content in paths.items():
        with _replacing(path) as file:
            file.write(content)
    num_labels = make_vocab(next(iter(paths))).get_num_classes()
    print(f"{', '.join(paths)}: {num_labels} labels, from {len(lines)} lines")
    return 0


def _encode(args: argparse.Namespace) -> int:
    """Label indices of each line, or their names."""
    import numpy as np

    from ..datasets import make_vocab

    vocab = make_vocab(args.vocab, sampling=args.sampling, byte_fallback=args.byte_fallback)
    rng = np.random.default_rng(args.seed)
    labels = [label.replace(" ", "\u2581") for label in _labels(vocab)] if args.pieces else None

    def _line(text: str) -> str:
        ids = vocab.encode(text) if args.sampling is None else vocab.encode_for_training(text, rng=rng)
        return " ".join(str(i) if labels is None else labels[i] for i in ids)

    return _convert(args, _line)


def _decode(args: argparse.Namespace) -> int:
    """The text of each line of label indices."""
    from ..datasets import make_vocab

    vocab = make_vocab(args.vocab, byte_fallback=args.byte_fallback)

    def _line(text: str) -> str:
        for part in text.split():
            if not part.isdecimal():
                raise ValueError(f"expected label indices, got {part!r}")
        return vocab.decode(map(int, text.split()))

    return _convert(args, _line)


def _show(args: argparse.Namespace) -> int:
    """With --text also how many labels a word has, and what the vocabulary lacks; the exit status is 1 then."""
    from ..datasets import describe_misfits, find_misfits, make_vocab

    vocab = make_vocab(args.vocab, byte_fallback=args.byte_fallback)
    shown: dict[str, Any] = {
        "vocabulary": repr(vocab),
        "labels": vocab.get_num_classes(),
        "begin of sentence": vocab.get_bos_idx(),
        "end of sentence": vocab.get_eos_idx(),
    }
    misfits: dict[str, dict[str, int]] = {}
    if args.text:
        texts: dict[str, str] = {}
        for where, text in (line for name in args.text for line in _read(name, transcripts=args.transcripts)):
            if where in texts:
                raise CommandError(f"utterance {where} comes twice", exit_status=1)
            texts[where] = text
        misfits = find_misfits(vocab, texts)
        affected = {where for places in misfits.values() for where in places}
        written = [text for where, text in texts.items() if where not in affected]
        num_words, num_labels = sum(len(text.split()) for text in written), sum(len(vocab.encode(t)) for t in written)
        shown |= {"texts": len(texts), "words": num_words, "labels of the words": num_labels}
        shown["labels per word"] = round(num_labels / num_words, 3) if num_words else None
        shown["texts that cannot be written"] = len(affected)
        if misfits:
            shown["lacks"] = misfits if args.json else describe_misfits(misfits)
    if args.labels:
        shown["names"] = _labels(vocab)
    if args.json:
        print(json.dumps(shown, indent=2))
    else:
        names = shown.pop("names", [])
        for key, value in shown.items():
            print(f"{key}:", "none" if value is None else value)
        for index, label in enumerate(names):
            print(index, repr(label) if label.isspace() or not label.isprintable() else label, sep="\t")
    return 1 if misfits else 0


def _labels(vocab: Any) -> Sequence[str]:
    from returnn.datasets.util.vocabulary import Vocabulary

    return Vocabulary.create_vocab(**vocab.get_opts()).labels


def _convert(args: argparse.Namespace, function: Callable[[str], str]) -> int:
    sys.stdout.flush()
    with _replacing(args.out) if args.out else contextlib.nullcontext(sys.stdout.buffer) as file:
        for where, text in _read(args.file, transcripts=args.transcripts):
            try:
                line = function(text)
            except ValueError as error:
                raise CommandError(f"{where}: {' '.join(str(error).split())}", exit_status=1) from error
            file.write((f"{where} {line}".rstrip() if args.transcripts else line).encode("utf8") + b"\n")
        file.flush()
    return 0


def _read(name: str, *, transcripts: bool) -> Iterator[tuple[str, str]]:
    """:return: lines: the utterance, or file and number; the text"""
    is_gzip = name.endswith(".gz")
    opened = contextlib.nullcontext(sys.stdin.buffer) if name == "-" else (gzip.open if is_gzip else open)(name, "rb")
    shown = "standard input" if name == "-" else name
    with opened as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise CommandError(f"{shown}, line {number}: expected UTF-8 ({error.reason})", exit_status=1) from error
            if not transcripts:
                yield f"{shown}, line {number}", line
            elif line.strip():
                utterance, *text = line.split(maxsplit=1)
                yield utterance, text[0].rstrip() if text else ""


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[BinaryIO]:
    """All or nothing."""
    part = Path(f"{path}.part{os.getpid()}")
    try:
        with open(part, "wb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
