"""Paired differences by seed: their mean, interval and test; what lies far from the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

CONFIDENCE = 0.95

_FAR = 0.01  # the rate at which normal values are said to have one that lies far
_FAR_FROM = 5  # values

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """Paired differences arm minus baseline of n seeds, in the unit of what was compared."""

    n: int
    mean: float
    sd: float
    ci95: tuple[float, float]  # two-sided t interval of the mean, for this one alone
    p: float  # two-sided, of the paired t test, for this one alone


def paired(arm: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The paired t test of arm minus baseline, the values of one seed at the same place of both.

    The t test takes the differences as normal. Where the arms do not differ at all, a seed's two
    losses could as well be exchanged, so the differences are symmetric, and tails heavier than a
    normal's make the test err to the safe side; tails lighter than that do not. Raises ValueError
    below two pairs, or where differences have no spread.
    """
    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (arm, baseline))
    values = ours - theirs
    n = len(values)
    if n < 2:
        raise ValueError(f"a paired test takes two shared seeds or more, got {n}")
    mean, sd = float(values.mean()), float(values.std(ddof=1))
    if mean == 0 and sd == 0:
        return Difference(n, 0.0, 0.0, (0.0, 0.0), 1.0)
    # Rounding alone leaves about this much spread between numbers of that size.
    largest = max(float(np.abs(each).max()) for each in (ours, theirs))
    if sd <= 8 * np.finfo(np.float64).eps * largest:
        raise ValueError(f"all {n} differences are {mean:.6g}: no spread, so no test")
    p = 2 * float(scipy.special.stdtr(n - 1, -abs(mean / (sd / math.sqrt(n)))))
    return Difference(n, mean, sd, mean_interval(values), p)


def apart(one: Difference, other: Difference, alpha: float) -> tuple[float, tuple[float, float]]:
    """The first mean minus the second, and its interval at 1 - alpha, of differences whose seeds
    have nothing in common, with unequal spreads (Welch).
    """
    a, b = one.sd**2 / one.n, other.sd**2 / other.n
    mean, error = one.mean - other.mean, math.sqrt(a + b)
    if not error:
        return mean, (mean, mean)
    degrees = (a + b) ** 2 / (a**2 / (one.n - 1) + b**2 / (other.n - 1))
    half = float(scipy.special.stdtrit(degrees, 1 - alpha / 2)) * error
    return mean, (mean - half, mean + half)


def mean_interval(values: Floats) -> tuple[float, float]:
    """Two-sided 95 % t interval of the mean of two values or more."""
    n = len(values)
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n)
    half = float(scipy.special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * error
    return mean - half, mean + half


def holm(p: Sequence[float]) -> list[float]:
    """P values corrected for their number, in the order given (Holm 1979)."""
    adjusted = [0.0] * len(p)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, (len(p) - rank) * p[index])
        adjusted[index] = min(1.0, running)
    return adjusted


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


@dataclass(frozen=True)
class Signs:
    """Of paired differences: their median, and p of the two-sided sign test, for this one alone."""

    median: float
    p: float


def signs(values: Sequence[float]) -> Signs:
    """What most of one or more differences say. Differences of 0 are no sign of anything."""
    array = np.asarray(values, dtype=np.float64)
    less, more = int((array < 0).sum()), int((array > 0).sum())
    p = min(1.0, 2 * float(scipy.special.bdtr(min(less, more), less + more, 0.5)))
    return Signs(float(np.median(array)), p)


def far(values: Sequence[float]) -> list[int]:
    """The places of values that lie farther from the others than normal values do in 99 of 100
    samples (Grubbs 1969: each against mean and sd of the rest); none of fewer than five.
    """
    array = np.asarray(values, dtype=np.float64)
    n = len(array)
    if n < _FAR_FROM:
        return []
    edge, found = float(scipy.special.stdtrit(n - 2, 1 - _FAR / (2 * n))), []
    for place in range(n):
        rest = np.delete(array, place)
        error = float(rest.std(ddof=1)) * math.sqrt(1 + 1 / (n - 1))
        if abs(float(array[place] - rest.mean())) > edge * error:
            found.append(place)
    return found
