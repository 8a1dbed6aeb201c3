"""
Which scales are tuned: ranges and values from the command line, and what they mean for the parts of a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...recog.components import LENGTH_EXPONENT
from ...recog.fusion import part_names, part_scales, scale_options
from ...recog.search_options import SearchOptions, change_search_options, parse_search_options
from ...recog.tuning import grid, random_points
from ..errors import CommandError

__all__ = ["PartScales", "check_tuning", "choose_points"]

_DEFAULTS = {
    "lm_scale": "0:1:0.1",
    "transcript_lm_scale": "0:1:0.1",
    "ctc_scale": "0:0.9:0.1",
    "length_exponent": "0:2:0.25",
}
_MAX_POINTS = 200_000


class PartScales:
    """
    From options of the search to scales of the model's parts.

    :param model: in this process
    :param options: that hold where a point has no others
    :param what: whose model, for the message
    :raises CommandError: if the model does not say which scales its search has
    """

    def __init__(self, model: Any, options: SearchOptions, *, what: str):
        self._model = model
        self._options = options
        try:
            self.names = part_names(model, options)
        except ValueError as error:
            raise CommandError(f"{what}: {error}") from None

    def __call__(self, point: Mapping[str, float]) -> dict[str, float]:
        """
        :param point: options of the search
        :return: scales of the parts that there are
        :raises CommandError: for a value that the model refuses
        """
        try:
            scales = part_scales(self._model, change_search_options(self._options, point))
        except (ValueError, TypeError) as error:
            raise CommandError(f"scales {dict(point)}: {error}") from None
        return {name: scale for name, scale in scales.items() if name in (*self.names, LENGTH_EXPONENT)}

    def relevant(self) -> list[str]:
        """:return: options that change the scale of a part that there is, and of no other"""
        before = part_scales(self._model, self._options)
        found = []
        for option in scale_options(self._model):
            after = part_scales(self._model, change_search_options(self._options, {option: 0.123456}))
            changed = [name for name in after if after[name] != before.get(name)]
            if changed and all(name in (*self.names, LENGTH_EXPONENT) for name in changed):
                found.append(option)
        return found


def check_tuning(model: Any, options: Mapping[str, Any], *, what: str):
    """
    Before a training: the recipe's ``tune``.

    :param model: in this process
    :param options: ``search_options``
    :param what: whose, for the message
    :raises CommandError: see :func:`choose_points`
    """
    try:
        read = parse_search_options(options, needs_scale=False)
        choose_points(read.tune or (), scales=PartScales(model, read, what=what), num_random=None)
    except (ValueError, CommandError) as error:
        raise CommandError(f"{what}: {error}") from None


def choose_points(asked: Sequence[str], *, scales: PartScales, num_random: int | None) -> list[dict[str, float]]:
    """
    :param asked: ``OPTION=LOW:HIGH:STEP`` or ``OPTION=VALUE,VALUE,...``; none: all options, in usual ranges
    :param scales: of the model
    :param num_random: so many at random, of ranges ``OPTION=LOW:HIGH``; None: a grid
    :return: what is to be tried
    :raises CommandError: if something of it makes no sense
    """
    relevant = scales.relevant()
    texts: dict[str, str] = {}
    for item in asked:
        name, equals, text = item.partition("=")
        if name not in relevant or not equals or name in texts:
            raise CommandError(
                f"--tune {item}: expected OPTION=LOW:HIGH:STEP or OPTION=VALUE,VALUE,..., each OPTION once, of "
                f"{', '.join(relevant) or 'none'}"
            )
        texts[name] = text
    texts = texts or {name: _DEFAULTS[name] for name in relevant if name in _DEFAULTS}
    if not texts:
        raise CommandError("--tune: the model has no scales to tune; give it a language model by --lm")
    if num_random is not None:
        if num_random < 1:
            raise CommandError(f"--tune-random {num_random}: expected at least 1")
        ranges = {name: _range(name, text) for name, text in texts.items()}
        points: Iterator[dict[str, float]] = random_points(ranges, num=num_random)
    else:
        values = {name: _values(name, text) for name, text in texts.items()}
        num = math.prod(map(len, values.values()))
        if num > _MAX_POINTS:
            raise CommandError(f"--tune: {num} points are too many, expected at most {_MAX_POINTS}; use --tune-random")
        points = grid(values)
    chosen = list(points)
    for point in chosen:
        scales(point)  # raises for a value that the model refuses
    return chosen


def _numbers(name: str, text: str, *, separator: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(separator)]
        if all(map(math.isfinite, numbers)):
            return numbers
    except ValueError:
        pass
    raise CommandError(f"--tune {name}={text}: expected numbers")


def _range(name: str, text: str) -> tuple[float, float]:
    numbers = _numbers(name, text, separator=":" if ":" in text else ",")
    low, high = (numbers[0], numbers[1]) if ":" in text and len(numbers) > 1 else (min(numbers), max(numbers))
    if low > high:
        raise CommandError(f"--tune {name}={text}: expected a range from LOW to HIGH")
    return low, high


def _values(name: str, text: str) -> list[float]:
    if ":" not in text:
        return _numbers(name, text, separator=",")
    numbers = _numbers(name, text, separator=":")
    if len(numbers) != 3 or numbers[2] <= 0 or numbers[0] > numbers[1]:
        raise CommandError(f"--tune {name}={text}: expected LOW:HIGH:STEP, from LOW to HIGH in steps above 0")
    low, high, step = numbers
    num = min(math.floor((high - low) / step + 1e-9), _MAX_POINTS) + 1
    return [round(low + i * step, 10) for i in range(num)]
