"""Tests for preparing corpora in the LibriSpeech layout."""

from __future__ import annotations

import ast
import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from returnn_common.datasets import prepare
from returnn_common.datasets.prepare import Problem, pipeline, prepare_librispeech
from returnn_common.datasets.prepare import librispeech as implementation

from .corpus import encode, tone, write_chapter, write_split


def _index(zip_path: Path) -> list[dict]:
    with zipfile.ZipFile(zip_path) as file:
        assert file.testzip() is None
        return ast.literal_eval(file.read(f"{zip_path.stem}.txt").decode("utf8"))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_content(tmp_path):
    write_split(tmp_path / "src" / "dev")
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert report.problems == [] and report.notes() == [] and report.up_to_date == []
    assert list(report.splits) == ["dev"]
    assert report.splits["dev"].num_utterances == 4
    assert report.splits["dev"].seconds == pytest.approx(2 * (0.1 + 0.15))
    index = _index(tmp_path / "dest" / "dev.zip")
    assert index[1] == {"text": "WORD", "duration": 0.15, "file": "1-1-0001.flac", "seq_name": "1-1-0001"}
    assert [entry["seq_name"] for entry in index] == ["1-1-0000", "1-1-0001", "2-1-0000", "2-1-0001"]
    with zipfile.ZipFile(tmp_path / "dest" / "dev.zip") as file:
        original = (tmp_path / "src" / "dev" / "2" / "1" / "2-1-0001.flac").read_bytes()
        assert file.read("dev/2-1-0001.flac") == original
        assert file.getinfo("dev/2-1-0001.flac").compress_type == zipfile.ZIP_STORED
    assert sorted(os.listdir(tmp_path / "dest")) == ["dev.manifest.json", "dev.zip"]


@pytest.mark.parametrize(
    ("corpus", "src", "splits"),
    [
        ("corpus/LibriSpeech/dev", "corpus", ["dev"]),
        ("corpus/LibriSpeech/dev", "corpus/LibriSpeech", ["dev"]),
        ("corpus/LibriSpeech/dev", "corpus/LibriSpeech/dev", ["dev"]),
        ("corpus/LibriSpeech/dev", "corpus/LibriSpeech/dev/1", ["1"]),
        ("corpus/LibriSpeech/dev", "corpus/LibriSpeech/dev/1/1", ["1"]),
        ("corpus/LibriSpeech/mine", "corpus", ["mine"]),
        ("corpus/LibriSpeech/mine", "corpus/LibriSpeech/mine", ["mine"]),
        ("corpus/LibriSpeech/mine", "corpus/LibriSpeech/mine/1/1", ["1"]),
        ("corpus/test/b/c/train-x.y", "corpus", ["train-x.y"]),
    ],
)
def test_levels(tmp_path, corpus, src, splits):
    write_split(tmp_path / corpus)
    report = prepare_librispeech(tmp_path / src, tmp_path / "dest")
    assert list(report.splits) == splits


@pytest.mark.parametrize(
    ("folder", "names", "split"),
    [
        ("dev/7", "7-0000", "dev"),  # speakers without chapters
        ("mine/7", "7-0000", "mine"),
        ("dev", "x", "dev"),  # no speakers
        ("dev", "dev-0000", "dev"),
        ("mine", "x", "mine"),
        ("dev/anna/monday", "x", "dev"),  # names that say nothing
        ("mine/anna/monday", "x", "mine"),
        ("", "x", "src"),  # recordings in the corpus' own folder
    ],
)
def test_other_levels(tmp_path, folder, names, split):
    write_chapter(tmp_path / "src" / folder, {f"{names}.flac": encode(tone())})
    assert list(prepare_librispeech(tmp_path / "src", tmp_path / "dest").splits) == [split]


def test_relative_source(tmp_path, monkeypatch):
    write_split(tmp_path / "dev")
    monkeypatch.chdir(tmp_path / "dev")
    assert list(prepare_librispeech(".", "../dest").splits) == ["dev"]


def test_links_are_followed_once(tmp_path):
    write_split(tmp_path / "elsewhere" / "dev")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "dev").symlink_to(tmp_path / "elsewhere" / "dev")
    (tmp_path / "elsewhere" / "dev" / "loop").symlink_to(tmp_path / "src")
    assert prepare_librispeech(tmp_path / "src", tmp_path / "dest").splits["dev"].num_utterances == 4


def test_same_bytes_whatever_the_workers_and_times(tmp_path):
    write_split(tmp_path / "src" / "dev", speakers=3, utterances=5)
    write_chapter(tmp_path / "src" / "dev" / "9" / "1", {"9-1-0.wav": encode(tone(), rate=8000, format="WAV")})
    for number, workers in enumerate([1, 3, 2]):
        prepare_librispeech(tmp_path / "src", tmp_path / f"dest{number}", num_workers=workers)
        for path in (tmp_path / "src").rglob("*"):
            os.utime(path, (number, number))
    assert len({_digest(tmp_path / f"dest{number}" / "dev.zip") for number in range(3)}) == 1


def test_not_done_again(tmp_path, monkeypatch):
    write_split(tmp_path / "src" / "dev")
    write_split(tmp_path / "src" / "test")
    chapter = tmp_path / "src" / "dev" / "1" / "1"
    (chapter / "1-1-0000.flac").write_bytes(b"broken")
    first = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    decoded = []
    convert = pipeline.convert_content
    monkeypatch.setattr(
        pipeline, "convert_content", lambda content, **opts: (decoded.append(content), convert(content, **opts))[1]
    )

    again = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert decoded == [] and again.up_to_date == ["dev", "test"]
    assert again.splits == first.splits and again.problems == first.problems and len(again.problems) == 1

    (chapter / "1-1-0000.flac").write_bytes(encode(tone()))
    third = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert len(decoded) == 4 and third.up_to_date == ["test"] and third.problems == []
    assert len(_index(tmp_path / "dest" / "dev.zip")) == 4

    transcript = chapter / "1-1.trans.txt"
    transcript.write_text(transcript.read_text().replace("0000 WORD", "0000 OTHER"))
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert _index(tmp_path / "dest" / "dev.zip")[0]["text"] == "OTHER"


@pytest.mark.parametrize("damage", ["cut", "no manifest", "foreign manifest"])
def test_incomplete_output_is_done_again(tmp_path, damage):
    write_split(tmp_path / "src" / "dev")
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    path, manifest = tmp_path / "dest" / "dev.zip", tmp_path / "dest" / "dev.manifest.json"
    expected = _digest(path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text("[1]")
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert report.up_to_date == [] and _digest(path) == expected


def test_problems(tmp_path):
    good = encode(tone())
    write_chapter(
        tmp_path / "src" / "dev" / "1" / "2",
        {
            "1-2-0000.flac": good,
            "1-2-0001.flac": good[: len(good) // 2],
            "1-2-0002.wav": encode(tone()[:0], format="WAV"),
            "1-2-0003.flac": good,
            "1-2-0004.flac": good,
            "1-2-0005.flac": good,
            "1-2-0005.wav": encode(tone(), format="WAV"),
            "1-2-0007.wav": encode(np.array([np.nan, 0.0] * 99), format="WAV", subtype="FLOAT"),
            "1-2-0008.flac": good,
            "1-2-0009.flac": good,
            "._1-2-0000.flac": b"what another system leaves behind",
        },
        transcript="1-2-0000   TWO  WORDS \r\n"
        "1-2-0001 A\n1-2-0002 B\n1-2-0003\n\n1-2-0005 D\n1-2-0006 E\n1-2-0007 F\n"
        "1-2-0008 G\n1-2-0008 G\n1-2-0009 H\n1-2-0009 I\nfragment\n  1-2-0000 X\n1-2-0000 Y\x00Z\n",
    )
    (tmp_path / "src" / "dev" / "1" / "2" / "more.trans.txt").write_bytes(b"1-2-0000 \xff\n")
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    found = {(problem.kind, problem.name): problem.message for problem in report.problems}
    expected = {
        ("broken", "dev/1-2-0001"): "cannot be decoded",
        ("broken", "dev/1-2-0007"): "infinite or not a number",
        ("empty-recording", "dev/1-2-0002"): "it has no samples",
        ("empty-transcript", "dev/1-2-0003"): "its transcript has no words",
        ("unlisted-recording", "dev/1-2-0004"): "no transcript lists 1/2/1-2-0004.flac",
        ("duplicate-recording", "dev/1-2-0005"): "2 files with this name, none of them used: 1/2/1-2-0005.flac, 1/2/",
        ("missing-recording", "dev/1-2-0006"): "there is a transcript but no recording",
        ("duplicate-transcript", "dev/1/2/1-2.trans.txt:10"): "1-2-0008 is listed twice",
        ("duplicate-transcript", "dev/1/2/1-2.trans.txt:12"): "1-2-0009 has different transcripts, none of them used",
        ("malformed-line", "dev/1/2/1-2.trans.txt:13"): "expected the name of an utterance and its words",
        ("malformed-line", "dev/1/2/1-2.trans.txt:14"): "begins with a space",
        ("malformed-line", "dev/1/2/1-2.trans.txt:15"): "unprintable characters",
        ("malformed-line", "dev/1/2/more.trans.txt:1"): "not UTF-8",
    }
    assert set(found) == set(expected)
    for key, message in expected.items():
        assert message in found[key], key
    assert report.problems == sorted(report.problems)
    assert [(entry["seq_name"], entry["text"]) for entry in _index(tmp_path / "dest" / "dev.zip")] == [
        ("1-2-0000", "TWO WORDS"),
        ("1-2-0008", "G"),
    ]


def test_other_rates_and_channels_are_counted(tmp_path):
    stereo = np.stack([tone(), tone()], axis=1)
    write_chapter(
        tmp_path / "src" / "dev" / "1" / "1",
        {
            "1-1-0.flac": encode(tone()),
            "1-1-1.wav": encode(tone(0.4, rate=8000), rate=8000, format="WAV"),
            "1-1-2.ogg": encode(stereo, format="OGG", subtype="VORBIS"),
            "1-1-3.flac": encode(stereo, rate=32_000),
        },
    )
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert (report.num_resampled, report.num_mixed_down) == (2, 2)
    assert report.notes() == [
        "2 recordings resampled to 16 kHz from other sample rates.",
        "2 recordings with several channels, which were averaged.",
    ]
    durations = [entry["duration"] for entry in _index(tmp_path / "dest" / "dev.zip")]
    assert durations == pytest.approx([0.2, 0.4, 0.2, 0.1])


def test_names_that_are_not_utf8(tmp_path):
    write_split(tmp_path / "src" / "dev")
    (tmp_path / "src" / "dev" / "1" / "1" / os.fsdecode(b"1-1-\xff.flac")).write_bytes(encode(tone()))
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert report.problems == [
        Problem("unlisted-recording", "dev/1-1-\\udcff", "no transcript lists 1/1/1-1-\\udcff.flac")
    ]
    assert prepare_librispeech(tmp_path / "src", tmp_path / "dest").up_to_date == ["dev"]


@pytest.mark.parametrize("text", ["IT'S", '"IT\'S" \\ {} %S', "ÉTÉ 日本 😀", "\\n \\x41"])
def test_texts_as_returnn_reads_them(tmp_path, text):
    from returnn.datasets.audio import OggZipDataset

    write_chapter(tmp_path / "src" / "dev" / "1" / "1", {"1-1-0.flac": encode(tone())}, transcript=f"1-1-0 {text}\n")
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    dataset = OggZipDataset(str(tmp_path / "dest" / "dev.zip"), audio=None, targets=None)
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 1)
    assert str(dataset.get_data(0, "raw")) == text


def test_folder_that_cannot_be_read(tmp_path, monkeypatch):
    write_split(tmp_path / "src" / "dev")
    scandir = os.scandir

    def _scandir(path):
        if Path(path).name == "2":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", _scandir)
    with pytest.raises(PermissionError, match="dev/2"):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")


def test_progress(tmp_path):
    write_split(tmp_path / "src" / "dev")
    write_split(tmp_path / "src" / "test")
    calls = []
    prepare_librispeech(tmp_path / "src", tmp_path / "dest", on_progress=lambda *args: calls.append(args))
    assert calls[0] == (1, 8, "dev") and calls[-1] == (8, 8, "test")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_missing_source(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a folder, but .*nowhere is not there"):
        prepare_librispeech(tmp_path / "nowhere", tmp_path / "dest")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match="expected a folder, but .*file is a file"):
        prepare_librispeech(tmp_path / "file", tmp_path / "dest")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "1-1.trans.txt").write_text("1-1-0 A\n")
    with pytest.raises(FileNotFoundError, match=r"no recordings \(.flac, .wav, .ogg\) in it"):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert not (tmp_path / "dest").exists()


def test_destination_is_a_file(tmp_path):
    write_split(tmp_path / "src" / "dev")
    (tmp_path / "dest").write_text("mine")
    with pytest.raises(NotADirectoryError, match="expected a folder, but .*dest is a file"):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")


@pytest.mark.parametrize("num_workers", [0, -1, 1.5, True, None])
def test_num_workers(tmp_path, num_workers):
    with pytest.raises(ValueError, match="num_workers: expected an integer of at least 1, got"):
        prepare_librispeech(tmp_path, tmp_path / "dest", num_workers=num_workers)


def test_split_without_transcripts(tmp_path):
    write_split(tmp_path / "src" / "dev")
    write_chapter(tmp_path / "src" / "noise" / "1" / "1", {"1-1-0.flac": encode(tone())}, transcript="")
    with pytest.raises(ValueError, match=r"split 'noise' has no recording .*noise/1-1-0: no transcript lists"):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert not (tmp_path / "dest").exists()


def test_split_with_nothing_usable(tmp_path):
    write_chapter(tmp_path / "src" / "bad" / "1" / "1", {"1-1-0.flac": b"x", "1-1-1.flac": b""})
    write_split(tmp_path / "src" / "dev")
    with pytest.raises(ValueError, match=r"nothing usable in split 'bad' \(bad/1-1-0: cannot be decoded.*the file is"):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert sorted(os.listdir(tmp_path / "dest")) == ["dev.manifest.json", "dev.zip"]


def test_two_folders_for_one_split(tmp_path):
    write_split(tmp_path / "src" / "a" / "dev")
    write_split(tmp_path / "src" / "b" / "dev")
    with pytest.raises(ValueError, match="two folders for the split 'dev': .*a/dev and .*b/dev"):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")


def test_other_process_is_writing(tmp_path):
    import fcntl

    write_split(tmp_path / "src" / "dev")
    (tmp_path / "dest").mkdir()
    lock = os.open(tmp_path / "dest", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with pytest.raises(RuntimeError, match="another process is writing to .*dest"):
            prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    finally:
        os.close(lock)


def test_interrupted_by_exception(tmp_path, monkeypatch):
    write_split(tmp_path / "src" / "dev")

    def _interrupt(done: int, *_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest", on_progress=_interrupt)
    assert sorted(os.listdir(tmp_path / "dest")) == [".dev.journal.part", ".dev.zip.part"]
    decoded = []
    convert = pipeline.convert_content
    monkeypatch.setattr(
        pipeline, "convert_content", lambda content, **opts: (decoded.append(content), convert(content, **opts))[1]
    )
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert len(decoded) == 2  # of 4: it goes on where it has stopped
    prepare_librispeech(tmp_path / "src", tmp_path / "whole")
    assert _content(tmp_path / "dest") == _content(tmp_path / "whole")


def test_interrupted_before_anything(tmp_path):
    write_chapter(tmp_path / "src" / "dev" / "1" / "1", {"1-1-0.flac": b"x", "1-1-1.flac": encode(tone())})

    def _interrupt(done: int, *_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest", on_progress=_interrupt)
    assert os.listdir(tmp_path / "dest") == []


@pytest.mark.parametrize("damage", ["zip", "journal", "source", "format", "end"])
def test_what_was_left_is_only_used_if_it_fits(tmp_path, damage):
    """each of them would give a wrong zip"""
    write_split(tmp_path / "src" / "dev", speakers=3)

    def _interrupt(done: int, *_):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest", on_progress=_interrupt)
    part, journal = tmp_path / "dest" / ".dev.zip.part", tmp_path / "dest" / ".dev.journal.part"
    if damage == "zip":  # shorter than the journal says
        part.write_bytes(part.read_bytes()[:-1])
    elif damage == "journal":
        journal.write_bytes(journal.read_bytes()[:-1])
    elif damage == "source":
        (tmp_path / "src" / "dev" / "1" / "1" / "1-1-0000.flac").write_bytes(encode(tone(0.3)))
    elif damage == "end":  # what was written after the journal
        part.write_bytes(part.read_bytes() + b"half an entry")
    audio_format = "ogg" if damage == "format" else "flac"
    prepare_librispeech(tmp_path / "src", tmp_path / "dest", audio_format=audio_format)
    prepare_librispeech(tmp_path / "src", tmp_path / "whole", audio_format=audio_format)
    assert _content(tmp_path / "dest") == _content(tmp_path / "whole")


def test_problems_are_remembered_when_it_goes_on(tmp_path):
    stereo = np.stack([tone(), tone()], axis=1)
    recordings = {"1-1-0.flac": encode(stereo), "1-1-1.flac": b"x", "1-1-2.flac": encode(tone())}
    write_chapter(tmp_path / "src" / "dev" / "1" / "1", recordings)

    def _interrupt(done: int, *_):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_librispeech(tmp_path / "src", tmp_path / "dest", on_progress=_interrupt)
    again = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert again == prepare_librispeech(tmp_path / "src", tmp_path / "whole")
    assert len(again.problems) == 1 and again.num_mixed_down == 1
    assert _content(tmp_path / "dest") == _content(tmp_path / "whole")


def test_full_disk(tmp_path, monkeypatch):
    write_split(tmp_path / "src" / "dev")
    writestr = zipfile.ZipFile.writestr

    def _full(self, info, data):
        if "2-1-0000" in info.filename:
            raise OSError(errno.ENOSPC, "No space left on device")
        return writestr(self, info, data)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(zipfile.ZipFile, "writestr", _full)
        prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    prepare_librispeech(tmp_path / "src", tmp_path / "whole")
    assert _content(tmp_path / "dest") == _content(tmp_path / "whole")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_killed(tmp_path, sent):
    write_split(tmp_path / "src" / "a")
    write_split(tmp_path / "src" / "b", utterances=3)
    prepare_librispeech(tmp_path / "src", tmp_path / "whole")
    code = (
        "import sys, time\n"
        "from returnn_common.datasets.prepare import prepare_librispeech\n"
        "def wait(done, total, split):\n"
        "    if done == 6: print('now', flush=True); time.sleep(60)\n"
        "prepare_librispeech(sys.argv[1], sys.argv[2], on_progress=wait)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "src", tmp_path / "dest"],
        env={**os.environ, "PYTHONPATH": str(Path(prepare.__file__).parents[3])},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "now\n"
    time.sleep(0.1)
    process.send_signal(sent)
    process.communicate(timeout=30)
    assert process.returncode != 0

    assert sorted(os.listdir(tmp_path / "dest")) == [".b.journal.part", ".b.zip.part", "a.manifest.json", "a.zip"]
    (tmp_path / "dest" / ".mine.part").write_text("not ours")
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert report.up_to_date == ["a"]
    for name in ("a.zip", "b.zip"):
        assert _digest(tmp_path / "dest" / name) == _digest(tmp_path / "whole" / name)
    assert sorted(os.listdir(tmp_path / "dest")) == [".mine.part", *sorted(os.listdir(tmp_path / "whole"))]


def test_removed_while_running(tmp_path, monkeypatch):
    write_split(tmp_path / "src" / "dev")
    digest = implementation.source_digest

    def _digest_then_lose(*args, **opts):
        result = digest(*args, **opts)
        (tmp_path / "src" / "dev" / "1" / "1" / "1-1-0000.flac").unlink()
        return result

    monkeypatch.setattr(implementation, "source_digest", _digest_then_lose)
    report = prepare_librispeech(tmp_path / "src", tmp_path / "dest")
    assert report.problems == [Problem("broken", "dev/1-1-0000", "cannot be read (No such file or directory)")]


def test_chosen_splits(tmp_path):
    for name in ("dev", "test", "train"):
        write_split(tmp_path / "src" / name, speakers=1)
    assert list(prepare_librispeech(tmp_path / "src", tmp_path / "dest", splits=["test", "dev"]).splits) == [
        "dev",
        "test",
    ]
    assert not (tmp_path / "dest" / "train.zip").exists()
    with pytest.raises(ValueError, match="no split eval, other in it, only dev, test, train"):
        prepare_librispeech(tmp_path / "src", tmp_path / "other", splits=["other", "dev", "eval"])
    assert not (tmp_path / "other").exists()


def test_ogg(tmp_path):
    """Vorbis, the same bytes each time, which RETURNN decodes to nearly the same"""
    from returnn.datasets.audio import OggZipDataset

    write_split(tmp_path / "src" / "dev", speakers=1)
    for dest in ("one", "two"):
        prepare_librispeech(tmp_path / "src", tmp_path / dest, audio_format="ogg")
    assert _content(tmp_path / "one") == _content(tmp_path / "two")
    assert [entry["file"] for entry in _index(tmp_path / "one" / "dev.zip")] == ["1-1-0000.ogg", "1-1-0001.ogg"]
    opts = {"features": "raw", "sample_rate": 16_000, "peak_normalization": False}
    dataset = OggZipDataset(str(tmp_path / "one" / "dev.zip"), audio=opts, targets=None)
    dataset.init_seq_order(epoch=1)
    dataset.load_seqs(0, 1)
    decoded, samples = dataset.get_data(0, "data")[:, 0], tone(0.1, seed=10) / 2**15
    assert len(decoded) == len(samples) and np.corrcoef(decoded, samples)[0, 1] > 0.95
    report = prepare_librispeech(tmp_path / "src", tmp_path / "one")  # to FLAC: done again
    assert report.up_to_date == [] and _index(tmp_path / "one" / "dev.zip")[0]["file"] == "1-1-0000.flac"


def test_audio_format(tmp_path):
    with pytest.raises(ValueError, match="audio_format: expected one of flac, ogg, got 'mp3'"):
        prepare_librispeech(tmp_path, tmp_path / "dest", audio_format="mp3")


def test_real_recordings(shared_data, tmp_path):
    report = prepare_librispeech(shared_data / "LibriSpeech", tmp_path)
    assert {name: split.num_utterances for name, split in report.splits.items()} == {
        "dev-clean": 13,
        "test-clean": 6,
        "test-other": 1,
        "train-clean-100": 1,
    }
    assert report.problems == []
    path = next((shared_data / "LibriSpeech" / "test-clean").rglob("1089-134686-0000.flac"))
    with zipfile.ZipFile(tmp_path / "test-clean.zip") as file:
        assert file.read("test-clean/1089-134686-0000.flac") == path.read_bytes()
