"""Regret: how much better than the chosen setting the best one may be, given noisy losses."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_N_DRAWN = 2**14  # of what the true means may be: averages over them are within 2 %
SURE = 0.8
_LINE = 3  # points of a parabola


def regret(
    losses: Floats, best: int, at: Floats | None = None, chosen_at: float | None = None
) -> float:
    """Difference of the chosen setting's true loss and the best one's, in their unit: the one that
    is not exceeded with probability SURE. A mean would let through too many words about arms that
    tuning has failed (benchmarks/tuning.py).

    `losses` are settings x seeds, the same seeds for all; `best` is the lowest on average, which is
    chosen. The true means are taken to lie around the measured ones with the standard error that
    remains once each seed's own level is taken off. With `at` (where settings lie on a line,
    ascending) only the neighbours of the best count, and the best may lie between them, on the
    parabola through the three; so may what is chosen, `chosen_at`. Without, all settings count.
    Infinite where nothing was tried beside the best, or on one seed.
    """
    if at is not None:
        near = slice(max(0, best - 1), best + 2)
        losses, at, best = losses[near], at[near], min(best, 1)
    n_settings, n_seeds = losses.shape
    if n_settings == 1 or n_seeds == 1:
        return math.inf
    rest = losses - losses.mean(axis=1, keepdims=True) - losses.mean(axis=0) + losses.mean()
    error = math.sqrt((rest**2).sum() / ((n_settings - 1) * (n_seeds - 1)) / n_seeds)
    means = losses.mean(axis=1) + error * _drawn(n_settings)
    if at is None or n_settings < _LINE:
        return float(np.quantile(means[:, best] - means.min(axis=1), SURE))
    chosen, lowest = _on_parabolas(at, means, at[best] if chosen_at is None else chosen_at)
    return float(np.quantile(chosen - lowest, SURE))


@cache
def _drawn(n: int) -> Floats:
    """(N, n) standard normal numbers, always the same ones."""
    return np.random.default_rng(0).standard_normal((_N_DRAWN, n))


def _on_parabolas(at: Floats, means: Floats, place: float) -> tuple[Floats, Floats]:
    """On the parabolas through (N, 3) losses: the value at a place, and the least between the outer
    points.
    """
    (a, b, c), (left, middle, right) = at, means.T
    slope = (middle - left) / (b - a)
    bend = ((right - middle) / (c - b) - slope) / (c - a)
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = np.where(bend > 0, (a + b) / 2 - slope / (2 * bend), a).clip(a, c)

    def value(x: Floats | float) -> Floats:
        found: Floats = left + slope * (x - a) + bend * (x - a) * (x - b)
        return found

    return value(place), np.minimum(value(vertex), means.min(axis=1))
