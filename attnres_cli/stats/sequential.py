"""Looks: an interval of a paired difference that holds whenever a study is looked at.

A study grows: seeds are added while they look promising, arms when the first disappoint. So the
error rate ALPHA of a table is shared out before data:

- over looks. The first stands at the planned number of seeds and has most of it; each next stands
  at half as many again, with half of what is left. Between looks nothing new is said. A table that
  grows until it is decided has a look at every seed from five to its most, with equal parts.
- over arms. Those of the plan share most of it; each later group of arms a part of the rest.

The interval of a look is Student's at the rate at which looks use their parts of it together
(boundaries.py). A true difference lies in all of them at once, for all arms and looks, with
probability 1 - ALPHA: over arms by the union bound, whatever their dependence. So it lies in their
intersection, which is what is printed, and what words are read from. Nothing depends on when, or by
which command, somebody looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import NDArray

from attnres_cli.stats.boundaries import nominal

Floats = NDArray[np.float64]

ALPHA = 0.05
"""The rate at which a table in which no arm differs may say of any arm that it does."""

LEAST_SEEDS = 5
"""Of a first look. Runs that get stuck or not, of any arm alike, are all stuck in one arm and none
in the other with probability 1/4 per seed: of three seeds in 3 % of pairs of arms, of five in 0.2.
"""

MOST = 26
"""Seeds of an arm that is trained until it is decided, where nobody says otherwise."""

_OF_PLAN = 0.8  # share of the arms of the plan
_OF_GROWING = 0.95  # of a plan that grows: arms that join it get seeds until they are decided too
_FIRST = 0.6  # of the first look; of more the second look, at 1.5 times the seeds, sees no better
_GROWTH = 1.5
_ROUNDING = 1e-6  # of the largest loss: what two orders of the same float32 sums differ by

Word = Literal["better", "worse", "equivalent", "non-inferior", "inconclusive"]


@dataclass(frozen=True)
class Look:
    """What may be said of one arm's differences so far.

    Attributes:
        n: pairs at the last look; 0 before the first.
        low, high: the interval of the mean; infinite before the first look.
        next: pairs at the next look; None after the last.
        alpha: the rate of the last look, before the first that of the first.
    """

    n: int
    low: float
    high: float
    next: int | None
    alpha: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """The same; None before the first look."""
        return (self.low, self.high) if self.n else None

    @property
    def reason(self) -> str:
        """At how many seeds a word was given, and when the next is."""
        return f"look at {self.n} seeds" + (f", the next at {self.next}" if self.next else "")


def sizes(planned: int) -> Iterator[tuple[int, float]]:
    """(seeds, share of the rate) of every look, without end: the shares add up to 1."""
    size, share = max(LEAST_SEEDS, planned), _FIRST
    yield size, share
    rest = 1 - share
    while True:
        size, rest = math.ceil(_GROWTH * size), rest / 2
        yield size, rest


def grows(most: int, n_arms: int) -> list[tuple[int, float]]:
    """(seeds, rate of the t test) of the looks at each arm of a plan that grows to `most` seeds."""
    rate = ALPHA * shares([n_arms], grows=True)[0]
    return list(nominal((n, rate * share) for n, share in every_seed(most)))


def every_seed(most: int) -> list[tuple[int, float]]:
    """(seeds, share of the rate) of the looks at a table that grows to `most` seeds or less."""
    at = range(LEAST_SEEDS, max(LEAST_SEEDS, most) + 1)
    return [(n, 1 / len(at)) for n in at]


def shares(groups: Sequence[int], *, grows: bool = False) -> list[float]:
    """The share of the rate of one arm of each group, from the numbers of arms of the groups in the
    order in which they joined; the plan's is the first. However many follow, it is 1 in all.
    `grows`: the table is trained until it is decided.
    """
    first = _OF_GROWING if grows else _OF_PLAN
    rest = [(1 - first) / (k * (k + 1)) for k in range(1, len(groups))]
    return [part / n for part, n in zip([first, *rest], groups, strict=True)]


def first_rate(n_arms: int) -> float:
    """The rate of the first look at each of the n arms of a plan."""
    return ALPHA * shares([n_arms])[0] * _FIRST


def look(
    arm: Sequence[float], baseline: Sequence[float], rates: Iterable[tuple[int, float]]
) -> Look:
    """The look at losses, of one seed at the same place, in the order in which seeds were planned;
    `rates` are (pairs, rate) of each look.
    """
    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (arm, baseline))
    return looked(len(ours), rates, lambda n, alpha: interval(ours[:n], theirs[:n], alpha))


def looked(
    pairs: int,
    rates: Iterable[tuple[int, float]],
    interval: Callable[[int, float], tuple[float, float]],
) -> Look:
    """The intersection of the intervals of all looks that so many pairs complete; `interval` gives
    that of the first n pairs at 1 - alpha.
    """
    n, low, high, last = 0, -math.inf, math.inf, 0.0
    for size, alpha in rates:
        if size > pairs:
            return Look(n, low, high, size, last or alpha)
        here = interval(size, alpha)
        if max(low, here[0]) <= min(high, here[1]):  # else one of them has missed the truth
            low, high = max(low, here[0]), min(high, here[1])
        n, last = size, alpha
    return Look(n, low, high, None, last)


def interval(arm: Floats, baseline: Floats, alpha: float) -> tuple[float, float]:
    """Student's interval of the mean difference at 1 - alpha, and the rounding of losses."""
    values, n = arm - baseline, len(arm)
    largest = max(float(np.abs(arm).max()), float(np.abs(baseline).max()))
    error = float(values.std(ddof=1)) / math.sqrt(n)
    half = float(scipy.special.stdtrit(n - 1, 1 - alpha / 2)) * error + _ROUNDING * largest
    return float(values.mean()) - half, float(values.mean()) + half


def word(low: float, high: float, margin: float | None = None) -> Word:
    """What an interval of arm minus baseline says; less is better. Within a margin, both ways, a
    difference does not matter to who gave it, whatever its sign.
    """
    if margin is not None and -margin < low and high < margin:
        return "equivalent"
    if high < 0:
        return "better"
    if low > 0:
        return "worse"
    return "non-inferior" if margin is not None and high < margin else "inconclusive"
