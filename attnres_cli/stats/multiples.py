"""What a difference in loss is worth: how many times its tokens the baseline needs for it.

The baseline's loss is known at two budgets of tokens or more besides its own. Between them it is
interpolated over ln(tokens), by a polynomial through the two nearest and their neighbors: a chord
would be off by more than seeds are apart. The multiple m is where that loss is the arm's. Its
interval holds every m at which a t test between the arm and the baseline with m times the tokens
finds no difference (Fieller 1954). At m = 1 that is the test of the verdict, so the interval leaves
out 1 if the difference's leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise, permutations

import numpy as np
import scipy
from numpy.typing import NDArray

from attnres_cli.stats.pairs import Difference

Floats = NDArray[np.float64]
_FEWEST = 2  # budgets besides the own
_STEPS = 2000  # of the grid over all budgets: 0.0014 of m, where they span a factor of 16


@dataclass(frozen=True)
class Budget:
    """How much lower the baseline's loss is at `ratio` times its tokens than at its own, in nats.

    Attributes:
        ratio: above 0, not 1.
        drop: mean over n runs; negative where the ratio is below 1.
        error: standard error of that mean.
        by_seed: the drop of each seed, where both budgets have it.
    """

    ratio: float
    drop: float
    error: float
    n: int
    by_seed: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Worth:
    """A multiple of the baseline's tokens, with its interval, within budgets that were measured
    from `least` to `most` times the tokens. A value of 0 is below the least, infinity above the
    most.
    """

    value: float
    low: float
    high: float
    least: float
    most: float

    @property
    def at_least(self) -> float:
        """The value; of one above the budgets that were measured, the most of these."""
        return min(self.value, self.most)

    def over(self, ratio: float, error: float = 0.0) -> Worth:
        """The same at equal time, where a step takes `ratio` times the baseline's; `error` is the
        half-width of the interval of ln(ratio).
        """
        value, least, most = (end / ratio for end in (self.value, self.least, self.most))
        low, high = (_wider(end, self.value, error) / ratio for end in (self.low, self.high))
        return Worth(value, low, high, least, most)


def worth(
    difference: Difference,
    interval: tuple[float, float],
    by_seed: Mapping[int, float],
    budgets: Sequence[Budget],
) -> Worth | None:
    """What a difference of an arm, by seed `by_seed`, is worth. `interval` is the difference's,
    however wide the table's arms and looks make it: this interval is as wide. None where loss does
    not fall from budget to budget, or fewer than two budgets are known.
    """
    if not _falls(budgets):
        return None
    curve, places, grid, weights, drop = _interpolated(budgets)
    excess = -difference.mean - drop  # what the arm is below the baseline at each budget
    error, degrees = _error(difference, by_seed, curve, weights)
    below, above = (
        scipy.special.stdtrit(degrees, 1 - _rate(difference, half) / 2) * error
        for half in (difference.mean - interval[0], interval[1] - difference.mean)
    )
    value = _crossing(grid, excess, 0, math.inf)
    return Worth(
        value,
        low=min(value, _crossing(grid, excess - above, 0, math.inf)),
        high=max(value, _crossing(grid, excess + below, 0, math.inf)),
        least=math.exp(places[0]),
        most=math.exp(places[-1]),
    )


def course(budgets: Sequence[Budget]) -> tuple[Floats, Floats] | None:
    """Multiples of the baseline's tokens, from the least to the most that was measured, and how
    much lower it ends there. None as for `worth`.
    """
    if not _falls(budgets):
        return None
    _, _, grid, _, drop = _interpolated(budgets)
    return np.exp(grid), drop


def _falls(budgets: Sequence[Budget]) -> bool:
    """Whether enough budgets are known, and loss falls from each to the next."""
    known = sorted([(1.0, 0.0), *((each.ratio, each.drop) for each in budgets)])
    return len(budgets) >= _FEWEST and all(a < b for (_, a), (_, b) in pairwise(known))


def _interpolated(
    budgets: Sequence[Budget],
) -> tuple[list[Budget], list[float], Floats, Floats, Floats]:
    """The budgets in order, their places, a grid over these with its weights, the drops there."""
    curve = sorted(budgets, key=lambda budget: budget.ratio)
    places = sorted([0.0, *(math.log(each.ratio) for each in curve)])
    grid, weights = _weights(tuple(places))
    return curve, places, grid, weights, weights @ np.array([each.drop for each in curve])


def _wider(end: float, value: float, error: float) -> float:
    """The end of the interval of a product, whose other factor is 1 within exp(+-error)."""
    if not (0 < end < math.inf and 0 < value < math.inf):
        return end
    half = math.log(end / value)
    return value * math.exp(math.copysign(math.hypot(half, error), half))


def _rate(difference: Difference, half: float) -> float:
    """The error rate of a t interval of a difference that reaches so far to both sides: what
    several looks have in common reaches less far to one than to the other.
    """
    if difference.sd == 0 or half == 0:
        return 0.05
    t = half / (difference.sd / math.sqrt(difference.n))
    return 2 * float(scipy.special.stdtr(difference.n - 1, -t))


@cache
def _weights(places: tuple[float, ...]) -> tuple[Floats, Floats]:
    """A grid of ln(tokens) over these places, 0 among both, and for each of its points the weights
    by which interpolation takes the drops at the places but 0: Lagrange's polynomials.
    """
    grid = np.union1d(np.linspace(places[0], places[-1], _STEPS + 1), places)
    rows = np.zeros((len(grid), len(places)))
    stretch = np.clip(np.searchsorted(places, grid) - 1, 0, len(places) - 2)
    for at in range(len(places) - 1):
        points, near = stretch == at, _near(places, at)
        for place in near:
            factors = [(grid[points] - p) / (place - p) for p in near if p != place]
            rows[points, places.index(place)] = np.prod(factors, axis=0)
    return grid, np.delete(rows, places.index(0.0), axis=1)


def _near(places: Sequence[float], at: int) -> Sequence[float]:
    """The ends of the stretch that starts at a place, and its neighbors, one on either side."""
    return places[max(0, at - 1) : at + 3]


def _error(
    difference: Difference, by_seed: Mapping[int, float], curve: Sequence[Budget], weights: Floats
) -> tuple[Floats, Floats]:
    """Standard error of difference plus interpolated drop at each point of the grid, and its
    degrees of freedom: those of the paired values where every seed has them all, else by
    Welch and Satterthwaite.
    """
    n = difference.n
    seeds = sorted(by_seed)
    if len(seeds) == n and all(set(each.by_seed) == set(seeds) for each in curve):
        drops = np.array([[each.by_seed[seed] for each in curve] for seed in seeds])
        values = np.array([by_seed[seed] for seed in seeds])[:, None] + drops @ weights.T
        return values.std(axis=0, ddof=1) / math.sqrt(n), np.full(len(weights), n - 1.0)
    own = difference.sd**2 / n
    theirs = (weights**2) * np.array([each.error**2 for each in curve])
    of_curve = np.einsum("gi,ij,gj->g", weights, _between(curve), weights)
    together = own + of_curve + 2 * weights @ _covariances(difference, by_seed, curve)
    total = np.maximum(together, own / n)
    degrees = np.array([max(1, each.n - 1) for each in curve])
    freedom = own**2 / (n - 1) + (theirs**2 / degrees).sum(axis=1)
    at_own = np.full_like(freedom, n - 1.0)  # of an arm whose every loss is the baseline's
    whole = (own + theirs.sum(axis=1)) ** 2
    return np.sqrt(total), np.divide(whole, freedom, out=at_own, where=freedom > 0)


def _covariances(
    difference: Difference, by_seed: Mapping[int, float], curve: Sequence[Budget]
) -> Floats:
    """Of the mean difference with the mean drop at each budget: they share the baseline's runs."""
    mine = [_shared(by_seed, each.by_seed) / (difference.n * each.n) for each in curve]
    return np.array(mine)


def _between(curve: Sequence[Budget]) -> Floats:
    """Of the mean drops at two budgets, which share the baseline's runs too."""
    found = np.diag([each.error**2 for each in curve])
    for (i, one), (j, other) in permutations(enumerate(curve), 2):
        found[i, j] = _shared(one.by_seed, other.by_seed) / (one.n * other.n)
    return found


def _shared(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """The sum over seeds of covariances of two values of a seed; 0 where two seeds lack both."""
    seeds = sorted(set(one) & set(other))
    if len(seeds) < 2:
        return 0.0
    pairs = np.array([(one[seed], other[seed]) for seed in seeds])
    return float(np.cov(pairs.T)[0, 1]) * len(seeds)


def _crossing(grid: Floats, excess: Floats, below: float, above: float) -> float:
    """Exp of where `excess` falls to 0, going out from the baseline's own budget."""
    start = int(np.searchsorted(grid, 0.0))
    step = 1 if excess[start] > 0 else -1
    at = start
    while 0 <= at + step < len(grid):
        here, there = excess[at], excess[at + step]
        if (here > 0) != (there > 0) or there == 0:
            share = here / (here - there) if here != there else 0.0
            return math.exp(grid[at] + share * (grid[at + step] - grid[at]))
        at += step
    if excess[at] == 0:
        return math.exp(grid[at])
    return above if step > 0 else below
