"""Operations that NumPy repeats in the place of PyTorch: one by one, for other values than those that were recorded."""

from __future__ import annotations

from typing import Any

import pytest

from returnn_common.nn._recording import compile_calls, record
from returnn_common.nn._recording_numpy import NumpyProgram, Untranslatable

torch = pytest.importorskip("torch")
aten = torch.ops.aten

OPERATIONS: dict[str, Any] = {
    "abs": lambda x, i, m: x.abs(),
    "add": lambda x, i, m: x + 1.5,
    "add of different shapes": lambda x, i, m: x[:, :, None] + x[:, None, :],
    "amax": lambda x, i, m: x.amax(1),
    "argmax": lambda x, i, m: x.max(1),
    "bitwise": lambda x, i, m: ~m & (x > 0) | (x < -1),
    "bmm": lambda x, i, m: torch.bmm(x[:, :, None], x[:, None, :]),
    "cast": lambda x, i, m: (i.float(), x.long(), m.float(), i.int(), x.double()),
    "compare": lambda x, i, m: (x >= 0.1, x <= 0.1, x == x.abs(), x != x.abs(), i < 2, i > 2),
    "constant of no dims": lambda x, i, m: torch.where(m, x, torch.tensor(-1e30)) * torch.tensor(2.0),
    "exp and log": lambda x, i, m: (x.exp(), x.abs().log(), x.floor()),
    "gather": lambda x, i, m: x.gather(1, i),
    "gather the same ones for all": lambda x, i, m: x.gather(1, i[0].expand(3, -1)),
    "gather rows": lambda x, i, m: (x[:, :, None] * x[:, None]).gather(1, i[:, :, None].expand(-1, -1, 4)),
    "gather columns": lambda x, i, m: (x[:, :, None] * x[:, None]).gather(2, i[:, None].expand(-1, 4, -1)),
    "gather in the first": lambda x, i, m: (x[:, :, None] + x[:, None]).gather(0, i[:, None].expand(-1, 4, -1) // 2),
    "index": lambda x, i, m: (x[i.remainder(3), i], x[i.remainder(3)], i.clamp_min(2)),
    "embedding": lambda x, i, m: aten.embedding(x, i.remainder(3)),
    "integers": lambda x, i, m: (i // 3, i.remainder(3), -i, i - 2, (-i) // 3, (-i).remainder(3)),
    "logaddexp": lambda x, i, m: torch.logaddexp(x, torch.where(m, x * 2, -1e30 * x.abs())),
    "logical": lambda x, i, m: (m.logical_and(x > 0), m.logical_or(x > 0), m.logical_not()),
    "maximum": lambda x, i, m: (torch.maximum(x, -x), torch.minimum(x, -x)),
    "mm": lambda x, i, m: x @ x.t(),
    "permute": lambda x, i, m: x.permute(1, 0) * 2.0,
    "repeat": lambda x, i, m: x[:, None].expand(-1, 4, -1) * 2.0 + x[:, :, None],
    "reshape": lambda x, i, m: x.reshape(2, 6) * 1.0,
    "select": lambda x, i, m: (x[:, 1] * 1.0, x.select(-1, -1) * 1.0),
    "squeeze": lambda x, i, m: x.unsqueeze(1).squeeze(1).clone(),
    "topk": lambda x, i, m: x.topk(2),
    "topk of one row": lambda x, i, m: x.reshape(1, 12).topk(12),
    "where": lambda x, i, m: torch.where(m, x, -x),
}  # fmt: skip


def _inputs(seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn([3, 4], generator=generator)
    return [x, torch.randint(0, 4, [3, 4], generator=generator), torch.rand([3, 4], generator=generator) > 0.5]


def _compile(func: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    def flat() -> list[Any]:
        results = func(*inputs)
        return list(results) if isinstance(results, (tuple, list)) else [results]

    outputs, calls = record(flat)
    return compile_calls(calls, inputs=inputs, outputs=outputs, num_states=0), outputs


OTHERS: dict[str, Any] = {
    "an operation that is not in the table": (lambda x, i, m: x.sin(), "aten.sin.default with 1 arguments"),
    "with other arguments": (lambda x, i, m: torch.add(x, x, alpha=2), "alpha"),
    "another dtype of the result": (lambda x, i, m: i * 0.5, "aten.mul.Tensor with the result torch.float32"),
    "no values": (lambda x, i, m: torch.where(m, torch.tensor(1.0), torch.tensor(2.0)), "result torch.float32"),
    "a dtype that NumPy lacks": (lambda x, i, m: x.bfloat16() + 1, "torch.bfloat16 on cpu"),
    "repeated in a sum": (lambda x, i, m: x[:, None].expand(-1, 2, -1).amax(1), "an array of .* for one of"),
    "repeated in a result": (lambda x, i, m: x[:, None].expand(-1, 2, -1) * 2.0, "an array of .* for one of"),
    "the largest of all": (lambda x, i, m: x.max(), "aten.max.default over None"),
    "the largest of two dims": (lambda x, i, m: x.amax([0, 1]), "over .0, 1."),
    "gather from a part": (lambda x, i, m: x.gather(0, i[:, :2].remainder(3)), "from a part|aten.slice"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_translated(name: str):
    func, message = OTHERS[name]
    inputs = _inputs(1)
    with torch.no_grad():
        run, outputs = _compile(func, inputs)
        assert run.as_array is None
        torch.testing.assert_close(run([inputs], [])[0][0][0], outputs[0])
        results, calls = record(lambda: [func(*inputs)])
        with pytest.raises(Untranslatable, match=message):
            NumpyProgram(calls, inputs=inputs, outputs=results)


def test_large_ones_are_left_to_pytorch(monkeypatch):
    inputs = _inputs(1)
    with torch.no_grad():
        assert _compile(OPERATIONS["where"], inputs)[0].as_array is not None
        monkeypatch.setattr("returnn_common.nn._recording._SMALL", 20)
        assert _compile(OPERATIONS["where"], inputs)[0].as_array is None


@pytest.mark.parametrize("name", OPERATIONS)
def test_same_as_pytorch(name: str):
    with torch.no_grad():
        run, _ = _compile(OPERATIONS[name], _inputs(1))
        assert run.as_array is not None
        for seed in (1, 2):
            inputs = _inputs(seed)
            (results,), _ = run([inputs], [])
            expected = OPERATIONS[name](*inputs)
            expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
            assert len(results) == len(expected)
            for a, b in zip(results, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
