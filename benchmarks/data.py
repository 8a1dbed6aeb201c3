"""
How many utterances a second reach the training loop: ours through RETURNN's data pipeline, beside a plain PyTorch
DataLoader with soundfile.

    python benchmarks/data.py                       # 0, 1 and 2 workers
    python benchmarks/data.py --workers 0 --rounds 9

Utterances of 10 s as FLAC, 16 kHz: cut from the recordings in `--corpus`, such as a folder of LibriSpeech; without it
they are noise, whose files are larger. Ours are in a prepared split and come as the engine gets them: read, decoded,
put into batches of 16 with lengths, names and labels, in an order by length. The peer's are single files:
`soundfile.read` in a `Dataset`, and batches of 16 by `pad_sequence`; it has no labels.

In each round both load all utterances, in turn; both have been run once before. Utterances a second are by the clock,
and so depend on what else runs; the CPU time is that of all processes (the main one and the workers).
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DISABLE_CUDA", "1")

import numpy as np
import returnn
import soundfile
import torch

# isort: split
from benchmarks._common import Comparison, save

# isort: split
from returnn_common.datasets import Librispeech
from returnn_common.datasets.prepare.oggzip import OggZipWriter

SECONDS, BATCH = 10, 16


def main():
    """see the module"""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 1, 2], help="processes that load (default: 0 1 2)"
    )
    parser.add_argument("--utterances", type=int, default=1024, help="of 10 s (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--corpus", help="folder with FLAC files to cut the utterances from")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append the figures to this file, a line each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}, RETURNN {returnn.__version__}")
    print(f"soundfile {soundfile.__version__}, FLAC decoder of returnn_common: {_decoder_name()}")
    print(f"{args.utterances} utterances of {SECONDS} s, batches of {BATCH}, {args.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        make_corpus(Path(folder), args.utterances, source=args.corpus)
        for num_workers in args.workers:
            figures = compare(Path(folder), num_workers=num_workers, rounds=args.rounds, num=args.utterances)
            if args.json is not None:
                seconds = {name: [1.0 / rate for rate, _ in pairs] for name, pairs in figures.items()}
                title = f"Loading 10 s of FLAC, {num_workers} workers, by the clock"
                save(Comparison(title, seconds, "returnn_common", ["plain DataLoader"], {}), args.json)


def compare(folder: Path, *, num_workers: int, rounds: int, num: int) -> dict[str, list[tuple[float, float]]]:
    """
    Prints the figures for a number of workers.

    :return: name -> utterances a second, and seconds of CPU time for each, of each round
    """
    passes = {
        "returnn_common": our_pass(folder, num_workers=num_workers),
        "plain DataLoader": plain_pass(folder, num_workers=num_workers),
    }
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in passes}
    for load in passes.values():
        _measure(load, num)
    for _ in range(rounds):
        for name, load in passes.items():
            figures[name].append(_measure(load, num))
    print(f"{num_workers} workers:")
    medians = []
    for name, pairs in figures.items():
        rates, cpu = [rate for rate, _ in pairs], [cpu for _, cpu in pairs]
        medians.append((statistics.median(rates), statistics.median(cpu)))
        print(
            f"  {name}: {medians[-1][0]:.0f} utterances/s ({' '.join(f'{rate:.0f}' for rate in rates)}), "
            f"{1000 * medians[-1][1]:.2f} ms CPU each"
        )
    (our_rate, our_cpu), (their_rate, their_cpu) = medians
    print(
        f"  returnn_common / plain DataLoader: {our_rate / their_rate:.2f} of the utterances/s, "
        f"{our_cpu / their_cpu:.2f} of the CPU time"
    )
    return figures


def _measure(load: Callable[[], Iterator[torch.Tensor]], num: int) -> tuple[float, float]:
    """:return: utterances a second, and seconds of CPU time for each"""
    start, cpu = time.perf_counter(), _cpu_seconds()
    samples = sum(batch.shape[0] * batch.shape[1] for batch in load())
    assert samples == num * SECONDS * 16_000
    return num / (time.perf_counter() - start), (_cpu_seconds() - cpu) / num


def _cpu_seconds() -> float:
    """of this process and those that it has started and that still run"""
    total = time.process_time()
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def our_pass(folder: Path, *, num_workers: int) -> Callable[[], Iterator[torch.Tensor]]:
    """
    :return: loads all utterances once, by what RETURNN's PyTorch engine builds for a config
    """
    from returnn.config import Config, global_config_ctx
    from returnn.datasets.basic import init_dataset
    from returnn.torch.data.pipeline import (
        create_data_loader_from_batches,
        get_batching_iterable_dataset_from_config,
    )
    from returnn.torch.data.returnn_dataset_wrapper import ReturnnDatasetIterDataPipe

    data = Librispeech(path=folder, train_splits=["train"], dev_splits=["train"], test_splits=[], train_epoch_split=1)
    config = Config({"batch_size": {"data": BATCH * SECONDS * 16_000}, "max_seqs": BATCH, "behavior_version": 38})
    with global_config_ctx(config):
        dataset = init_dataset(data.get_train_dataset())
        batches = get_batching_iterable_dataset_from_config(
            dataset=ReturnnDatasetIterDataPipe(dataset, shard_workers=True), config=config, train=True
        )
        options = {"num_workers": num_workers, **({"persistent_workers": True} if num_workers else {})}
        loader = create_data_loader_from_batches(batches, options)

    def _load() -> Iterator[torch.Tensor]:
        with global_config_ctx(config):
            for batch in loader:
                yield batch["data"]

    return _load


class _Files(torch.utils.data.Dataset):
    def __init__(self, paths: list[str]):
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        samples, _ = soundfile.read(self.paths[index], dtype="float32")
        return torch.from_numpy(samples)


def _pad(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(x) for x in samples])
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), lengths


def plain_pass(folder: Path, *, num_workers: int) -> Callable[[], Iterator[torch.Tensor]]:
    """:return: loads all files once"""
    loader = torch.utils.data.DataLoader(
        _Files(sorted(map(str, (folder / "files").iterdir()))),
        batch_size=BATCH,
        shuffle=True,
        collate_fn=_pad,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        multiprocessing_context="spawn" if num_workers else None,
    )

    def _load() -> Iterator[torch.Tensor]:
        for batch, _ in loader:
            yield batch

    return _load


def make_corpus(folder: Path, num: int, *, source: str | None):
    """Writes ``train.zip`` and the same FLAC files into ``files``."""
    length = SECONDS * 16_000
    rng = np.random.default_rng(0)
    samples = _speech(source) if source else (rng.standard_normal(10 * length) * 1000).astype("int16")
    (folder / "files").mkdir()
    with OggZipWriter(folder / "train.zip", source="benchmark") as writer:
        for i in range(num):
            start = rng.integers(0, len(samples) - length + 1)
            path = folder / "files" / f"{i:06}.flac"
            soundfile.write(path, samples[start : start + length], 16_000)
            name, outcome = f"utterance-{i:06}", {"seconds": float(SECONDS)}
            writer.add(name, text="SO IT GOES ON", file=f"{name}.flac", content=path.read_bytes(), outcome=outcome)
        writer.finish()


def _speech(source: str) -> np.ndarray:
    paths = sorted(Path(source).rglob("*.flac"))
    samples = np.concatenate([soundfile.read(path, dtype="int16")[0] for path in paths[:200]] or [np.zeros(0, "int16")])
    if len(samples) < SECONDS * 16_000:
        raise SystemExit(f"benchmarks/data.py: expected at least {SECONDS} s of FLAC files in {source}")
    return samples


def _decoder_name() -> str:
    with contextlib.suppress(ImportError):
        import miniaudio

        return f"miniaudio {miniaudio.__version__}"
    return "libsndfile"


if __name__ == "__main__":
    main()
