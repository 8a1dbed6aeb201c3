"""
Objects of the standard library and NumPy that need another code than the call of their class.
"""

from __future__ import annotations

import collections
import re
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from ._layout import Expression, call, quote

if TYPE_CHECKING:
    from ._writer import Writer

__all__ = ["special_code"]


def special_code(writer: Writer, value: Any, *, where: str) -> Expression | None:
    """:return: code, or None for all other objects"""

    def written(x: Any) -> Expression:
        return writer.value(x, where=where)

    if isinstance(value, collections.OrderedDict):
        return call(writer.import_of(type(value)), [written(list(value.items()))])
    if isinstance(value, collections.defaultdict):
        factory = writer.value(value.default_factory, where=f"{where}: default_factory")
        return call(writer.import_of(type(value)), [factory, written(dict(value))])
    if isinstance(value, types.MappingProxyType):
        return call(f"{writer.names.module('types')}.MappingProxyType", [written(dict(value))])
    if isinstance(value, re.Pattern):
        flags = [value.flags & ~re.UNICODE] if value.flags & ~re.UNICODE else []
        return call(f"{writer.names.module('re')}.compile", map(written, [value.pattern, *flags]))
    if isinstance(value, np.dtype):
        return call(f"{writer.names.module('numpy')}.dtype", [quote(value.str if value.kind in "SU" else value.name)])
    if isinstance(value, np.datetime64 | np.timedelta64):
        is_date = isinstance(value, np.datetime64)
        number = quote(str(value)) if is_date else str(value.astype("int64"))
        unit, count = np.datetime_data(value.dtype)
        name = f"{writer.names.module('numpy')}.{'datetime64' if is_date else 'timedelta64'}"
        return call(name, [number, quote(unit if count == 1 else f"{count}{unit}")])
    if type(value).__module__ == "datetime":
        return re.sub(r"(?<![\w.])datetime\.", f"{writer.names.module('datetime')}.", repr(value))
    if type(value).__name__ == "CodeWrapper" and type(value).__repr__ is not object.__repr__:
        return repr(value)  # i6_core's, and ours
    return None
