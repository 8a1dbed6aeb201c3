"""
Label-synchronous beam search beside ESPnet's ``BatchBeamSearch``: CPU time per utterance, on one thread.

Both get the same encoder output, a Transformer decoder of the same size with random parameters, and the same number of
steps: end of sentence is impossible before the last one. ESPnet searches one utterance at a time, as its own
recognition does; we take the utterances as a batch. Without ESPnet, only our figures are printed.

    python benchmarks/search.py
    python benchmarks/search.py --steps 50 --batch 1 --rounds 5
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything loads a library that reads it
os.environ.setdefault("DISABLE_CUDA", "1")

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy
import torch
from returnn.util.basic import BehaviorVersion

from returnn_common import nn
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.search import DecoderScorer, beam_search


@dataclass
class Sizes:
    """what both search with"""

    steps: int
    batch: int
    beam: int
    layers: int = 6
    width: int = 256
    heads: int = 4
    inner: int = 2048
    labels: int = 1000
    frames: int = 250  # 10 s at 40 ms

    @property
    def eos(self) -> int:
        return self.labels - 1


def make_ours(sizes: Sizes, encoded: numpy.ndarray) -> Callable[[], int]:
    """:return: function that searches once, and returns the number of utterances"""
    nn.select_backend_torch()
    nn.set_random_seed(1)
    BehaviorVersion.set_min_behavior_version(29)
    feature_dim = nn.FeatureDim("encoder", sizes.width)
    decoder = make_transformer_decoder(
        feature_dim,
        sizes.labels,
        num_layers=sizes.layers,
        model_dim=sizes.width,
        num_heads=sizes.heads,
        ff_dim=sizes.inner,
    )
    batch_dim = nn.Dim(sizes.batch, name="utterances")
    time_dim = nn.Dim(
        nn.convert_to_tensor(numpy.full([sizes.batch], sizes.frames, "int32"), dims=[batch_dim]), name="time"
    )

    def search() -> int:
        nn.init_forward_step_run_ctx(step=0)
        with torch.no_grad():
            source = nn.convert_to_tensor(encoded, dims=[batch_dim, time_dim, feature_dim])
            found = beam_search(
                DecoderScorer(decoder, encoder=decoder.transform_encoder(source, axis=time_dim)),
                batch_dims=[batch_dim],
                beam_size=sizes.beam,
                min_len=sizes.steps - 1,
                max_len=sizes.steps - 1,
                bos=sizes.eos,
                eos=sizes.eos,
            )
        assert len(found.nbest(0)[0][1]) == sizes.steps - 1
        return sizes.batch

    return search


def make_espnet(sizes: Sizes, encoded: numpy.ndarray) -> Callable[[], int]:
    """see make_ours"""
    from espnet.nets.batch_beam_search import BatchBeamSearch
    from espnet2.asr.decoder.transformer_decoder import TransformerDecoder

    logging.getLogger("espnet").setLevel(logging.ERROR)  # it warns of hypotheses as long as they may be: on purpose
    torch.manual_seed(1)
    decoder = TransformerDecoder(
        vocab_size=sizes.labels,
        encoder_output_size=sizes.width,
        attention_heads=sizes.heads,
        linear_units=sizes.inner,
        num_blocks=sizes.layers,
    )
    decoder.eval()
    with torch.no_grad():
        decoder.output_layer.bias[sizes.eos] = -1e4
    beam = BatchBeamSearch(
        scorers={"decoder": decoder},
        weights={"decoder": 1.0},
        beam_size=sizes.beam,
        vocab_size=sizes.labels,
        sos=sizes.eos,
        eos=sizes.eos,
    )
    utterance = torch.tensor(encoded[0])

    def search() -> int:
        with torch.no_grad():
            found = beam(utterance, maxlenratio=-sizes.steps, minlenratio=0.0)
        assert len(found[0].yseq) == sizes.steps + 2  # begin and end of sentence
        return 1

    return search


def cpu_seconds(search: Callable[[], int]) -> float:
    """per utterance"""
    start = time.process_time()
    utterances = search()
    return (time.process_time() - start) / utterances


def main():
    parser = argparse.ArgumentParser(description="Beam search: CPU time per utterance, beside ESPnet's.")
    parser.add_argument("--steps", type=int, default=250, help="of each search, end of sentence included")
    parser.add_argument("--batch", type=int, default=8, help="utterances that we search at once")
    parser.add_argument("--beam", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="of each, taking turns; the median is printed")
    args = parser.parse_args()
    sizes = Sizes(steps=args.steps, batch=args.batch, beam=args.beam)
    torch.set_num_threads(1)
    rng = numpy.random.default_rng(1)
    encoded = rng.standard_normal((sizes.batch, sizes.frames, sizes.width)).astype("float32")

    searches = {"returnn_common": make_ours(sizes, encoded)}
    packages = ["torch", "returnn"]
    try:
        searches["espnet"] = make_espnet(sizes, encoded)
        packages.append("espnet")
    except ImportError as exc:
        print(f"ESPnet is missing, so our figures only ({exc}). To install it: pip install espnet")
    print(", ".join(f"{name} {metadata.version(name)}" for name in packages))
    print(sizes)
    seconds: dict[str, list[float]] = {name: [] for name in searches}
    for search in searches.values():  # what is done once, such as reading code and kernels
        search()
    for _ in range(args.rounds):
        for name, search in searches.items():
            seconds[name].append(cpu_seconds(search))
    for name, values in seconds.items():
        runs = " ".join(f"{x:.3f}" for x in values)
        print(f"{name}: {statistics.median(values):.3f} s CPU per utterance (runs: {runs})")
    if "espnet" in seconds:
        ratio = statistics.median(seconds["returnn_common"]) / statistics.median(seconds["espnet"])
        print(f"returnn_common / espnet: {ratio:.3f}")


if __name__ == "__main__":
    main()
