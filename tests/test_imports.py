"""
Who may import whom, read from the imports; and that importing anything of ours loads no backend.
"""

from __future__ import annotations

import ast
import configparser
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import returnn_common

PACKAGE = Path(returnn_common.__file__).resolve().parent
MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path for path in PACKAGE.rglob("*.py")
}

# Room -> the rooms that it may import, besides itself. A module belongs to the longest name that it begins with.
# "" is the package's own __init__; "models" holds the full models, models/*.py.
PARTS = ["models.encoder", "models.decoder", "models.lm", "models.features", "models.specaugment"]
MAY_IMPORT = {
    "": [],
    "nn": [],
    "data": [],
    "search": ["nn"],
    "config": ["nn"],
    **{part: ["nn"] for part in PARTS},
    "models": ["nn", "search", *PARTS],
    "training": ["nn"],
    "recog": ["nn"],
    "datasets": ["data"],
    "sis": ["config", "datasets"],
}
FREE = ["recipes", "cli"]  # may import anything, and nobody imports them
PURE = ["", "nn", "data", "search", "config", "models", *PARTS, "training"]  # RETURNN and NumPy only
# A checkpoint's tensors, or an operation that the frontend lacks, need a backend, which is imported inside functions.
BELOW_THE_FRONTEND = ["nn", "training"]
BACKENDS = ["torch", "tensorflow", "jax", "optax", "orbax"]


def _room(module: str) -> str:
    rooms = [room for room in [*MAY_IMPORT, *FREE] if room and (module == room or module.startswith(room + "."))]
    return max(rooms, key=len, default="")


def _core_dependencies() -> set[str]:
    """:return: top-level modules that setup.cfg installs with every extra or none"""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).resolve().parents[1] / "setup.cfg")
    names = re.findall(r"^[\w-]+", setup["options"]["install_requires"], re.MULTILINE)
    return {"tree" if name == "dm-tree" else name for name in names}


def _imports(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """:return: import statements, and whether they run when the module is imported"""

    def visit(node: ast.AST, at_import: bool):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield child, at_import
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from visit(child, at_import and not is_function and not is_typing)

    yield from visit(tree, True)


def _targets(node: ast.Import | ast.ImportFrom, *, module: str, known: set[str]) -> Iterator[tuple[str, bool, bool]]:
    """:return: what is imported: (absolute module name, whether it is ours, whether it is written as relative)"""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.name.split(".")[0] == "returnn_common", False
        return
    base = node.module or ""
    if node.level:
        package = module.split(".")[: -node.level]
        base = ".".join(["returnn_common", *package, *([base] if base else [])])
    ours = base.split(".")[0] == "returnn_common"
    for alias in node.names if ours else node.names[:1]:
        # `from .. import nn` names a module, `from ..nn import Loss` something in it.
        inner = f"{base}.{alias.name}"
        name = inner if ours and inner.removeprefix("returnn_common.") in known else base
        yield name, ours, bool(node.level)


def violations(module: str, source: str, *, known: set[str]) -> list[str]:
    """
    :param module: name below returnn_common, e.g. "nn.dims" or "nn.__init__"
    :param source: its text
    :param known: names of all modules and packages of ours
    :return: what is wrong, in words
    """
    room, found = _room(module.removesuffix(".__init__")), []
    for node, at_import in _imports(ast.parse(source)):
        for name, ours, relative in _targets(node, module=module, known=known):
            where = f"{module}:{node.lineno}: imports {name}"
            if ours:
                found += _wrong_room(room, name.removeprefix("returnn_common").removeprefix("."), where=where)
                if room == "recipes" and relative:
                    found.append(f"{where} relatively: recipes are copied, so absolute imports only")
                if room != "recipes" and not relative:
                    found.append(f"{where} absolutely: relative imports only")
            else:
                found += _wrong_dependency(room, name.split(".")[0], at_import=at_import, where=where)
    return found


def _wrong_room(room: str, target: str, *, where: str) -> list[str]:
    target_room = _room(target)
    if target_room == room or target_room == "":
        return []
    if target_room in FREE:
        return [f"{where}: nobody imports {target_room}"]
    if room in FREE or target_room in MAY_IMPORT[room]:
        return []
    return [f"{where}: {room or 'the package'} may import {', '.join(MAY_IMPORT[room]) or 'nothing of ours'}"]


def _wrong_dependency(room: str, name: str, *, at_import: bool, where: str) -> list[str]:
    if name in sys.stdlib_module_names or name in ("returnn", "numpy"):
        return []
    if name == "sisyphus":
        if room != "sis":
            return [f"{where}: only sis may"]
        return [f"{where}: only inside functions"] if at_import else []
    if room in PURE:
        if name in BACKENDS and room in BELOW_THE_FRONTEND and not at_import:
            return []
        return [f"{where}: only returnn, numpy and the standard library"]
    if name in _core_dependencies() or not at_import:
        return []
    return [f"{where}: not a core dependency, so only inside functions"]


def _known() -> set[str]:
    names = {name.removesuffix(".__init__") for name in MODULES}
    return names | {name.rpartition(".")[0] for name in names if "." in name}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports(module):
    assert violations(module, MODULES[module].read_text("utf8"), known=_known()) == []


@pytest.mark.parametrize(
    "module, source, message",
    [
        (
            "nn.dims",
            "from ..models.ctc import make_ctc_model",
            "nn.dims:1: imports returnn_common.models.ctc: nn may imp",
        ),
        (
            "nn.dims",
            "def f():\n    from .. import data",
            "nn.dims:2: imports returnn_common.data: nn may import nothing",
        ),
        (
            "nn.__init__",
            "from ..search import beam",
            "nn.__init__:1: imports returnn_common.search: nn may import noth",
        ),
        ("models.encoder.conformer", "from ..lm import lstm", "models.encoder may import nn"),
        ("models.encoder.conformer", "from .. import ctc", "models.encoder may import nn"),
        ("models.features", "from .encoder.conformer import x", "models.features may import nn"),
        ("models.ctc", "from ..training import train_step", "models may import nn, search"),
        ("training.step", "from ..models import ctc", "training may import nn"),
        ("recog.step", "from ..datasets import vocab", "recog may import nn"),
        ("datasets.vocab", "from .. import nn", "datasets may import data"),
        ("models.ctc", "from ..cli import main", "nobody imports cli"),
        ("cli.run", "from ..recipes import digits_ctc", "nobody imports recipes"),
        ("models.ctc", "from returnn_common import nn", "absolutely: relative imports only"),
        ("models.ctc", "import returnn_common.nn", "absolutely: relative imports only"),
        ("recipes.digits_ctc", "from .. import nn", "relatively: recipes are copied"),
        ("models.ctc", "import torch", "only returnn, numpy and the standard library"),
        ("models.ctc", "def f():\n    import torch", "only returnn, numpy and the standard library"),
        ("training.average", "def f():\n    import matplotlib", "only returnn, numpy and the standard library"),
        ("models.ctc", "def f():\n    import h5py", "only returnn, numpy and the standard library"),
        ("training.average", "import torch", "only returnn, numpy and the standard library"),
        ("training.average", "class A:\n    import torch.nn", "only returnn, numpy and the standard library"),
        ("cli.run", "import matplotlib.pyplot as plt", "not a core dependency, so only inside functions"),
        ("config.jobs", "def f():\n    from sisyphus import tk", "only sis may"),
        ("sis.jobs", "from sisyphus import tk", "only inside functions"),
    ],
)
def test_the_check_sees(module, source, message):
    known = _known() | {"search", "recipes", "recipes.digits_ctc", "models.lm", "models.ctc", "cli", "training"}
    found = violations(module, source, known=known)
    assert found and message in found[0]


@pytest.mark.parametrize(
    "module, source",
    [
        ("nn.dims", "import numpy\nimport returnn.frontend as rf\nfrom . import loss\nfrom .. import __version__"),
        (
            "models.ctc",
            "from .. import nn\nfrom ..search import x\nfrom .encoder.conformer import y\nfrom . import features",
        ),
        ("models.encoder.new", "from ... import nn\nfrom .conformer import y"),
        ("models.ctc", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .encoder import conformer"),
        ("training.average", "def f():\n    import torch"),
        ("recog.scoring", "import kaldialign"),
        ("sis.jobs", "from ..config import x\ndef f():\n    from sisyphus import tk"),
        ("cli.run", "from ..models.ctc import x\nfrom ..datasets import y\ndef f():\n    import matplotlib"),
        ("recipes.digits_ctc", "from returnn_common.models.ctc import x"),
    ],
)
def test_the_check_allows(module, source):
    assert violations(module, source, known=_known() | {"models.features", "nn.loss"}) == []


def test_no_module_loads_a_backend():
    # The recipes are RETURNN configs, which read RETURNN's global config: here there is none but the defaults.
    names = sorted(
        ".".join(["returnn_common", *name.split(".")]).removesuffix(".__init__")
        for name in MODULES
        if not name.endswith("__main__")
    )
    script = (
        "import importlib, json, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    loaded = [b for b in ('torch', 'tensorflow', 'jax', 'sisyphus') if b in sys.modules]\n"
        "    assert not loaded, f'{name} loads {loaded}'\n"
        "print(json.dumps(len(sys.modules)))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1]) > 100
