"""
From a corpus in the LibriSpeech layout, in folders or archives, to the files that RETURNN reads.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from .archive import ARCHIVE_SUFFIXES, ArchiveTree, archive_name, is_archive
from .folder_tree import FolderTree, file_stamp
from .manifest import exclusive_folder, source_digest
from .official import OFFICIAL_SPLITS
from .pipeline import PrepareJob, ProgressCallback, check_options
from .report import PrepareReport
from .scan import AUDIO_SUFFIXES, SplitSource, is_usual_split, is_wanted_text, scan_tree

__all__ = ["prepare_librispeech"]


def prepare_librispeech(
    src: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    splits: Collection[str] | None = None,
    audio_format: str = "flac",
    num_workers: int = 2,
    on_progress: ProgressCallback | None = None,
) -> PrepareReport:
    """
    Writes ``dest/SPLIT.zip`` (see :mod:`.oggzip`) for each split of a corpus, as
    :class:`returnn_common.datasets.Librispeech` expects them. The layout is that of LibriSpeech,
    https://www.openslr.org/12.

    Whatever cannot be used is skipped and listed in the report; what a split of LibriSpeech officially has and this one
    has not is listed, too. The call may be interrupted at any moment: each file is complete or not there, and the next
    call goes on where this one has stopped. Splits whose recordings and transcripts have not changed since are not done
    again.

    :param src: the corpus: ``SPLIT/SPEAKER/CHAPTER/*.flac`` with ``*.trans.txt``, anywhere below it; or one split.
        The recordings may also be .wav or .ogg, and have other sample rates (resampled to 16 kHz) or several channels
        (averaged). Archives of it that are called like a split (``dev-clean.tar.gz``) are read without unpacking,
        unless the split is there as a folder; or ``src`` is an archive itself.
    :param dest: folder to write to, made where it is missing
    :param splits: only these; None: all that there are
    :param audio_format: "flac", or "ogg" for Ogg Vorbis (a third of the size, with losses)
    :param num_workers: how many recordings are decoded at a time. The result does not depend on it.
    :param on_progress: called with the number of utterances done, of all that are known of, and the name of the split
        that is being done
    :raises FileNotFoundError: ``src`` is not there or has no recordings. Nothing was written then.
    :raises NotADirectoryError: ``dest`` is a file
    :raises ValueError: a split has nothing usable, or is not there, or an archive is damaged. The other splits are
        complete then.
    :raises RuntimeError: another process is writing to ``dest``
    """
    check_options(audio_format=audio_format, num_workers=num_workers)
    src, dest = Path(src), Path(dest)
    tree = _open(src)
    found, archives = ([], [src]) if tree is None else _find(tree, splits)
    if dest.exists() and not dest.is_dir():
        raise NotADirectoryError(f"destination: expected a folder, but {dest} is a file")
    with exclusive_folder(dest):
        job = PrepareJob(dest, audio_format=audio_format, num_workers=num_workers, on_progress=on_progress)
        job.expect(sum(len(split.utterances) for split in found))
        for split in found:
            stamps = map(tree.stamp, split.files)
            job.prepare(split, source=source_digest(stamps, audio_format=audio_format))
        names = {split.name: split.where for split in found}
        for archive in archives:
            _prepare_archive(archive, job, names=names, splits=splits, audio_format=audio_format)
    if not names and splits is None:
        raise FileNotFoundError(f"corpus {src}: no recordings ({', '.join(AUDIO_SUFFIXES)}) in it")
    _check_splits(str(src), splits, names)
    return job.report(str(src))


def _open(src: Path) -> FolderTree | None:
    """:return: None: it is an archive"""
    if src.is_dir():
        return FolderTree(src)
    if src.is_file() and is_archive(src.name):
        return None
    found = f"is a file (and not {', '.join(ARCHIVE_SUFFIXES)})" if src.exists() else "is not there"
    raise FileNotFoundError(f"corpus: expected a folder, but {src} {found}")


def _find(tree: FolderTree, splits: Collection[str] | None) -> tuple[list[SplitSource], list[Path]]:
    """
    :return: the splits that are there as folders, and the archives to look into
    """
    found = scan_tree(tree)
    names = {split.name for split in found}
    all_archives = [
        tree.root / folder / name
        for folder, files in tree.walk()
        for name in files
        if is_archive(name) and archive_name(name) not in names
    ]
    # LibriSpeech has others beside the splits, such as that of the original MP3 files.
    archives = [path for path in all_archives if is_usual_split(archive_name(path.name))]
    archives = archives if found or archives else all_archives
    if not found and not archives:
        raise FileNotFoundError(f"corpus {tree.where()}: no recordings ({', '.join(AUDIO_SUFFIXES)}) in it")
    if splits is not None:
        found = [split for split in found if split.name in splits]
        archives = [
            path
            for path in archives
            if archive_name(path.name) in splits or archive_name(path.name) not in OFFICIAL_SPLITS
        ]
        if not archives:
            _check_splits(tree.where(), splits, names)
    return found, archives


def _check_splits(src: str, splits: Collection[str] | None, names: Collection[str]):
    missing = sorted(set(splits or ()) - set(names))
    if missing:
        raise ValueError(
            f"corpus {src}: no split {', '.join(missing)} in it, only {', '.join(sorted(names)) or 'others'}"
        )


def _prepare_archive(
    path: Path, job: PrepareJob, *, names: dict[str, str], splits: Collection[str] | None, audio_format: str
):
    """
    :param names: of the splits that there are so far, to where they are; extended
    """
    stamp = file_stamp(path)
    name = archive_name(path.name)

    def _digest(split: str) -> str:
        return source_digest([f"{split}\0{stamp}"], audio_format=audio_format)

    # Reading it takes long, so what it holds is taken from the record of an earlier call.
    manifest = job.take(name, source=_digest(name))
    if manifest is not None:
        known = {split: job.take(split, source=_digest(split)) for split in _wanted(manifest.archive_splits, splits)}
        if all(known.values()):
            for split, manifest in known.items():
                assert manifest is not None
                job.use(split, manifest, num_utterances=0)
                names[split] = str(path)
            return
    job.tell(f"reading {path.name}")
    with ArchiveTree(path, keep=is_wanted_text) as tree:
        found = scan_tree(tree)
        wanted = _wanted([split.name for split in found], splits)
        for split in found:
            if split.name in wanted:
                if split.name in names:
                    raise ValueError(f"two sources for the split {split.name!r}: {names[split.name]} and {path}")
                names[split.name] = split.where
                job.expect(len(split.utterances))
        for split in found:
            if split.name in wanted:
                job.prepare(split, source=_digest(split.name), archive_splits=[split.name for split in found])


def _wanted(names: Sequence[str], splits: Collection[str] | None) -> list[str]:
    return [name for name in names if splits is None or name in splits]
