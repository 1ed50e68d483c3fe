"""Crossed: the mean difference of seeds x items, where all seeds answer the same items, and its
interval for other seeds and other items of their kind.

A difference is d[s, i] = mean + seed[s] + item[i] + residual[s, i], all drawn at random. Its mean
over S seeds and I items has the variance var(seed)/S + var(item)/I + var(residual)/(S I), of which
the means over items of each seed show the first and the last, A, with S - 1 degrees of freedom, and
the means over seeds of each item the second, B, once the residual's part is taken off. Few seeds
say little of A, many items much of B, so each is stretched by its own t: the half width is
sqrt(t(S - 1)^2 A + t(I - 1)^2 B). A stretched sum of variances that are estimated apart covers at
least as often as each of them alone, whatever their ratio (Banerjee 1960; taking the residual off B
makes it hold to the simulation's precision, benchmarks/crossed.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from attnres_cli.stats.power import detectable

Floats = NDArray[np.float64]

_ROUNDING = 1e-6  # of numbers that are held as float32


@dataclass(frozen=True)
class Crossed:
    """A mean over seeds x items, its variances, in the squared unit of the values, and how many."""

    mean: float
    n_seeds: int
    n_items: int
    of_seeds: float  # of the mean, if other seeds answer the same items
    of_items: float  # what other items add
    rounding: float  # in the unit of the values

    def interval(self, alpha: float) -> tuple[float, float]:
        """At 1 - alpha, for other seeds and other items."""
        seeds, items = (
            float(scipy.special.stdtrit(n - 1, 1 - alpha / 2)) for n in (self.n_seeds, self.n_items)
        )
        half = math.sqrt(seeds**2 * self.of_seeds + items**2 * self.of_items) + self.rounding
        return self.mean - half, self.mean + half

    def detectable(self, alpha: float) -> float:
        """The least difference that as many seeds and items find with a power of 80 %."""
        parts = ((self.n_seeds, self.of_seeds), (self.n_items, self.of_items))
        return math.hypot(*(detectable(n, math.sqrt(n * of), alpha) for n, of in parts))


def crossed(values: Floats, size: float = 0.0) -> Crossed:
    """The mean of (seeds, items) values, which may be differences of numbers of this size. Raises
    ValueError below two seeds or items.
    """
    n_seeds, n_items = values.shape
    if min(values.shape) < 2:
        raise ValueError(f"takes two seeds and two items or more, got {n_seeds} and {n_items}")
    mean = float(values.mean())
    by_seed, by_item = values.mean(axis=1) - mean, values.mean(axis=0) - mean
    residual = values - mean - by_seed[:, None] - by_item
    degrees, n = (n_seeds - 1) * (n_items - 1), n_seeds * n_items
    of_seeds = float(by_seed @ by_seed) / (n_seeds - 1) / n_seeds
    of_items = float(by_item @ by_item) / (n_items - 1) / n_items
    of_items -= float((residual**2).sum()) / degrees / n
    return Crossed(mean, n_seeds, n_items, of_seeds, max(0.0, of_items), _ROUNDING * size)


def per_unit(values: Floats, units: Floats) -> Floats:
    """(seeds, items) numbers whose mean is the ratio sum(values) / sum(units), and whose spread is
    that of the ratio: items bring their units along (the linearised ratio, Cochran 1977, 6.3).
    `units`, of items, such as bytes, are the same for all seeds and above 0 in all.
    """
    ratio = float(values.sum() / (len(values) * units.sum()))
    found: Floats = ratio + (values - ratio * units) / units.mean()
    return found


def mcnemar(ours: Floats, theirs: Floats) -> tuple[int, int, float]:
    """(items that the first alone has right, that the second alone, exact two-sided p) of two
    models that answered the same items: of these weights alone, no other seed's.
    """
    first, second = int((ours > theirs).sum()), int((theirs > ours).sum())
    n = first + second
    p = 2 * float(scipy.special.bdtr(min(first, second), n, 0.5)) if n else 1.0
    return first, second, min(1.0, p)
