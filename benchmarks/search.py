"""
Label-synchronous beam search beside ESPnet's ``BatchBeamSearch``: CPU time per utterance, on one thread.

Both get the same encoder output, a Transformer decoder of the same size with random parameters, and the same number of
steps: end of sentence is impossible before the last one. ESPnet searches one utterance at a time, as its own
recognition does; we take the utterances as a batch. Without ESPnet, only our figures are printed.

    python benchmarks/search.py
    python benchmarks/search.py --steps 50 --batch 1 --rounds 5
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, add_options, installed, measure, report, versions

# isort: split
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


def make_ours(sizes: Sizes, encoded: numpy.ndarray) -> Callable[[], None]:
    """:return: searches all utterances at once"""
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

    def search() -> None:
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

    return search


def make_espnet(sizes: Sizes, encoded: numpy.ndarray) -> Callable[[], None]:
    """:return: searches one utterance"""
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

    def search() -> None:
        with torch.no_grad():
            found = beam(utterance, maxlenratio=-sizes.steps, minlenratio=0.0)
        assert len(found[0].yseq) == sizes.steps + 2  # begin and end of sentence

    return search


def main():
    parser = argparse.ArgumentParser(description="Beam search: CPU time per utterance, beside ESPnet's.")
    parser.add_argument("--steps", type=int, default=250, help="of each search, end of sentence included")
    parser.add_argument("--batch", type=int, default=8, help="utterances that we search at once")
    parser.add_argument("--beam", type=int, default=10)
    add_options(parser, rounds=3)
    args = parser.parse_args()
    sizes = Sizes(steps=args.steps, batch=args.batch, beam=args.beam)
    torch.set_num_threads(1)
    rng = numpy.random.default_rng(1)
    encoded = rng.standard_normal((sizes.batch, sizes.frames, sizes.width)).astype("float32")

    makers = {"returnn_common": make_ours, "espnet": make_espnet}
    searches = installed({name: lambda make=make: make(sizes, encoded) for name, make in makers.items()}, args.only)
    print(versions("torch", "returnn", "espnet"))
    print(sizes)
    utterances = {"returnn_common": sizes.batch, "espnet": 1}
    seconds = measure(searches, rounds=args.rounds)
    for name, values in seconds.items():
        seconds[name] = [value / utterances[name] for value in values]
    title = f"Beam search, {sizes.steps} steps, {sizes.batch} at once, per utterance"
    report(Comparison(title, seconds, "returnn_common", ["espnet"], {}), json_file=args.json, unit="s")


if __name__ == "__main__":
    main()
