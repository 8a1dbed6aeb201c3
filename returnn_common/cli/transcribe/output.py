"""
Where transcripts go: standard output, one file, or a file for each recording.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from ...recog.alignment_files import ctm_lines
from ..errors import CommandError
from .formats import FORMATS, dump_json, json_entry, srt_text, text_line
from .pipeline import Result
from .recordings import Found, Source, printable

__all__ = ["Output"]


class Output:
    """
    To be used in a ``with`` statement. Each transcript is written when it comes, so that an interruption loses none.

    :param path: a folder (that is there, or ends in "/") for a file for each recording; or one file; None: standard
        output
    :param format: one of FORMATS
    :param found: the recordings
    :raises CommandError: if it cannot be written there, or that would overwrite a recording
    """

    def __init__(self, path: str | None, *, format: str, found: Found):
        self._format = format
        self._is_single = found.is_single
        self._folder = Path(path) if path is not None and (path.endswith(os.sep) or os.path.isdir(path)) else None
        self._file = Path(path) if path is not None and self._folder is None else None
        self._stream: IO[str] | None = None
        self._num_written = 0
        self._ids = _file_ids(found.sources)
        self._check(found.sources)

    @property
    def is_on_terminal(self) -> bool:
        """whether the user sees it"""
        return self._folder is None and self._file is None and sys.stdout.isatty()

    def _check(self, sources: Sequence[Source]):
        if self._format == "srt" and self._folder is None and len(sources) > 1:
            raise CommandError(
                "--format srt: a file for each recording, give a folder for them: --output DIR/ (with / at its end)"
            )
        targets = [self._target(source) for source in sources] if self._folder is not None else []
        twice = [target for target, count in Counter(targets).items() if count > 1]
        if twice:
            first = [source.name for source in sources if self._target(source) == twice[0]][:2]
            raise CommandError(f"--output {self._folder}/: {' and '.join(first)} would both be written to {twice[0]}")
        targets += [self._file] if self._file is not None else []
        recordings = {os.path.realpath(source.path): source.name for source in sources}
        for target in targets:
            if os.path.realpath(target) in recordings:
                raise CommandError(f"--output {target}: that is a recording to be transcribed")
        if self._folder is not None and self._folder.exists() and not self._folder.is_dir():
            raise CommandError(f"--output {self._folder}/: expected a folder, but it is a file")
        if self._file is not None and not self._file.absolute().parent.is_dir():
            raise CommandError(f"--output {self._file}: there is no folder {self._file.parent}")

    def _target(self, source: Source) -> Path:
        assert self._folder is not None
        return self._folder / source.stem.with_name(source.stem.name + FORMATS[self._format])

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None):
        if self._folder is None and kind is not BrokenPipeError:
            self._finish_stream()
        if self._stream is not None and self._stream is not sys.stdout:
            self._stream.close()

    def write(self, result: Result):
        """
        :param result: with a transcript
        :raises OSError: if it cannot be written
        """
        if self._folder is not None:
            target = self._target(result.source)
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f".{target.name}.part")
            part.write_text(self._whole_file(result), "utf8")
            os.replace(part, target)
            return
        stream = self._open()
        if self._format == "json" and not self._is_single:
            stream.write((",\n" if self._num_written else "[\n") + dump_json(json_entry(result)))
        elif self._format == "text":
            stream.write(text_line(result, with_name=not self._is_single) + "\n")
        else:
            stream.write(self._whole_file(result))
        self._num_written += 1
        stream.flush()

    def _whole_file(self, result: Result) -> str:
        """:return: content of a file for this recording alone"""
        if self._format == "text":
            return text_line(result, with_name=False) + "\n"
        if self._format == "json":
            return dump_json(json_entry(result)) + "\n"
        if self._format == "ctm":
            return "".join(f"{line}\n" for line in ctm_lines(self._ids[result.source], result.transcript.words or ()))
        return srt_text(result)

    def _open(self) -> IO[str]:
        if self._stream is None:
            self._stream = sys.stdout if self._file is None else open(self._file, "w", encoding="utf8")
        return self._stream

    def _finish_stream(self):
        """A list has an end, also an empty one. What an earlier call wrote into a file is no result of this one."""
        if self._format == "json" and not self._is_single:
            self._open().write("\n]\n" if self._num_written else "[]\n")
            self._open().flush()
        elif self._file is not None and not self._is_single:
            self._open()


def _file_ids(sources: Sequence[Source]) -> dict[Source, str]:
    """:return: names without suffix; where several have the same, the paths without suffix, or the whole paths"""
    ways = [
        [source.path.stem for source in sources],
        [str(source.path.with_suffix("")) for source in sources],
        [str(source.path) for source in sources],
    ]
    ids = next((way for way in ways if len(set(way)) == len(way)), ways[-1])
    return {source: printable(file_id) for source, file_id in zip(sources, ids, strict=True)}
