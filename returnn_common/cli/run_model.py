"""
From the folder of a run (``returnn-common run RECIPE --out FOLDER``) to its trained model, in this process.

The model runs on RETURNN's PyTorch engine, whichever engine has trained it.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import CommandError
from .quiet import stderr_to
from .run.finished import TrainedRun, choose_checkpoint, load_run
from .run.recipe import Recipe, describe_recipe, execute_recipe

__all__ = ["RunModel", "check_installed", "choose_device", "load_run_model", "make_model"]

_BACKEND = "torch"


@dataclass(frozen=True)
class RunModel:
    """
    A recipe's model.

    :param recipe: with its options and its dataset
    :param config: RETURNN's, with the recipe's globals
    :param model: what the recipe's ``get_model`` returns
    :param device: of PyTorch
    :param run: from whose folder it is; None: the model is not trained
    :param checkpoint: from which its parameters are
    """

    recipe: Recipe
    config: Any
    model: Any
    device: str
    run: TrainedRun | None = None
    checkpoint: Path | None = None

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """The model is used within: without gradients, dropout and the like, as by RETURNN's forward task."""
        import torch
        from returnn.config import global_config_ctx
        from returnn.frontend import run_ctx

        from .. import nn

        nn.select_backend_torch()
        # Not inference_mode: RETURNN keeps positions in a cache, which a training later on could not use.
        with global_config_ctx(self.config), torch.no_grad(), nn.set_default_device_ctx(self.device):
            run_ctx.init_forward_step_run_ctx(step=0)
            try:
                yield
            finally:
                run_ctx.reset_run_ctx()


def load_run_model(out: str | Path, *, checkpoint: str | None = None, device: str = "cpu") -> RunModel:
    """
    :param out: folder of a run
    :param checkpoint: see :func:`choose_checkpoint`
    :param device: of PyTorch
    :raises CommandError: if the folder is none of a run, PyTorch is not installed, the recipe fails, or there is no
        checkpoint of its model
    """
    from ..training.convert import load_checkpoint

    run = load_run(out, backend=_BACKEND)
    found = choose_checkpoint(run, checkpoint)
    data = run.folder.data if run.folder.data.is_dir() else run.corpus
    options = {**run.settings, **({} if data is None else {"corpus": str(data)})}
    made = make_model(run.folder.config, options, device=device)
    try:
        with stderr_to():
            load_checkpoint(made.model, found)
    except (ValueError, OSError) as error:
        raise CommandError(f"{out}: {' '.join(str(error).split())}") from error
    except ImportError as error:
        raise CommandError(f"checkpoint {found}: {error}: its engine is not installed") from error
    return replace(made, run=run, checkpoint=found)


def make_model(path: Path, options: Mapping[str, str], *, device: str = "cpu") -> RunModel:
    """
    :param path: of a recipe
    :param options: of the recipe, as text, by name
    :param device: of PyTorch
    :return: with a fresh model on PyTorch
    :raises CommandError: if PyTorch is not installed, or the recipe fails or has no ``get_model``
    """
    check_installed()
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


def choose_device(name: str | None) -> str:
    """
    :param name: of PyTorch, such as cpu, cuda, cuda:1; None: a GPU if PyTorch finds one
    :raises CommandError: if there is none of that name, or PyTorch is not installed
    """
    check_installed()
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # the latter where PyTorch was built without CUDA
        raise CommandError(f"--device {name}: {str(error).splitlines()[0]}") from None
    return name


def check_installed():
    """:raises CommandError: if PyTorch is not"""
    if importlib.util.find_spec("torch") is None:
        raise CommandError("needs torch, not installed: pip install 'returnn_common[torch]'")
