"""
Finds splits, recordings and transcripts of a corpus in the LibriSpeech layout, without decoding any audio.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from .folder_tree import FileTree
from .report import Problem

__all__ = ["SplitSource", "Utterance", "describe_problems", "is_audio", "is_usual_split", "is_wanted_text", "scan_tree"]

AUDIO_SUFFIXES = (".flac", ".wav", ".ogg")
TRANSCRIPT_SUFFIX = ".trans.txt"
CHAPTERS = "CHAPTERS.TXT"


@dataclass(frozen=True)
class Utterance:
    """
    A recording with its transcript.

    :param name: unique in the split
    :param text: not empty
    :param path: of the recording, in the split's tree
    :param speaker: None: not known, or part of the name
    """

    name: str
    text: str
    path: str
    speaker: str | None = None


@dataclass
class SplitSource:
    """
    What there is for one split.

    :param name: of the split
    :param tree: where its files are
    :param folder: of the split, in the tree
    :param utterances: sorted by name
    :param problems: what cannot be used
    :param files: all recordings and transcripts, sorted
    :param chapters: content of LibriSpeech's ``CHAPTERS.TXT``, if it is there
    """

    name: str
    tree: FileTree
    folder: str = ""
    utterances: list[Utterance] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    chapters: str | None = None

    @property
    def where(self) -> str:
        """for messages"""
        return self.tree.where(self.folder)

    def add_problem(self, kind: str, name: str, message: str):
        """File names need not be valid UTF-8, but problems are to be printed."""
        name, message = (text.encode("utf8", "backslashreplace").decode("utf8") for text in (name, message))
        self.problems.append(Problem(kind, f"{self.name}/{name}", message))

    def inside(self, path: str) -> str:
        """:return: the path of a file below the split's folder"""
        return path.removeprefix(f"{self.folder}/") if self.folder else path


def scan_tree(tree: FileTree) -> list[SplitSource]:
    """
    :param tree: ``SPLIT/SPEAKER/CHAPTER/*.flac`` (or .wav, .ogg) with ``*.trans.txt`` anywhere in it, or it is itself
        a split, a speaker or a chapter
    :return: all splits, sorted by name; empty if there are no recordings
    :raises ValueError: if two folders claim to be the same split, or a split has no recording with a transcript
    """
    files_of_split: dict[str, list[str]] = defaultdict(list)
    chapters = None
    for folder, names in tree.walk():
        prefix = f"{folder}/" if folder else ""
        if CHAPTERS in names:
            chapters = tree.read(prefix + CHAPTERS).decode("utf8", "replace")
        names = [name for name in names if is_audio(name) or is_transcript(name)]
        if names:
            files_of_split[_split_folder(folder, names, root=tree.name)].extend(prefix + name for name in names)
    if not any(is_audio(path) for files in files_of_split.values() for path in files):
        return []

    splits: dict[str, SplitSource] = {}
    for folder in sorted(files_of_split):
        name = PurePosixPath(folder).name or tree.name or "corpus"
        if name in splits:
            raise ValueError(
                f"corpus {tree.where()}: two folders for the split {name!r}: {splits[name].where} and "
                f"{tree.where(folder)}"
            )
        splits[name] = SplitSource(name, tree, folder, files=sorted(files_of_split[folder]), chapters=chapters)
    for _, split in sorted(splits.items()):
        _scan_split(split)
        if not split.utterances:
            raise ValueError(
                f"corpus {tree.where()}: split {split.name!r} has no recording with a transcript"
                f" ({len(split.problems)} problems, first: {describe_problems(split.problems)})"
            )
    return [split for _, split in sorted(splits.items())]


def describe_problems(problems: list[Problem], *, limit: int = 3) -> str:
    """The first few problems in one line, for error messages."""
    return "; ".join(f"{problem.name}: {problem.message}" for problem in problems[:limit]) or "none"


def is_audio(name: str) -> bool:
    """:return: whether a file is called like a recording"""
    return name.lower().endswith(AUDIO_SUFFIXES)


def is_transcript(name: str) -> bool:
    """:return: whether a file lists transcripts"""
    return name.endswith(TRANSCRIPT_SUFFIX)


def is_wanted_text(name: str) -> bool:
    """:return: whether :func:`scan_tree` reads a file"""
    return is_transcript(name) or name == CHAPTERS


def is_usual_split(name: str) -> bool:
    """:return: whether something is called like a split"""
    return _USUAL_SPLIT_NAME.fullmatch(name) is not None


_USUAL_SPLIT_NAME = re.compile(r"(train|dev|valid|test|eval)([-_.\d].*)?", re.IGNORECASE)


def _split_folder(folder: str, names: list[str], *, root: str) -> str:
    """
    The split to which the files in ``folder`` belong: the innermost folder that is called like one
    (``train-clean-100``). If none is, the recordings' names tell the level where they can: SPEAKER-CHAPTER-NUMBER in
    SPEAKER/CHAPTER, or SPEAKER-NUMBER in SPEAKER. Else it is the folder two levels up, as in the layout, or as far up
    as there is one.

    :param root: name of the outermost folder
    """
    parts = folder.split("/") if folder else []
    folders = ["/".join(parts[:depth]) for depth in range(len(parts) + 1)]  # from the outermost to this one
    for depth in range(len(parts), 0, -1):
        if is_usual_split(parts[depth - 1]):
            return folders[depth]
    if not parts:
        return folder
    parent = parts[-2] if len(parts) > 1 else root
    stems = [name for name in names if is_audio(name)] or [name.replace(".", "-", 1) for name in names]
    if any(stem.startswith(f"{parent}-{parts[-1]}-") for stem in stems):
        return folders[max(len(folders) - 3, 0)]
    if any(stem.startswith(f"{parts[-1]}-") for stem in stems):
        return folders[max(len(folders) - 2, 0)]
    return folders[max(len(folders) - 3, 1)]


def _scan_split(split: SplitSource):
    recordings: dict[str, list[str]] = defaultdict(list)
    for path in split.files:
        if is_audio(path):
            recordings[os.path.splitext(os.path.basename(path))[0]].append(path)
    texts = _read_transcripts(split, recordings)
    for name, paths in sorted(recordings.items()):
        if len(paths) > 1:
            where = ", ".join(split.inside(path) for path in paths)
            message = f"{len(paths)} files with this name, none of them used: {where}"
            split.add_problem("duplicate-recording", name, message)
        elif name not in texts:
            split.add_problem("unlisted-recording", name, f"no transcript lists {split.inside(paths[0])}")
        elif (text := texts[name]) is None:
            pass  # reported while the transcripts were read
        elif not text:
            split.add_problem("empty-transcript", name, "its transcript has no words")
        else:
            split.utterances.append(Utterance(name, text, paths[0]))
    for name in sorted(set(texts) - set(recordings)):
        split.add_problem("missing-recording", name, "there is a transcript but no recording")
    split.problems.sort()


def _read_transcripts(split: SplitSource, recordings: dict[str, list[str]]) -> dict[str, str | None]:
    """
    :return: name -> text, words separated by one space; None if there are different ones
    """
    texts: dict[str, str | None] = {}
    for path in split.files:
        if not is_transcript(path):
            continue
        for number, line in enumerate(split.tree.read(path).splitlines(), start=1):
            where = f"{split.inside(path)}:{number}"
            parsed = _parse_line(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, recordings)
            if isinstance(parsed, str):
                split.add_problem("malformed-line", where, parsed)
            elif parsed is not None:
                name, text = parsed
                if name not in texts:
                    texts[name] = text
                elif texts[name] == text:
                    split.add_problem("duplicate-transcript", where, f"{name} is listed twice")
                else:
                    texts[name] = None
                    message = f"{name} has different transcripts, none of them used"
                    split.add_problem("duplicate-transcript", where, message)
    return texts


def _parse_line(line: bytes, recordings: dict[str, list[str]]) -> tuple[str, str] | str | None:
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
