"""Power: what a study of so many seeds can see, how many seeds a difference takes, at what cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from attnres_cli.stats.sequential import LEAST_SEEDS

Floats = NDArray[np.float64]
POWER = 0.8  # the share of studies that should find a difference which is there
SEEDS = range(LEAST_SEEDS, 14)  # for which detectable differences are given
ASSUMED = (0.0, 0.5, 0.8)  # correlations of two arms over seeds; at 0 pairing buys nothing

_MOST_SEEDS = 10_000
_SIMULATED = 4_000


def _gauss_legendre(n: int) -> tuple[Floats, Floats]:
    """Nodes and weights on [-1, 1]. numpy's leggauss takes seconds where all cores are busy."""
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
    """How far runs that differ in their seed alone lie apart; ci95 is of the standard deviation."""

    n: int
    mean: float
    sd: float
    ci95: tuple[float, float]


def noise(losses: Sequence[float]) -> Noise:
    """The noise floor from the losses of two or more runs of one arm."""
    values = np.asarray(losses, dtype=np.float64)
    n = len(values)
    if n < 2:
        raise ValueError(f"a noise floor takes two seeds or more, got {n}")
    sd = float(values.std(ddof=1))
    return Noise(n, float(values.mean()), sd, sd_interval(sd, n))


def sd_interval(sd: float, n: int) -> tuple[float, float]:
    """95 % interval of the standard deviation that n normal values have shown (chi-square)."""
    low, high = (
        sd * math.sqrt((n - 1) / float(scipy.special.chdtri(n - 1, tail)))
        for tail in (0.025, 0.975)
    )
    return low, high


def power(n: int, effect: float, alpha: float) -> float:
    """The chance that a paired t test of n >= 2 pairs has two-sided p < alpha, of normal
    differences. `effect` is their mean over their standard deviation, without sign.
    """
    edge, centre = float(scipy.special.stdtrit(n - 1, 1 - alpha / 2)), effect * math.sqrt(n)
    edges = edge * np.sqrt(scipy.special.chdtri(n - 1, _TAILS) / (n - 1))  # in true standard errors
    return float(
        _WEIGHTS @ (scipy.special.ndtr(centre - edges) + scipy.special.ndtr(-centre - edges))
    )


def seeds_needed(mean: float, sd: float, alpha: float) -> int | None:
    """Least number of pairs with 80 % power to find such a difference; None: 10,000 are too few."""
    if mean == 0:
        return None
    effect = abs(mean) / sd
    if power(_MOST_SEEDS, effect, alpha) < POWER:
        return None
    counts = range(_MOST_SEEDS)
    return bisect_left(counts, True, lo=2, key=lambda n: power(n, effect, alpha) >= POWER)


def detectable(n: int, sd: float, alpha: float) -> float:
    """The least difference that n pairs find with a power of 80 %, in the unit of sd."""
    return sd * _effect(n, alpha)


def multiplier(nats: float, slope: float) -> float:
    """How many times its compute the baseline takes to gain so many nats per token, where it gains
    `slope` > 0 of them per e-fold of its tokens; infinite beyond what a float holds.
    """
    return math.exp(nats / slope) if nats / slope < 700 else math.inf


@cache
def _effect(n: int, alpha: float) -> float:
    """The least mean over sd that n pairs find with a power of 80 %."""
    low, high = 0.0, 1.0
    while power(n, high, alpha) < POWER:
        high *= 2
    for _ in range(20):  # to a millionth
        middle = (low + high) / 2
        low, high = (low, middle) if power(n, middle, alpha) >= POWER else (middle, high)
    return high


@dataclass(frozen=True)
class Pairing:
    """What a study can see if losses of two arms go together over seeds like this."""

    correlation: float | None  # of an arm's losses with the baseline's; None: one does not vary
    sd: float  # of the difference of one seed, in the unit of the losses
    arm: str  # that it was measured of; empty: assumed
    n_pairs: int  # seeds that it shares with the baseline
    detectable: tuple[float, ...]  # least difference with 80 % power, for each of SEEDS
    needed: int | None  # seeds with which the gap is found; None: over 10,000
    range: tuple[int | None, int | None]  # the same at both ends of the sd's 95 % interval


def assumed(noise: Noise, correlation: float, gap: float, alpha: float) -> Pairing:
    """With arms as noisy as the baseline: sd sqrt(2 (1 - correlation)), correlation below 1. Power
    to find `gap` is that of the first look at an arm, at rate alpha.
    """
    factor = math.sqrt(2 * (1 - correlation))
    ends = (factor * noise.ci95[0], factor * noise.ci95[1])
    seen = _seen(factor * noise.sd, ends, gap, alpha)
    return Pairing(correlation, arm="", n_pairs=0, **seen)


def measured(
    arm: str, losses: Sequence[float], baseline: Sequence[float], gap: float, alpha: float
) -> Pairing | None:
    """From the losses of an arm and of the baseline, paired by seed; None without spread."""
    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (losses, baseline))
    n = len(ours)
    if n < 2 or not (sd := float((ours - theirs).std(ddof=1))):
        return None
    varies = ours.std() > 0 and theirs.std() > 0
    correlation = float(np.corrcoef(ours, theirs)[0, 1]) if varies else None
    seen = _seen(sd, sd_interval(sd, n), gap, alpha)
    return Pairing(correlation, arm=arm, n_pairs=n, **seen)


def growing(looks: Sequence[tuple[int, float]], effect: float) -> tuple[float, float]:
    """(power, mean number of pairs) of studies that grow from look to look, (pairs, rate) each,
    until one finds a difference, in 4,000 simulated ones: normal differences, and `effect` their
    mean over their standard deviation.
    """
    n = np.array([size for size, _ in looks])
    values = np.random.default_rng(0).normal(effect, 1, (_SIMULATED, n[-1]))
    sums, squares = (np.cumsum(each, axis=1)[:, n - 1] for each in (values, values**2))
    t = np.abs(sums) / np.sqrt((squares - sums**2 / n) * n / (n - 1))
    found = t > scipy.special.stdtrit(n - 1, 1 - np.array([rate for _, rate in looks]) / 2)
    is_found = found.any(axis=1)
    pairs = np.where(is_found, n[found.argmax(axis=1)], n[-1])
    return float(is_found.mean()), float(pairs.mean())


def seconds(seeds: int, runs: Sequence[tuple[int, float]], workers: int) -> tuple[int, int, float]:
    """(runs in all, runs still to train, seconds they take) of a study. `runs` are, for each arm,
    those held already and the seconds that one takes.
    """
    left = [(max(0, seeds - held), each) for held, each in runs]
    to_train = sum(n for n, _ in left)
    work = sum(n * each for n, each in left) / workers
    longest = max((each for n, each in left if n), default=0.0)
    return seeds * len(runs), to_train, max(work, longest)


def _seen(sd: float, ends: tuple[float, float], gap: float, alpha: float) -> dict[str, Any]:
    """What a study with this spread can see at its first look."""

    def needed(sd: float) -> int | None:
        found = seeds_needed(gap, sd, alpha)
        return None if found is None else max(LEAST_SEEDS, found)

    return {
        "sd": sd,
        "detectable": tuple(detectable(n, sd, alpha) for n in SEEDS),
        "needed": needed(sd),
        "range": (needed(ends[0]), needed(ends[1])),
    }
