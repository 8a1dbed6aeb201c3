"""Dims as code: what is written makes dims that are the same, in a fresh namespace."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from returnn.tensor import Dim, Tensor, batch_dim, single_step_dim
from returnn.tensor._dim_extra import Op
from returnn.tensor.marked_dim import ImplicitDynSizeDim, ImplicitSparseDim

from returnn_common import nn
from returnn_common.config.dims_code import DimsCode

FEATURE, SPATIAL = Dim.Types.Feature, Dim.Types.Spatial


def _evaluate(dims: DimsCode) -> dict[str, Any]:
    made: dict[str, Any] = {}
    exec("\n".join([*dims.imports, *dims.lines]), made)
    return made


def _structure(dim: Dim) -> Any:
    """what a dim is, without its identity"""
    if dim.is_constant_static_dim():
        return dim.dimension
    op = dim.derived_from_op
    made_of = (op.kind, *map(_structure, op.inputs)) if op else dim.name
    return made_of, dim.dimension, dim.kind


def _check(dim: Dim, *, name: str, lines: list[str]):
    dims = DimsCode()
    assert dims.ref(dim) == name
    assert dims.lines == lines
    made = _evaluate(dims)[name]
    assert _structure(made) == _structure(dim)
    assert made is not dim


def test_dims_as_they_are_declared():
    _check(Dim(512, name="out"), name="out_dim", lines=['out_dim = Dim(512, name="out")'])
    _check(
        nn.FeatureDim("mel filters", 80),
        name="mel_filters_dim",
        lines=['mel_filters_dim = Dim(80, name="mel filters", kind=Dim.Types.Feature)'],
    )
    _check(
        nn.SpatialDim("labels-time"),
        name="labels_time_dim",
        lines=['labels_time_dim = Dim(None, name="labels-time", kind=Dim.Types.Spatial)'],
    )
    _check(Dim(3, name="loop-dim"), name="loop_dim", lines=['loop_dim = Dim(3, name="loop-dim")'])
    _check(Dim(3, name="2x"), name="d2x_dim", lines=['d2x_dim = Dim(3, name="2x")'])
    _check(Dim(3), name="unnamed_dim", lines=["unnamed_dim = Dim(3)"])
    _check(Dim(3, name="dim"), name="unnamed_dim", lines=['unnamed_dim = Dim(3, name="dim")'])
    _check(Dim(3, name='a "b"\\'), name="a_b_dim", lines=["a_b_dim = Dim(3, name='a \"b\"\\\\')"])
    _check(Dim(3, name="a", capacity=8), name="a_dim", lines=['a_dim = Dim(3, name="a", capacity=8)'])


def _derived(expression: str) -> Dim:
    out, time = nn.FeatureDim("out", 8), nn.SpatialDim("time")
    return eval(expression, {"out": out, "time": time})


OUT = 'out_dim = Dim(8, name="out", kind=Dim.Types.Feature)'
TIME = 'time_dim = Dim(None, name="time", kind=Dim.Types.Spatial)'


@pytest.mark.parametrize(
    "expression, lines",
    [
        ("2 * out", [OUT, "out_times_2_dim = 2 * out_dim"]),
        ("out * 2", [OUT, "out_times_2_dim = out_dim * 2"]),
        ("time + 1", [TIME, "time_plus_1_dim = time_dim + 1"]),
        ("1 + time", [TIME, "time_plus_1_dim = 1 + time_dim"]),
        ("time - 2", [TIME, "time_minus_2_dim = time_dim + (-2)"]),
        ("time // 3", [TIME, "time_div_3_dim = time_dim // 3"]),
        ("out.div_right(4)", [OUT, "out_div_4_dim = out_dim / 4"]),
        ("out.div_left(4)", [OUT, "out_div_4_dim = out_dim.div_left(4)"]),
        ("time.ceildiv_right(3)", [TIME, "time_ceildiv_3_dim = time_dim.ceildiv_right(3)"]),
        ("time.ceildiv_left(3)", [TIME, "time_ceildiv_3_dim = time_dim.ceildiv_left(3)"]),
        ("time * out", [TIME, OUT, "time_times_out_dim = time_dim * out_dim"]),
        (
            "(time - 2).ceildiv_right(2) * 5",
            [
                TIME,
                "time_minus_2_dim = time_dim + (-2)",
                "time_minus_2_ceildiv_2_dim = time_minus_2_dim.ceildiv_right(2)",
                "time_minus_2_ceildiv_2_times_5_dim = time_minus_2_ceildiv_2_dim * 5",
            ],
        ),
    ],
)
def test_derived_dims_are_expressions_of_others(expression: str, lines: list[str]):
    _check(_derived(expression), name=lines[-1].partition(" ")[0], lines=lines)


def test_names_of_long_expressions_are_those_of_what_they_are_derived_from():
    dim = nn.SpatialDim("time")
    for _ in range(4):
        dim = (dim - 3).ceildiv_right(2)
    dims = DimsCode()
    dims.ref(dim)
    assert all(len(line.partition(" ")[0]) <= 34 for line in dims.lines)
    assert dims.lines[-1] == "time_6_dim = time_5_dim.ceildiv_right(2)"
    assert _structure(_evaluate(dims)["time_6_dim"]) == _structure(dim)


def test_names_are_unique_and_not_reserved():
    dims = DimsCode(reserved=["b_dim"])
    assert [dims.ref(Dim(1, name=name)) for name in ["a", "a", "A", "b", "batch", "single-step"]] == [
        *("a_dim", "a_2_dim", "a_3_dim", "b_2_dim", "batch_2_dim", "single_step_2_dim")
    ]
    assert list(dims.names) == [line.partition(" ")[0] for line in dims.lines]


def test_the_same_dim_is_declared_once():
    time, same = nn.SpatialDim("time"), nn.SpatialDim("same")
    same.declare_same_as(time)
    dims = DimsCode()
    assert dims.ref(time) == dims.ref(same) == dims.ref(time + 0) == "time_dim"
    assert dims.ref(time + 1) == dims.ref(time + 1) == "time_plus_1_dim"
    assert len(dims.lines) == 2 and dims.names == {"time_dim": time, "time_plus_1_dim": time + 1}


def test_special_dims():
    dims = DimsCode()
    time = nn.SpatialDim("time")
    assert [dims.ref(d) for d in (batch_dim, Dim(None, name="b", kind=Dim.Types.Batch), single_step_dim)] == [
        *("batch_dim", "batch_dim", "single_step_dim")
    ]
    assert dims.ref(ImplicitDynSizeDim(time)) == "ImplicitDynSizeDim(time_dim)"
    assert dims.ref(ImplicitSparseDim(time)) == "ImplicitSparseDim(time_dim)"
    assert dims.ref(time.copy(match_priority=2)) == "time_dim.copy(match_priority=2)"
    assert dims.imports == [
        "from returnn.tensor import Dim, batch_dim, single_step_dim",
        "from returnn.tensor.marked_dim import ImplicitDynSizeDim, ImplicitSparseDim",
    ]
    made = _evaluate(dims)
    assert eval("time_dim.copy(match_priority=2)", made) == made["time_dim"]


def test_lengths_over_other_dims():
    beam = Dim(4, name="beam")
    lengths = Tensor("lengths", [batch_dim, beam], "int32")
    dims = DimsCode()
    dims.ref(Dim(lengths, name="labels"))
    dims.ref(Dim(Tensor("n", [], "int64"), name="n"))
    assert dims.lines[1:] == [
        'labels_dim = Dim(Tensor("lengths", dims=[batch_dim, beam_dim], dtype="int32"), name="labels")',
        'n_dim = Dim(Tensor("n", dims=[], dtype="int64"), name="n")',
    ]
    made = _evaluate(dims)
    assert made["labels_dim"].dyn_size_ext.dims == (batch_dim, made["beam_dim"])
    dims = DimsCode(sizes=False)
    dims.ref(Dim(lengths, name="labels"))
    assert dims.lines == ['labels_dim = Dim(None, name="labels")']


def test_equal_expressions_of_different_dims():
    """they stay different: the operation is written out, since evaluating it twice would give the same dim"""
    time = nn.SpatialDim("time")
    other = Dim(None, name="other", kind=SPATIAL, derived_from_op=Op("ceildiv", [time, (time // 2 * 0 + 2)]))
    constant = (time - 2).derived_from_op.inputs[1]
    third = Dim(None, name="third", derived_from_op=Op("add", [time, constant]))
    dims = DimsCode()
    names = [dims.ref(dim) for dim in (time - 2, third, other)]
    made = _evaluate(dims)
    assert made[names[0]] != made[names[1]]
    assert _structure(made[names[1]]) == _structure(third)
    assert names[1:] == ["third_dim", "other_dim"]
    assert 'derived_from_op=Op("add", [time_dim, _make_constant_static_dim(-2)])' in dims.lines[2]


def test_errors():
    with pytest.raises(TypeError, match="expected a Dim, got int 3"):
        DimsCode().ref(3)  # type: ignore
    with pytest.raises(ValueError, match="any-feature-dim.* only stands for other dims"):
        DimsCode().ref(nn.any_feature_dim)
    with pytest.raises(ValueError, match="Dim.*labels.* has a vocabulary"):
        DimsCode().ref(Dim(None, name="labels", vocab={"class": "Utf8ByteTargets"}))


def test_pickled_code_goes_on():
    """with dims that are pickled along: what is derived from them is known as before"""
    time_dim, out_dim = nn.SpatialDim("time"), nn.FeatureDim("out", 4)
    dims = DimsCode()
    names = [dims.ref(dim) for dim in (time_dim, 2 * out_dim, time_dim.ceildiv_right(3))]
    again, time_dim, out_dim = pickle.loads(pickle.dumps((dims, time_dim, out_dim)))
    assert again.lines == dims.lines and again.imports == dims.imports
    assert [again.ref(dim) for dim in (time_dim, 2 * out_dim, time_dim.ceildiv_right(3))] == names
    assert again.ref(out_dim + 1) == "out_plus_1_dim"
