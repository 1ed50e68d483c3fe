"""Statistics of a comparison: arrays in, values out. No torch, no SQL."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Difference:
    """Paired differences arm minus baseline of n seeds, in the unit of what was compared.

    Attributes:
        ci95: two-sided 95 % t interval of the mean.
        p: two-sided, of the paired t test.
        p_holm: p corrected for all arms of the comparison (Holm 1979).

    """

    n: int
    mean: float
    sd: float
    ci95: tuple[float, float]
    p: float
    p_holm: float


def paired(differences: Sequence[float]) -> Difference:
    """The paired t test of differences with mean 0; p_holm is p until `holm` corrects it.

    Raises:
        ValueError: fewer than two differences, or differences that do not differ at all, of
            which a t test says nothing.

    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n < 2:
        raise ValueError(f"a paired test takes two shared seeds or more, got {n}")
    mean, sd = float(values.mean()), float(values.std(ddof=1))
    if mean == 0 and sd == 0:
        return Difference(n, 0.0, 0.0, (0.0, 0.0), 1.0, 1.0)
    # Rounding alone leaves about this much spread between numbers of that size.
    if sd <= 8 * np.finfo(np.float64).eps * float(np.abs(values).max()):
        raise ValueError(f"all {n} differences are {mean:.6g}: no spread, so no test")
    error = sd / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean / error)))
    return Difference(n, mean, sd, (mean - half, mean + half), p, p)


def holm(p: Sequence[float]) -> list[float]:
    """P values corrected for their number, in the order given (Holm 1979)."""
    corrected = [0.0] * len(p)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, (len(p) - rank) * p[index])
        corrected[index] = min(1.0, running)
    return corrected


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def parabola_vertex(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Where the parabola through three points with ascending x is least, None where it is nowhere.

    With the middle point not above the others it lies between the outer ones.
    """
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (right - left) / (x[2] - x[0])
    if not bend > 0:
        return None
    return (x[0] + x[1]) / 2 - left / (2 * bend)
