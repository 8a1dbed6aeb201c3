"""
A whole RETURNN config as Python source.
"""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from returnn.tensor import Dim, batch_dim, single_step_dim

from ._layout import items, layout, one_line, quote
from ._writer import Writer

__all__ = ["to_python"]

_DIMS = {"batch_dim": batch_dim, "single_step_dim": single_step_dim}


def to_python(
    config: Mapping[str, Any], *, inline: Iterable[str] = (), python_path: Iterable[Any] = (), doc: str = ""
) -> str:
    """
    Writes a RETURNN config file, for any of RETURNN's engines::

        config = {"extern_data": {...}, "get_model": get_model, "train_step": train_step, "batch_size": 10_000}
        Path("returnn.config").write_text(to_python(config))

    What can be written: numbers, texts, lists, dicts, sets, NumPy's arrays, enums, paths (also Sisyphus', see
    below), dims (one that is in several places stays one), tensors without values, partial functions, and objects
    that can be made anew from what they hold, such as datasets, augmentations and dataclasses. The same config gives
    the same text in any process.

    Functions and classes are imported. Those that cannot be are written out: of ``__main__``, lambdas, functions
    within functions (with the values that they use), and of configs that were read. What such a function uses of its
    module comes along.

    Paths (``get_path()`` or ``os.PathLike``) and Sisyphus' variables become what they are now, so that a job that
    writes a config calls this when it runs.

    :param config: options by name, as RETURNN knows them
    :param inline: names of modules or packages whose functions and classes are written out, not imported
    :param python_path: folders where modules are found, put in front of ``sys.path``
    :param doc: text at the beginning of the file
    :return: the file's text
    :raises ValueError: naming the option, if something has no code, such as a lambda without source or a loop of
        references
    :raises TypeError: if an option's name is no name, or a value is of a kind that has no code, such as a model
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"config: expected options by name, got {type(config).__name__} {config!r}")
    for name in config:
        if not isinstance(name, str):
            raise TypeError(f"config: expected names of options, got {name!r}")
        # Python takes some letters for others.
        if not name.isidentifier() or keyword.iskeyword(name) or unicodedata.normalize("NFKC", name) != name:
            raise ValueError(f"config: expected names of options, as Python has them, got {name!r}")
        if name in _DIMS and not (isinstance(config[name], Dim) and config[name] == _DIMS[name]):
            raise ValueError(f"config: expected RETURNN's own dim under the name {name}, got {config[name]!r}")
    if isinstance(inline, str):
        raise TypeError(f"inline: expected names of modules, got the str {inline!r}")
    options = {name: value for name, value in config.items() if not name.startswith("__") and name != "config"}
    writer = Writer(options, inline=tuple(inline))
    # Dims are named in the order in which they come: that of the data first.
    order = sorted(options, key=lambda name: name != "extern_data")
    expressions = {name: writer.option(name) for name in order}
    assignments = [
        layout(expressions[name], before=f"{name} = ") + "\n" for name in options if expressions[name] != name
    ]
    folders = [one_line(writer.value(folder, where="python_path")) for folder in python_path]
    sections = [
        f'"""\n{doc.strip()}\n"""\n' if doc.strip() else "",
        "from __future__ import annotations\n" if writer.lazy_annotations else "",
        "import sys\n\n" + "".join(f"sys.path.insert(0, {folder})\n" for folder in reversed(folders))
        if folders
        else "",
        writer.imports_code(),
        layout(items("[", map(quote, options), "]"), before="__all__ = ") + "\n",
        writer.dims_code(),
        *writer.definitions,
        "".join(assignments),
    ]
    return "#!rnn.py\n" + ("" if doc.strip() else "\n") + _join([section for section in sections if section])


def _join(sections: list[str]) -> str:
    """:return: with empty lines between, two around functions and classes"""
    text = ""
    before = ""
    for section in sections:
        big = any(part.startswith(("def ", "class ", "async def ", "@")) for part in (before, section))
        text += ("\n\n" if big else "\n") + section if text else section
        before = section
    return text
