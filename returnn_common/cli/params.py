"""
The command ``returnn-common params``: the parameters of a config's model, as a tree of modules.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from .errors import CommandError
from .net_dict import add_config_arguments, read
from .run_model import check_installed

__all__ = ["add_parser", "main"]


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """
    :param subparsers: what ``ArgumentParser.add_subparsers`` gives
    :return: the parser of this command, which is added there; its ``func`` is :func:`main`
    """
    parser = subparsers.add_parser(
        "params",
        help="the parameters of a config's model",
        description="A tree of the model's modules, with the shapes of their parameters and how many numbers they are.",
    )
    add_config_arguments(parser)
    parser.add_argument("--depth", metavar="N", type=int, help="so many levels of modules; default: all")
    parser.add_argument("--json", action="store_true", help="for programs: name -> shape, dtype, trainable")
    parser.set_defaults(func=main)
    return parser


def main(args: argparse.Namespace) -> int:
    """
    :param args: ``config``, ``set``, ``depth``, ``json``
    :return: exit status
    :raises CommandError: if the config has no model
    """
    if args.depth is not None and args.depth < 0:
        raise CommandError(f"--depth: expected at least 0, got {args.depth}")
    parameters = _make_parameters(args)
    if args.json:
        print(json.dumps(parameters, indent=1))
        return 0
    for line in _tree_lines(parameters, depth=args.depth):
        print(line)
    return 0


def _make_parameters(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """:return: name -> shape, dtype, trainable; on PyTorch's device "meta", where no number is made"""
    check_installed()
    from returnn.config import Config, global_config_ctx
    from returnn.util.basic import BehaviorVersion

    from .. import nn

    config = read(args, backend="torch")
    if not callable(config.get("get_model")):
        raise CommandError(f"config {args.config}: expected a function get_model")
    try:
        # Some of RETURNN's modules have other parameters by default in newer versions.
        BehaviorVersion.set_min_behavior_version(config.get("behavior_version", 0))
        nn.select_backend_torch()
        with global_config_ctx(Config(config)), nn.set_default_device_ctx("meta"):
            model = config["get_model"](epoch=1, step=0)
    except Exception as error:
        raise CommandError(f"config {args.config}: {type(error).__name__}: {error}") from error
    found = _describe_parameters(model)
    if found is None:
        raise CommandError(f"config {args.config}: expected get_model to return a module, got {model!r}")
    return found


def _describe_parameters(model: Any) -> dict[str, dict[str, Any]] | None:
    """:return: of RETURNN's modules, or of PyTorch's; None: it's neither"""
    import torch

    from .. import nn

    if isinstance(model, torch.nn.Module):
        return {
            name: {
                "shape": list(parameter.shape),
                "dtype": str(parameter.dtype).removeprefix("torch."),
                "trainable": parameter.requires_grad,
            }
            for name, parameter in model.named_parameters()
        }
    if not isinstance(model, nn.Module):
        return None
    found: dict[str, dict[str, Any]] = {}
    names: dict[int, str] = {}
    for path, module in model.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{own}" if path else own
            found[name] = {
                "shape": [dim.dimension for dim in parameter.dims],
                "dtype": parameter.dtype,
                "trainable": parameter.trainable is not False and not parameter.auxiliary,
            }
            if names.setdefault(id(parameter), name) != name:
                found[name]["same_as"] = names[id(parameter)]
    return found


def _tree_lines(parameters: dict[str, dict[str, Any]], *, depth: int | None) -> Iterator[str]:
    sizes = {name: 0 if "same_as" in parameter else _size(parameter) for name, parameter in parameters.items()}
    rows: list[tuple[str, str, int]] = [("model", "", sum(sizes.values()))]
    seen: set[str] = set()
    for name, parameter in parameters.items():
        *modules, own = name.split(".")
        for i in range(len(modules)):
            path = ".".join(modules[: i + 1])
            if path not in seen and (depth is None or i < depth):
                seen.add(path)
                total = sum(size for other, size in sizes.items() if other.startswith(f"{path}."))
                rows.append((f"{'  ' * (i + 1)}{modules[i]}", "", total))
        if depth is None or len(modules) <= depth:
            shape = " x ".join(map(str, parameter["shape"])) or "scalar"
            kind = [] if parameter["dtype"] == "float32" else [parameter["dtype"]]
            kind += [] if parameter["trainable"] else ["not trained"]
            kind += [f"is {parameter['same_as']}"] if "same_as" in parameter else []
            rows.append((f"{'  ' * (len(modules) + 1)}{own}", ", ".join([shape, *kind]), sizes[name]))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, shape, size in rows:
        yield f"{name:{widths[0]}}  {shape:{widths[1]}}  {size:>12,}".rstrip()
    fixed = sum(sizes[name] for name, parameter in parameters.items() if not parameter["trainable"])
    if fixed:
        yield f"not trained: {fixed:,}"


def _size(parameter: dict[str, Any]) -> int:
    size = 1
    for n in parameter["shape"]:
        size *= n
    return size
