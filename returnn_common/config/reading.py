"""
Configs from files.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from returnn.config import Config, global_config_ctx

from ._namespaces import SOURCE, remember_classes
from ._unused import option_names

__all__ = ["own_imports", "read"]

_MODULE = "__returnn_config__"  # RETURNN's own name for a config that it executes


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Executes a RETURNN config file, as RETURNN does without a command line.

    Of what :func:`.to_python` has written, the options are those that were given to it, so that it writes the same
    text again. Of other files, they are all names but modules, and imports that only help to make other values.

    :param path: of the file: Python, JSON, or RETURNN's old format of lines
    :return: options by name
    :raises FileNotFoundError: if there is no such file
    :raises ValueError: if it can't be executed
    """
    path = Path(path)
    if not path.exists() or path.is_dir():  # it may be a pipe
        raise FileNotFoundError(f"config {path}: no such file")
    try:
        text = path.read_text("utf8")
    except UnicodeDecodeError as error:
        raise ValueError(f"config {path}: {error}") from error
    if not text.lstrip().startswith("#!") and path.suffix != ".py":
        return _read_other(path, text)
    module = types.ModuleType(_MODULE)
    namespace = vars(module)
    config = Config()
    config.typed_dict = namespace
    namespace.update({"config": config, "__file__": str(path.resolve()), SOURCE: text, "__package__": _package(path)})
    with _registered(module), global_config_ctx(config):
        try:
            exec(compile(text, namespace["__file__"], "exec", dont_inherit=True), namespace)  # noqa: S102 as RETURNN does
        except (Exception, SystemExit) as error:
            raise ValueError(f"config {path}: {type(error).__name__}: {error}") from error
    remember_classes(namespace, module=_MODULE)
    names = namespace.get("__all__")
    if names is None:
        names = option_names(text, namespace)
    missing = [name for name in names if name not in namespace]
    if missing:
        raise ValueError(f"config {path}: __all__ has {', '.join(missing)}, which are not defined")
    return {
        name: namespace[name]
        for name in names
        if not isinstance(namespace[name], types.ModuleType) or "__all__" in namespace
    }


@contextlib.contextmanager
def own_imports() -> Iterator[None]:
    """What a config imports from folders that it adds to ``sys.path`` is its own: others may have such modules, too."""
    folders, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        added = [Path(folder).resolve() for folder in sys.path if folder not in folders]
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and any(folder in Path(file).resolve().parents for folder in added):
                remember_classes(vars(sys.modules[name]), module=name)
                del sys.modules[name]
        sys.path[:] = folders


@contextlib.contextmanager
def _registered(module: types.ModuleType) -> Iterator[None]:
    """Dataclasses look for the module in which they are."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
        if before is not None:
            sys.modules[module.__name__] = before


def _read_other(path: Path, text: str) -> dict[str, Any]:
    config = Config()
    try:
        config.load_file(io.StringIO(text))
    except Exception as error:
        raise ValueError(f"config {path}: {type(error).__name__}: {error}") from error
    values: dict[str, Any] = {name: value[0] if len(value) == 1 else value for name, value in config.dict.items()}
    return {**values, **config.typed_dict}


def _package(path: Path) -> str | None:
    """:return: the package in which the file lies, which its relative imports need; None if there is none"""
    folder, parts = path.resolve().parent, []
    while (folder / "__init__.py").is_file():
        parts.append(folder.name)
        folder = folder.parent
    if not parts:
        return None
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return ".".join(reversed(parts))
