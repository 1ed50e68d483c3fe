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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnres_cli.config.sections import parse_count
from attnres_cli.errors import UsageError, unknown
from attnres_cli.nn import variant
from attnres_cli.nn.residual import Value, registry

SIZES = ("n_layers", "d_model", "n_heads", "d_head")
"""Dimensions in whole numbers; of a range every one that the budget has."""

RATIOS = ("aspect", "heads_per_layer")
"""d_model / n_layers and n_heads / n_layers."""

LADDERS = {"mlp_ratio": math.sqrt(2), "lr": math.sqrt(2), "params": 2.0}
"""Dimensions that a range goes through by a factor."""

DEFAULT = {"aspect": "15..75", "heads_per_layer": "0.3..0.7"}
"""The ranges of the paper's Fig. 7, each held to where the space says nothing of its kind."""

_KIND = {"aspect": ("aspect", "n_layers", "d_model")}
_KIND["heads_per_layer"] = ("heads_per_layer", "n_heads", "d_head")
_LEAST = {"n_layers": 1, "d_model": 2, "n_heads": 1, "d_head": 2}
_MOST = {"n_layers": 1000}  # as in a recipe
_TINY, _HUGE = 1e-12, 1e12  # of anything else
_MOST_VALUES = 1000
_RANGE = re.compile(r"([^|]+?)\.\.([^|]+?)(?:\.\.([^|]+))?")


@dataclass(frozen=True)
class Dimension:
    """What one thing may be: from low to high, or one of `values`."""

    name: str
    text: str
    values: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = math.inf

    def holds(self, value: float) -> bool:
        """Whether it may be that, exactly."""
        return value in self.values if self.values else self.low <= value <= self.high

    def nearest(self, value: float) -> float | None:
        """The listed value that this one stands for: the nearest by ratio. None where it lies
        further out than half a gap of the list, or 5 % where one value is listed alone.
        """
        logs = sorted(math.log(float(listed)) for listed in self.values if listed)
        gaps = [b - a for a, b in itertools.pairwise(logs)] or [2 * math.log(1.05)]
        log = math.log(value)
        if not logs[0] - gaps[0] / 2 <= log <= logs[-1] + gaps[-1] / 2:
            return None
        return float(f"{math.exp(min(logs, key=lambda listed: abs(listed - log))):.9g}")


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

    def of(self, spec: variant.Variant) -> dict[str, Dimension]:
        """The options that are searched for this variant: those it has and was not given."""
        declared, given = variant.options_of(registry()[spec.name]), dict(spec.options)
        return {
            name: dimension
            for name, dimension in self.options.items()
            if name in declared and name not in given
        }


def parse(text: str, specs: Sequence[variant.Variant]) -> Space:
    """The space of that text for these variants, with the default ranges where it is silent."""
    typed: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, values = part.partition("=")
        if not equals or not values:
            raise UsageError(f"--space takes dimension=values, as n_layers=4..16, got '{part}'")
        if name in typed:
            raise UsageError(f"--space: dimension '{name}' is given twice")
        typed[name] = values
    for name, values in DEFAULT.items():
        if not any(kind in typed for kind in _KIND[name]):
            typed[name] = values
    known = (*SIZES, *RATIOS, *LADDERS)
    trunk = {name: _of_trunk(name, typed[name]) for name in known if name in typed}
    options = {
        name: _of_option(name, values, _option(name, specs))
        for name, values in typed.items()
        if name not in known
    }
    return Space(trunk, options)


def _option(name: str, specs: Sequence[variant.Variant]) -> variant.Option:
    """What the first variant that has the option, and leaves it open, declares of it."""
    having = [spec for spec in specs if name in variant.options_of(registry()[spec.name])]
    open_to = [spec for spec in having if name not in dict(spec.options)]
    if open_to:
        return variant.options_of(registry()[open_to[0].name])[name]
    if having:
        raise UsageError(f"--space {name}: {having[0]} has it fixed; leave it out of one of both")
    others = [key for key, cls in registry().items() if name in variant.options_of(cls)]
    if others:
        raise UsageError(
            f"--space {name}: no variant of this search has it ({', '.join(map(str, specs))}); "
            f"{', '.join(others)} would"
        )
    mine = {key for spec in specs for key in variant.options_of(registry()[spec.name])}
    raise UsageError("--space: " + unknown("dimension", name, [*SIZES, *RATIOS, *LADDERS, *mine]))


def _of_trunk(name: str, text: str) -> Dimension:
    whole = name in SIZES or name == "params"
    found = _RANGE.fullmatch(text)
    parts = [part for part in found.groups() if part] if found else text.split("|")
    numbers = [_number(name, part, whole=whole) for part in parts]
    if not found:
        return Dimension(name, text, tuple(sorted(set(numbers))))
    low, high, *step = numbers
    _check_range(name, low, high, step)
    if step:
        return Dimension(name, text, _stepped(name, low, high, step[0]))
    if name in LADDERS:
        return Dimension(name, text, _ladder(low, high, LADDERS[name], whole=whole))
    return Dimension(name, text, (), low, high)


def _number(name: str, text: str, *, whole: bool) -> float:
    value = parse_count(text)
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    least, most = _LEAST.get(name, _TINY), _MOST.get(name, _HUGE)
    if not least <= number <= most:  # nor nan
        kind = "a whole number" if whole else "a number"
        above = f"from {least:g} up" if name in _LEAST else "above 0"
        limit = f" to {most:g}" if name in _MOST or number > _HUGE else ""
        ends = ", or a range with both ends as 2..8" if ".." in text else ""
        raise UsageError(f"--space {name}: expected {kind} {above}{limit}{ends}, got '{text}'")
    if whole and number != int(number):
        raise UsageError(f"--space {name}: expected a whole number, got '{text}'")
    return int(number) if whole else number


def _check_range(name: str, low: float, high: float, step: Sequence[float]) -> None:
    if max(map(abs, (low, high, *step))) > _HUGE:
        raise UsageError(f"--space {name}: numbers up to {_HUGE:g} are searched")
    if low > high:
        raise UsageError(
            f"--space {name}={low:g}..{high:g} is empty: the smaller number first, "
            f"{name}={high:g}..{low:g}"
        )
    if step and not step[0] > 0:
        raise UsageError(f"--space {name}: a step is above 0, got {step[0]:g}")


def _stepped(name: str, low: float, high: float, step: float) -> tuple[float, ...]:
    n = math.floor((high - low) / step * (1 + 1e-12)) + 1
    if n > _MOST_VALUES:
        raise UsageError(f"--space {name}: {n:,} values, at most {_MOST_VALUES} are searched")
    whole = isinstance(low, int) and isinstance(step, int)
    return tuple(low + i * step if whole else float(f"{low + i * step:.9g}") for i in range(n))


def _ladder(low: float, high: float, factor: float, *, whole: bool) -> tuple[float, ...]:
    """From low to high in equal ratios near the factor."""
    n = max(1, round(math.log(high / low) / math.log(factor))) if high > low else 0
    if n == 0:
        return (low,)
    values = [low * (high / low) ** (i / n) for i in range(n + 1)]
    inner = [float(f"{value:.3g}") for value in values[1:-1]]
    return (low, *(int(value) if whole else value for value in inner), high)


def _of_option(name: str, text: str, option: variant.Option) -> Dimension:
    if found := _RANGE.fullmatch(text):
        try:
            low, high, *step = (int(part) for part in found.groups() if part)
            option.parse(found[1])
        except ValueError:
            raise UsageError(
                f"--space {name}: a range is of whole numbers, list others as a|b; {name} must be "
                f"{option.allowed()}, got '{text}'"
            ) from None
        _check_range(name, low, high, step)
        return Dimension(name, text, _stepped(name, low, high, step[0] if step else 1))
    try:
        values = dict.fromkeys(option.parse(part) for part in text.split("|"))
    except ValueError as error:
        raise UsageError(f"--space {name}: {name} {error}") from None
    return Dimension(name, text, tuple(values))
