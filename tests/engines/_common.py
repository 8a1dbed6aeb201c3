"""What all engines share: the job, its dims, and how outputs become NumPy."""

from __future__ import annotations

import contextlib
import inspect
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

os.environ.setdefault("DISABLE_CUDA", "1")  # else TensorFlow's native ops are compiled as CUDA code where nvcc exists

import returnn.frontend as rf  # noqa: E402
from returnn.frontend import run_ctx  # noqa: E402
from returnn.tensor import Dim, Tensor, batch_dim  # noqa: E402
from returnn.util.basic import BehaviorVersion  # noqa: E402


@dataclass
class Input:
    """array with the names of its dims (separated by spaces), and of its sparse dim if it holds labels."""

    array: numpy.ndarray
    dims: str
    sparse: str | None = None


@dataclass
class Output:
    """array, zero in the padding and as long as the longest entry; lengths: axis -> lengths of that axis's dim."""

    array: numpy.ndarray
    lengths: dict[int, numpy.ndarray]


@dataclass
class Result:
    """see run_on"""

    outputs: dict[str, Output]
    params: dict[str, numpy.ndarray] = field(default_factory=dict)
    grads: dict[str, numpy.ndarray] = field(default_factory=dict)

    def __getitem__(self, name: str) -> numpy.ndarray:
        return self.outputs[name].array


@dataclass
class Job:
    """the arguments of run_on"""

    func: Callable[..., dict[str, Any]]
    inputs: dict[str, Input]
    dims: dict[str, int | Sequence[int] | numpy.ndarray]
    make_model: Callable[..., Any] | None
    params: dict[str, numpy.ndarray]
    train: bool
    step: int
    grad_of: str | None

    @contextlib.contextmanager
    def clean_run_ctx(self):
        """The run context, the batch dim and the behavior version are global in RETURNN."""
        BehaviorVersion.set_min_behavior_version(29)
        _reset_batch_dim()
        try:
            yield
        finally:
            run_ctx.reset_run_ctx()
            _reset_batch_dim()

    def init_run_ctx(self, *, train_flag: bool | Tensor, step: int | Tensor):
        """for code that asks RETURNN for the train flag or the step"""
        if self.train:
            rf.init_train_step_run_ctx(train_flag=train_flag, step=step)
        else:
            rf.init_forward_step_run_ctx(step=step)

    def sizes(self) -> dict[str, numpy.ndarray]:
        """dynamic dim -> lengths"""
        return {
            name: numpy.asarray(size, dtype="int32") for name, size in self.dims.items() if not isinstance(size, int)
        }

    def make_dims(self) -> dict[str, Dim]:
        """fresh dims; dynamic ones have a size tensor without value yet"""
        dims = {name: Dim(size, name=name) for name, size in self.dims.items() if isinstance(size, int)}
        for name, lengths in self.sizes().items():
            over = [batch_dim] if lengths.ndim else []
            dims[name] = Dim(Tensor(name, dims=over, dtype="int32"), name=name)
        return {**dims, "batch": batch_dim}

    def make_templates(self, dims: dict[str, Dim]) -> dict[str, Tensor]:
        """the inputs as tensors without value"""
        return {
            name: Tensor(
                name,
                dims=[dims[d] for d in x.dims.split()],
                dtype=str(x.array.dtype),
                sparse_dim=dims[x.sparse] if x.sparse else None,
            )
            for name, x in self.inputs.items()
        }

    def model(self, dims: dict[str, Dim]):
        """the module or None"""
        return _call_by_name(self.make_model, dims) if self.make_model else None

    def call(self, model, tensors: Mapping[str, Tensor], dims: Mapping[str, Dim]):
        """:return: name -> (tensor, dim order), and the scalar to differentiate or None"""
        outputs = _call_by_name(self.func, {**dims, **tensors, "model": model})
        outputs = {k: x if isinstance(x, tuple) else (x, x.dims) for k, x in outputs.items()}
        if self.grad_of is None:
            return outputs, None
        loss = outputs[self.grad_of][0]
        return outputs, rf.reduce_sum(loss, axis=loss.dims) if loss.dims else loss

    def param_values(self, params: Mapping[str, rf.Parameter], trainable: set[str]) -> dict[str, numpy.ndarray]:
        """the values to set, without those that keep their initial value"""
        unknown = set(self.params) - set(params)
        if unknown:
            raise ValueError(f"the model has no parameters {sorted(unknown)}, only {sorted(params)}")
        values = {}
        for name, param in params.items():
            shape = tuple(d.dimension or 0 for d in param.dims)
            if name in self.params:
                values[name] = numpy.asarray(self.params[name], dtype=param.dtype)
                assert values[name].shape == shape, f"{name}: got {values[name].shape}, expected {shape}"
            elif name in trainable and param.dtype.startswith("float"):
                rng = numpy.random.default_rng(zlib.crc32(name.encode()))
                if len(shape) <= 1:  # norm's scales must not be near zero
                    value = rng.uniform(0.5, 1.5, shape)
                else:
                    value = rng.standard_normal(shape) / numpy.sqrt(numpy.prod(shape[:-1]))
                values[name] = value.astype(param.dtype)
        return values

    def differentiable(self) -> list[str]:
        """names of float inputs"""
        return [name for name, x in self.inputs.items() if x.array.dtype.kind == "f"]


def dynamic_dims(order: Sequence[Dim]) -> dict[int, Dim]:
    """axis -> dim, of those with lengths"""
    return {
        i: dim
        for i, dim in enumerate(order)
        if not dim.is_batch_dim() and not dim.is_static() and dim.dyn_size_ext is not None
    }


def make_output(array: numpy.ndarray, order: Sequence[Dim], sizes: Mapping[int, numpy.ndarray]) -> Output:
    """cuts and zeroes the padding"""
    array, lengths = numpy.array(array), {}
    for axis, dim in dynamic_dims(order).items():
        size_dims = dim.dyn_size_ext.dims
        size = lengths[axis] = numpy.asarray(sizes[axis])
        longest = int(size.max(initial=0))
        assert array.shape[axis] >= longest, f"{dim}: array has {array.shape[axis]} frames, lengths are {size}"
        array = numpy.take(array, range(longest), axis=axis)
        if not all(d in order for d in size_dims):
            continue
        axes = [list(order).index(d) for d in size_dims]
        size = numpy.transpose(size, numpy.argsort(axes))
        size = size.reshape([n if i in axes else 1 for i, n in enumerate(array.shape)])
        frames = numpy.arange(longest).reshape([-1 if i == axis else 1 for i in range(array.ndim)])
        array = numpy.where(frames < size, array, numpy.zeros_like(array))
    return Output(array, lengths)


def _call_by_name(func: Callable, values: Mapping[str, Any]):
    names = inspect.signature(func).parameters
    missing = [name for name, p in names.items() if name not in values and p.default is inspect.Parameter.empty]
    if missing:
        raise TypeError(f"{func} wants {missing}, there are {sorted(values)}")
    return func(**{name: values[name] for name in names if name in values})


def forget_globals():
    """For a test that makes an engine of RETURNN's in this process, as if no test had been before it."""
    BehaviorVersion._reset()
    run_ctx.reset_run_ctx()
    _reset_batch_dim()


def _reset_batch_dim():
    """Its sizes, masks, capacity, results of dim math, and what has been declared to be the same."""
    batch_dim.reset_batch_and_raw()
    fresh = Dim(None, name=batch_dim.name, kind=Dim.Types.Batch)
    for name in Dim.__slots__:
        setattr(batch_dim, name, getattr(fresh, name))
