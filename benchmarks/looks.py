"""Looks: an interval of a paired difference that holds whenever a study is looked at.

Verdicts do not rest on it yet: workflows.py shows what it would change.

A study grows: seeds are added while they look promising, arms when the first disappoint. So the
error rate ALPHA of a family is shared out before data:

- over looks. The first stands at the planned number of seeds and has most of it; each next stands
  at half as many again, with half of what is left. Between looks nothing new is said.
- over arms. Those of the plan share most of it; each later group of arms a part of the rest.

The interval of a look is Student's at its share of the rate. A true difference lies in all of them
at once, for all arms and looks, with probability 1 - ALPHA (the union bound), whatever their
dependence; so it lies in their intersection, which is what is printed, and what words are read
from. Nothing depends on when, or by which command, somebody looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from attnres_cli.stats.power import ALPHA

Floats = NDArray[np.float64]

LEAST_SEEDS = 5
"""Of a first look. Runs that get stuck or not, of any arm alike, are all stuck in one arm and none
in the other with probability 1/4 per seed: of three seeds in 3 % of pairs of arms, of five in 0.2.
"""

_FIRST = 0.8  # share of the first look, and of the arms of the plan
_GROWTH = 1.5
_ROUNDING = 1e-6  # of the largest loss: what two orders of the same float32 sums differ by


@dataclass(frozen=True)
class Look:
    """What may be said of one arm's differences so far.

    Attributes:
        n: pairs at the last look; 0 before the first.
        low, high: the interval of the mean; infinite before the first look.
        next: pairs at the next look.
        alpha: the rate of the last look, before the first that of the first.
    """

    n: int
    low: float
    high: float
    next: int
    alpha: float


def sizes(planned: int) -> Iterator[tuple[int, float]]:
    """(seeds, share of the rate) of every look, without end: the shares add up to 1."""
    size, share = max(LEAST_SEEDS, planned), _FIRST
    yield size, share
    rest = 1 - share
    while True:
        size, rest = math.ceil(_GROWTH * size), rest / 2
        yield size, rest


def shares(groups: Sequence[int]) -> list[float]:
    """The share of the rate of one arm of each group, from the numbers of arms of the groups in the
    order in which they joined; the plan's is the first. However many follow, it is 1 in all.
    """
    rest = [(1 - _FIRST) / (k * (k + 1)) for k in range(1, len(groups))]
    return [part / n for part, n in zip([_FIRST, *rest], groups, strict=True)]


def look(arm: Sequence[float], baseline: Sequence[float], planned: int, share: float) -> Look:
    """The intersection of the intervals of all looks that are complete. Values are losses of one
    seed at the same place, in the order in which seeds were planned; `share` is the arm's.
    """
    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (arm, baseline))
    found = Look(0, -math.inf, math.inf, max(LEAST_SEEDS, planned), 0.0)
    for size, part in sizes(planned):
        alpha = ALPHA * share * part
        if size > len(ours):
            return Look(found.n, found.low, found.high, size, found.alpha or alpha)
        low, high = interval(ours[:size], theirs[:size], alpha)
        if max(low, found.low) <= min(high, found.high):  # else one of them has missed the truth
            low, high = max(low, found.low), min(high, found.high)
        found = Look(size, low, high, size, alpha)
    raise AssertionError("looks are without end")


def interval(arm: Floats, baseline: Floats, alpha: float) -> tuple[float, float]:
    """Student's interval of the mean difference at 1 - alpha, and the rounding of losses."""
    values, n = arm - baseline, len(arm)
    largest = max(float(np.abs(arm).max()), float(np.abs(baseline).max()))
    error = float(values.std(ddof=1)) / math.sqrt(n)
    half = float(stdtrit(n - 1, 1 - alpha / 2)) * error + _ROUNDING * largest
    return float(values.mean()) - half, float(values.mean()) + half
