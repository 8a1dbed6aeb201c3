"""
``config.make_net_dict`` on a Conformer with an attention decoder, 12 and 6 layers: CPU time and time on the clock, of
the network and of its code. TensorFlow is loaded before.

    python benchmarks/config.py
    python benchmarks/config.py --layers 2 --rounds 1
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# isort: split
from benchmarks._common import Comparison, save

# isort: split
from returnn_common import nn
from returnn_common.config import NetDict, make_net_dict
from returnn_common.models.aed import make_aed_model
from returnn_common.models.decoder.transformer import make_transformer_decoder
from returnn_common.models.encoder.conformer import make_conformer_encoder
from returnn_common.training import train_step

LIMITS = {"network": 10.0, "code": 5.0}  # seconds, for 12 layers


def make_config(num_layers: int) -> dict[str, Any]:
    """:return: of an AED model of that many Conformer layers, with sizes as they are used for LibriSpeech"""
    features, labels = nn.FeatureDim("features", 80), nn.FeatureDim("labels", 1000)

    def get_model(**_):
        encoder = make_conformer_encoder(features, num_layers=num_layers, out_dim=512)
        decoder = make_transformer_decoder(encoder.out_dim, 1001, num_layers=max(1, num_layers // 2))
        auxiliary = [max(1, num_layers // 3), num_layers]
        return make_aed_model(features, labels, encoder=encoder, decoder=decoder, aux_ctc_layers=auxiliary)

    times = nn.SpatialDim("time"), nn.SpatialDim("labels-time")
    extern_data = {
        "data": {"dims": [nn.batch_dim, times[0], features], "dtype": "float32"},
        "classes": {"dims": [nn.batch_dim, times[1]], "sparse_dim": labels, "dtype": "int32"},
    }
    return {"get_model": get_model, "train_step": train_step, "extern_data": extern_data, "behavior_version": 29}


def count_layers(network: Any) -> int:
    """:return: of it and all that is inside"""
    if not isinstance(network, dict):
        return 0
    return ("class" in network) + sum(map(count_layers, network.values()))


def main():
    """see above"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="of the encoder; the decoder has half of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to this file, a line each")
    args = parser.parse_args()
    make_net_dict(make_config(1))  # loads TensorFlow
    seconds: dict[str, list[tuple[float, float]]] = {"network": [], "code": []}
    for _ in range(args.rounds):
        config = make_config(args.layers)
        made: dict[str, NetDict] = {}
        for name in seconds:
            start = time.process_time(), time.monotonic()
            if name == "network":
                made["net_dict"] = make_net_dict(config)
            else:
                code = made["net_dict"].code
            seconds[name].append((time.process_time() - start[0], time.monotonic() - start[1]))
    num_layers = count_layers(made["net_dict"].network)
    print(f"{args.layers} Conformer layers: {num_layers} layers of RETURNN's, {len(code) / 1e6:.1f} MB of source")
    for name, times in seconds.items():
        cpu, clock = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name}: {cpu:.2f} s CPU, {clock:.2f} s on the clock (limit for 12 layers: {LIMITS[name]:.0f} s)")
        if args.json is not None:
            title = f"Net dict of a {args.layers}-layer Conformer, {name}"
            save(Comparison(title, {"ours": [x for x, _ in times]}, "ours", [], {}), args.json)


if __name__ == "__main__":
    main()
