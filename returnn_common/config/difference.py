"""
What differs between two configs.
"""

from __future__ import annotations

import difflib
import enum
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from returnn.config import Config, global_config_ctx
from returnn.tensor import Dim
from returnn.tensor.marked_dim import MarkedDim

from ._changes import Change, ConfigDiff, element_texts, is_telling, same_code, text_of, texts_around_change
from ._comparable import AnyConfig, is_plain_key, load_config, module_file, simple_value
from ._functions import Definitions
from ._modules import is_made_up, module_contents
from ._namespaces import find_import
from ._objects import constructor_call, same_content
from ._source import find_source

__all__ = ["Change", "ConfigDiff", "diff"]


def diff(a: AnyConfig, b: AnyConfig) -> ConfigDiff:
    """
    What changed from config ``a`` to config ``b``::

        print(diff("old.config", "new.config"))
        #   train.dataset.partition_epoch: 20 -> 10
        # + train.dataset.epoch_wise_filter: {(1, 5): {"max_mean_len": 1000}}
        #   extern_data.classes.sparse_dim: Dim "labels" (29) -> Dim "labels" (10079)

    Values count, not how they were written: the order of options doesn't matter, and NumPy's scalars are numbers, paths
    texts. Dims are told apart by where they are: the first of ``a`` goes with the first of ``b`` there, and then
    everywhere; a change of its name or size is told once. Functions that are imported from the same place are the
    same; of others, the source is compared without its comments, and what it uses. Two files with modules of one name
    in folders of their own each have their own. What only got another name (and is no number, which others may be as
    well) is told as that.

    :param a: options by name, a module, the path of a file, see :func:`.read`, or a net dict
    :param b: like ``a``
    :raises TypeError: if one is none of them
    :raises ValueError: see :func:`.read`
    :raises FileNotFoundError: see :func:`.read`
    """
    comparison = _Comparison()
    configs = load_config("a", a), load_config("b", b)
    with global_config_ctx(Config()):  # where TensorFlow is loaded, RETURNN leaves that of the last one that was read
        comparison.options(*configs)
    return ConfigDiff(tuple(comparison.changes))


class _Comparison:
    def __init__(self):
        self.changes: list[Change] = []
        self._dims: dict[Dim, Dim] = {}  # of a -> of b
        self._back: dict[Dim, Dim] = {}
        self._functions: set[tuple[int, int]] = set()  # compared already, or being compared
        self._active: set[tuple[int, int]] = set()
        self._options: set[tuple[int, int]] = set()  # these tell of their changes themselves

    def options(self, a: dict[str, Any], b: dict[str, Any]):
        """Compares two configs, the data's options first, since their dims are known best."""
        self._options = {(id(a[name]), id(b[name])) for name in a if name in b}
        names = sorted(dict.fromkeys([*a, *b]), key=lambda name: name != "extern_data")
        self._mapping("", a, b, names=names)

    def values(self, path: str, a: Any, b: Any):
        """Compares two values."""
        a, b = simple_value(a), simple_value(b)
        if (id(a), id(b)) in self._active:
            return
        self._active.add((id(a), id(b)))
        try:
            self._values(path, a, b)
        finally:
            self._active.discard((id(a), id(b)))

    def _values(self, path: str, a: Any, b: Any):
        if isinstance(a, Dim) and isinstance(b, Dim):
            self._dim(path, a, b)
        elif isinstance(a, MarkedDim) and isinstance(b, MarkedDim):
            self.values(path, (type(a), a.tag), (type(b), b.tag))
        elif Definitions.is_function(a) and Definitions.is_function(b):
            self._function(path, a, b)
        elif type(a) is not type(b) and not self._are_twins(type(a), type(b)):
            self._changed(path, a, b)
        elif isinstance(a, dict):
            self._dict(path, a, b)
        elif type(a) in (list, tuple):
            self._sequence(path, a, b)
        elif isinstance(a, set | frozenset):
            self._set(path, a, b)
        elif isinstance(a, np.ndarray):
            self._array(path, a, b)
        elif isinstance(a, enum.Enum):
            self._function(path, type(a), type(b))
            if a.name != b.name:
                self._changed(path, a, b)
        elif isinstance(a, types.MethodType):
            self.values(f"{path}.{a.__name__}", a.__self__, b.__self__)
            self._function(path, a.__func__, b.__func__)
        elif isinstance(a, types.ModuleType):
            self._module(path, a, b)
        elif isinstance(a, str | bytes | int | float | complex | type(None)):
            if not same_content(a, b):
                self._changed(path, a, b)
        else:
            self._object(path, a, b)

    @staticmethod
    def _are_twins(a: type, b: type) -> bool:
        """:return: whether two classes may be the same one, written out in both configs"""
        names = [cls.__qualname__.rpartition("<locals>.")[2] for cls in (a, b)]
        return names[0] == names[1] and find_import(a) is None and find_import(b) is None

    def _mapping(self, path: str, a: Mapping[Any, Any], b: Mapping[Any, Any], *, names: list[Any]):
        renamed = self._renamed(a, b)
        for name in names:
            inner = _inner(path, name)
            if name in renamed:
                self.values(inner, a[name], b[renamed[name]])  # whose dims go together
                self.changes.append(Change(inner, text_of(a[name]), text_of(b[renamed[name]]), name=str(renamed[name])))
            elif name not in b:
                self.changes.append(Change(inner, text_of(a[name]), None))
            elif name in renamed.values():
                continue
            elif name not in a:
                self.changes.append(Change(inner, None, text_of(b[name])))
            else:
                self.values(inner, a[name], b[name])

    def _renamed(self, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> dict[Any, Any]:
        """:return: name in ``a`` -> name in ``b``, of those that have gone and came with the same value, if it is one
        that tells them apart"""
        gone = [name for name in a if name not in b and is_telling(a[name])]
        new = [name for name in b if name not in a and is_telling(b[name])]
        found = {}
        for name in gone:
            same = [other for other in new if self._are_same(a[name], b[other])]
            if len(same) == 1 and same[0] not in found.values():
                found[name] = same[0]
        return found

    def _are_same(self, a: Any, b: Any) -> bool:
        trial = _Comparison()
        trial._dims, trial._back, trial._options = dict(self._dims), dict(self._back), self._options
        trial.values("", a, b)
        return not trial.changes

    def _dict(self, path: str, a: dict[Any, Any], b: dict[Any, Any]):
        # Keys that are equal only if they are the same, such as dims, go together by their order.
        others = [[key for key in x if not is_plain_key(key)] for x in (a, b)]
        plain = [{key: value for key, value in x.items() if is_plain_key(key)} for x in (a, b)]
        self._mapping(path, *plain, names=list(dict.fromkeys([*plain[0], *plain[1]])))
        if len(others[0]) == len(others[1]):
            for i, (old, new) in enumerate(zip(*others, strict=True)):
                self.values(f"{path} key {i}", old, new)
                self.values(f"{path}[{text_of(old)}]", a[old], b[new])
        else:
            self.changes += [Change(f"{path}[{text_of(key)}]", text_of(a[key]), None) for key in others[0]]
            self.changes += [Change(f"{path}[{text_of(key)}]", None, text_of(b[key])) for key in others[1]]

    def _sequence(self, path: str, a: Any, b: Any):
        if len(a) == len(b):
            different = [i for i in range(len(a)) if not same_content(a[i], b[i])]
            if len(different) > 3 and all(isinstance(x, int | float) for x in [*a, *b]):
                first = f"[{different[0]}] {text_of(a[different[0]])} -> {text_of(b[different[0]])}"
                self.changes.append(Change(path, f"{len(a)} numbers", f"{len(different)} of them differ: {first}, ..."))
                return
            for i, (old, new) in enumerate(zip(a, b, strict=True)):
                self.values(f"{path}[{i}]", old, new)
            return
        texts = [text_of(x, shorten=False) for x in a], [text_of(x, shorten=False) for x in b]
        for what, i1, i2, j1, j2 in difflib.SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
            if what == "equal" or (what == "replace" and i2 - i1 == j2 - j1):
                for i, j in zip(range(i1, i2), range(j1, j2), strict=True):
                    self.values(f"{path}[{i}]", a[i], b[j])
            else:
                self.changes += [Change(f"{path}{part}", text, None) for part, text in element_texts(a, i1, i2)]
                self.changes += [Change(f"{path}{part}", None, text) for part, text in element_texts(b, j1, j2)]

    def _module(self, path: str, a: types.ModuleType, b: types.ModuleType):
        if a.__name__ != b.__name__:
            self._changed(path, a, b)
        elif is_made_up(a) and is_made_up(b):  # both written out
            self._dict(path, *(module_contents(module) for module in (a, b)))

    def _set(self, path: str, a: Any, b: Any):
        old, new = (
            {text_of(simple_value(x), shorten=False) for x in a},
            {text_of(simple_value(x), shorten=False) for x in b},
        )
        self.changes += [Change(path, text, None) for text in sorted(old - new)]
        self.changes += [Change(path, None, text) for text in sorted(new - old)]

    def _array(self, path: str, a: np.ndarray, b: np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            self.changes.append(Change(path, f"array {a.dtype} {a.shape}", f"array {b.dtype} {b.shape}"))
        elif not same_content(a, b):
            different = int(np.sum(a != b))
            self.changes.append(Change(path, text_of(a), f"{text_of(b)} ({different} of {a.size} values differ)"))

    def _object(self, path: str, a: Any, b: Any):
        old, new = constructor_call(a), constructor_call(b)
        if old is None or new is None:
            if not same_content(a, b):
                self._changed(path, a, b)
            return
        if Definitions.is_function(old.function) and Definitions.is_function(new.function):
            before = len(self.changes)
            self._function(path, old.function, new.function)
            if len(self.changes) > before:
                return
        args = dict(enumerate(old.args)), dict(enumerate(new.args))
        self._mapping(
            path,
            {**args[0], **old.options},
            {**args[1], **new.options},
            names=list(dict.fromkeys([*args[0], *args[1], *old.options, *new.options])),
        )

    def _dim(self, path: str, a: Dim, b: Dim):
        a, b = a.get_same_base(), b.get_same_base()
        if a in self._dims or b in self._back:
            if self._dims.get(a) != b:
                self.changes.append(Change(path, *self._two_dims(a, b)))
            return
        self._dims[a], self._back[b] = b, a
        if a.is_batch_dim() and b.is_batch_dim():
            return
        old, new = a.derived_from_op, b.derived_from_op
        if old and new and (old.kind, len(old.inputs), a.kind) == (new.kind, len(new.inputs), b.kind):
            for x, y in zip(old.inputs, new.inputs, strict=True):  # where its name and size are from
                self._dim(f"{path} (derived)", x, y)
            return
        if (a.name, a.dimension, a.kind, a.special) != (b.name, b.dimension, b.kind, b.special):
            self.changes.append(Change(path, *self._two_dims(a, b)))
            return
        if (old and old.kind) != (new and new.kind):
            self.changes.append(Change(path, *self._two_dims(a, b)))

    @staticmethod
    def _two_dims(a: Dim, b: Dim) -> tuple[str, str]:
        """:return: texts of both, which differ"""
        old, new = text_of(a), text_of(b)
        if old == new and a.kind != b.kind:
            old, new = (f"{text} of kind {d.kind.name if d.kind else None}" for text, d in ((old, a), (new, b)))
        return (old, new) if old != new else (old, f"another {new}")

    def _function(self, path: str, a: Any, b: Any):
        if a is b or (id(a), id(b)) in self._functions:
            return
        self._functions.add((id(a), id(b)))
        old, new = find_import(a), find_import(b)
        if (old is not None and old == new) or (isinstance(a, np.ufunc) and a == b):
            return
        if (old is None) != (new is None) or old is not None:
            self._changed(path, a, b)
            return
        try:
            sources = find_source(a), find_source(b)
        except ValueError:
            self._changed(path, a, b)
            return
        if (file := module_file(a)) is not None and (file, a.__qualname__) == (module_file(b), b.__qualname__):
            return
        if not same_code(*(source.text for source in sources)):
            lines = difflib.unified_diff(*(s.text.splitlines() for s in sources), lineterm="", n=2)
            self.changes.append(Change(path, text_of(a), text_of(b), tuple(lines)[2:]))
        used = [{**source.namespace, **source.closure} for source in sources]
        for name in sources[0].free_names:
            if name in sources[1].free_names and name in used[0] and name in used[1]:
                if (id(used[0][name]), id(used[1][name])) not in self._options:
                    self._used(f"{path} uses {name}", used[0][name], used[1][name], sources[0].uses.get(name, {()}))

    def _used(self, path: str, a: Any, b: Any, uses: Iterable[tuple[str, ...]]):
        """Of modules of both, only what is used of them."""
        if not all(isinstance(x, types.ModuleType) and is_made_up(x) for x in (a, b)):
            self.values(path, a, b)
            return
        for names in uses:
            try:
                parts = [functools.reduce(getattr, names, module) for module in (a, b)]
            except AttributeError:
                continue
            self.values(".".join([path, *names]), *parts)

    def _changed(self, path: str, a: Any, b: Any):
        old, new = text_of(a), text_of(b)
        if isinstance(a, str) and isinstance(b, str) and "\n" in a and "\n" in b:
            lines = difflib.unified_diff(a.splitlines(), b.splitlines(), lineterm="", n=2)
            self.changes.append(Change(path, old, new, tuple(lines)[2:]))
            return
        if old == new:
            old, new = texts_around_change(text_of(a, shorten=False), text_of(b, shorten=False))
        if old == new and type(a) is not type(b):
            old, new = f"{old} ({type(a).__name__})", f"{new} ({type(b).__name__})"
        self.changes.append(Change(path, old, new))


def _inner(path: str, key: Any) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"
