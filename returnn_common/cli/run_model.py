"""
From the folder of a run (``returnn-common run RECIPE --out FOLDER``) to its trained model, in this process.

The model runs on RETURNN's PyTorch engine, whichever engine has trained it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import CommandError
from .quiet import stderr_to
from .run.folder import RunFolder
from .run.recipe import Recipe, describe_recipe, execute_recipe

__all__ = ["RunModel", "choose_device", "find_run_checkpoint", "load_run_model", "make_model"]

_BACKEND = "torch"


@dataclass(frozen=True)
class RunModel:
    """
    A recipe's model.

    :param recipe: with its options and its dataset
    :param config: RETURNN's, with the recipe's globals
    :param model: what the recipe's ``get_model`` returns
    :param device: of PyTorch
    :param folder: of the run; None: the model is not trained
    :param checkpoint: from which its parameters are
    """

    recipe: Recipe
    config: Any
    model: Any
    device: str
    folder: RunFolder | None = None
    checkpoint: str | None = None

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """The model is used within: without gradients, dropout and the like, as by RETURNN's forward task."""
        import torch
        from returnn.config import global_config_ctx
        from returnn.frontend import run_ctx

        from .. import nn

        nn.select_backend_torch()
        with global_config_ctx(self.config), torch.inference_mode(), nn.set_default_device_ctx(self.device):
            run_ctx.init_forward_step_run_ctx(step=0)
            try:
                yield
            finally:
                run_ctx.reset_run_ctx()


def load_run_model(path: str | os.PathLike[str], *, checkpoint: str | None = None, device: str = "cpu") -> RunModel:
    """
    :param path: folder of a run
    :param checkpoint: name in the run's ``checkpoints``, such as epoch.004, or a path; None: the averaged one, with
        which a run ends
    :param device: of PyTorch
    :raises CommandError: if the folder is none of a run, PyTorch is not installed, the recipe fails, or there is no
        checkpoint of its model
    """
    folder = RunFolder(Path(path))
    asked = _read_settings(folder)
    options = {name: str(value) for name, value in asked.get("options", {}).items()}
    corpus = folder.data.resolve() if folder.data.is_dir() else asked.get("corpus")
    if corpus is not None:
        options["corpus"] = str(corpus)
    made = make_model(folder.config, options, device=device)
    found = find_run_checkpoint(folder, checkpoint, num_epochs=made.recipe.num_epochs)
    from ..training.convert import load_checkpoint

    try:
        with stderr_to():
            load_checkpoint(made.model, found)
    except (ValueError, OSError) as error:
        raise CommandError(f"{folder.path}: {' '.join(str(error).split())}") from error
    except ImportError as error:
        raise CommandError(f"checkpoint {found}: {error}: its engine is not installed") from error
    return replace(made, folder=folder, checkpoint=found)


def make_model(path: Path, options: Mapping[str, str], *, device: str = "cpu") -> RunModel:
    """
    :param path: of a recipe
    :param options: of the recipe, as text, by name
    :param device: of PyTorch
    :return: with a fresh model on PyTorch
    :raises CommandError: if PyTorch is not installed, or the recipe fails or has no ``get_model``
    """
    if importlib.util.find_spec("torch") is None:
        raise CommandError("needs torch, not installed: pip install 'returnn_common[torch]'")
    from returnn.config import global_config_ctx
    from returnn.util.basic import BehaviorVersion

    from .. import nn

    config, namespace = execute_recipe(path, options={**options, "backend": _BACKEND})
    recipe = describe_recipe(path, namespace)
    if not callable(namespace.get("get_model")):
        raise CommandError(f"recipe {path}: expected a function get_model")
    config.typed_dict.update({name: value for name, value in namespace.items() if not name.startswith("__")})
    del config.typed_dict["config"]
    # Some of RETURNN's modules have other parameters by default in newer versions.
    BehaviorVersion.set_min_behavior_version(namespace.get("behavior_version", 0))
    nn.select_backend_torch()
    try:
        with global_config_ctx(config), nn.set_default_device_ctx(device):
            model = namespace["get_model"](epoch=1, step=0)
    except Exception as error:
        raise CommandError(f"recipe {path}: {type(error).__name__}: {error}") from error
    return RunModel(recipe, config, model, device)


def find_run_checkpoint(folder: RunFolder, name: str | None, *, num_epochs: int) -> str:
    """
    :param folder: of the run
    :param name: see :func:`load_run_model`
    :param num_epochs: of the run
    :return: path of the checkpoint
    :raises CommandError: if there is none
    """
    from ..training.checkpoints import find_checkpoint, strip_suffix

    candidates = [folder.checkpoints / f"average.{num_epochs:03d}"]
    if name is not None:
        candidates = [folder.checkpoints / name, Path(name)]
    for candidate in candidates:
        try:
            find_checkpoint(candidate)
            return str(candidate)
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise CommandError(str(error)) from error
    markers = (".pt", ".index", ".orbax")
    files = folder.checkpoints.iterdir() if folder.checkpoints.is_dir() else []
    found = {strip_suffix(file.name) for file in files if file.name.endswith(markers) and ".opt." not in file.name}
    there = f"there are {', '.join(sorted(found))}" if found else "there are none"
    if name is None:
        raise CommandError(
            f"{folder.path}: no checkpoint {candidates[0].name}, so that the run has not ended: give it with"
            f" 'returnn-common run' the time, or choose one by --checkpoint: {there}"
        )
    raise CommandError(f"--checkpoint {name}: no such checkpoint, nor one in {folder.checkpoints}: {there}")


def choose_device(name: str | None) -> str:
    """
    :param name: of PyTorch, such as cpu, cuda, cuda:1; None: a GPU if PyTorch finds one
    :raises CommandError: if there is none of that name
    """
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter where PyTorch was built without CUDA
        raise CommandError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name


def _read_settings(folder: RunFolder) -> dict[str, Any]:
    if not folder.path.exists():
        raise CommandError(f"{folder.path}: no such folder")
    if not folder.path.is_dir():
        raise CommandError(f"{folder.path}: expected the folder of a run, but it is a file")
    settings = folder.path / "run.json"
    if not settings.is_file() or not folder.config.is_file():
        raise CommandError(
            f"{folder.path}: expected the folder of a run (returnn-common run RECIPE --out DIR), but it has no "
            f"{'run.json' if not settings.is_file() else folder.config.name}"
        )
    try:
        content = json.loads(settings.read_text("utf8"))
    except ValueError as error:
        raise CommandError(f"{settings} is damaged: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("options", {}), dict):
        raise CommandError(f"{settings} is damaged: expected a dict with options, got {content!r:.50}")
    return content
