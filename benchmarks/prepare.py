"""
``returnn-common prepare librispeech`` on a made-up corpus in the official layout, tones of a second, one in a hundred
of them broken: utterances per second, CPU time of an utterance, the most memory; from folders and from an archive.
Then the same again, killed at random moments and started again, which has to give the same bytes.

There is no peer: nothing else makes such files.

    python benchmarks/prepare.py
    python benchmarks/prepare.py --utterances 2000 --seconds 10 --audio-format ogg
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import soundfile

_SPLIT = "train-clean-100"
_PER_CHAPTER, _CHAPTERS_PER_SPEAKER = 50, 2
_NUM_TONES = 500  # different recordings


def make_corpus(folder: Path, *, utterances: int, seconds: float, broken: float) -> int:
    """
    :param folder: to make
    :param utterances: how many
    :param seconds: duration of each
    :param broken: so much of them is cut off
    :return: how many are
    """
    tones = [_tone(200.0 + 5 * i, seconds) for i in range(min(_NUM_TONES, utterances))]
    is_broken = np.random.default_rng(1).permutation(utterances) < round(broken * utterances)
    for start in range(0, utterances, _PER_CHAPTER):
        chapter = 1000 + start // _PER_CHAPTER
        speaker = 100 + start // (_PER_CHAPTER * _CHAPTERS_PER_SPEAKER)
        inside = folder / "LibriSpeech" / _SPLIT / str(speaker) / str(chapter)
        inside.mkdir(parents=True)
        lines = []
        for index in range(start, min(start + _PER_CHAPTER, utterances)):
            name = f"{speaker}-{chapter}-{index - start:04}"
            content = tones[index % len(tones)]
            (inside / f"{name}.flac").write_bytes(content[: len(content) // 2] if is_broken[index] else content)
            lines.append(f"{name} THIS IS A TONE{' AND NOTHING ELSE' * (index % 4)}\n")
        (inside / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return int(is_broken.sum())


def _tone(frequency: float, seconds: float) -> bytes:
    samples = 0.3 * np.sin(2 * np.pi * frequency * np.arange(round(16_000 * seconds)) / 16_000)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 16_000, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


@dataclass
class Run:
    """
    :param output: of the command
    :param seconds: on the clock
    :param cpu_seconds: of the process
    :param megabytes: the most that it had in memory
    """

    output: str
    seconds: float
    cpu_seconds: float
    megabytes: float


def run(src: Path, dest: Path, options: list[str], *, kill_after: float | None = None) -> Run:
    """
    :param src: corpus
    :param dest: to write to
    :param options: of the command
    :param kill_after: so many seconds
    """
    command = [sys.executable, "-m", "returnn_common.cli", "prepare", "librispeech", str(src), str(dest), *options]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(process.pid, signal.SIGKILL)  # process.kill() would take the usage of one that has ended
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    return Run(text, time.monotonic() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def digests(folder: Path) -> dict[str, str]:
    """:return: file name -> checksum"""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def main():
    """see above"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--utterances", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each")
    parser.add_argument("--broken", type=float, default=0.01, help="so much of them (default: %(default)s)")
    parser.add_argument("--audio-format", choices=["flac", "ogg"], default="flac")
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--kills", type=int, default=3, help="how often it is killed, in each of two ways")
    args = parser.parse_args()
    options = ["--audio-format", args.audio_format, "--num-workers", str(args.num_workers)]
    print(vars(args), f"soundfile {soundfile.__version__}, libsndfile {soundfile.__libsndfile_version__}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        broken = make_corpus(folder / "src", utterances=args.utterances, seconds=args.seconds, broken=args.broken)
        archive = folder / f"{_SPLIT}.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            tar.add(folder / "src" / "LibriSpeech", "LibriSpeech")
        results = {}
        for name, src in (("folders", folder / "src"), ("archive", archive)):
            once = run(src, folder / name, options)
            results[name] = digests(folder / name)
            said = len(re.findall(r"^skipped: .*\[broken\]$", once.output, re.MULTILINE))
            print(
                f"{name}: {args.utterances / once.seconds:.0f} utterances/s, {once.seconds:.1f} s; "
                f"{1000 * once.cpu_seconds / args.utterances:.2f} ms CPU per utterance; {once.megabytes:.0f} MB; "
                f"broken: {said} of {broken} named"
            )
            if args.kills:
                _kill_and_compare(src, folder / f"{name}-killed", options, args.kills, once.seconds, results[name])
        same = results["folders"][f"{_SPLIT}.zip"] == results["archive"][f"{_SPLIT}.zip"]
        print(f"folders and archive: {'the same' if same else 'DIFFERENT'} zip")


def _kill_and_compare(src: Path, dest: Path, options: list[str], kills: int, seconds: float, expected: dict[str, str]):
    rng = random.Random(1)
    moments = [rng.uniform(0.1, 0.6) * seconds for _ in range(kills)]
    for moment in moments:
        run(src, dest, options, kill_after=moment)
    last = run(src, dest, options)
    same = digests(dest) == expected
    print(
        f"killed after {', '.join(f'{moment:.1f}' for moment in moments)} s, then finished in {last.seconds:.1f} s: "
        f"{'the same' if same else 'DIFFERENT'} files"
    )


if __name__ == "__main__":
    main()
