"""
Hashes that stay the same: of models, dims, datasets, vocabularies, functions and configs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..config.description import Describer, Description
from ._contents import find_paths
from ._pickling import restore_derived_dims

__all__ = ["Hashed", "description_hash", "stable_hash"]


def stable_hash(value: Any) -> str:
    """
    The hash depends on what :class:`..config.description.Describer` tells of it: for a model the hierarchy of its
    modules and their options, for a config its options; not on names of dims and layers, the process, the order of
    dicts and sets, options with defaults that are added later, the values of parameters, or the folder of the code.

    :param value: a model, dim, dataset, vocabulary, function, a config (dict), or a structure of them. In a config, the
        dims of ``extern_data`` are numbered first.
    :return: 64 hexadecimal digits
    :raises ValueError: naming the place, for what has no stable hash: a lambda, a function of ``__main__``
    """
    describer = Describer()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return description_hash(describer.config(value))
    return description_hash(describer.value(value, where=type(value).__name__))


def description_hash(description: Description) -> str:
    """:return: 64 hexadecimal digits"""
    digest = hashlib.sha256()
    for part in _encode(description):
        digest.update(part)
    return digest.hexdigest()


def _encode(value: Description) -> Iterator[bytes]:
    """:return: bytes that tell all descriptions apart"""
    if isinstance(value, tuple):
        yield b"("
        for part in value:
            yield from _encode(part)
        yield b")"
        return
    data = value if isinstance(value, bytes) else (value if isinstance(value, str) else repr(value)).encode("utf8")
    yield f"{type(value).__name__} {len(data)} ".encode() + data


class Hashed:
    """
    Anything as an argument of a Sisyphus job, with a hash that stays (:func:`stable_hash`)::

        class Train(Job):
            def __init__(self, config: Hashed): ...

            def run(self):
                text = to_python(self.config.value)

    It can be copied and pickled, as Sisyphus does with arguments, also with a model in it. Sisyphus finds the paths in
    the value, so that the job waits for them.

    :param value: as for :func:`stable_hash`
    """

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return f"Hashed({self.value!r})"

    def _sis_hash(self) -> bytes:
        """what Sisyphus asks for"""
        return f"(Hashed, {stable_hash(self.value)})".encode()

    def __sis_state__(self) -> dict[str, Any]:
        """Where Sisyphus looks for paths."""
        return {"paths": find_paths(self.value)}

    def __getstate__(self) -> dict[str, Any]:
        return {"value": self.value}

    def __setstate__(self, state: dict[str, Any]):
        self.value = state["value"]
        restore_derived_dims(self.value)
