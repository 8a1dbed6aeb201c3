"""
Exact resuming of a training on RETURNN's engines.

An interrupted training that goes on should end as if nothing had happened. But the two TensorFlow engines save no state
of the optimizer, so that Adam, for example, starts with empty moments; and the low-level one draws random numbers
(dropout, SpecAugment) from generators whose state can't be saved. On PyTorch, the random numbers of an epoch depend on
whether its data loader is a new one. On JAX, the number of training steps begins at 0 again (on it depend learning
rates, SpecAugment and the random numbers), and the optimizer's state is lost if the training ended after the model was
written and before that. ``globals().update(exact_resume())`` in a config mends all of it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from glob import escape, glob
from typing import Any
from unittest import mock

from .checkpoints import read_checkpoint

__all__ = ["exact_resume"]


def exact_resume() -> dict[str, Any]:
    """
    With each model ``model.NNN``, the TensorFlow engines then save the optimizer's variables as ``model.NNN.opt``
    (those of the last two epochs are kept, as PyTorch's engine does it), and load them when a training goes on.
    They are written before the model, so that each model that RETURNN finds has them. On the low-level engine, random
    numbers in training become a function of ``random_seed`` and the global step, except within loops. The PyTorch
    engine seeds its random numbers at the right moment of each epoch. The JAX engine writes the optimizer's state
    before the model, and goes on with the step that is saved in the model.

    A training that goes on from another one's checkpoint (option ``load``) begins with a new optimizer, on each engine.

    :return: the option ``startup_callback``, which RETURNN calls before it makes its engine
    """
    return {"startup_callback": _startup}


def _startup(*, config: Any, **_fwd_compat: Any) -> None:
    from returnn.util.basic import BackendEngine

    if config.value("task", "train") != "train":
        return
    # The classes are changed in place, since the layers engine refers to its own by name: `super(Engine, self)`.
    if BackendEngine.get_selected_engine() == BackendEngine.TensorFlow:
        from returnn.tf.engine_rf import Engine as LowLevelEngine

        _extend_low_level_engine(LowLevelEngine)
    elif BackendEngine.get_selected_engine() == BackendEngine.TensorFlowNetDict:
        from returnn.tf.engine import Engine as LayersEngine

        _extend_layers_engine(LayersEngine)
    elif BackendEngine.get_selected_engine() == BackendEngine.Torch:
        from returnn.torch.engine import Engine as TorchEngine

        _extend_torch_engine(TorchEngine)
    elif BackendEngine.get_selected_engine() == BackendEngine.Jax:
        from returnn.jax.engine import Engine as JaxEngine

        _extend_jax_engine(JaxEngine)


def _extend(cls: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by what ``make`` makes of it, once."""
    method = getattr(cls, name)
    if not hasattr(method, "exact_resume_original"):
        extended = functools.wraps(method)(make(method))
        extended.exact_resume_original = method  # type: ignore[attr-defined]
        setattr(cls, name, extended)


def _extend_low_level_engine(cls: Any) -> None:
    def _init_train_from_config(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any, *args: Any, **kwargs: Any) -> None:
            method(self, *args, **kwargs)
            if self.epoch > 1 and not _is_imported(self):
                _restore(self._updater, self.session, self.get_epoch_model_filename(epoch=self.epoch - 1))

        return _extended

    def _init_step_func(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any) -> None:
            with _random_by_step(self, seed=self.config.int("random_seed", 42)):
                method(self)

        return _extended

    def _save_model(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any) -> None:
            if self.model_filename:
                _save(self, self._updater, self.session)
            method(self)

        return _extended

    _extend(cls, "init_train_from_config", _init_train_from_config)
    _extend(cls, "_init_step_func", _init_step_func)
    _extend(cls, "_save_model", _save_model)


def _extend_layers_engine(cls: Any) -> None:
    def _init_train_epoch(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any) -> None:
            method(self)
            if self.epoch == self.start_epoch and self.epoch > 1 and not _is_imported(self):
                # Makes the optimizer too, which the engine would do at the first step.
                self.updater.init_optimizer_vars(session=self.tf_session)
                _restore(self.updater, self.tf_session, self.get_epoch_model_filename(epoch=self.epoch - 1))

        return _extended

    def _save_model(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any, filename: str | None = None) -> None:
            # Under other names, it saves the initial model, or a broken one to look into.
            if filename in (None, self.get_epoch_model_filename()) and self.updater.optim_op is not None:
                if self._do_save():
                    _save(self, self.updater, self.tf_session)
            method(self, filename)

        return _extended

    _extend(cls, "init_train_epoch", _init_train_epoch)
    _extend(cls, "save_model", _save_model)


def _extend_torch_engine(cls: Any) -> None:
    def _on_epoch_start(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any, *, dataset_name: str) -> None:
            # The engine has seeded already, but before it got the iterator of its data loader, which draws a number
            # where it is a new one: in the first epoch, or in the one with which a training goes on.
            if dataset_name == "train":
                _seed_epoch(self)
            method(self, dataset_name=dataset_name)

        return _extended

    def _load_optimizer(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any, *, epoch: int) -> None:
            if not _is_imported(self):
                method(self, epoch=epoch)

        return _extended

    def _check_missing_eval(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any) -> None:
            # The engine wants scores of all epochs before, but those before an imported checkpoint are not here.
            trained = [epoch for epoch, data in self.learning_rate_control.epoch_data.items() if data.error]
            if trained:
                with mock.patch.object(self, "get_start_epoch_no_existing_model", lambda config: min(trained)):
                    method(self)

        return _extended

    _extend(cls, "_on_epoch_start", _on_epoch_start)
    _extend(cls, "_load_optimizer", _load_optimizer)
    _extend(cls, "_check_missing_eval", _check_missing_eval)


def _is_imported(engine: Any) -> bool:
    """
    :return: whether the training goes on from a checkpoint of another training, or of another engine (RETURNN's option
        ``load``). It begins with a new optimizer then.
    """
    from returnn.log import log

    epoch, filename = engine.get_epoch_model(engine.config)
    own = engine.epoch_model_filename(engine.config.value("model", ""), epoch or 0)
    imported = bool(filename) and os.path.realpath(filename) != os.path.realpath(own)
    if imported:
        print(f"New optimizer, since {filename} is from elsewhere", file=log.v3)
    return imported


def _extend_jax_engine(cls: Any) -> None:
    from returnn.jax import checkpoint

    suffix = ".orbax"

    def _save_model(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any) -> None:
            if self.model_filename:
                checkpoint.save_opt_state(self._opt_state, f"{self.get_epoch_model_filename()}.opt{suffix}")
            with mock.patch.object(checkpoint, "save_opt_state"):  # not once more
                method(self)

        return _extended

    def _load_model(method: Callable[..., Any]) -> Callable[..., Any]:
        def _extended(self: Any, *, filename: str, with_opt_state: bool = True, **kwargs: Any) -> Any:
            goes_on = with_opt_state and self.epoch > 1
            model = filename.removesuffix(suffix)
            if goes_on and not os.path.exists(f"{model}.opt{suffix}") and not _is_imported(self):
                raise _no_optimizer_state(f"{model}.opt{suffix}", model)
            missing = method(self, filename=filename, with_opt_state=with_opt_state, **kwargs)
            if goes_on:
                self.global_train_step = read_checkpoint(model).step
            return missing

        return _extended

    _extend(cls, "_save_model", _save_model)
    _extend(cls, "_load_model", _load_model)


def _no_optimizer_state(file: str, model: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"exact_resume: no optimizer state {file} to go on with. Was {model} trained without"
        " exact_resume()? Then go on without it, or begin again."
    )


def _seed_epoch(engine: Any) -> None:
    """As RETURNN's engine seeds each epoch."""
    import returnn.frontend as rf
    from returnn.util.math import merge_random_seeds

    seeds = [engine.epoch, engine.global_train_step, engine.config.int("random_seed", 42)]
    if engine._torch_distributed_ctx:
        seeds.append(engine._torch_distributed_ctx.rank())
    rf.set_random_seed(merge_random_seeds(seeds))


def _save(engine: Any, updater: Any, session: Any) -> None:
    """Write the optimizer's variables for the model of this epoch, and remove those of two epochs ago."""
    filename = os.path.abspath(engine.get_epoch_model_filename())
    with session.graph.as_default():
        if not hasattr(updater, "exact_resume_saver"):
            updater.exact_resume_saver = _saver(updater)
        os.makedirs(os.path.dirname(filename), exist_ok=True)
        updater.exact_resume_saver.save(session, filename + ".opt", write_meta_graph=False, write_state=False)
    if engine.epoch > 2:
        for file in glob(escape(engine.get_epoch_model_filename(epoch=engine.epoch - 2)) + ".opt.*"):
            os.remove(file)


def _restore(updater: Any, session: Any, model_filename: str) -> None:
    """
    Read them back.

    :raise FileNotFoundError: the model was trained without :func:`exact_resume`
    """
    from returnn.log import log

    filename = os.path.abspath(model_filename) + ".opt"
    if not os.path.exists(filename + ".index"):
        raise _no_optimizer_state(f"{filename}.index", model_filename)
    with session.graph.as_default():
        _saver(updater).restore(session, filename)
    print(f"Load optimizer {filename}", file=log.v3)


def _saver(updater: Any) -> Any:
    """:return: for the optimizer's variables: the moments of each parameter, and whatever else it made"""
    import tensorflow

    return tensorflow.compat.v1.train.Saver(updater.optimizer_vars, max_to_keep=None)


@contextlib.contextmanager
def _random_by_step(engine: Any, *, seed: int) -> Iterator[None]:
    """
    While the graph is built, let TensorFlow's random functions draw as a function of the step.

    They are replaced where RETURNN's backend calls them. Each call in the graph gets its own seed, by their order,
    which is the same whenever the same model is built.
    """
    import tensorflow as tf

    num_draws = 0

    def _by_step(stateful: Any, stateless: Any) -> Any:
        def _draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal num_draws
            num_draws += 1
            if _in_loop():
                # The step is the same in every iteration, so that each would draw the same.
                return stateful(shape, *args, **kwargs)
            # A prime, so that seeds of different runs don't share their draws one further on.
            draw_seed = tf.constant((seed * 1_000_003 + num_draws) % 2**62, "int64")
            return stateless(shape, tf.stack([draw_seed, tf.cast(engine._step_placeholder, "int64")]), *args, **kwargs)

        return _draw

    with contextlib.ExitStack() as stack:
        for name in ("uniform", "normal", "truncated_normal"):
            function = _by_step(getattr(tf.random, name), getattr(tf.random, f"stateless_{name}"))
            stack.enter_context(mock.patch.object(tf.random, name, function))
        yield


def _in_loop() -> bool:
    import tensorflow as tf

    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.GetWhileContext() is not None:
            return True
        if "while" in getattr(graph, "name", ""):  # the body of a loop of TensorFlow 2
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
