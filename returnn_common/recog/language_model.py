"""
A language model beside the model of a config, for its search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from returnn.config import Config, get_global_config, set_global_config

__all__ = ["recipe_model", "with_language_model"]


def with_language_model(get_model: Callable[..., Any], make_lm: Callable[..., Any]) -> Callable[..., Any]:
    """
    For a config: ``get_model = with_language_model(get_model, make_lm)``.

    The language model becomes the submodule ``recog_lm``, so that RETURNN loads its parameters with those of the model,
    from one checkpoint with both, see :func:`returnn_common.training.merge.merge_checkpoints`; and :func:`recog_step`
    uses it.

    :param get_model: RETURNN's
    :param make_lm: likewise, but it gets the model as its first argument; what it returns has ``scorer()``, ``bos`` and
        ``eos``, as :class:`returnn_common.models.language_model.LanguageModel`
    :return: RETURNN's ``get_model`` of both
    :raises ValueError: by that function, if the model has such a submodule already
    """

    def _get_model(*, epoch: int, step: int, **other: Any) -> Any:
        model = get_model(epoch=epoch, step=step, **other)
        if hasattr(model, "recog_lm"):
            raise ValueError(f"with_language_model: {type(model).__name__} has an attribute recog_lm already")
        model.recog_lm = make_lm(model, epoch=epoch, step=step, **other)
        return model

    return _get_model


def recipe_model(path: str, options: Mapping[str, str]) -> Callable[..., Any]:
    """
    The model of another recipe, as ``make_lm`` of :func:`with_language_model`.

    :param path: of the recipe, a Python file with a function ``get_model``
    :param options: of the recipe, as text, as on RETURNN's command line
    :return: a function that runs the recipe when it is called
    :raises ValueError: by that function, if the recipe has no ``get_model``
    """

    def _make_lm(_model: Any, **kwargs: Any) -> Any:
        config = Config()
        config.dict = {name: [value] for name, value in options.items()}
        namespace: dict[str, Any] = {"__file__": path, "__name__": "recipe", "config": config}
        before = get_global_config()
        # Not global_config_ctx: in a graph of TensorFlow, that does not set back what it has set.
        set_global_config(config)
        try:
            with open(path, encoding="utf8") as file:
                exec(compile(file.read(), path, "exec"), namespace)
        finally:
            set_global_config(before)
        if not callable(namespace.get("get_model")):
            raise ValueError(f"recipe_model: {path}: expected a function get_model")
        return namespace["get_model"](**kwargs)

    return _make_lm
