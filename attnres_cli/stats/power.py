"""Power: what a study of so many seeds can see, and how many seeds a difference takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtr, stdtrit

Floats = NDArray[np.float64]
POWER = 0.8
"""The share of studies that should find a difference which is there."""

_MOST_SEEDS = 10_000


def _gauss_legendre(n: int) -> tuple[Floats, Floats]:
    """Nodes and weights on [-1, 1], by Newton's method from Tricomi's first guess.

    numpy's leggauss takes eigenvalues on all cores: 20 ms, but seconds where those are busy.
    """
    x = np.cos(np.pi * (np.arange(n, 0, -1) - 0.25) / (n + 0.5))
    slope = x
    for _ in range(6):
        before, here = np.ones(n), x
        for k in range(1, n):
            before, here = here, ((2 * k + 1) * x * here - k * before) / (k + 1)
        slope = n * (x * here - before) / (x * x - 1)
        x = x - here / slope
    return x, 2 / ((1 - x * x) * slope**2)


# The noncentral t as a normal over a chi: a mean over the latter's quantiles (Gauss-Legendre).
# scipy's nctdtr gives nan from a centre of about 20 up.
_NODES, _HALVES = _gauss_legendre(400)
_TAILS, _WEIGHTS = (_NODES + 1) / 2, _HALVES / 2


@dataclass(frozen=True)
class Noise:
    """How far runs that differ in their seed alone lie apart, in the unit of the losses.

    ci95 is of the standard deviation, for normal losses (chi-square).
    """

    n: int
    mean: float
    sd: float
    ci95: tuple[float, float]


def noise(losses: Sequence[float]) -> Noise:
    """The noise floor from runs of one arm.

    Raises:
        ValueError: fewer than two losses.

    """
    values = np.asarray(losses, dtype=np.float64)
    n = len(values)
    if n < 2:
        raise ValueError(f"a noise floor takes two seeds or more, got {n}")
    sd = float(values.std(ddof=1))
    return Noise(n, float(values.mean()), sd, sd_interval(sd, n))


def sd_interval(sd: float, n: int) -> tuple[float, float]:
    """95 % interval of the standard deviation that n normal values have shown (chi-square)."""
    low, high = (sd * math.sqrt((n - 1) / float(chdtri(n - 1, tail))) for tail in (0.025, 0.975))
    return low, high


def power(n: int, effect: float, alpha: float) -> float:
    """The chance that a paired t test of n seeds has p < alpha, of normal differences.

    Args:
        n: pairs, from two up.
        effect: mean over standard deviation of the differences, without sign.
        alpha: two-sided.

    """
    edge, centre = float(stdtrit(n - 1, 1 - alpha / 2)), effect * math.sqrt(n)
    edges = edge * np.sqrt(chdtri(n - 1, _TAILS) / (n - 1))  # in true standard errors
    return float(_WEIGHTS @ (ndtr(centre - edges) + ndtr(-centre - edges)))


def seeds_needed(mean: float, sd: float, alpha: float) -> int | None:
    """Least number of pairs with which such a difference is found with a power of 80 %.

    None where ten thousand pairs are too few.
    """
    if mean == 0:
        return None
    effect = abs(mean) / sd
    if power(_MOST_SEEDS, effect, alpha) < POWER:
        return None
    low, high = 1, _MOST_SEEDS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, effect, alpha) >= POWER else (middle, high)
    return high


def detectable(n: int, sd: float, alpha: float) -> float:
    """The least difference that n pairs find with a power of 80 %, in the unit of sd."""
    return sd * _effect(n, alpha)


@cache
def _effect(n: int, alpha: float) -> float:
    """The least mean over sd that n pairs find with a power of 80 %."""
    high = 1.0
    while power(n, high, alpha) < POWER:
        high *= 2
    return _least(lambda effect: power(n, effect, alpha) >= POWER, high)


def _least(is_enough: Callable[[float], bool], high: float) -> float:
    """The least number up to high for which it is enough, to a millionth of high."""
    low = 0.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
