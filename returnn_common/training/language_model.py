"""
A language model beside the model of a config, for its search: one that a run has trained, or of any kind.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from returnn.config import Config, get_global_config, set_global_config
from returnn.datasets.util.vocabulary import Vocabulary

from .. import nn
from ..nn.config_dict import read_dict
from .checkpoints import find_last_checkpoint
from .convert import convert_checkpoint

__all__ = [
    "TrainedLanguageModel",
    "add_language_models",
    "recipe_model",
    "with_language_model",
    "with_language_models",
]

_BACKENDS = {"torch": "torch", "tf": "tensorflow", "returnn_layers_tf": "tensorflow-net-dict", "jax": "jax"}
_SUFFIXES = {"torch": ".pt", "jax": ".orbax"}


def with_language_models(get_model: Callable[..., Any]) -> Callable[..., Any]:
    """
    For a config, whose ``search_options`` then may have ``lm`` and ``transcript_lm`` that are folders of runs (ARPA
    files do not need this)::

        @with_language_models
        def get_model(*, epoch, step, **_): ...

        search_options = {"lm": "LM_OUT", "lm_scale": 0.4}

    In RETURNN's task "forward", and in no other, they become the submodules ``recog_lm`` and ``recog_transcript_lm``,
    and the config's ``preload_from_files`` gets their checkpoints, from which RETURNN loads their parameters.

    :param get_model: RETURNN's
    :return: RETURNN's ``get_model`` of all; one that does so already is returned as it is
    :raises ValueError: by that function, for language models that do not fit, see :class:`TrainedLanguageModel`
    """

    return get_model if isinstance(get_model, _WithLanguageModels) else _WithLanguageModels(get_model)


class _GetModel:
    """
    A function in the place of another one of a config. Not a closure: RETURNN's pickling of configs, for the processes
    that load data, fails for those that refer to something in the config.

    :param get_model: RETURNN's
    """

    def __init__(self, get_model: Callable[..., Any]):
        self.get_model = get_model
        functools.update_wrapper(self, get_model, updated=())


class _WithLanguageModels(_GetModel):
    """see :func:`with_language_models`"""

    def __call__(self, *, epoch: int, step: int, **other: Any) -> Any:
        model = self.get_model(epoch=epoch, step=step, **other)
        config = get_global_config(raise_exception=False)
        if config is None or config.value("task", "train") != "forward":
            return model
        backend = _BACKENDS[nn.get_selected_backend() or "torch"]
        preload = dict(config.typed_value("preload_from_files") or {})
        for name, lm in add_language_models(model, config, backend=backend).items():
            prefix = f"{name}/" if backend == "tensorflow-net-dict" else f"{name}."
            checkpoint = lm.find_checkpoint(backend, model=getattr(model, name))
            preload[name] = {"filename": checkpoint + _SUFFIXES.get(backend, ""), "prefix": prefix}
        config.typed_dict["preload_from_files"] = preload
        return model


def add_language_models(model: Any, config: Config, *, backend: str) -> dict[str, TrainedLanguageModel]:
    """
    Gives a model the submodules that its config's ``search_options`` ask for; their parameters are still to be loaded.

    :param model: without such
    :param config: its
    :param backend: RETURNN's option
    :return: by the name of the submodule, ``recog_lm`` or ``recog_transcript_lm``
    :raises ValueError: if it has such a submodule already, or see :class:`TrainedLanguageModel`
    """
    found = {}
    target = config.typed_value("extern_data", {}).get(config.value("target", "classes"), {})
    for option, path in _asked_for(config).items():
        lm = TrainedLanguageModel(path, option=option)
        module = lm.make_model(backend, labels=_labels_of(target))
        _add(model, f"recog_{option}", module, owner="with_language_models")
        found[f"recog_{option}"] = lm
    return found


def _asked_for(config: Config) -> dict[str, str]:
    """:return: by option, the folders that are used; whatever else ``search_options`` say is for ``recog_step``"""
    options = read_dict(config, "search_options")
    scored = options.get("rescore") or config.value("recog_components_file", None)
    return {
        name: os.fspath(options[name])
        for name, scale in (("lm", "lm_scale"), ("transcript_lm", "transcript_lm_scale"))
        if options.get(name) and (options.get(scale) or scored) and not Path(options[name]).is_file()
    }


def _labels_of(data: Mapping[str, Any]) -> list[str] | None:
    """:return: names of the labels of an entry of ``extern_data``, if it has a vocabulary"""
    vocab = data.get("vocab")
    if isinstance(vocab, dict):
        vocab = Vocabulary.create_vocab(**vocab)
    return None if vocab is None else [str(label) for label in vocab.labels]


def _add(model: Any, name: str, module: Any, *, owner: str):
    if hasattr(model, name):
        raise ValueError(f"{owner}: {type(model).__name__} has an attribute {name} already")
    setattr(model, name, module)


class TrainedLanguageModel:
    """
    A language model that ``returnn-common run`` has trained.

    :param path: folder of the run
    :param option: of the search that names it, for the messages
    :raises ValueError: if it is no such folder
    """

    def __init__(self, path: str, *, option: str = "lm"):
        self.what = f"{option} {path}"
        self.path = Path(path).resolve()
        self.recipe = self.path / "config.py"
        if not self.path.exists():
            raise ValueError(f"{self.what}: no such folder or file")
        asked = self.path / "run.json"
        if not asked.is_file() or not self.recipe.is_file():
            raise ValueError(f"{self.what}: expected a folder that 'returnn-common run' has written, or an ARPA file")
        try:
            content = json.loads(asked.read_text("utf8"))
            self.name, self.backend = Path(content["recipe"]).stem, str(content["backend"])
            self.options = {name: str(value) for name, value in content["options"].items()}
            if content["corpus"] is not None:
                self.options["corpus"] = str(content["corpus"])
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ValueError(f"{asked} is damaged: expected recipe, backend, corpus and options") from None

    def make_model(self, backend: str, *, labels: list[str] | None) -> Any:
        """
        :param backend: RETURNN's option
        :param labels: of the recogniser; None: not compared
        :return: the model, with fresh parameters
        :raises ValueError: if it is no language model, or has other labels
        """
        namespace = self._execute(backend)
        if getattr(namespace.get("dataset"), "evaluation", None) != "perplexity":
            raise ValueError(f"{self.what}: expected the run of a language model, but {self.name} is a recogniser")
        own = _labels_of(namespace.get("extern_data", {}).get(namespace.get("default_input", "data"), {}))
        if labels is not None and own is not None:
            self._check_labels(own, labels)
        return namespace["get_model"](epoch=1, step=0)

    def _execute(self, backend: str) -> dict[str, Any]:
        return _execute(str(self.recipe), {**self.options, "backend": backend}, owner=self.what)

    def _check_labels(self, labels: list[str], expected: list[str]):
        if labels == expected:
            return
        if len(labels) != len(expected):
            how = f"{len(labels)} labels instead of {len(expected)}"
        else:
            index = next(i for i, (a, b) in enumerate(zip(labels, expected, strict=True)) if a != b)
            how = f"label {index} is {labels[index]!r} instead of {expected[index]!r}"
        raise ValueError(f"{self.what}: its vocabulary is not that of the recogniser: {how}")

    def last_checkpoint(self) -> str:
        """
        :return: the average of its last epochs, or the last epoch where it has not ended; without suffix
        :raises ValueError: if there is none
        """
        try:
            num_epochs = int(self._execute(self.backend)["num_epochs"])
            return find_last_checkpoint(self.path / "checkpoints", num_epochs=num_epochs)
        except (FileNotFoundError, KeyError):
            raise ValueError(f"{self.what}: there is no checkpoint, its training has not finished an epoch") from None

    def find_checkpoint(self, backend: str, *, model: Any) -> str:
        """
        :param backend: RETURNN's option
        :param model: of :meth:`make_model`
        :return: checkpoint for that engine, without suffix; if another has trained it, a copy that lasts as long as
            this process
        :raises ValueError: if there is none
        """
        checkpoint = self.last_checkpoint()
        if backend == self.backend:
            return checkpoint
        folder = tempfile.mkdtemp(prefix="returnn-common-lm-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        # Only PyTorch wants a parameter with several names under each of them, for which the model is needed.
        of_model = {"model": model} if backend == "torch" else {}
        return convert_checkpoint(checkpoint, f"{folder}/{Path(checkpoint).name}", backend=backend, **of_model)


def with_language_model(get_model: Callable[..., Any], make_lm: Callable[..., Any]) -> Callable[..., Any]:
    """
    For a config with a language model of any kind: ``get_model = with_language_model(get_model, make_lm)``.

    The language model becomes the submodule ``recog_lm``, so that RETURNN loads its parameters with those of the model,
    from one checkpoint with both, see :func:`returnn_common.training.merge.merge_checkpoints`, or by
    ``preload_from_files``; and ``recog_step`` uses it.

    :param get_model: RETURNN's
    :param make_lm: likewise, but it gets the model as its first argument; what it returns has ``scorer()``, ``bos`` and
        ``eos``, as :class:`returnn_common.models.language_model.LanguageModel`
    :return: RETURNN's ``get_model`` of both
    :raises ValueError: by that function, if the model has such a submodule already
    """

    return _WithLanguageModel(get_model, make_lm)


class _WithLanguageModel(_GetModel):
    """see :func:`with_language_model`"""

    def __init__(self, get_model: Callable[..., Any], make_lm: Callable[..., Any]):
        super().__init__(get_model)
        self.make_lm = make_lm

    def __call__(self, *, epoch: int, step: int, **other: Any) -> Any:
        model = self.get_model(epoch=epoch, step=step, **other)
        _add(model, "recog_lm", self.make_lm(model, epoch=epoch, step=step, **other), owner="with_language_model")
        return model


def recipe_model(path: str, options: Mapping[str, str]) -> Callable[..., Any]:
    """
    The model of another recipe, as ``make_lm`` of :func:`with_language_model`.

    :param path: of the recipe, a Python file with a function ``get_model``
    :param options: of the recipe, as text, as on RETURNN's command line
    :return: a function that runs the recipe when it is called
    :raises ValueError: by that function, if the recipe has no ``get_model``
    """

    def _make_lm(_model: Any, **kwargs: Any) -> Any:
        return _execute(path, options, owner=f"recipe_model: {path}")["get_model"](**kwargs)

    return _make_lm


def _execute(path: str, options: Mapping[str, str], *, owner: str) -> dict[str, Any]:
    """:return: globals of the recipe"""
    config = Config()
    config.dict = {name: [value] for name, value in options.items()}
    namespace: dict[str, Any] = {"__file__": path, "__name__": "recipe", "config": config}
    before = get_global_config(raise_exception=False)
    # Not global_config_ctx: in a graph of TensorFlow, that does not set back what it has set.
    set_global_config(config)
    try:
        with open(path, encoding="utf8") as file:
            exec(compile(file.read(), path, "exec"), namespace)
    finally:
        set_global_config(before)
    if not callable(namespace.get("get_model")):
        raise ValueError(f"{owner}: expected a function get_model")
    return namespace
