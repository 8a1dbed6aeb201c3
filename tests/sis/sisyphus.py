"""
The rules of Sisyphus that matter to arguments of jobs, as its users know them, to try ours with; for where it is not
installed. Imported as ``sisyphus``, it runs the jobs of an experiment as well.

- An object's hash is made of its class's name and its state: ``__sis_state__()``, or else all attributes; or it is what
  ``_sis_hash()`` returns. A function's is made of its module and name. Lambdas and NumPy's scalars are refused.
- Arguments are deep-copied. A job is made once for each hash, and pickled before it runs.
- The paths in the arguments are looked for; a job runs when the jobs that make them have run.
"""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import inspect
import os
import pathlib
import pickle
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["Job", "Path", "Task", "Variable", "extract_paths", "forget_jobs", "run_jobs", "sis_hash_helper", "tk"]

_PLAIN = (int, float, bool, str, complex)


def sis_hash_helper(obj: Any) -> bytes:
    """:return: what a hash is made of"""
    parts = [type(obj).__qualname__.encode()]
    if isinstance(obj, bytes):
        parts.append(obj)
    elif obj is None:
        pass
    elif type(obj) in _PLAIN:
        parts.append(repr(obj).encode())
    elif type(obj) in (list, tuple):
        parts += [sis_hash_helper(part) for part in obj]
    elif type(obj) in (set, frozenset):
        parts += sorted(sis_hash_helper(part) for part in obj)
    elif isinstance(obj, dict):
        parts += sorted(sis_hash_helper(item) for item in obj.items())
    elif inspect.isfunction(obj) or inspect.isclass(obj):
        assert obj.__name__ != "<lambda>", "Hashing of lambda functions is not supported"
        assert obj.__module__ != "__main__", "Hashing of what is defined in __main__ is not supported"
        parts.append(sis_hash_helper((obj.__module__, obj.__qualname__)))
    elif hasattr(obj, "_sis_hash"):
        result = obj._sis_hash()
        assert isinstance(result, bytes), f"_sis_hash of {obj!r} must return bytes"
        return result
    else:
        parts.append(sis_hash_helper(get_object_state(obj)))
    text = b"(" + b", ".join(parts) + b")"
    return hashlib.sha256(text).digest() if len(text) > 4096 else text


def get_object_state(obj: Any) -> Any:
    """:return: what there is to hash and to search in an object"""
    if obj is None or type(obj) in (*_PLAIN, list, tuple, set, frozenset, dict):
        return obj
    if isinstance(obj, np.generic):
        raise TypeError(f"derived type {obj!r} {type(obj)!r} not handled yet")
    if isinstance(obj, types.ModuleType):
        return obj.__name__
    if inspect.isfunction(obj) or inspect.isclass(obj):
        return obj.__module__, obj.__qualname__
    if isinstance(obj, pathlib.PurePath):
        return str(obj)
    if hasattr(obj, "__sis_state__"):
        return obj.__sis_state__()
    if hasattr(obj, "__getstate__") and type(obj).__getstate__ is not getattr(object, "__getstate__", None):
        return obj.__getstate__()
    if isinstance(obj, functools.partial):
        return {"func": obj.func, "args": obj.args, "keywords": obj.keywords}
    assert hasattr(obj, "__dict__") or hasattr(obj, "__slots__"), f"Failed to get object state of: {obj!r}"
    slots = getattr(obj, "__slots__", ())
    return {**{name: getattr(obj, name) for name in slots if hasattr(obj, name)}, **getattr(obj, "__dict__", {})}


def extract_paths(args: Any) -> set[Path]:
    """:return: all paths in there"""
    found, seen, queue = set(), {}, [args]
    while queue:
        obj = queue.pop()
        if id(obj) in seen or isinstance(obj, enum.Enum) or obj is None or isinstance(obj, (str, bytes, *_PLAIN)):
            if not hasattr(obj, "__sis_state__"):
                continue
        if id(obj) in seen:
            continue
        seen[id(obj)] = obj
        if getattr(obj, "_sis_path", None) is True:
            found.add(obj)
        elif isinstance(obj, (list, tuple, set, frozenset)):
            queue.extend(obj)
        elif isinstance(obj, dict):
            queue.extend(value for key, value in obj.items() if not str(key).startswith("_sis_"))
        elif not inspect.isfunction(obj) and not inspect.isclass(obj) and not isinstance(obj, types.ModuleType):
            queue.append(get_object_state(obj))
    return found


class DelayedBase:
    """a value that is known later"""


class Path(DelayedBase):
    """
    :param path: of the user; of a job's output: relative to its folder
    :param creator: the job
    """

    _sis_path = True

    def __init__(self, path: str, creator: Job | None = None):
        self.path, self.creator = path, creator

    def get_path(self) -> str:
        return self.path if self.creator is None else os.path.join(self.creator.folder, "output", self.path)

    def get(self) -> str:
        return self.get_path()

    def __fspath__(self) -> str:
        return self.get_path()

    def __str__(self) -> str:
        return self.get_path()

    def __repr__(self) -> str:
        return repr(self.get_path())

    def _sis_hash(self) -> bytes:
        creator = None if self.creator is None else os.path.join(self.creator.sis_id, "output")
        return b"(Path, " + sis_hash_helper((creator, self.path)) + b")"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((self.path, id(self.creator)))


class Variable(Path):
    """a value that a job writes into a file"""

    def get(self) -> Any:
        with open(self.get_path(), encoding="utf8") as file:
            return eval(file.read())  # noqa: S307 as Sisyphus does

    def set(self, value: Any):
        with open(self.get_path(), "w", encoding="utf8") as file:
            file.write(repr(value))

    def __repr__(self) -> str:
        return str(self.get())


class Task:
    """
    :param start: name of the job's method
    """

    def __init__(self, start: str, *, resume: str | None = None, rqmt: Any = None, mini_task: bool = False):
        self.start = start


class _OncePerHash(type):
    jobs: dict[str, Job] = {}

    def __call__(cls, *args: Any, **kwargs: Any):
        given = inspect.getcallargs(cls.__init__, None, *args, **kwargs)
        del given["self"]
        short = hashlib.sha256(sis_hash_helper(cls.hash_arguments(given))).hexdigest()[:12]  # type: ignore[attr-defined]
        sis_id = f"{cls.__module__.replace('.', '/')}/{cls.__name__}.{short}"
        if sis_id not in _OncePerHash.jobs:
            job = cls.__new__(cls, sis_id)
            _OncePerHash.jobs[sis_id] = job
            args, kwargs = copy.deepcopy((args, kwargs))
            job.__init__(*args, **kwargs)
            job.inputs = {path for path in extract_paths(vars(job)) if path.creator is not job}
        return _OncePerHash.jobs[sis_id]


class Job(metaclass=_OncePerHash):
    """a step of an experiment"""

    inputs: set[Path]
    work = "work"

    def __new__(cls, sis_id: str):
        if sis_id in _OncePerHash.jobs:
            return _OncePerHash.jobs[sis_id]
        self = super().__new__(cls)
        self.sis_id = sis_id
        return self

    def __getnewargs__(self) -> tuple[str]:
        return (self.sis_id,)

    def __deepcopy__(self, memo: Any):
        return self

    @classmethod
    def hash_arguments(cls, given: dict[str, Any]) -> dict[str, Any]:
        """:return: arguments that count"""
        return given

    @property
    def folder(self) -> str:
        return os.path.join(os.path.abspath(self.work), self.sis_id)

    def output_path(self, name: str, directory: bool = False) -> Path:
        return Path(name, self)

    def output_var(self, name: str) -> Variable:
        return Variable(name, self)

    def tasks(self) -> Iterator[Task]:
        raise NotImplementedError


def run_jobs(paths: Any) -> list[str]:
    """
    Runs all jobs that are needed, each after it was pickled and unpickled.

    :return: their names, in the order in which they ran
    """
    ran: list[str] = []
    for path in sorted(extract_paths(paths), key=lambda path: path.get_path()):
        if path.creator is not None:
            _run(path.creator, ran)
    return ran


def _run(job: Job, ran: list[str]):
    if os.path.exists(os.path.join(job.folder, "finished")):
        return
    for path in sorted(job.inputs, key=lambda path: path.get_path()):
        if path.creator is not None:
            _run(path.creator, ran)
    for name in ("output", "work"):
        os.makedirs(os.path.join(job.folder, name), exist_ok=True)
    saved, before = pickle.dumps(job), os.getcwd()
    del _OncePerHash.jobs[job.sis_id]  # as in another process
    try:
        os.chdir(os.path.join(job.folder, "work"))
        loaded = pickle.loads(saved)
        loaded.work = os.path.abspath(os.path.join(before, job.work))
        for task in loaded.tasks():
            getattr(loaded, task.start)()
    finally:
        os.chdir(before)
        _OncePerHash.jobs[job.sis_id] = job
    with open(os.path.join(job.folder, "finished"), "w"):
        pass
    ran.append(type(job).__name__)


class tk:
    """what experiments use"""

    Path, Variable = Path, Variable
    outputs: dict[str, Path] = {}

    @staticmethod
    def register_output(name: str, path: Path):
        tk.outputs[name] = path


def forget_jobs():
    """As in a new process."""
    _OncePerHash.jobs.clear()
