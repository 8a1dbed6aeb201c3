"""
RETURNN's task "forward" on the TensorFlow layers engine (net dict), which RETURNN itself does not implement.

The same config as on the other engines: ``get_model``, ``forward_step``, ``forward_callback``, ``forward_data``, and
``load`` or ``load_epoch`` with ``model``::

    python -m returnn_common.recog.net_dict CONFIG ++load_epoch 20

The network is built from ``get_model`` and ``forward_step`` as for training, and runs through the engine's own
``Runner``. The callback gets per sequence what the PyTorch engine gives it: NumPy arrays without the batch dim and
without padding, whose dims have the sizes of that sequence.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy
from returnn.tensor import Dim, Tensor, TensorDict, batch_dim

if TYPE_CHECKING:
    from returnn.datasets.basic import Dataset
    from returnn.forward_iface import ForwardCallbackIface

__all__ = ["forward_net_dict"]


def forward_net_dict(argv: Sequence[str]) -> None:
    """
    Run the task "forward" with the backend "tensorflow-net-dict".

    :param argv: RETURNN's command line without the program's name: config files, then options as ``++key value``
    :raise ValueError: no config given
    """
    if not argv or argv[0][:1] in "-+":
        raise ValueError(f"forward_net_dict: expected CONFIG [++key value ...], got {list(argv)}")
    import returnn.__main__ as rnn

    rnn.init(command_line_options=[*argv, "++task", "forward", "++backend", "tensorflow-net-dict"])
    _make_targets_available(rnn.config)
    rnn.engine = _make_engine(rnn.config)
    rnn.execute_main_task()
    rnn.finalize()


def _make_targets_available(config: Any):
    """Else, RETURNN has only the default input outside of training. What nothing uses need not be in the dataset."""
    extern_data = config.typed_value("extern_data")
    if isinstance(extern_data, dict):
        config.typed_dict["extern_data"] = {
            key: {"available_for_inference": True, **opts} if isinstance(opts, dict) else opts
            for key, opts in extern_data.items()
        }


def _make_engine(config: Any) -> Any:
    """:return: RETURNN's engine, which in addition can forward"""
    from returnn.frontend.run_ctx import get_run_ctx
    from returnn.log import log
    from returnn.tf import frontend_layers as rfl
    from returnn.tf.engine import Engine, Runner

    class _Engine(Engine):
        rf_model: Any = None
        # name of the output -> (the tensor as marked, name of its layer)
        marked: dict[str, tuple[Tensor, str | None]] = {}

        def get_net_dict_for_epoch(self, *, epoch: int, step: int | None = None, config: Any = None) -> dict[str, Any]:
            """As the base class does it, but keeps the model, and which layers hold the outputs."""
            net_dict, self.rf_model = rfl.get_net_dict(epoch=epoch, step=step if step is not None else 0)
            # The base class has read it before; get_model may have changed it, see with_language_models.
            self.preload_from_files = self.config.typed_value("preload_from_files", {})
            outputs = get_run_ctx().outputs.data
            if not outputs:
                raise ValueError("forward_step did not mark any output")
            # The layers of the outputs were appended in their order, after whatever loops and conds have marked.
            layers = rfl.Layer.top().root.marked_outputs[-len(outputs) :]
            self.marked = {
                name: (tensor, layer.raw_tensor.name)
                for (name, tensor), layer in zip(outputs.items(), layers, strict=True)
            }
            return net_dict

        def forward_with_callback(
            self,
            *,
            dataset: Dataset,
            callback: ForwardCallbackIface,
            dataset_init_epoch: bool = True,
            allow_skipping_seqs: bool = False,
        ) -> None:
            """As on the other engines. Never skips sequences, whether allowed or not."""
            start_time = time.monotonic()
            if dataset_init_epoch:
                if self.config.bool("sort_dataset", True) and dataset.supports_seq_order_sorting():
                    dataset.seq_ordering = "sorted_reverse"  # as PyTorch's engine: the most memory comes first
                dataset.init_seq_order(epoch=self.epoch)
            splitter = _Splitter(self)
            callback.init(model=self.rf_model)
            runner = Runner(
                engine=self,
                dataset=dataset,
                batches=dataset.generate_batches(
                    recurrent_net=True,
                    batch_size=self.config.typed_value("batch_size", None) or self.config.int("batch_size", 1),
                    max_seqs=self.config.int("max_seqs", -1),
                    used_data_keys=self.network.get_used_data_keys(),
                ),
                train=False,
                eval=False,
                extra_fetches=splitter.fetches,
                extra_fetches_callback=lambda **values: splitter.split(values, callback),
            )
            runner.run(report_prefix=f"ep {self.epoch} {dataset.name} forward", raise_exception=True)
            if not runner.finalized:
                raise RuntimeError(f"forward stopped early, after {splitter.num_seqs} sequences")
            callback.finish()
            print(f"forward: {splitter.num_seqs} seqs, {time.monotonic() - start_time:.1f} sec", file=log.v3)

    return _Engine(config=config)


class _Splitter:
    """What to fetch for the marked outputs, and how to cut it into sequences."""

    def __init__(self, engine: Any):
        network = engine.network
        self.num_seqs = 0
        self.outputs: dict[str, Tensor] = {}  # as marked
        self.sizes: dict[Dim, tuple[str, Tensor]] = {}  # of dims of dynamic size: what to fetch, and its template
        self.fetches: dict[str, Any] = {"seq_tag": network.get_seq_tags(mark_data_key_as_used=True)}
        for index, (name, (marked, layer_name)) in enumerate(engine.marked.items()):
            if batch_dim not in marked.dims:
                raise ValueError(f"forward output {name!r} has no batch dim: {marked}")
            # A layer may hold the dims in another order than forward_step has asked for.
            output = network.get_layer(layer_name).output.copy_transpose(marked.dims)
            self.outputs[name] = marked
            self.fetches[f"output{index}"] = output.raw_tensor
            # The marked dims are those that forward_step knows. The layer's are equal, and have the sizes.
            for dim, layer_dim in zip(marked.dims, output.dims, strict=True):
                if dim == batch_dim or layer_dim.dyn_size_ext is None or dim in self.sizes:
                    continue
                key = f"size{len(self.sizes)}"
                self.sizes[dim] = (key, layer_dim.dyn_size_ext)
                self.fetches[key] = layer_dim.dyn_size_ext.raw_tensor

    def split(self, values: dict[str, Any], callback: ForwardCallbackIface) -> None:
        """
        :param values: for each of ``fetches``, the value for this batch
        :param callback: gets each sequence
        """
        for row, tag in enumerate(values["seq_tag"]):
            dims = {dim: _dim_of_row(dim, size, values[key], row) for dim, (key, size) in self.sizes.items()}
            outputs = TensorDict()
            for index, (name, marked) in enumerate(self.outputs.items()):
                outputs.data[name] = _take_row(name, marked, values[f"output{index}"], row, dims)
            callback.process_seq(seq_tag=tag.decode("utf8") if isinstance(tag, bytes) else str(tag), outputs=outputs)
            self.num_seqs += 1


def _dim_of_row(dim: Dim, size: Tensor, value: Any, row: int) -> Dim:
    """
    :param dim: of dynamic size
    :param size: template of its sizes
    :param value: its sizes in the whole batch
    :param row: in the batch
    :return: the dim with the sizes that it has in this row: one, or one per beam entry or the like
    """
    size_dims = list(size.dims)
    if batch_dim in size_dims:
        value = numpy.take(value, row, axis=size_dims.index(batch_dim))
        size_dims.remove(batch_dim)
    # asarray, here and below: NumPy makes scalars of 0-dimensional arrays, which no Tensor takes.
    size = Tensor(dim.name or "size", dims=size_dims, dtype=size.dtype, raw_tensor=numpy.asarray(value))
    return Dim(size, name=dim.name, kind=dim.kind)


def _take_row(name: str, marked: Tensor, value: Any, row: int, dims: dict[Dim, Dim]) -> Tensor:
    """
    :param name: of the output; the template may bear that of its layer
    :param marked: template, with batch dim
    :param value: of the whole batch
    :param row: in the batch
    :param dims: for dims of dynamic size, what they are in this row
    :return: that row of it, without padding
    """
    value = numpy.take(value, row, axis=marked.dims.index(batch_dim))
    old_dims = [dim for dim in marked.dims if dim != batch_dim]
    # Cut to the longest, for example over the beam, which the dim's own sizes tell apart.
    value = value[tuple(slice(0, int(dims[dim].get_dim_value())) if dim in dims else slice(None) for dim in old_dims)]
    value = numpy.asarray(value)
    new_dims = [dims.get(dim, dim) for dim in old_dims]
    result = Tensor(name, dims=new_dims, dtype=value.dtype.name, sparse_dim=marked.sparse_dim)
    if marked.feature_dim is not None:
        result.feature_dim = dims.get(marked.feature_dim, marked.feature_dim)
    result.raw_tensor = value
    return result


if __name__ == "__main__":
    forward_net_dict(sys.argv[1:])
