"""
What PyTorch computes, recorded and repeated, for :mod:`.recorded`. PyTorch is loaded when it is called first.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Call", "Program", "compile_calls", "record"]

Result = TypeVar("Result")

_SMALL = 1_000_000  # numbers in all results of a frame, up to where NumPy is faster


@dataclass
class Call:
    """of an operation"""

    func: Any
    args: tuple[Any, dict[str, Any]]
    results: list[Any]
    is_tuple: bool


def record(func: Callable[[], Result]) -> tuple[Result, list[Call]]:
    """:return: what it returns, and PyTorch's operations which it ran"""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[Call] = []

    class Recording(TorchDispatchMode):
        """In its context, all operations come here."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            """runs the operation as usual"""
            del types
            results = func(*args, **(kwargs or {}))
            is_tuple = isinstance(results, (tuple, list))
            calls.append(Call(func, (args, kwargs or {}), list(results) if is_tuple else [results], is_tuple))
            return results

    with Recording():
        return func(), calls


def compile_calls(
    calls: Sequence[Call], *, inputs: Sequence[Any], outputs: Sequence[Any], num_states: int
) -> Repeat | None:
    """
    :param calls: of :func:`record`
    :param inputs: tensors that the values depend on; all else is taken for constant
    :param outputs: tensors
    :param num_states: so many of the outputs, the last ones, come in the place of the last inputs the next time
    :return: what repeats them for further frames; None if that can't be: there were random numbers, or values that
        Python looked at, gradients are wanted, or the states are laid out in memory otherwise than before
    """
    import torch

    if len({id(x) for x in inputs}) < len(inputs):  # then it's not known which one was used
        return None
    states = zip(inputs[len(inputs) - num_states :], outputs[len(outputs) - num_states :], strict=True)
    if any(_layout(a) != _layout(b) for a, b in states):
        return None
    if torch.is_grad_enabled() and any(x.requires_grad for x in [*inputs, *outputs]):
        return None
    if sum(x.numel() for call in calls for x in call.results if isinstance(x, torch.Tensor)) <= _SMALL:
        from ._recording_numpy import NumpyProgram, Untranslatable, as_array

        with contextlib.suppress(Untranslatable):
            program = NumpyProgram(calls, inputs=inputs, outputs=outputs)
            return Repeat(program.compile(), num_states=num_states, as_array=as_array) if program.can_repeat else None
    program = Program(calls, inputs=inputs, outputs=outputs)
    return Repeat(program.compile(), num_states=num_states) if program.can_repeat else None


class Repeat:
    """
    Runs a program for frame after frame.

    :param program: function of the tensors of a frame and of the state, or of arrays
    :param num_states: so many of its outputs, the last ones, are the next state
    :param as_array: tensor to array; None: the program takes tensors
    """

    def __init__(self, program: Callable[..., Sequence[Any]], *, num_states: int, as_array: Any = None):
        self.program = program
        self.num_states = num_states
        self.as_array = as_array

    def __call__(
        self, frames: Iterable[Sequence[Any]], state: Sequence[Any]
    ) -> tuple[list[Sequence[Any]], Sequence[Any]]:
        """
        :param frames: tensors
        :param state: tensors
        :return: outputs of each frame, and the last state: tensors
        """
        if self.as_array is None:
            return self._run(frames, state)
        import numpy
        import torch

        with numpy.errstate(all="ignore"):
            arrays = ([x.numpy() for x in frame] for frame in frames)
            outputs, state = self._run(arrays, tuple(map(self.as_array, state)))
        return [tuple(map(torch.from_numpy, x)) for x in outputs], [torch.from_numpy(x.copy()) for x in state]

    def _run(self, frames: Iterable[Sequence[Any]], state: Sequence[Any]) -> tuple[list[Sequence[Any]], Sequence[Any]]:
        outputs: list[Sequence[Any]] = []
        for frame in frames:
            results = self.program(*frame, *state)
            outputs.append(results[: len(results) - self.num_states])
            state = results[len(results) - self.num_states :]
        return outputs, state


class Program:
    """Python code for calls, without what is computed twice, or is not used, or is always the same."""

    def __init__(self, calls: Sequence[Call], *, inputs: Sequence[Any], outputs: Sequence[Any]):
        self.calls = calls  # as long as ids are looked up
        self.names: dict[int, str] = {id(x): f"x{i}" for i, x in enumerate(inputs)}
        self.inputs = list(self.names.values())
        self.constants: dict[str, Any] = {}
        self.constant_names: dict[int, str] = {}
        self.arrays: dict[int, Any] = {}  # what subclasses make of constants
        self.lines: list[tuple[list[str], str, set[str]]] = []  # new names, code, names in it
        self.seen: dict[str, list[str]] = {}  # expression -> names of its results
        self.can_repeat = True
        for call in calls:
            self._add(call)
        self.outputs = [self._name(x) for x in outputs]

    def _add(self, call: Call):
        import torch

        leaves = list(_leaves(call.args))
        computed = [x for x in leaves if isinstance(x, torch.Tensor) and id(x) in self.names]
        self.can_repeat = self.can_repeat and torch.Tag.nondeterministic_seeded not in call.func.tags
        if not computed:
            return  # its results are constants
        if (
            call.func._schema.is_mutable
            or torch.Tag.data_dependent_output in call.func.tags
            or (torch.Tag.dynamic_output_shape in call.func.tags and not _indexes_by_numbers(call.func, leaves))
            or not all(isinstance(x, torch.Tensor) for x in call.results)
        ):
            self.can_repeat = False
        if not self.can_repeat:
            return
        for x in computed:
            if not call.is_tuple and _is_same(x, call.results[0]):
                self.names[id(call.results[0])] = self.names[id(x)]
                return
        self._write(call)

    def _write(self, call: Call) -> None:
        """Adds the code for a call."""
        from torch.utils._pytree import tree_flatten, tree_unflatten

        leaves, spec = tree_flatten(call.args)
        used: set[str] = set()

        def code(x: Any) -> _Code:
            if isinstance(x, (bool, int, type(None))):
                return _Code(repr(x))
            used.add(self._name(x))
            return _Code(self._name(x))

        args, kwargs = tree_unflatten([code(x) for x in leaves], spec)
        parts = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
        expression = f"{self._name(_binding(call.func))}({', '.join(parts)})"
        self._emit(expression, used, results=call.results, is_tuple=call.is_tuple)

    def _emit(self, expression: str, used: set[str], *, results: Sequence[Any], is_tuple: bool) -> list[str]:
        """
        :param expression: code
        :param used: names in it
        :param results: what it gives, or what it is a tuple of
        :return: their names
        """
        if expression not in self.seen:
            names = self.seen[expression] = [f"v{len(self.lines)}_{i}" for i in range(len(results))]
            self.lines.append((names, f"{', '.join(names)}{',' * is_tuple} = {expression}", used))
        self.names.update((id(x), name) for x, name in zip(results, self.seen[expression], strict=True))
        return self.seen[expression]

    def _name(self, x: Any) -> str:
        """:return: of a value that was computed, or else of a constant"""
        if id(x) in self.names:
            return self.names[id(x)]
        name = self.constant_names.setdefault(id(x), f"c{len(self.constant_names)}")
        self.constants[name] = x
        return name

    def compile(self) -> Callable[..., Sequence[Any]]:
        """:return: function of the inputs"""
        needed, body = set(self.outputs), []
        for names, line, used in reversed(self.lines):
            if not needed.isdisjoint(names):
                needed |= used
                body.append(f"    {line}\n")
        head, tail = f"def program({', '.join(self.inputs)}):\n", f"    return {', '.join(self.outputs)},\n"
        namespace = dict(self.constants)
        exec(_code("".join([head, *reversed(body), tail])), namespace)  # noqa: S102 of what is written above
        return namespace["program"]


@functools.lru_cache(maxsize=64)
def _code(text: str) -> types.CodeType:
    """The next search of the same kind has the same text."""
    return compile(text, "<repeated>", "exec")


def _binding(func: Any) -> Any:
    """:return: PyTorch's own Python function for it, which takes half the time to call, or else the operation itself"""
    import torch

    namespace, _, name = str(func._schema.name).partition("::")
    binding = getattr(torch, "reshape" if name == "view" else name, None)
    return binding if namespace == "aten" and isinstance(binding, types.BuiltinFunctionType) else func


def _indexes_by_numbers(func: Any, leaves: list[Any]) -> bool:
    """:return: whether it is an indexing without masks: then the shape of the result does not depend on values"""
    import torch

    masks = [x for x in leaves[1:] if isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8)]
    return func._schema.name == "aten::index" and not masks


def _leaves(x: Any) -> Iterator[Any]:
    """faster than PyTorch's own"""
    if isinstance(x, (list, tuple)):
        for y in x:
            yield from _leaves(y)
    elif isinstance(x, dict):
        yield from _leaves(list(x.values()))
    else:
        yield x


def _layout(x: Any) -> Hashable:
    return x.shape, x.stride(), x.dtype, x.device


def _is_same(a: Any, b: Any) -> bool:
    """:return: whether b is a view of a that shows the same"""
    return _layout(a) == _layout(b) and a.data_ptr() == b.data_ptr() and a.numel() > 0


class _Code(str):
    """whose repr is the text itself"""

    def __repr__(self) -> str:
        return str(self)
