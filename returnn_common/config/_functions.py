"""
Functions and classes in a config: imported, or written out with what they use.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from ._imports import meaning
from ._layout import call, layout, one_line
from ._modules import Modules, is_made_up
from ._namespaces import find_import, globals_of, is_lambda
from ._source import Source, find_source
from ._source_text import shift
from ._uses import imported_modules

if TYPE_CHECKING:
    from ._writer import Writer

__all__ = ["Definitions"]

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc, type)


class Definitions:
    """
    What is defined in a config before its options.

    A function that is written out finds what it uses in the config, under the same names. Where such a name stands for
    something else there, or the value comes from a surrounding function, a function around it gives it that value::

        def make_f(n):
            def f(x): return x + n
            return f

        f = make_f(n=3)

    :param writer: for the values that functions use
    :param inline: modules whose functions and classes are written out
    """

    def __init__(self, writer: Writer, *, inline: tuple[str, ...]):
        self.texts: list[str] = []
        self.lazy_annotations = False
        self._writer = writer
        self._inline = inline
        self._modules = Modules(writer, self)
        self._refs: dict[int, str] = {}
        self._open: dict[int, str] = {}  # being written, and only known within themselves
        self._values: dict[str, Any] = {}  # name -> what it stands for in the config
        self._makers: dict[tuple[str, ...], str] = {}  # text and names of the arguments -> function around it
        self._made: dict[str, str] = {}  # call of that -> name of the result
        self._keep: list[Any] = []  # so that no id is used twice
        self._touched: set[int] = set()  # ids of open ones to which the value that is being written refers
        self._pending: set[str] = set()  # names of values that are being written
        self._relied: set[str] = set()  # those of them that functions in there use
        self._promised: dict[str, Any] = {}  # name -> function or class that is written later
        self._later: list[tuple[Any, str]] = []  # those, and where they are used
        self._waiting: list[tuple[frozenset[int], str]] = []  # values that need open ones

    @staticmethod
    def is_function(value: Any) -> bool:
        """whether it is a function or class"""
        if isinstance(value, types.BuiltinFunctionType):
            return isinstance(value.__self__, types.ModuleType) or value.__self__ is None
        if isinstance(value, _FUNCTIONS):
            return True
        is_decorated = hasattr(value, "__wrapped__") and callable(value) and hasattr(value, "__qualname__")
        return is_decorated and not isinstance(value, functools.partial)

    def ref(self, obj: Any, *, where: str, wanted: str | None = None) -> str:
        """
        :param obj: function or class
        :param where: it is, for messages
        :param wanted: the name that it should get
        :return: code that refers to it; the wanted name only if it has it by its import or definition
        :raises ValueError: if it can't be imported, and its source is not there
        """
        if id(obj) in self._refs:
            if id(obj) in self._open:
                self._touched.add(id(obj))
            return self._refs[id(obj)]
        if id(obj) in self._open:
            raise ValueError(f"{where}: both need each other when they are defined, which can't be written")
        found = find_import(obj) if not isinstance(obj, np.ufunc) else ("numpy", obj.__name__)
        if found is not None and not self._is_inline(obj):
            ref = self._writer.names.name(*found, wanted=wanted)
        else:
            ref = self._write(obj, where=where)
        if wanted is None or found is None or self._is_inline(obj):
            self._refs[id(obj)] = ref
            self._keep.append(obj)
        return ref

    def _is_inline(self, obj: Any) -> bool:
        return self._is_inline_name(getattr(obj, "__module__", None) or "")

    def _is_inline_name(self, module: str) -> bool:
        return any(module == name or module.startswith(f"{name}.") for name in self._inline)

    def is_written_module(self, value: Any) -> bool:
        """whether it is a module of which the config gets what is used"""
        return isinstance(value, types.ModuleType) and (self._is_inline_name(value.__name__) or is_made_up(value))

    def _write(self, obj: Any, *, where: str) -> str:
        if "." in (name := getattr(obj, "__qualname__", "")) and "<locals>" not in name and not is_lambda(obj):
            owner = globals_of(obj).get(name.partition(".")[0])
            if isinstance(owner, type):  # a method, or a class within a class
                return f"{self.ref(owner, where=where)}.{name.partition('.')[2]}"
        if not isinstance(inspect.unwrap(obj), types.FunctionType | type):
            raise ValueError(f"{where}: {obj!r} can't be imported, and has no source")
        try:
            source = find_source(obj)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        for module in imported_modules(source.text):
            if self._is_inline_name(module):
                raise ValueError(
                    f"{where}: {source.name} imports {module} when it runs, which is to be written out: "
                    "import it at the beginning of the module"
                )
        self.lazy_annotations |= source.lazy_annotations
        if not self._is_name_free(obj, source):
            ref = None
        else:
            ref = source.name
            if ref not in self._writer.options and ref not in self._promised:
                self._writer.names.take(ref, meaning(obj))
            self._values[ref] = obj
            self._refs[id(obj)] = ref  # it may need itself
            self._keep.append(obj)
        self._open[id(obj)] = where
        given = self._provide(obj, source, where=where)
        if source.name == "<lambda>" and not given and not vars(obj):
            self._close(obj)
            return f"({source.text})" if not where.isidentifier() else source.text
        if ref is not None and not given:
            self.texts.append(source.text)
        else:
            ref = self._make(ref, source, given, where=where)
        self._close(obj)
        self._add_attributes(ref, obj, where=where)
        return ref

    def _close(self, obj: Any):
        """It is written: so is now what had to wait for it."""
        self._open.pop(id(obj))
        waiting, self._waiting = self._waiting, []
        for objects, text in waiting:
            if self._open.keys().isdisjoint(objects):
                self.texts.append(text)
            else:
                self._waiting.append((objects, text))
        if not self._open:
            while self._later:
                later, used = self._later.pop(0)
                self.ref(later, where=used)
            self._modules.write_rest()

    def _add_attributes(self, ref: str, obj: Any, *, where: str):
        """Writes what a function was given after its definition; decorators do that themselves."""
        if not isinstance(obj, types.FunctionType) or hasattr(obj, "__wrapped__"):
            return
        for name, value in vars(obj).items():
            code = self._writer.value(value, where=f"{where}.{name}")
            self.texts.append(layout(code, before=f"{ref}.{name} = ") + "\n")

    def _is_blocked(self, obj: Any) -> bool:
        """whether it needs something where it is defined that is half written"""
        try:
            source = find_source(obj)
        except ValueError:
            return False
        for name in source.needed_at_once:
            value = source.closure.get(name, source.namespace.get(name))
            if id(value) in self._open:
                return True
            if self.is_function(value) and id(value) not in self._refs and self._is_written(value):
                if self._is_blocked(value):
                    return True
        return False

    def _is_written(self, obj: Any) -> bool:
        return self._is_inline(obj) or find_import(obj) is None

    def _is_name_free(self, obj: Any, source: Source) -> bool:
        if self._promised.get(source.name) is obj:
            return True
        if source.name in self._writer.options:
            return self._writer.options[source.name] is obj and source.name not in self._values
        return source.name != "<lambda>" and self._writer.names.is_free(source.name, meaning(obj))

    def _provide(self, obj: Any, source: Source, *, where: str) -> dict[str, str]:
        """:return: name -> code of what the function can't find under that name in the config"""
        given = {}
        for name in source.free_names:
            inner = f"{where}: {getattr(obj, '__name__', 'class')}: {name}"
            if name in source.closure:
                value, is_own = source.closure[name], True
            elif name in source.namespace:
                value, is_own = source.namespace[name], False
            elif hasattr(builtins, name):
                if name in self._writer.options and self._writer.options[name] is not getattr(builtins, name):
                    given[name] = self._writer.names.name("builtins", name)
                continue
            elif name in ("__file__", "__name__") or source.lazy_annotations:
                continue
            elif name not in source.needed_at_once:
                continue  # not there now either; maybe in a part that isn't reached
            else:
                raise ValueError(f"{inner} is not known, so that {source.name} can't be written out")
            if value is obj:  # within a function around it, it has its own name
                continue
            if id(value) in self._open and (id(value) not in self._refs or name in source.needed_at_once):
                raise ValueError(f"{inner}: both need each other when they are defined, which can't be written")
            if self.is_written_module(value):
                code = self._modules.ref(value, source.uses.get(name, {}), name=name, where=inner)
                if code != name:
                    given[name] = code
                continue
            if self._has_name(name, value, at_once=name in source.needed_at_once):
                continue
            before, self._touched = self._touched, set()
            if name not in source.needed_at_once and not is_own and self._promise(name, value, where=inner):
                continue
            code = self._provide_global(name, value, is_own=is_own, where=inner)
            if code != name:
                if self._touched or name in self._relied:
                    raise ValueError(f"{inner}: both need each other when they are defined, which can't be written")
                given[name] = code
            self._touched |= before
        return given

    def _promise(self, name: str, value: Any, *, where: str) -> bool:
        """:return: whether a function or class is written later, since it needs what is half written"""
        if not self.is_function(value) or not self._writer.names.is_free(name) or id(value) in self._refs:
            return False
        if getattr(value, "__name__", None) != name or not self._is_written(value) or not self._is_blocked(value):
            return False
        self._writer.names.take(name)
        self._values[name] = self._promised[name] = value
        self._later.append((value, where))
        return True

    def _has_name(self, name: str, value: Any, *, at_once: bool) -> bool:
        """:return: whether the config has that value under that name"""
        if name in self._values:
            if name in self._pending:
                if at_once:
                    return False
                self._relied.add(name)
            return self._values[name] is value
        options = self._writer.options
        return name in options and not at_once and (options[name] is value or _is_equal_constant(options[name], value))

    def _provide_global(self, name: str, value: Any, *, is_own: bool, where: str) -> str:
        """:return: code of the value; the name, if it is defined under it"""
        writer = self._writer
        is_free = writer.names.is_free(name, meaning(value)) and not is_own
        if isinstance(value, types.ModuleType):
            return self._import(name, value.__name__, None, value=value, is_free=is_free)
        if self.is_function(value):
            found = find_import(value)
            if found is not None and "." not in found[1] and not self._is_inline(value):
                return self._import(name, *found, value=value, is_free=is_free)
            return self.ref(value, where=where)
        if is_free:  # so that functions in it find it
            self._values[name] = value
            self._pending.add(name)
        expression = writer.value(value, where=where)
        code = one_line(expression)
        self._pending.discard(name)
        if not is_free or not writer.names.is_free(name, meaning(value)):
            if is_free:
                del self._values[name]
            return code
        writer.names.take(name, meaning(value))
        if code != name:
            text = layout(expression, before=f"{name} = ") + "\n"
            if self._touched:
                self._waiting.append((frozenset(self._touched), text))
                self._touched = set()
            else:
                self.texts.append(text)
        return name

    def _import(self, name: str, module: str, there: str | None, *, value: Any, is_free: bool) -> str:
        names = self._writer.names
        if is_free:
            names.take(name, meaning(value))
            self._values[name] = value
        wanted = name if is_free else None
        return names.module(module, wanted=wanted) if there is None else names.name(module, there, wanted=wanted)

    def _make(self, ref: str | None, source: Source, given: dict[str, str], *, where: str) -> str:
        """Writes a function or class within a function, and calls that. :return: name of the result"""
        names = self._writer.names
        key = (source.text, *given)
        is_lambda = source.name == "<lambda>"
        own = "".join(c if c.isalnum() else "_" for c in where).strip("_") if is_lambda else source.name
        if key not in self._makers:
            self._makers[key] = names.take(f"make_{own}")
            body = f"return {source.text}\n" if is_lambda else f"{source.text}\nreturn {source.name}\n"
            arguments = ", ".join(given)
            self.texts.append(f"def {self._makers[key]}({arguments}):\n{shift(body, 4)}")
        made = call(self._makers[key], (), given.items())
        if ref is None and one_line(made) in self._made:
            return self._made[one_line(made)]
        ref = ref or names.take(f"{own}_function" if is_lambda else own)
        self._made[one_line(made)] = ref
        self.texts.append(layout(made, before=f"{ref} = ") + "\n")
        return ref


def _is_equal_constant(a: Any, b: Any) -> bool:
    return type(a) is type(b) and isinstance(a, str | int | float | bool | type(None)) and a == b
