"""The space of a search as it is typed: `aspect=15..75,heads_per_layer=0.3..0.7,n_blocks=2..16`.

| typed       | means                                                                          |
|-------------|--------------------------------------------------------------------------------|
| a..b        | from a to b, both included: sizes and ratios every one that the budget has,     |
|             | whole numbers of an option each, lr and mlp_ratio by factors of the square root |
|             | of 2, params by factors of 2                                                    |
| a..b..step  | a, a + step, ... up to b                                                        |
| v or v|w|x  | these; of aspect and heads_per_layer the nearest that the budget has            |

Options of designs are those of their constructors' signatures.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnres_cli.config.sections import parse_count
from attnres_cli.errors import UsageError, unknown
from attnres_cli.nn import variant
from attnres_cli.nn.residual import registry

SLACK = 0.1
"""The share by which d_ff / d_model of the trunk may leave its ratio to hold the budget."""

_SIZES = ("n_layers", "d_model", "n_heads", "d_head")  # whole; of a range all that the budget has
_RATIOS = ("aspect", "heads_per_layer")  # d_model / n_layers and n_heads / n_layers
_LADDERS = {"mlp_ratio": math.sqrt(2), "lr": math.sqrt(2), "params": 2.0}
"""Dimensions that a range goes through by a factor."""
TRUNK = (*_SIZES, *_RATIOS, *_LADDERS)
"""Every name of a dimension that is not an option of a design."""

_DEFAULT = {
    ("aspect", "n_layers", "d_model"): "15..75",
    ("heads_per_layer", "n_heads", "d_head"): "0.3..0.7",
}
"""The ranges of the paper's Fig. 7, each of the first where the space says nothing of its kind."""

_LEAST = {"n_layers": 1, "d_model": 2, "n_heads": 1, "d_head": 2}
_MOST = {"n_layers": 1000}  # as in a recipe
_TINY, _HUGE = 1e-12, 1e12  # of anything else
_MOST_VALUES = 1000
_RANGE = re.compile(r"([^|]+?)\.\.([^|]+?)(?:\.\.([^|]+))?")


@dataclass(frozen=True)
class Dimension:
    """What one thing may be: from low to high, or one of `values`, which are sorted numbers for all
    but options of designs.
    """

    name: str
    text: str = ""
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether it may be that: a ratio if it stands for a listed one."""
        if not self.values:
            return self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)
        return self.nearest(value) is not None if self.name in _RATIOS else value in self.values

    def is_near(self, value: float) -> bool:
        """Whether what is about that may be held: asked before each of many is looked at."""
        low, high = self.low, self.high
        if self.values:
            low, high = self.values[0] / 2, self.values[-1] * 2
        return low * (1 - 2 * SLACK) <= value <= high * (1 + 2 * SLACK)

    def nearest(self, value: float) -> float | None:
        """The listed value that this one stands for: the nearest by ratio. None where it lies
        further out than half a gap of the list, or 5 % where one value is listed alone.
        """
        if not self.values:
            return None
        logs = [math.log(listed) for listed in self.values]
        gaps = [b - a for a, b in itertools.pairwise(logs)] or [2 * math.log(1.05)]
        log = math.log(value)
        if not logs[0] - gaps[0] / 2 <= log <= logs[-1] + gaps[-1] / 2:
            return None
        return float(f"{math.exp(min(logs, key=lambda listed: abs(listed - log))):.9g}")

    def whole(self, most: int) -> Iterable[int]:
        """The whole numbers from 1 that it allows."""
        if self.values:
            return [value for value in self.values if value <= most]
        return range(max(1, math.ceil(self.low)), math.floor(min(most, self.high)) + 1)


@dataclass(frozen=True)
class Space:
    """Dimensions of the trunk, and options of designs."""

    trunk: Mapping[str, Dimension]
    options: Mapping[str, Dimension]

    @property
    def text(self) -> str:
        """As it is typed."""
        every = [*self.trunk.values(), *self.options.values()]
        return ",".join(f"{dimension.name}={dimension.text}" for dimension in every)

    def size(self, name: str) -> Dimension:
        """What a size or a ratio of the trunk may be; anything where the space says nothing."""
        return self.trunk.get(name) or Dimension(name)

    def of(self, spec: variant.Variant) -> dict[str, Dimension]:
        """The options that are searched for this variant: those it has and was not given."""
        left_open = _options(spec).keys() - dict(spec.options).keys()
        return {name: held for name, held in self.options.items() if name in left_open}


def parse(text: str, specs: Sequence[variant.Variant]) -> Space:
    """The space of that text for these variants, with the default ranges where it is silent."""
    typed: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, values = part.partition("=")
        if not values:
            raise UsageError(f"--space takes dimension=values, as n_layers=4..16, got '{part}'")
        if name in typed:
            raise UsageError(f"--space: dimension '{name}' is given twice")
        typed[name] = values
    for kind, values in _DEFAULT.items():
        if not any(name in typed for name in kind):
            typed[kind[0]] = values
    options = {name: values for name, values in typed.items() if name not in TRUNK}
    return Space(
        {name: _of_trunk(name, typed[name]) for name in TRUNK if name in typed},
        {name: _of_option(name, values, _option(name, specs)) for name, values in options.items()},
    )


def _options(spec: variant.Variant) -> Mapping[str, variant.Option]:
    return variant.options_of(registry()[spec.name])


def _option(name: str, specs: Sequence[variant.Variant]) -> variant.Option:
    """What the first variant that has the option, and leaves it open, declares of it."""
    having = [spec for spec in specs if name in _options(spec)]
    for spec in having:
        if name not in dict(spec.options):
            return _options(spec)[name]
    if having:
        raise UsageError(f"--space {name}: {having[0]} has it fixed; leave it out of one of both")
    others = [key for key, cls in registry().items() if name in variant.options_of(cls)]
    if others:
        raise UsageError(
            f"--space {name}: no variant of this search has it ({', '.join(map(str, specs))}); "
            f"{', '.join(others)} would"
        )
    mine = {key for spec in specs for key in _options(spec)}
    raise UsageError("--space: " + unknown("dimension", name, [*TRUNK, *mine]))


def _of_trunk(name: str, text: str) -> Dimension:
    found = _RANGE.fullmatch(text)
    parts = list(filter(None, found.groups())) if found else text.split("|")
    numbers = [_number(name, part) for part in parts]
    if not found:
        return Dimension(name, text, tuple(sorted(set(numbers))))
    low, high, *step = _checked(name, numbers)
    if step:
        return Dimension(name, text, _stepped(name, low, high, step[0]))
    if name in _LADDERS:
        return Dimension(name, text, _ladder(low, high, _LADDERS[name]))
    return Dimension(name, text, (), low, high)


def _number(name: str, text: str) -> float:
    """A number of a dimension of the trunk, an int of one in whole numbers."""
    is_whole = name in _SIZES or name == "params"
    try:
        number = float(str(parse_count(text)))
    except ValueError:
        number = math.nan
    if not _LEAST.get(name, _TINY) <= number <= _MOST.get(name, _HUGE):  # nor nan
        kind = "a whole number" if is_whole else "a number"
        above = f"from {_LEAST[name]:g} up" if name in _LEAST else "above 0"
        limit = f" to {_MOST.get(name, _HUGE):g}" if name in _MOST or number > _HUGE else ""
        ends = ", or a range with both ends as 2..8" if ".." in text else ""
        raise UsageError(f"--space {name}: expected {kind} {above}{limit}{ends}, got '{text}'")
    if is_whole and number != int(number):
        raise UsageError(f"--space {name}: expected a whole number, got '{text}'")
    return int(number) if is_whole else number


def _checked(name: str, numbers: Sequence[float]) -> Sequence[float]:
    """Low, high and step of a range. Raises UsageError."""
    low, high, *step = numbers
    if max(map(abs, numbers)) > _HUGE:
        raise UsageError(f"--space {name}: numbers up to {_HUGE:g} are searched")
    if low > high:
        raise UsageError(
            f"--space {name}={low:g}..{high:g} is empty: the smaller number first, "
            f"{name}={high:g}..{low:g}"
        )
    if step and not step[0] > 0:
        raise UsageError(f"--space {name}: a step is above 0, got {step[0]:g}")
    return numbers


def _stepped(name: str, low: float, high: float, step: float) -> tuple[float, ...]:
    n = math.floor((high - low) / step * (1 + 1e-12)) + 1
    if n > _MOST_VALUES:
        raise UsageError(f"--space {name}: {n:,} values, at most {_MOST_VALUES} are searched")
    values = (low + i * step for i in range(n))
    return tuple(v if isinstance(v, int) else float(f"{v:.12g}") for v in values)


def _ladder(low: float, high: float, factor: float) -> tuple[float, ...]:
    """From low to high in equal ratios near the factor; whole numbers between whole ones."""
    if low == high:
        return (low,)
    n, whole_or_not = max(1, round(math.log(high / low) / math.log(factor))), type(low)
    inner = (float(f"{low * (high / low) ** (i / n):.3g}") for i in range(1, n))
    return (low, *map(whole_or_not, inner), high)


def _of_option(name: str, text: str, option: variant.Option) -> Dimension:
    if found := _RANGE.fullmatch(text):
        try:
            numbers = [int(part) for part in found.groups() if part]
            option.parse(found[1])
        except ValueError:
            raise UsageError(
                f"--space {name}: a range is of whole numbers, list others as a|b; {name} must be "
                f"{option.allowed()}, got '{text}'"
            ) from None
        low, high, *step = _checked(name, numbers)
        return Dimension(name, text, _stepped(name, low, high, step[0] if step else 1))
    try:
        values = dict.fromkeys(option.parse(part) for part in text.split("|"))
    except ValueError as error:
        raise UsageError(f"--space {name}: {name} {error}") from None
    return Dimension(name, text, tuple(values))
