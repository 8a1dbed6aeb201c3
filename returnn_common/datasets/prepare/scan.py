"""
Finds splits, recordings and transcripts of a corpus in the LibriSpeech layout, without decoding any audio.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from .report import Problem

__all__ = ["SplitSource", "Utterance", "scan_corpus"]

AUDIO_SUFFIXES = (".flac", ".wav", ".ogg")
TRANSCRIPT_SUFFIX = ".trans.txt"


@dataclass(frozen=True)
class Utterance:
    """A recording with its transcript."""

    name: str
    text: str
    path: Path


@dataclass
class SplitSource:
    """
    What there is for one split.

    :param utterances: sorted by name
    :param problems: what cannot be used
    :param files: all recordings and transcripts, sorted
    """

    name: str
    utterances: list[Utterance] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)


def scan_corpus(src: Path) -> list[SplitSource]:
    """
    :param src: folder; ``SPLIT/SPEAKER/CHAPTER/*.flac`` (or .wav, .ogg) with ``*.trans.txt`` anywhere below it, or
        ``src`` is itself a split, a speaker or a chapter
    :return: all splits, sorted by name
    :raises FileNotFoundError: if there is no such folder, or it has no recordings
    :raises ValueError: if two folders claim to be the same split, or a split has no recording with a transcript
    """
    if not src.is_dir():
        found = "is a file" if src.exists() else "is not there"
        raise FileNotFoundError(f"corpus: expected a folder, but {src} {found}")
    src = src.resolve()  # for the name of a split that is ``src`` itself, e.g. given as "."
    files_of_split: dict[Path, list[Path]] = defaultdict(list)
    for folder, names in _walk(src):
        files_of_split[_split_folder(folder, names, src=src)].extend(folder / name for name in names)
    if not any(_is_audio(path.name) for files in files_of_split.values() for path in files):
        raise FileNotFoundError(f"corpus {src}: no recordings ({', '.join(AUDIO_SUFFIXES)}) in it")

    splits: dict[str, Path] = {}
    for folder in sorted(files_of_split):
        name = folder.name or "corpus"
        if name in splits:
            raise ValueError(f"corpus {src}: two folders for the split {name!r}: {splits[name]} and {folder}")
        splits[name] = folder
    result = [_scan_split(name, folder, files_of_split[folder]) for name, folder in sorted(splits.items())]
    for split in result:
        if not split.utterances:
            raise ValueError(
                f"corpus {src}: split {split.name!r} has no recording with a transcript"
                f" ({len(split.problems)} problems, first: {describe_problems(split.problems)})"
            )
    return result


def describe_problems(problems: list[Problem], *, limit: int = 3) -> str:
    """The first few problems in one line, for error messages."""
    return "; ".join(f"{problem.name}: {problem.message}" for problem in problems[:limit]) or "none"


def _walk(src: Path):
    """
    Yields (folder, sorted names) for each folder that has recordings or transcripts. Follows links, since corpora are
    often put together from them, but enters no folder twice. A folder that cannot be read is an error: what is in it
    would be missing without a word.
    """

    def _raise(error: OSError):
        raise error

    visited = set()
    for root, folders, names in os.walk(src, followlinks=True, onerror=_raise):
        real = os.path.realpath(root)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = sorted(name for name in names if _is_audio(name) or _is_transcript(name))
        if names:
            yield Path(root), names


def _is_audio(name: str) -> bool:
    return name.lower().endswith(AUDIO_SUFFIXES) and not name.startswith(".")


def _is_transcript(name: str) -> bool:
    return name.endswith(TRANSCRIPT_SUFFIX) and not name.startswith(".")


_USUAL_SPLIT_NAME = re.compile(r"(train|dev|valid|test|eval)([-_.\d].*)?", re.IGNORECASE)


def _split_folder(folder: Path, names: list[str], *, src: Path) -> Path:
    """
    The split to which the files in ``folder`` belong: the innermost folder below ``src`` that is called like one
    (``train-clean-100``). If none is, the recordings' names tell the level where they can: SPEAKER-CHAPTER-NUMBER in
    SPEAKER/CHAPTER, or SPEAKER-NUMBER in SPEAKER. Else it is the folder two levels up, as in the layout, or as far up
    as there is one below ``src``.
    """
    folders = [src]  # from src to folder
    for part in folder.relative_to(src).parts:
        folders.append(folders[-1] / part)
    for candidate in reversed(folders[1:]):
        if _USUAL_SPLIT_NAME.fullmatch(candidate.name):
            return candidate
    if len(folders) == 1:
        return src
    stems = [name for name in names if _is_audio(name)] or [name.replace(".", "-", 1) for name in names]
    if any(stem.startswith(f"{folder.parent.name}-{folder.name}-") for stem in stems):
        return folders[max(len(folders) - 3, 0)]
    if any(stem.startswith(f"{folder.name}-") for stem in stems):
        return folders[max(len(folders) - 2, 0)]
    return folders[max(len(folders) - 3, 1)]


def _scan_split(split_name: str, folder: Path, files: list[Path]) -> SplitSource:
    split = SplitSource(split_name, files=sorted(files))
    recordings: dict[str, list[Path]] = defaultdict(list)
    for path in split.files:
        if _is_audio(path.name):
            recordings[path.stem].append(path)
    texts = _read_transcripts(split, folder, recordings)

    def _add_problem(kind: str, name: str, message: str):
        # File names need not be valid UTF-8, but problems are to be printed.
        name, message = (text.encode("utf8", "backslashreplace").decode("utf8") for text in (name, message))
        split.problems.append(Problem(kind, f"{split_name}/{name}", message))

    for name, paths in sorted(recordings.items()):
        if len(paths) > 1:
            where = ", ".join(path.relative_to(folder).as_posix() for path in paths)
            _add_problem("duplicate-recording", name, f"{len(paths)} files with this name, none of them used: {where}")
        elif name not in texts:
            _add_problem("unlisted-recording", name, f"no transcript lists {paths[0].relative_to(folder).as_posix()}")
        elif texts[name] is None:
            pass  # reported while the transcripts were read
        elif not texts[name]:
            _add_problem("empty-transcript", name, "its transcript has no words")
        else:
            split.utterances.append(Utterance(name, texts[name] or "", paths[0]))
    for name in sorted(set(texts) - set(recordings)):
        _add_problem("missing-recording", name, "there is a transcript but no recording")
    split.problems.sort()
    return split


def _read_transcripts(split: SplitSource, folder: Path, recordings: dict[str, list[Path]]) -> dict[str, str | None]:
    """
    :return: name -> text, words separated by one space; None if there are different ones
    """
    texts: dict[str, str | None] = {}
    for path in split.files:
        if not _is_transcript(path.name):
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            where = f"{split.name}/{path.relative_to(folder).as_posix()}:{number}"
            parsed = _parse_line(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, recordings)
            if isinstance(parsed, str):
                split.problems.append(Problem("malformed-line", where, parsed))
            elif parsed is not None:
                name, text = parsed
                if name not in texts:
                    texts[name] = text
                elif texts[name] == text:
                    split.problems.append(Problem("duplicate-transcript", where, f"{name} is listed twice"))
                else:
                    texts[name] = None
                    split.problems.append(
                        Problem("duplicate-transcript", where, f"{name} has different transcripts, none of them used")
                    )
    return texts


def _parse_line(line: bytes, recordings: dict[str, list[Path]]) -> tuple[str, str] | str | None:
    """
    :return: name and text, or what is wrong with the line, or None for a blank line
    """
    if not line.strip():
        return None
    try:
        text = line.decode("utf8")
    except UnicodeDecodeError as error:
        return f"not UTF-8 ({error.reason} at byte {error.start})"
    if text[0].isspace():
        return f"begins with a space, where the name of an utterance should be: {text[:60]!r}"
    name, *words = text.split()
    if not words and name not in recordings:
        return f"expected the name of an utterance and its words, got {text[:60]!r}"
    if any(not char.isprintable() for word in words for char in word):
        return f"unprintable characters in {text[:60]!r}"
    return name, " ".join(words)
