"""
What RETURNN cannot do on one of its engines: the one list of it, each with its smallest reproduction.

    python -m tests.limits            # prints the table
    python -m tests.limits --check    # runs each reproduction: whether RETURNN still fails in the same way

An entry which RETURNN masters by now is to be removed, and what goes round it in our code with it.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import reproductions as on

__all__ = ["LIMITS", "Limit", "check", "limits_table"]

MEMORY = 20 * 2**30  # bytes of address space: a failing net dict can take all there is while it prints its report


@dataclass(frozen=True)
class Limit:
    """
    :param name: what RETURNN cannot do
    :param engine: where
    :param reproduce: takes the engine
    :param error: the exception's type, or "" if the values differ from those on PyTorch
    :param message: part of its message; if it begins with "in ", the function that raises it
    :param reason: why it fails
    :param affects: which of our builders and blocks need it
    :param way_round: how they work on this engine all the same
    :param version: of RETURNN
    """

    name: str
    engine: str
    reproduce: Callable[[str], object]
    error: str
    message: str
    reason: str
    affects: str
    way_round: str
    version: str = "1.20261022.211313"

    @property
    def id(self) -> str:
        """for a test's name"""
        return f"{self.reproduce.__name__}-{self.engine}"


def check(limit: Limit) -> str:
    """:return: empty if RETURNN still fails in the same way, else what happens instead"""
    try:
        with _quiet():
            result = limit.reproduce(limit.engine)
            if not limit.error:
                expected = limit.reproduce("torch")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        text = f"{type(error).__name__}: {error} in {frames[-1].name}"
        if limit.error and type(error).__name__ == limit.error and limit.message in text:
            return ""
        return (
            f"{limit.name} fails on {limit.engine} otherwise than listed: expected {limit.error} with "
            f"{limit.message!r}, got {text[:200]} ... {text[-200:]}"
        )
    if not limit.error and not _equal(result, expected):
        return ""
    return f"RETURNN can do {limit.name} on {limit.engine} now: remove the limit from tests/limits.py"


def _equal(result, expected) -> bool:
    import numpy

    return all(
        result[name].shape == expected[name].shape and numpy.allclose(result[name], expected[name], atol=1e-4)
        for name in expected.outputs
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The net dict prints each of its layers."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def limits_table() -> str:
    """:return: markdown"""
    lines = [
        "| RETURNN can't do | on | how it fails | why | needed by | our way round |",
        "|---|---|---|---|---|---|",
    ]
    for x in LIMITS:
        how = f"`{x.error}`: {x.message}" if x.error else "other values than on PyTorch"
        lines.append(f"| {x.name} | {x.engine} | {how} | {x.reason} | {x.affects} | {x.way_round} |")
    versions = ", ".join(sorted({x.version for x in LIMITS}))
    return "\n".join([*lines, "", f"Measured with RETURNN {versions}; a test runs each reproduction again.", ""])


_TF, _ND, _JX = "tensorflow", "tensorflow-net-dict", "jax"
_CONFORMER = "make_conformer_encoder with batch norm"
_LSTMS = "LSTM encoder, decoder, predictor and language model"
_CAUSAL = "Transformer decoder and language model, streaming encoders"
_FEATURES = "log-mel features"
_UNUSED = "nothing"

LIMITS: list[Limit] = [
    Limit(
        *("BatchNorm(use_mask=True) in training", _ND, on.masked_batch_norm),
        *("NotImplementedError", "in is_finite", "is_finite is missing"),
        *(_CONFORMER, "nn.BatchNorm, composed of elementary operations"),
    ),
    Limit(
        *("BatchNorm(use_mask=False) in training", _TF, on.unmasked_batch_norm),
        *("AttributeError", "has no attribute 'assign_add'", "the fused operation assigns to a tensor, not a variable"),
        *(_CONFORMER, "nn.BatchNorm"),
    ),
    Limit(
        *("Parameter.assign_add inside nested modules", _ND, on.assign_in_nested_module),
        *(
            "AssertionError",
            "in register_module",
            "to name a layer, it wants those of all parameters; one has none then",
        ),
        *(_CONFORMER, "nn/_assign.py makes the rooms for the new layers before, and moves the parameter to the root"),
    ),
    Limit(
        *("LSTM", _TF, on.lstm, "NotImplementedError", "in lstm", "not written"),
        *(_LSTMS, "nn.LSTM, composed"),
    ),
    Limit(
        *("LSTM", _JX, on.lstm, "NotImplementedError", "in lstm", "not written"),
        *(_LSTMS, "nn.LSTM, composed"),
    ),
    Limit(
        *("ZoneoutLSTM over a sequence", _ND, on.zoneout_lstm),
        *("NotImplementedError", "in tensor_array_unstack", "scan isn't possible"),
        *("LSTM decoder with zoneout", "one step at a time"),
    ),
    Limit(
        *("ZoneoutLSTM over a sequence", _JX, on.zoneout_lstm),
        *("AssertionError", "must be created with a capacity", "scan isn't possible"),
        *("LSTM decoder with zoneout", "one step at a time"),
    ),
    Limit(
        *("scan", _ND, on.scan, "NotImplementedError", "in tensor_array_unstack", "not written"),
        *("whatever loops over time", "nn/scan.py"),
    ),
    Limit(
        *("scan", _JX, on.scan, "AssertionError", "must be created with a capacity"),
        *("scan makes its arrays without telling how long they get", "whatever loops over time", "nn/scan.py"),
    ),
    Limit(
        *("the gradient of while_loop", _JX, on.gradient_of_while_loop),
        *("ValueError", "Reverse-mode differentiation does not work for lax.while_loop", "so in JAX itself"),
        *("losses that are recursions, LSTM", "a loop of known length, unrolled, or by doubling"),
    ),
    Limit(
        *("a while_loop, run by a module, whose body calls a module", _ND, on.module_in_while_loop),
        *("Exception", "Exception constructing template network", "layers land in the nets of modules on the stack"),
        *("beam search with decoders and language models", "nn/loop.py puts all layers into the loop itself"),
    ),
    Limit(
        *("a while_loop in which parts of the state need each other", _ND, on.state_of_while_loop),
        *(
            "Exception",
            "require broadcasting",
            "to find dims, it goes round the loop, and takes a layer for a scalar",
        ),
        *("CTC beam search with Transformers", "nn/loop.py: all parts of the state come before any other layer"),
    ),
    Limit(
        *("audio.specaugment", _ND, on.specaugment),
        *("Exception", "Exception constructing template network", "the step is compared with an integer"),
        *("every recogniser", "models/specaugment.py has its own mask arithmetic"),
    ),
    Limit(
        *("audio.log_mel_filterbank_from_raw", _ND, on.log_mel),
        *("TypeError", "unexpected keyword argument 'eps'", "safe_log hands its floor to a layer that has none"),
        *(_FEATURES, "models/features.py"),
    ),
    *(
        Limit(
            *("complex_as_real", engine, on.complex_as_real),
            *("NotImplementedError", "in complex_as_real", "not written"),
            *(_FEATURES, "the absolute value, squared"),
        )
        for engine in (_TF, _ND, _JX)
    ),
    Limit(
        *("CausalSelfAttention, and so TransformerDecoder", _ND, on.causal_self_attention),
        *("AssertionError", "in __init__", "a dim whose lengths are those of time, up to each frame, isn't possible"),
        *(_CAUSAL, "nn/causal_attention.py masks explicitly"),
    ),
    Limit(
        *("cum_concat_step on sequences of different length", _JX, on.cum_concat_step),
        *("", "", "the new frame is zero for all but the longest sequences"),
        *(_CAUSAL, "caches that all sequences have filled equally far"),
    ),
    Limit(
        *("cum_concat_step on sequences of different length", _ND, on.cum_concat_step),
        *("AssertionError", "in __init__", "pad by a tensor at dynamic ends isn't possible"),
        *(_CAUSAL, "caches that all sequences have filled equally far"),
    ),
    Limit(
        *("stack", _ND, on.stack, "NotImplementedError", "in stack", "not written"),
        *("transducer loss", "nn/_lattice.py multiplies with what is 1 at one index of the new dim, and adds"),
    ),
    Limit(
        *("scatter", _ND, on.scatter, "NotImplementedError", "in scatter", "not written"),
        *("search", "top_k on keys, or a product with one-hot vectors"),
    ),
    *(
        Limit(
            *("scatter_logsumexp", engine, on.scatter_logsumexp),
            *("NotImplementedError", "in stop_gradient_scope", "stop_gradient_scope is missing"),
            *("CTC prefix search", "comparing all pairs of hypotheses"),
        )
        for engine in (_ND, _JX)
    ),
    Limit(
        *("masked_select over one of several dims", _ND, on.masked_select),
        *("NotImplementedError", "in scatter", "scatter is missing"),
        *("CTC greedy search", "top_k on keys moves what is kept to the front"),
    ),
    Limit(
        *("top_k over a dynamic dim beside another one", _ND, on.top_k),
        *("AssertionError", "ndim does not match in values", "the mask lacks the other dim"),
        *("search", "top_k over merged or static dims"),
    ),
    Limit(
        *("comparing floats with an integer constant", _ND, on.compare_with_integer),
        *("TypeError", "has type int32 that does not match type float32", "constants keep their own type"),
        *("every block", "float constants: `x > 0.0`"),
    ),
    Limit(
        *("TransposedConv1d", _JX, on.transposed_conv),
        *("NotImplementedError", "in transposed_conv", "not written", _UNUSED, "Conv1d on repeated frames"),
    ),
    *(
        Limit(
            *("weight_dropout in training", engine, on.weight_dropout),
            *("NotImplementedError", "in gradient_checkpoint_scope", "gradient_checkpoint_scope is missing"),
            *(_UNUSED, "dropout on activations"),
        )
        for engine in (_TF, _ND, _JX)
    ),
    Limit(
        *("edit_distance", _TF, on.edit_distance, "TypeError", "int() argument", "it takes the lengths' values"),
        *(_UNUSED, "recog/scoring.py, in Python"),
    ),
    Limit(
        *("edit_distance", _ND, on.edit_distance, "NotImplementedError", "_raw", "as on tensorflow"),
        *(_UNUSED, "recog/scoring.py, in Python"),
    ),
    Limit(
        *("expand_dim of labels", _ND, on.expand_sparse),
        *("ReturnnConstructTemplateException", "ExpandDimsLayer", "the layer wants a feature axis"),
        *("search", "expanded as floats, then cast"),
    ),
    Limit(
        *("a dim that comes from one whose sizes a layer computes", _ND, on.derived_dim),
        *("AssertionError", "value unknown in sanity_check", "the layer of the sizes of such a dim is made too early"),
        *("models' stream, which holds back what is no whole chunk",),
        *("none; encoder and search each have a step, with which pieces of whole chunks are recognised",),
    ),
    Limit(
        *("pack", _ND, on.packed_linear, "NotImplementedError", "in masked_scatter", "masked_scatter is missing"),
        *(_UNUSED, "padding and masks"),
    ),
    Limit(
        *("task forward with forward_step", _ND, on.generic_forward),
        *("NotImplementedError", "does not support the generic forward func", "not written"),
        *("every recogniser", "recog/net_dict.py runs the forward step through the engine's own Runner"),
    ),
    Limit(
        *("the optimizer adamw", _ND, on.adamw, "ValueError", "Argument `learning_rate` should be float"),
        *(
            "it takes Keras 3's class, which wants no variable",
            "every recipe",
            "recipes/digits_ctc.py takes adam there",
        ),
    ),
]


def _main(arguments: list[str]) -> None:
    if arguments == ["--check"]:  # one JSON list per line: the limit's id, what `check` says
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for limit in LIMITS:
            print(json.dumps([limit.id, check(limit)]), flush=True)
    elif arguments in ([], ["--docs"]):
        print(limits_table())
    else:
        raise SystemExit(f"usage: python -m tests.limits [--docs | --check], got {' '.join(arguments)}")


if __name__ == "__main__":
    _main(sys.argv[1:])
