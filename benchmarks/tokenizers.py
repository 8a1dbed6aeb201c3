"""
Text to labels: our vocabularies beside RETURNN's classes and SentencePiece itself, lines of LibriSpeech's length.

Each encodes the same lines, of words that repeat as in text (Zipf's law). CPU time of all lines, on one thread, after
doing it once.

    python benchmarks/tokenizers.py
    python benchmarks/tokenizers.py --text transcripts.txt
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, add_options, measure, report, versions

# isort: split
from returnn_common.datasets.vocab import make_vocab

NAMES = ["chars", "spm1k", "spm5k", "bpe1k"]


def make_lines(number: int) -> list[str]:
    """:return: 33 words in each, which repeat as in text"""
    rng = random.Random(1)
    letters, weights = "ETAOINSHRDLCUMWFGYPBVK'", [12, 9, 8, 8, 7, 7, 6, 6, 6, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1]
    words = ["".join(rng.choices(letters, weights, k=rng.randint(1, 9))) for _ in range(20_000)]
    chances = [1.0 / (i + 1) for i in range(len(words))]
    return [" ".join(rng.choices(words, chances, k=33)) for _ in range(number)]


def returnn_encoder(opts: dict[str, Any]) -> Callable[[str], Any]:
    """:return: of RETURNN's class for a vocabulary"""
    from returnn.datasets.util.vocabulary import Vocabulary

    return Vocabulary.create_vocab(**opts).get_seq


def sentence_piece_encoder(opts: dict[str, Any]) -> Callable[[str], Any]:
    """:return: of the library"""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(opts["model_file"])).encode


def main() -> None:
    parser = argparse.ArgumentParser(description="Text to labels, beside RETURNN's classes and SentencePiece.")
    parser.add_argument("--text", type=Path, metavar="FILE", help="lines of text; none: made-up ones")
    parser.add_argument("--lines", type=int, default=2000, help="how many; default 2000")
    add_options(parser, rounds=7)
    args = parser.parse_args()
    print(versions("returnn", "sentencepiece", "numpy"))
    lines = args.text.read_text().splitlines()[: args.lines] if args.text else make_lines(args.lines)
    for name in NAMES:
        vocab = make_vocab(name)
        encoders: dict[str, Callable[[str], Any]] = {"ours": vocab.encode, "returnn": returnn_encoder(vocab.get_opts())}
        if name.startswith("spm"):
            encoders["sentencepiece"] = sentence_piece_encoder(vocab.get_opts())
        for encode in encoders.values():
            assert list(encode(lines[0])) == vocab.encode(lines[0])
        runs = {key: lambda encode=encode: [encode(line) for line in lines] for key, encode in encoders.items()}
        chosen = {key: run for key, run in runs.items() if args.only is None or key in args.only}
        title = f"Tokenizer, {name}, {len(lines)} lines"
        comparison = Comparison(title, measure(chosen, rounds=args.rounds), "ours", ["returnn", "sentencepiece"], {})
        report(comparison, json_file=args.json)


if __name__ == "__main__":
    main()
