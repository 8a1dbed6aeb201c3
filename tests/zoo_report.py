"""
What is generated from the table of the zoo: golden files, ``data/engines.json`` and the tables in the docs.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import typing
from pathlib import Path
from typing import Any

import numpy as np
import returnn

import returnn_common.models
from returnn_common import nn
from tests.engines import ENGINES
from tests.zoo import ZOO, Entry
from tests.zoo_runs import evaluate, parameter_shapes, rows

__all__ = ["check_golden_file", "generated_files", "golden_file_names", "main", "missing_builders"]

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = Path(__file__).parent / "golden"
ENGINE_NAMES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow (low-level)",
    "tensorflow-net-dict": "TensorFlow (net dict)",
    "jax": "JAX",
}
_NUM_VALUES = 6


def main() -> None:
    """the command ``python -m tests.zoo``"""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description="Where each builder of the zoo runs.")
    parser.add_argument("--update", action="store_true", help="write golden files, data/engines.json, and the docs")
    parser.add_argument("--only", metavar="NAME", help="with --update: the golden file of this entry only")
    args = parser.parse_args()
    if not args.update:
        print(engines_table())
        return
    entries = [entry for entry in ZOO if args.only in (None, entry.name)]
    for entry in entries:
        _write(GOLDEN / f"{entry.name}.json", _to_json(_golden(entry)))
    if args.only is None:
        for name in golden_file_names() - {f"{entry.name}.json" for entry in ZOO}:
            (GOLDEN / name).unlink()
    for path, text in generated_files().items():
        _write(path, text)


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


def golden_file_names() -> set[str]:
    """:return: those which are there"""
    return {path.name for path in GOLDEN.glob("*.json")}


def check_golden_file(entry: Entry) -> None:
    """:raises AssertionError: if parameters or outputs of an entry are not those of its golden file"""
    path = GOLDEN / f"{entry.name}.json"
    update = f"python -m tests.zoo --update --only {entry.name}"
    assert path.exists(), f"no golden file: {update}"
    golden, now = json.loads(path.read_text()), _golden(entry)
    old, new = golden["parameters"], now["parameters"]
    differing = [f"{n}: {old.get(n)}, now {new.get(n)}" for n in sorted({*old, *new}) if old.get(n) != new.get(n)]
    assert not differing, f"parameters differ from {path.name}, so that old checkpoints don't load: {differing}"
    assert golden["outputs"].keys() == now["outputs"].keys()
    for name, expected in golden["outputs"].items():
        actual = now["outputs"][name]
        assert actual["shape"] == expected["shape"], name
        np.testing.assert_allclose(actual["values"], expected["values"], rtol=1e-4, atol=1e-4, err_msg=name)


def _golden(entry: Entry) -> dict[str, Any]:
    """parameters (seeded by their names) and the outputs of the longest sequence, some values of each"""
    outputs = {}
    for name, value in rows(evaluate(entry.name, "torch", entry.kind.lengths[:1]), 0).items():
        values = value.reshape(-1)
        some = values[np.linspace(0, len(values) - 1, min(len(values), _NUM_VALUES)).astype(int)]
        outputs[name] = {"shape": list(value.shape), "values": [float(f"{v:.5g}") for v in some]}
    return {"parameters": parameter_shapes(entry), "outputs": outputs}


def _to_json(content: dict[str, Any]) -> str:
    text = json.dumps(content, indent=1)
    # Lists of numbers on one line each.
    return re.sub(r"\[[^\[\]{}\"]*\]", lambda found: " ".join(found.group().split()), text) + "\n"


def missing_builders() -> list[str]:
    """
    :return: public functions below ``returnn_common.models`` that make a module and are in no line of the table, and
        public modules that no line makes
    """
    builders = {entry.builder for entry in ZOO}
    made = {type(module) for entry in ZOO for module in _modules(entry)}
    missing = []
    for info in pkgutil.walk_packages(returnn_common.models.__path__, "returnn_common.models."):
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isclass(value):
                is_missing = issubclass(value, nn.Module) and value not in made
            else:
                is_missing = inspect.isfunction(value) and _makes_module(value) and value not in builders
            if is_missing:
                missing.append(f"{info.name}.{name}")
    return missing


def _makes_module(function: Any) -> bool:
    if function.__name__.startswith("make_"):
        return True
    # Of the result alone: arguments can have types that are imported for type checkers only.
    annotation = function.__annotations__.get("return")
    result = typing.get_type_hints(_annotated(annotation), function.__globals__)["return"]
    return inspect.isclass(result) and issubclass(result, nn.Module)


def _annotated(annotation: Any) -> Any:
    def function():
        pass

    function.__annotations__ = {"return": annotation}
    return function


def _modules(entry: Entry) -> list[nn.Module]:
    nn.select_backend_torch()
    sizes = {"features": nn.FeatureDim("features", 8), "labels": nn.FeatureDim("labels", 5), "dropout": 0.5}
    wanted = {name: sizes[name] for name in inspect.signature(entry.make).parameters if name in sizes}
    with nn.set_default_device_ctx("meta"):
        return list(entry.make(**wanted).modules())


def generated_files() -> dict[Path, str]:
    """:return: path -> what it should contain"""
    files = {ROOT / "data" / "engines.json": _to_json(_engines())}
    for path in (ROOT / "README.md", ROOT / "docs" / "engines.md"):
        files[path] = _fill_in(path.read_text(), {"engines": engines_table(), "limits": _limits_table()})
    return files


def _engines() -> dict[str, Any]:
    """
    :return: the RETURNN version, and module.builder -> engine -> "yes" or the reason why not.
        Of several lines of a builder, the worst counts.
    """
    builders: dict[str, dict[str, str]] = {}
    for entry in ZOO:
        name = f"{entry.builder.__module__}.{entry.builder.__name__}"
        where = builders.setdefault(name, dict.fromkeys(ENGINES, "yes"))
        for engine, limit in entry.limits.items():
            where[engine] = f"no: {limit}" + (f" ({entry.variant})" if entry.variant else "")
    return {"returnn": returnn.__version__, "builders": builders}


def engines_table() -> str:
    """:return: where each builder runs, as Markdown"""
    lines = ["| | " + " | ".join(ENGINE_NAMES[e] for e in ENGINES) + " |", "|---" * (len(ENGINES) + 1) + "|"]
    for name, where in _engines()["builders"].items():
        lines.append(f"| `{name.rpartition('.')[2]}` | " + " | ".join(where[e] for e in ENGINES) + " |")
    return "\n".join(lines)


def _limits_table() -> str:
    from tests.limits import limits_table

    return limits_table()


def _fill_in(text: str, tables: dict[str, str]) -> str:
    """puts each table between ``<!-- NAME -->`` and ``<!-- end -->``, where there are such marks"""
    for name, table in tables.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL)
    return text
