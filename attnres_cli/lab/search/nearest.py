"""The nearest budget that has a shape, where the one that was asked for has none.

Parameters are gone through outwards, in bands: where no depth, heads and width of the space come
near a band it is left out, elsewhere every edge is tried at which the shapes may change, and steps
far below the tolerance between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnres_cli.errors import UsageError
from attnres_cli.lab.search.budget import TOLERANCE, Budget, write
from attnres_cli.lab.search.space import Space
from attnres_cli.lab.search.trunk_grid import spans
from attnres_cli.nn.shape import Shape

if TYPE_CHECKING:
    from attnres_cli.lab.search.points import Point

LARGEST = 10**9
"""Parameters up to which budgets are tried, or a thousand times those that were asked for."""

_BAND = 1.1  # of parameters; FLOPs grow as their square
_FINE = TOLERANCE / 10
_MOST_EDGES = 64  # of one width; with more of them its d_ff are finer than the tolerance
_MOST_STEPS = 110  # from 100 on whole steps hold any FLOPs within the tolerance


@dataclass(frozen=True)
class Near:
    """Where budgets are looked for.

    Attributes:
        space: that has no shape.
        shape: of the recipe, for what is not searched.
        listed: the points of each variant at a budget.
        has_one: whether a budget has a shape.

    """

    space: Space
    shape: Shape
    listed: Callable[[Budget], Mapping[Any, Sequence[Point]]]
    has_one: Callable[[Budget], bool]

    def budget(self, asked: Budget) -> Budget | None:
        """The nearest by ratio: in parameters first, then in FLOPs; None where there is none."""
        if asked.params is None and "params" not in self.space.trunk:
            return self._sized_by_flops(asked)
        params = asked.params
        if params is not None and not self.has_one(_of(params, None)):
            found = _outwards(params, self._params, _BAND)
            if found is None:
                return None
            params = int(found)
        return self._by_steps(params, asked.flops) if asked.flops else _of(params, None)

    def _params(self, near: float, far: float) -> float | None:
        low, high = sorted((near, far))
        held = list(spans(self.space, low, high, self.shape))
        marks = {p for first, last, unit in held for p in _edges(first, last, unit, low, high)}
        if not held:
            return None
        begin, end = min(first for first, _, _ in held), max(last for _, last, _ in held)
        marks |= {round(p) for p in _grid(near, far) if begin <= p <= end}
        return _first(near, marks, lambda params: self.has_one(_of(int(params), None)))

    def _by_steps(self, params: int | None, flops: float) -> Budget | None:
        """With these parameters, the FLOPs nearest to whole steps of what has them."""
        points = [p for held in self.listed(_of(params, None)).values() for p in held]
        costs = {point.flops_per_token * point.base.tokens_per_step for point in points}
        ends = {
            end
            for cost in costs
            for steps in range(1, _MOST_STEPS)
            for end in (
                _digits(steps * cost / (1 + TOLERANCE), math.ceil),
                _digits(steps * cost / (1 - TOLERANCE), math.floor),
            )
        }
        tried = (_of(params, end) for end in sorted(ends, key=lambda end: _away(end, flops)))
        return next((budget for budget in tried if self.has_one(budget)), None)

    def _sized_by_flops(self, asked: Budget) -> Budget | None:
        def first(near: float, far: float) -> float | None:
            sizes = zip(_of(None, near).sizes(), _of(None, far).sizes(), strict=True)
            bands = ((0.99 * min(both), 1.01 * max(both)) for both in sizes)
            if not any(True for band in bands for _ in spans(self.space, *band, self.shape)):
                return None
            marks = {float(f"{flops:.4g}") for flops in _grid(near, far)}
            return _first(near, marks, lambda flops: self.has_one(_of(None, flops)))

        assert asked.flops is not None
        found = _outwards(asked.flops, first, _BAND**2, lambda flops: _of(None, flops).sizes()[-1])
        return None if found is None else _of(None, found)


def impossible(budget: Budget, near: Near) -> str:
    """Why a budget has no shape, with the nearest that has one."""
    space = near.space.text
    start = f"no shape of the space has --budget {budget.text} within {TOLERANCE:.1%}"
    found = near.budget(budget)
    if found is None:
        return (
            f"{start}, nor any other up to {LARGEST:,} parameters: widen {space}, "
            "whose dimensions may contradict each other"
        )
    start = f"{start} ({space}); the nearest that has one is --budget {found.text}"
    try:
        near.listed(found)
    except UsageError as error:
        return f"{start}, but there {error}"
    return start


def _of(params: int | None, flops: float | None) -> Budget:
    text = write(params, flops)
    return Budget(text, params, float(text.rpartition("=")[2]) if flops else None)  # as typed


def _away(value: float, asked: float) -> float:
    return abs(math.log(value / asked))


def _digits(value: float, whole: Callable[[float], int]) -> float:
    """To five digits, up or down."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 4)
    return float(f"{whole(value / unit) * unit:.5g}")


def _outwards(
    asked: float,
    first: Callable[[float, float], float | None],
    band: float,
    params: Callable[[float], float] = float,
) -> float | None:
    """The nearest to what was asked for, below or above it, up to the largest model.

    Args:
        asked: parameters or FLOPs.
        first: the first between two, None where there is none.
        band: the ratio of those two.
        params: of the largest model at such a budget.

    """
    most = max(LARGEST, 1000 * params(asked))
    low = high = float(asked)
    while params(low) > 1 or params(high) < most:
        found = []
        if params(low) > 1:
            found.append(first(low, low / band))
            low /= band
        if params(high) < most:
            found.append(first(high, high * band))
            high *= band
        hits = [hit for hit in found if hit is not None]
        if hits:
            return min(hits, key=lambda hit: _away(hit, asked))
    return None


def _grid(near: float, far: float) -> Iterator[float]:
    """From one to the other in equal ratios, far below the tolerance."""
    n = math.ceil(_away(far, near) / _FINE)
    return (near * (far / near) ** (i / n) for i in range(n + 1))


def _edges(first: float, last: float, unit: float, low: float, high: float) -> Iterator[int]:
    """Whole numbers on both sides of where a width's own d_ff changes."""
    n = round((last - first) / unit)
    for i in range(0, n + 1, max(1, n // _MOST_EDGES)):
        edge = first + i * unit if i + n // _MOST_EDGES <= n else last
        yield from (p for p in (math.floor(edge), math.ceil(edge)) if low <= p <= high and p > 0)


def _first(near: float, marks: Iterable[float], has_one: Callable[[float], bool]) -> float | None:
    """The first mark that has one, or what lies between it and the mark before."""
    missed = near
    for mark in sorted((mark for mark in marks if mark > 0), key=lambda mark: _away(mark, near)):
        if has_one(mark):
            return _closer(missed, mark, has_one)
        missed = mark
    return None


def _closer(missed: float, found: float, has_one: Callable[[float], bool]) -> float:
    """The end of what has one, between what has none and what has, in whole numbers of five digits
    or more.
    """
    while abs(found - missed) > max(1.0, _FINE / 50 * found):
        middle = float(round((missed + found) / 2))
        missed, found = (missed, middle) if has_one(middle) else (middle, found)
    return found
