"""
TIMIT as the Linguistic Data Consortium distributes it: phones, speakers, files.
"""

from __future__ import annotations

import os
import re
from typing import Any

from ._paths import resolve_path
from .recordings import Recordings

__all__ = ["PHONES_39", "PHONES_48", "PHONES_61", "SPLITS", "TARGETS", "fold_phones", "open_timit"]

SPLITS = ("train", "dev", "test", "test-complete")
TARGETS = ("phones61", "phones48", "phones39", "words")

# K.-F. Lee and H.-W. Hon, "Speaker-independent phone recognition using hidden Markov models", IEEE Transactions on
# Acoustics, Speech, and Signal Processing 37(11), 1989. First the phones that stay what they are in both steps, then
# the others as PHONE 48 39; "q", the glottal stop, is left out.
_UNCHANGED = "aa ae ah aw ay b ch d dh dx eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z".split()
_FOLDED = """
    ao ao aa    ax ax ah    ax-h ax ah  axr er er   ix ix ih    el el l     em m m      en en n     eng ng ng
    hv hh hh    nx n n      ux uw uw    zh zh sh    h# sil sil  pau sil sil epi epi sil
    pcl cl sil  tcl cl sil  kcl cl sil  bcl vcl sil dcl vcl sil gcl vcl sil
"""
_TABLE: dict[str, tuple[str, str]] = {phone: (phone, phone) for phone in _UNCHANGED}
_TABLE.update((phone, (to_48, to_39)) for phone, to_48, to_39 in zip(*[iter(_FOLDED.split())] * 3, strict=True))
PHONES_61 = tuple(sorted([*_TABLE, "q"]))
PHONES_48 = tuple(sorted({to_48 for to_48, _ in _TABLE.values()}))
PHONES_39 = tuple(sorted({to_39 for _, to_39 in _TABLE.values()}))

# The core test set, from the corpus' own documentation: two men and a woman of each dialect region.
_CORE_TEST = """
    mdab0 mwbt0 felc0 mtas1 mwew0 fpas0 mjmp0 mlnt0 fpkt0 mlll0 mtls0 fjlm0
    mbpm0 mklt0 fnlp0 mcmj0 mjdh0 fmgd0 mgrt0 mnjm0 fdhc0 mjln0 mpam0 fmld0
""".split()
# The development set of 50 others: A. Halberstadt, "Heterogeneous acoustic measurements and multiple classifiers for
# speech recognition", PhD thesis, MIT, 1998.
_DEV = """
    faks0 fdac1 fjem0 mgwt0 mjar0 mmdb1 mmdm2 mpdf0 fcmh0 fkms0 mbdg0 mbwm0 mcsh0 fadg0 fdms0 fedw0 mgjf0
    mglb0 mrtk0 mtaa0 mtdt0 mthc0 mwjg0 fnmr0 frew0 fsem0 mbns0 mmjr0 mdls0 mdlf0 mdvc0 mers0 fmah0 fdrw0
    mrcs0 mrjm4 fcal1 mmwh0 fjsj0 majc0 mjsw0 mreb0 fgjd0 fjmg0 mroa0 mteb0 mjfc0 mrjr0 fmml0 mrws1
""".split()


def fold_phones(phones: list[str], num_phones: int) -> list[str]:
    """
    :param phones: of the 61
    :param num_phones: 61, 48 or 39
    :return: folded to so many, without "q" if they are fewer than 61
    :raises ValueError: for a phone that TIMIT does not have, or another number
    """
    if num_phones not in (61, 48, 39):
        raise ValueError(f"TIMIT: expected 61, 48 or 39 phones, got {num_phones!r}")
    for phone in phones:
        if phone not in PHONES_61:
            raise ValueError(f"TIMIT: {phone!r} is none of its 61 phones")
    if num_phones == 61:
        return list(phones)
    return [_TABLE[phone][0 if num_phones == 48 else 1] for phone in phones if phone != "q"]


def open_timit(*, folder: Any, split: str, targets: str) -> Recordings:
    """
    :param folder: with the folders TRAIN and TEST, in upper or lower case, or a folder above it
    :param split: one of ``SPLITS``
    :param targets: one of ``TARGETS``
    :raises FileNotFoundError: if the corpus, or a transcript, is not there
    :raises ValueError: if a recording or a transcript cannot be used
    """
    root = _find_root(resolve_path(folder))
    half = _child(root, "train" if split == "train" else "test")
    speakers = {"dev": _DEV, "test": _CORE_TEST}.get(split)
    names, paths, texts = [], [], []
    for region in _folders(half):
        for speaker in _folders(region):
            if speakers is not None and os.path.basename(speaker).lower() not in speakers:
                continue
            for stem, files in _utterances(speaker):
                names.append(f"{os.path.basename(speaker)}-{stem}".lower())
                paths.append(files["wav"])
                texts.append(_read_text(files, targets, names[-1]))
    if not names:
        raise FileNotFoundError(f"TIMIT: no recordings of the split {split!r} in {half}")
    recordings = Recordings(names, paths, texts)
    if recordings.problems:
        first = recordings.problems[0]
        raise ValueError(f"TIMIT: {len(recordings.problems)} recordings cannot be used: {first.name}: {first.message}")
    return recordings


def _find_root(folder: str) -> str:
    for candidate in (folder, *(_folders(folder) if os.path.isdir(folder) else ())):
        if {"train", "test"} <= {os.path.basename(path).lower() for path in _folders(candidate)}:
            return candidate
        inner = [path for path in _folders(candidate) if os.path.basename(path).lower() == "timit"]
        if inner and {"train", "test"} <= {os.path.basename(path).lower() for path in _folders(inner[0])}:
            return inner[0]
    raise FileNotFoundError(f"TIMIT: no folders TRAIN and TEST in {folder}")


def _folders(path: str) -> list[str]:
    if not os.path.isdir(path):
        return []
    return sorted(entry.path for entry in os.scandir(path) if entry.is_dir())


def _child(path: str, name: str) -> str:
    return next(child for child in _folders(path) if os.path.basename(child).lower() == name)


def _utterances(speaker: str) -> list[tuple[str, dict[str, str]]]:
    """:return: by name: suffix -> path; without the two sentences that all speakers read ("sa")"""
    found: dict[str, dict[str, str]] = {}
    for entry in sorted(os.scandir(speaker), key=lambda entry: entry.name):
        match = re.fullmatch(r"(s[ix]\d+)\.(wav|phn|wrd|txt)", entry.name, re.IGNORECASE)
        if match:
            found.setdefault(match[1].lower(), {})[match[2].lower()] = entry.path
    return [(stem, files) for stem, files in sorted(found.items()) if "wav" in files]


def _read_text(files: dict[str, str], targets: str, name: str) -> str:
    kind = "wrd" if targets == "words" else "phn"
    if kind not in files:
        raise FileNotFoundError(f"TIMIT: {name} has no .{kind.upper()} file")
    with open(files[kind], encoding="utf8") as file:
        lines = [line.split() for line in file if line.strip()]
    if not lines or any(len(fields) != 3 for fields in lines):
        raise ValueError(f"TIMIT: {files[kind]}: expected lines of begin, end and label")
    labels = [label for _, _, label in lines]
    if targets == "words":
        return " ".join(labels).upper()
    return " ".join(fold_phones(labels, int(targets.removeprefix("phones"))))
