"""RETURNN's task "forward" in this process, on PyTorch, as far as recognition needs it: quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from returnn.config import Config, global_config_ctx
from returnn.datasets.basic import init_dataset
from returnn.frontend import run_ctx
from returnn.tensor import Dim, Tensor, TensorDict

from returnn_common import nn
from tests.cli.trained import RandomReturnn


class ForwardHere(RandomReturnn):
    """In place of RETURNN: a training gives random parameters, a recognition is real."""

    def __call__(self, arguments, **kwargs) -> int:
        self.arguments = arguments
        return super().__call__(arguments, **kwargs)

    def forward(self, options: dict[str, str]):
        import torch

        config = Config()
        given = [argument.removeprefix("+") if argument[:2] == "+-" else argument for argument in self.arguments[3:]]
        config.parse_cmd_args(given)
        nn.select_backend_torch()
        with global_config_ctx(config), torch.no_grad():
            config.load_file(self.arguments[2])
            config.parse_cmd_args(given)
            try:
                _forward(config)
            finally:
                run_ctx.reset_run_ctx()


def _forward(config: Config):
    import torch

    run_ctx.init_forward_step_run_ctx(step=0)
    model = config.typed_value("get_model")(epoch=1, step=0)
    params = torch.load(config.value("load", "") + ".pt", weights_only=True)["model"]
    for preload in (config.typed_value("preload_from_files") or {}).values():
        loaded = torch.load(preload["filename"], weights_only=True)["model"]
        params.update({preload["prefix"] + name: value for name, value in loaded.items()})
    ours = dict(model.named_parameters())
    assert ours.keys() == params.keys(), ours.keys() ^ params.keys()
    for name, value in params.items():
        ours[name].raw_tensor.data[...] = value
    callback = config.typed_value("forward_callback")()
    callback.init(model=model)
    dataset = init_dataset(config.typed_value("forward_data"))
    dataset.init_seq_order(epoch=1)
    index = 0
    while dataset.is_less_than_num_seqs(index):
        dataset.load_seqs(index, index + 1)
        nn.init_forward_step_run_ctx(step=0)
        data = _batch_of_one(np.asarray(dataset.get_data(index, "data")), config.typed_value("extern_data")["data"])
        config.typed_value("forward_step")(model=model, extern_data=data)
        callback.process_seq(seq_tag=dataset.get_tag(index), outputs=_row(nn.get_run_ctx().outputs))
        index += 1
    callback.finish()


def _batch_of_one(values: np.ndarray, template: dict[str, Any]) -> TensorDict:
    import torch

    batch = Dim(1, name="batch", kind=Dim.Types.Batch)
    sizes = Tensor("time", dims=[batch], dtype="int32", raw_tensor=torch.tensor([len(values)], dtype=torch.int32))
    dims = [batch, Dim(sizes, name="time"), *template["dims"][2:]]
    data = TensorDict()
    raw = torch.from_numpy(values.reshape(1, *values.shape[: len(dims) - 1]))
    data.data["data"] = Tensor("data", dims=dims, dtype="float32", raw_tensor=raw)
    return data


def _row(outputs: TensorDict) -> TensorDict:
    """NumPy, without the batch dim"""
    result = TensorDict()
    for name, x in outputs.data.items():
        value = x.raw_tensor[0].numpy()
        dims = [Dim(size, name=dim.name) for dim, size in zip(x.dims[1:], value.shape, strict=True)]
        result.data[name] = Tensor(name, dims=dims, dtype=x.dtype, sparse_dim=x.sparse_dim, raw_tensor=value)
    return result


def make_forward_run(out: Path, recipe: str, *, corpus: Path, settings: list[str]) -> Path:
    """
    :param out: folder to make
    :param recipe: name, or path
    :param corpus: of the run
    :param settings: options
    :return: the folder of a run that has recognised its splits
    """
    from returnn_common.cli.run import run_recipe

    assert run_recipe(recipe, corpus=str(corpus), out=str(out), settings=settings, runner=ForwardHere()) == 0
    return out
