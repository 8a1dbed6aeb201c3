"""
What takes part in a search beside the model, as a config's ``search_options`` say: language models, phrases that are
expected, a list of the words that there are. Together they are one scorer, for any model whose ``search`` takes ``lm``.
The model's ``fusion_parts`` make it, see :class:`returnn_common.models.fusion.FusionParts`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from returnn.config import Config

from .. import nn
from ..nn.labels import scored_labels
from .search_options import LANGUAGE_MODELS, SearchOptions, check_search_options
from .vocabulary import TargetLabels, config_labels

__all__ = ["Fusion", "fusion_of", "part_names", "part_scales", "scale_options"]


@dataclass(frozen=True)
class Fusion:
    """
    :param arguments: of the model's search
    :param lm: with ``scorer()``, ``bos`` and ``eos``; None: there is none
    :param parts: what else gives scores to hypotheses, with scale 1
    :param bos: begin of sentence of the parts
    :param eos: end of sentence of the parts
    """

    arguments: Mapping[str, Any]
    lm: Any
    parts: Mapping[str, Any]
    bos: int | None
    eos: int | None

    def score_parts(
        self, model: Any, hypotheses: Any, source: nn.Tensor, *, in_spatial_dim: nn.Dim
    ) -> dict[str, nn.Tensor]:
        """
        :param model: with ``score_hypotheses``
        :param hypotheses: of its search
        :param source: from which they are
        :return: for each part of the model, "lm" and the others, ``{batch, beam}``, natural log
        :raises ValueError: if it has no ``score_hypotheses``
        """
        if not hasattr(model, "score_hypotheses"):
            raise ValueError(f"recog_step: recog_components_file: {type(model).__name__} has no score_hypotheses")
        kwargs: dict[str, Any] = {}
        if self.lm is not None:
            kwargs = {"lm": self.lm.scorer(), "bos": self.lm.bos, "eos": self.lm.eos}
        kwargs.update(_internal_lm(model, self.arguments))
        found = dict(model.score_hypotheses(hypotheses, source, in_spatial_dim=in_spatial_dim, **kwargs))
        for name, scorer in self.parts.items():
            assert self.bos is not None and self.eos is not None
            labels = nn.set_sparse_dim(hypotheses.labels, scorer.vocab_dim)
            found[name] = _maker(model).score_labels(
                scorer, labels, spatial_dim=hypotheses.spatial_dim, bos=self.bos, eos=self.eos
            )
        return found


def fusion_of(model: Any, options: SearchOptions, config: Config) -> Fusion:
    """
    :param model: with a method ``search``; language models that are folders are its ``recog_lm`` and
        ``recog_transcript_lm``, see :func:`returnn_common.training.language_model.with_language_models`
    :param options: see :func:`.search_options.read_search_options`
    :param config: for the vocabulary
    :return: made once for each model and options
    :raises ValueError: for what the search does not take, or what does not fit the model
    """
    scored = bool(config.value("recog_components_file", None))
    key = (options, scored)
    if getattr(model, "_recog_fusion", (None,))[0] != key:
        model._recog_fusion = (key, _make_fusion(model, options, config_labels(config), scored=scored))
    return model._recog_fusion[1]


def _make_fusion(model: Any, options: SearchOptions, labels: TargetLabels | None, *, scored: bool) -> Fusion:
    check_search_options(model, options)
    scored = scored or options.rescore
    lms = {name: _find_lm(model, name, options, labels, scored=scored) for name in LANGUAGE_MODELS}
    lms = {name: lm for name, lm in lms.items() if lm is not None}
    scales = {"lm": options.lm_scale or 0.0, "transcript_lm": -(options.transcript_lm_scale or 0.0)}
    scorers = {} if options.rescore else {name: (lm.scorer(), scales[name]) for name, lm in lms.items() if scales[name]}
    parts = {name: lm.scorer() for name, lm in lms.items() if name != "lm" and scored}
    bos, eos = next(((lm.bos, lm.eos) for lm in lms.values()), (None, None))
    has_words = options.phrases is not None or options.word_list is not None
    if has_words or len(lms) > 1 or (lms and hasattr(model, "decoder")):
        vocab_dim, bos, eos = _common_labels(model, lms, labels)
        if has_words:
            scorers.update(_make_word_scorers(model, options, labels, vocab_dim=vocab_dim, eos=eos))
        if scored and "phrases" in scorers:
            # Of which the scale is the bonus.
            once = dataclasses.replace(options, phrase_bonus=1.0, word_list=None)
            parts["phrases"], _ = _make_word_scorers(model, once, labels, vocab_dim=vocab_dim, eos=eos)["phrases"]
    arguments: dict[str, Any] = {}
    if scorers:
        if not _takes(model.search, "lm"):
            raise ValueError(f"search_options: {type(model).__name__}.search takes no lm, so that nothing can be added")
        lm, lm_scale = (
            scorers["lm"] if scorers.keys() == {"lm"} else (_maker(model).combine(list(scorers.values())), 1.0)
        )
        taken = inspect.signature(model.search).parameters
        ends = {name: label for name, label in (("bos", bos), ("eos", eos)) if name in taken}
        arguments = {"lm": lm, "lm_scale": lm_scale, **ends}
    return Fusion({**arguments, **options.of_model}, lms.get("lm"), parts, bos, eos)


def _make_word_scorers(
    model: Any, options: SearchOptions, labels: TargetLabels | None, *, vocab_dim: nn.Dim, eos: int
) -> dict[str, tuple[Any, float]]:
    """:return: with their scales"""
    if labels is None:
        raise ValueError("search_options: phrases and word_list need a vocabulary, extern_data[target]['vocab']")
    make = _maker(model)
    found: dict[str, tuple[Any, float]] = {}
    if options.phrases is not None:
        phrases = _spell("phrases", options.phrases, labels, make=make)
        found["phrases"] = (make.phrase_bias(phrases, vocab_dim, bonus=options.phrase_bonus or 0.0, eos=eos), 1.0)
    if options.word_list is not None:
        words = _spell("word_list", options.word_list, labels, make=make)
        found["word_list"] = (make.lexicon_scorer(words, vocab_dim, eos=eos, separator=labels.separator), 1.0)
    return found


def _maker(model: Any) -> Any:
    """:return: what makes scorers"""
    if not hasattr(model, "fusion_parts"):
        raise ValueError(
            f"search_options: {type(model).__name__} has no fusion_parts, which makes what takes part in its search; "
            "see returnn_common.models.fusion.FusionParts"
        )
    return model.fusion_parts


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(one.kind == one.VAR_KEYWORD for one in parameters.values())


def _find_lm(model: Any, name: str, options: SearchOptions, labels: TargetLabels | None, *, scored: bool) -> Any:
    """:return: with ``scorer()``, ``bos`` and ``eos``; None: there is none"""
    path, scale = getattr(options, name), getattr(options, LANGUAGE_MODELS[name])
    module = getattr(model, f"recog_{name}", None)
    if module is None and path is None:
        if scale:
            raise ValueError(
                f"search_options: {LANGUAGE_MODELS[name]} {scale} needs {name}, there is no language model"
            )
        return None
    if module is not None and scale is None and not scored:
        raise ValueError(f"search_options: expected {LANGUAGE_MODELS[name]}, for there is a language model")
    if not scale and not scored:
        return None
    if module is not None:
        return module
    if Path(path).is_file():
        return _read_ngram_lm(path, model, labels=labels, name=name)
    if not Path(path).exists():
        raise ValueError(f"{name} {path}: no such folder or file")
    raise ValueError(
        f"{name} {path}: the model has no recog_{name}; in the config, put @with_language_models (of "
        "returnn_common.training.language_model) before get_model"
    )


def _read_ngram_lm(path: str, model: Any, *, labels: TargetLabels | None, name: str) -> Any:
    """:param labels: of the model, which are the words of the file"""
    if labels is None:
        raise ValueError(f"{name} {path}: needs a vocabulary, extern_data[target]['vocab']")
    try:
        ngram = _maker(model).read_arpa(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"{name} {path}: {error}") from None
    known = set(ngram.words) - {"<s>", "</s>", ngram.unknown_word}
    missing = [label for label in labels.names if label not in known]
    if len(missing) == len(labels.names) or (missing and ngram.unknown_word is None):
        raise ValueError(
            f"{name} {path}: its vocabulary is not that of the recogniser: {len(missing)} of {len(labels.names)} "
            f"labels are not among its {len(known)} words: {', '.join(map(repr, missing[:5]))}"
        )
    return _maker(model).ngram_lm(ngram, model, labels=labels.names)


def _common_labels(model: Any, lms: Mapping[str, Any], labels: TargetLabels | None) -> tuple[nn.Dim, int, int]:
    """:return: dim of the labels of all that is beside the model, begin and end of sentence"""
    found = {name: (lm.scorer().vocab_dim, lm.bos, lm.eos) for name, lm in lms.items()}
    if not found or hasattr(model, "decoder"):
        size = 0 if labels is None else len(labels.names)  # without a vocabulary, nothing is added but language models
        found = {"the model": scored_labels(model, size=size), **found}
    (first_name, first), *others = found.items()
    for name, other in others:
        if (other[0].dimension, *other[1:]) != (first[0].dimension, *first[1:]):
            first_is, other_is = (f"{dim.dimension} labels, begin {b}, end {e}" for dim, b, e in (first, other))
            raise ValueError(f"search_options: {name} does not fit {first_name}: it has {other_is}, not {first_is}")
    return first


def _spell(name: str, texts: str | tuple[str, ...], labels: TargetLabels, *, make: Any) -> list[list[int]]:
    where = f"search_options: {name}"
    if isinstance(texts, str):
        where = f"{where} {texts}"
        try:
            lines = Path(texts).read_text("utf8").splitlines()
        except (OSError, UnicodeError) as error:
            raise ValueError(f"{where}: expected a text file: {error}") from None
        texts = tuple(line.strip() for line in lines if line.strip())
        if not texts:
            raise ValueError(f"{where}: expected at least one line with text, got none")
    try:
        return make.spell_words([" ".join(text.split()) for text in texts], labels.encode)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def part_names(model: Any, options: SearchOptions) -> tuple[str, ...]:
    """
    :param model: with ``part_scales``
    :param options: of the search
    :return: parts of :meth:`Fusion.score_parts`
    :raises ValueError: if the model does not tell
    """
    _check_parts(model)
    fused = {name: getattr(options, name) is not None or hasattr(model, f"recog_{name}") for name in LANGUAGE_MODELS}
    fused["phrases"] = options.phrases is not None
    internal = _internal_lm(model, options.of_model)
    return (*model.part_names, *internal, *(name for name, is_there in fused.items() if is_there))


def part_scales(model: Any, options: SearchOptions) -> dict[str, float]:
    """
    :param model: with ``part_scales``, see :meth:`returnn_common.models.aed.AedModel.part_scales`
    :param options: of the search
    :return: with which scale each part of :meth:`Fusion.score_parts` is in the scores of these options, if there is
        such a part; and "length_exponent"
    :raises ValueError: if the model does not tell, or for a value that it refuses
    """
    _check_parts(model)
    taken = inspect.signature(model.part_scales).parameters
    given = {**options.of_model, "lm_scale": options.lm_scale or 0.0}
    scales = dict(model.part_scales(**{name: value for name, value in given.items() if name in taken}))
    scales["transcript_lm"] = -(options.transcript_lm_scale or 0.0)
    scales["phrases"] = options.phrase_bonus or 0.0
    return scales


def scale_options(model: Any) -> list[str]:
    """:return: options of which :func:`part_scales` depend"""
    _check_parts(model)
    return [*inspect.signature(model.part_scales).parameters, "transcript_lm_scale", "phrase_bonus"]


def _check_parts(model: Any):
    if not hasattr(model, "part_scales"):
        raise ValueError(f"{type(model).__name__} has no part_scales, which this needs")


def _internal_lm(model: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """:return: which one ``score_hypotheses`` is to score, of models that have a choice"""
    wanted = {"internal_lm", "internal_lm_scale"} & arguments.keys()
    if not wanted or "internal_lm" not in inspect.signature(model.score_hypotheses).parameters:
        return {}
    return {"internal_lm": arguments.get("internal_lm", "zero")}
