"""Folders of runs as ``returnn-common run`` leaves them, without a training."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from returnn_common.cli.recipes import find_recipe
from returnn_common.cli.run.recipe import RUN_OPTIONS, load_recipe
from returnn_common.cli.run_model import RunModel, make_model

SMALL = {"model_dim": 8, "num_layers": 1, "num_epochs": 2, "num_average": 2}


def make_run_folder(
    path: Path,
    recipe: str = "digits_ctc",
    *,
    options: Mapping[str, Any] = SMALL,
    seed: int = 1,
    change: Callable[[dict[str, Any]], None] = lambda params: None,
) -> RunModel:
    """
    :param path: the folder to make
    :param recipe: name or path
    :param options: of the recipe
    :param seed: of the random parameters
    :param change: called with the parameters (PyTorch's tensors by name), to set some
    :return: the model whose parameters are in its averaged checkpoint, the only one
    """
    import torch

    file = find_recipe(recipe)
    texts = {name: str(value) for name, value in options.items()}
    values = load_recipe(file, options=texts).options
    path.mkdir(parents=True)
    (path / "config.py").write_text(file.read_text("utf8"), "utf8")
    kept = {name: value for name, value in values.items() if name not in RUN_OPTIONS}
    settings = {"recipe": recipe, "backend": "torch", "corpus": None, "options": kept}
    (path / "run.json").write_text(json.dumps(settings), "utf8")
    torch.manual_seed(seed)
    made = make_model(path / "config.py", texts)
    params = {name: param.raw_tensor.data for name, param in made.model.named_parameters()}
    generator = torch.Generator().manual_seed(seed)
    for value in params.values():
        if value.ndim > 1:
            fan_in = value.numel() / value.shape[-1]
            value[...] = torch.randn(value.shape, generator=generator) * fan_in**-0.5
    change(params)
    (path / "checkpoints").mkdir()
    name = f"average.{made.recipe.num_epochs:03d}.pt"
    torch.save({"model": params, "epoch": made.recipe.num_epochs, "step": 12}, path / "checkpoints" / name)
    return made
