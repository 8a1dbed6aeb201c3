"""Tests for TIMIT, with a made-up corpus in its layout; the real one has to be bought."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from returnn_common.datasets import Timit
from returnn_common.datasets._timit import _CORE_TEST, _DEV
from returnn_common.datasets.timit import PHONES_39, PHONES_48, PHONES_61, fold_phones

from .reading import LaterPath, read

_PHONES = "h# sh iy hv ae dcl d q pau axr h#".split()


def _write(speaker: Path, sentence: str, *, seed: int, upper: bool):
    speaker.mkdir(parents=True, exist_ok=True)
    stem = sentence.upper() if upper else sentence
    suffix = (lambda name: name.upper()) if upper else (lambda name: name)
    samples = np.random.default_rng(seed).integers(-3000, 3000, 1600 + 160 * seed).astype("int16")
    with open(speaker / f"{stem}.{suffix('wav')}", "wb") as file:
        file.write(_sphere_header(len(samples)) + samples.astype("<i2").tobytes())
    lines = [f"{100 * i} {100 * i + 100} {phone}\n" for i, phone in enumerate(_PHONES)]
    (speaker / f"{stem}.{suffix('phn')}").write_text("".join(lines))
    (speaker / f"{stem}.{suffix('wrd')}").write_text("0 500 she\n500 900 had\n")
    (speaker / f"{stem}.{suffix('txt')}").write_text("0 900 She had.\n")


def _sphere_header(num_samples: int) -> bytes:
    """as in the corpus: https://catalog.ldc.upenn.edu/docs/LDC93S1/"""
    fields = f"""NIST_1A\n   1024
database_id -s5 TIMIT
channel_count -i 1
sample_count -i {num_samples}
sample_rate -i 16000
sample_n_bytes -i 2
sample_byte_format -s2 01
sample_sig_bits -i 16
end_head
"""
    return fields.encode().ljust(1024)


@pytest.fixture(scope="module", params=[True, False], ids=["upper", "lower"])
def timit(request, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("timit")
    inner = root / ("TIMIT" if request.param else "data") if request.param else root
    speakers = {
        "train": [("dr1", "fcjf0"), ("dr2", "mabc0")],
        "test": [("dr1", "mdab0"), ("dr1", "faks0"), ("dr1", "mxyz0")],
    }
    for half, folders in speakers.items():
        for region, speaker in folders:
            parts = [part.upper() if request.param else part for part in (half, region, speaker)]
            for i, sentence in enumerate(("sa1", "sa2", "si648", "sx37")):
                _write(inner.joinpath(*parts), sentence, seed=i, upper=request.param)
    return root


def test_splits(timit):
    dataset = Timit(timit)
    dataset.check()
    names = {split: sorted(dataset.get_references(split)) for split in ("train", "dev", "test", "test-complete")}
    assert names["train"] == ["fcjf0-si648", "fcjf0-sx37", "mabc0-si648", "mabc0-sx37"]
    assert names["dev"] == ["faks0-si648", "faks0-sx37"] and names["test"] == ["mdab0-si648", "mdab0-sx37"]
    assert len(names["test-complete"]) == 6
    assert list(dataset.get_eval_datasets()) == ["dev", "test", "test-complete"]
    assert Timit(LaterPath(str(timit))).get_references("dev").keys() == set(names["dev"])


def test_recordings(timit):
    items = read(Timit(timit).get_train_dataset())
    for name, (data, _) in items.items():
        seed = 2 if name.endswith("si648") else 3
        samples = np.random.default_rng(seed).integers(-3000, 3000, 1600 + 160 * seed)
        np.testing.assert_array_equal(data, samples.astype("float32") / 2**15)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("phones61", "h# sh iy hv ae dcl d q pau axr h#"),
        ("phones48", "sil sh iy hh ae vcl d sil er sil"),
        ("phones39", "sil sh iy hh ae sil d sil er sil"),
        ("words", "SHE HAD"),
    ],
)
def test_targets(timit, targets, expected):
    dataset = Timit(timit, targets=targets)
    assert set(dataset.get_references("dev").values()) == {expected}
    _, classes = next(iter(read(dataset.get_main_dataset()).values()))
    assert dataset.vocab.decode(classes) == expected
    assert dataset.vocab.get_num_classes() == (28 if targets == "words" else int(targets[-2:]))


def test_folding():
    assert (len(PHONES_61), len(PHONES_48), len(PHONES_39)) == (61, 48, 39)
    assert set(fold_phones(list(PHONES_61), 48)) == set(PHONES_48)
    assert set(fold_phones(list(PHONES_61), 39)) == set(PHONES_39)
    # The groups of 39 as Lee and Hon list them, in one line each.
    groups = "aa ao|ah ax ax-h|er axr|hh hv|ih ix|l el|m em|n en nx|ng eng|sh zh|uw ux".split("|")
    closures = "pcl tcl kcl bcl dcl gcl h# pau epi".split()
    for group in groups:
        assert set(fold_phones(group.split(), 39)) == {group.split()[0]}
    assert set(fold_phones(closures, 39)) == {"sil"}
    assert fold_phones(closures, 48) == ["cl"] * 3 + ["vcl"] * 3 + ["sil", "sil", "epi"]
    assert fold_phones(["ao", "zh", "el", "en", "epi", "ix", "ax", "q"], 48) == "ao zh el en epi ix ax".split()
    with pytest.raises(ValueError, match="TIMIT: 'xx' is none of its 61 phones"):
        fold_phones(["xx"], 39)
    with pytest.raises(ValueError, match="TIMIT: expected 61, 48 or 39 phones, got 40"):
        fold_phones(["aa"], 40)


def test_speakers():
    assert len(set(_CORE_TEST)) == 24 and sum(name[0] == "m" for name in _CORE_TEST) == 16
    assert len(set(_DEV)) == 50 and not set(_DEV) & set(_CORE_TEST)


def test_what_is_wrong_is_named(timit, tmp_path):
    with pytest.raises(FileNotFoundError, match="TIMIT: no folders TRAIN and TEST in"):
        Timit(tmp_path).check()
    speaker = tmp_path / "TRAIN" / "DR1" / "FCJF0"
    (tmp_path / "TEST").mkdir()
    _write(speaker, "si1", seed=1, upper=True)
    dataset = Timit(tmp_path)
    with pytest.raises(FileNotFoundError, match="TIMIT: no recordings of the split 'dev' in .*TEST"):
        dataset.check()
    (speaker / "SI1.PHN").write_text("0 5\n")
    with pytest.raises(ValueError, match="SI1.PHN: expected lines of begin, end and label"):
        dataset.get_references("train")
    (speaker / "SI1.PHN").unlink()
    with pytest.raises(FileNotFoundError, match="TIMIT: fcjf0-si1 has no .PHN file"):
        dataset.get_references("train")
    (speaker / "SI1.WAV").write_bytes(b"NIST_1A\n   1024\n")
    with pytest.raises(ValueError, match="TIMIT: 1 recordings cannot be used: fcjf0-si1: .*SI1.WAV: cannot be decoded"):
        Timit(tmp_path, targets="words").get_references("train")
    with pytest.raises(ValueError, match="Timit: targets: expected one of phones61, .*, got 'phones'"):
        Timit(targets="phones")
    with pytest.raises(TypeError, match="Timit: path: expected a path, got int 3"):
        Timit(3)  # type: ignore[arg-type]


def test_soundfile_reads_the_made_up_files(timit):
    path = next(path for path in timit.rglob("*") if path.name.lower() == "si648.wav")
    assert soundfile.info(path).format == "NIST"
