"""The rate at which each look of a sequential t test may test, so that all looks together use the
rate that they share (Lan and DeMets 1983; Jennison and Turnbull 2000, chapters 4 and 7).

Of n differences let w = |sum| / sqrt(n * sum of squares), so that t = w sqrt((n - 1) / (1 - w^2)).
Where nothing differs, the next difference over the root of the sum of squares is tan(phi), and
sqrt(n) tan(phi) has Student's distribution with n degrees of freedom, whatever came before. So w is
a Markov chain,

    w' = |sqrt(n) w cos(phi) + sin(phi)| / sqrt(n + 1),

and the joint law of all looks follows one difference at a time, without a simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Look = tuple[int, float]
"""Differences, and a rate."""

_MOST_EXACT = 64  # differences; later looks test at what they spend, which is less than they might
_CELLS = 160  # of w below its boundary, smaller towards it: rates are right to 1 %
_HALVINGS = 40
_ANGLES = np.linspace(-math.pi / 2, math.pi / 2, 8001)


def nominal(spending: Iterable[Look]) -> Iterator[Look]:
    """(n, rate of the t test of n differences) of each look, from (n, what the look spends): the
    probability that it is the first to find a difference where there is none. n rises from 2 up.
    """
    before: tuple[Look, ...] = ()
    for n, spent in spending:
        before = (*before, (n, spent))
        yield n, _tested(before)[0] if n <= _MOST_EXACT else spent


@dataclass(frozen=True)
class _Law:
    """Of w after n differences, over studies that go on: their probability in each cell."""

    n: int
    edges: Floats
    mass: Floats

    def above(self, w: Floats) -> Floats:
        """How likely one difference more brings a study above each of these w."""
        nodes = (self.edges[1:] + self.edges[:-1]) / 2
        near, x = math.sqrt(self.n) * nodes[:, None], math.sqrt(self.n + 1) * w
        middle = np.arctan2(1.0, near)
        half = np.arccos(np.minimum(1.0, x / np.hypot(1.0, near)))
        low, high = middle - half, middle + half
        found = _below(low, self.n), _below(high, self.n), _below(high - math.pi, self.n)
        return np.asarray(self.mass @ (found[1] - found[0] + found[2]))

    def next(self, most: float = 1.0) -> _Law:
        """After one difference more, of the studies up to `most`."""
        edges = most * np.sin(np.linspace(0, math.pi / 2, _CELLS + 1))
        return _Law(self.n + 1, edges, -np.diff(self.above(edges)))


@cache
def _tested(looks: tuple[Look, ...]) -> tuple[float, _Law]:
    """The rate of the last look, and the law of the studies that go on from it."""
    *before, (n, spent) = looks
    if not before:
        edges = _boundary(spent, n) * np.sin(np.linspace(0, math.pi / 2, _CELLS + 1))
        return spent, _Law(n, edges, -np.diff(_rate(edges, n)))
    law = _tested(tuple(before))[1]
    while law.n < n - 1:
        law = law.next()
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_beyond = float(law.above(np.array([middle]))[0]) < spent
        low, high = (low, middle) if is_beyond else (middle, high)
    return float(_rate(np.array(high), n)), law.next(high)


def _rate(w: Floats, n: int) -> Floats:
    """Two-sided, of a t test of n differences that finds one above w."""
    t = w * np.sqrt((n - 1) / np.maximum(1 - w * w, 1e-300))
    return np.asarray(2 * special.stdtr(n - 1, -t))


def _boundary(rate: float, n: int) -> float:
    """The w above which a t test of n differences at that rate finds one."""
    t = float(special.stdtrit(n - 1, 1 - rate / 2))
    return t / math.sqrt(n - 1 + t * t)


def _below(angles: Floats, n: int) -> Floats:
    """How likely phi is below; nothing lies beyond a right angle."""
    return np.interp(angles, _ANGLES, _table(n))


@cache
def _table(n: int) -> Floats:
    return np.asarray(special.stdtr(n, math.sqrt(n) * np.tan(_ANGLES)))
