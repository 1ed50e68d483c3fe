"""Paired differences by seed: their mean, intervals and tests, corrected for the number of arms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from attnres_cli.stats.power import ALPHA, detectable

CONFIDENCE = 0.95

LEAST_SEEDS = 3
"""For a word. Where half of the runs of every arm get stuck, two seeds call some arm in 8 % of
studies in which nothing differs (benchmarks/workflows.py).
"""

_BOOTSTRAP_FROM = 6  # pairs; of fewer there are too few different resamples for a 2.5 % tail
_RESAMPLES = 10_000
_ALL_SIGNS_TO = 32  # pairs; 2^32 ways to set the signs, as 2^16 of each half
_TABLE = 16  # pairs whose 65,536 sums are looked up where ways are drawn
_DRAWN = 100_000

Floats = NDArray[np.float64]
Word = Literal["better", "worse", "not separable"]


@dataclass(frozen=True)
class Difference:
    """Paired differences arm minus baseline of n seeds, in the unit of what was compared."""

    n: int
    mean: float
    sd: float
    ci95: tuple[float, float]  # two-sided t interval of the mean
    p: float  # two-sided, of the paired t test
    p_holm: float  # corrected for all arms of the comparison (Holm 1979)
    correlation: float | None  # of the two arms' losses over seeds; None: one does not vary
    gain: float | None  # variance of unpaired arms over this one; 2: half the seeds saved
    p_sign_flip: float | None = None  # of symmetry alone; never below 2 / 2^n
    p_sign_flip_is_exact: bool = True  # to 32 pairs; above, 100,000 ways are drawn
    bca95: tuple[float, float] | None = None  # by bootstrap; None below six pairs
    detectable: float | None = None  # least found with 80 % power; None of too few seeds


def paired(arm: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The paired t test of arm minus baseline, the values of one seed at the same place of both.

    This is what a verdict rests on; `judged` fills in the rest. Until then p_holm is p.

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
        return Difference(n, 0.0, 0.0, (0.0, 0.0), 1.0, 1.0, None, None)
    # Rounding alone leaves about this much spread between numbers of that size.
    largest = max(float(np.abs(each).max()) for each in (ours, theirs))
    if sd <= 8 * np.finfo(np.float64).eps * largest:
        raise ValueError(f"all {n} differences are {mean:.6g}: no spread, so no test")
    p = 2 * float(stdtr(n - 1, -abs(mean / (sd / math.sqrt(n)))))
    return Difference(n, mean, sd, mean_interval(values), p, p, *_pairing(ours, theirs, sd))


def mean_interval(values: Floats) -> tuple[float, float]:
    """Two-sided 95 % t interval of the mean of two values or more."""
    n = len(values)
    mean, error = float(values.mean()), float(values.std(ddof=1)) / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * error
    return mean - half, mean + half


def judged(arms: Sequence[tuple[Sequence[float], Sequence[float]]]) -> list[Difference]:
    """The differences of all arms of a comparison, each (arm, baseline) as `paired` takes it,
    complete. Power is that of the strictest step of Holm's procedure, alpha / number of arms.
    """
    differences = [paired(*each) for each in arms]
    alpha, found = ALPHA / max(1, len(arms)), []
    p_holm = holm([one.p for one in differences])
    for (ours, theirs), one, p in zip(arms, differences, p_holm, strict=True):
        values = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
        varies, says = one.sd > 0, one.sd > 0 and one.n >= LEAST_SEEDS
        found.append(
            replace(
                one,
                p_holm=p,
                p_sign_flip=sign_flip(values),
                p_sign_flip_is_exact=one.n <= _ALL_SIGNS_TO,
                bca95=bca(values) if varies and one.n >= _BOOTSTRAP_FROM else None,
                detectable=detectable(one.n, one.sd, alpha) if says else None,
            )
        )
    return found


def word(difference: Difference) -> Word:
    """What may be said of an arm whose losses differ so from the baseline's: less is better."""
    if difference.n < LEAST_SEEDS or difference.p_holm >= ALPHA:
        return "not separable"
    return "better" if difference.mean < 0 else "worse"


def holm(p: Sequence[float]) -> list[float]:
    """P values corrected for their number, in the order given (Holm 1979)."""
    adjusted = [0.0] * len(p)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        running = max(running, (len(p) - rank) * p[index])
        adjusted[index] = min(1.0, running)
    return adjusted


def sign_flip(values: Sequence[float] | Floats) -> float:
    """Two-sided p of mean 0 against every way to set the values' signs; exact to 32 values.

    The sums of one half are met with the sorted sums of the other (Horowitz and Sahni 1974). Of
    more values 100,000 ways are drawn, always the same, and the one that was seen is counted among
    them, so that p is never too small (Phipson and Smyth 2010).
    """
    magnitudes = np.abs(np.asarray(values, dtype=np.float64))
    n, slack = len(magnitudes), 1e-9 * float(magnitudes.sum())  # sums in another order differ
    least = abs(float(np.sum(values))) - slack
    if least <= 0:
        return 1.0
    if n > _ALL_SIGNS_TO:
        return float((np.sum(np.abs(_drawn_sums(magnitudes)) >= least) + 1) / (_DRAWN + 1))
    ours, theirs = _signed_sums(magnitudes[: n // 2]), np.sort(_signed_sums(magnitudes[n // 2 :]))
    beyond = len(ours) * len(theirs) - int(np.searchsorted(theirs, least - ours).sum())
    return 2 * beyond / 2.0**n  # as many lie as far on the other side


def _signed_sums(magnitudes: Floats) -> Floats:
    """(2^n) sums of n values, one for each way to set their signs."""
    sums = np.zeros(1)
    for magnitude in magnitudes:
        sums = np.concatenate((sums + magnitude, sums - magnitude))
    return sums


def _drawn_sums(magnitudes: Floats) -> Floats:
    """(100,000) sums of ways to set the signs, drawn with seed 0."""
    generator, sums = np.random.default_rng(0), np.zeros(_DRAWN)
    for first in range(0, len(magnitudes), _TABLE):
        table = _signed_sums(magnitudes[first : first + _TABLE])
        sums += table[generator.integers(len(table), size=_DRAWN)]
    return sums


def bca(values: Sequence[float] | Floats) -> tuple[float, float]:
    """95 % interval of the mean by the bootstrap, bias-corrected and accelerated (Efron 1987)."""
    sample = np.asarray(values, dtype=np.float64)
    n = len(sample)
    drawn = np.random.default_rng(0).integers(0, n, (_RESAMPLES, n))
    means = np.sort(sample[drawn].mean(axis=1))
    below = np.mean(means < sample.mean()) + np.mean(means == sample.mean()) / 2
    bias = float(ndtri(min(max(below, 1 / _RESAMPLES), 1 - 1 / _RESAMPLES)))
    left_out = (sample.sum() - sample) / (n - 1)
    away = left_out.mean() - left_out
    scale = float(np.sum(away**2)) ** 1.5
    acceleration = float(np.sum(away**3)) / (6 * scale) if scale > 0 else 0.0
    ends = []
    for tail in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2):
        z = bias + float(ndtri(tail))
        ends.append(float(np.quantile(means, ndtr(bias + z / (1 - acceleration * z)))))
    return ends[0], ends[1]


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; None for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else None


def _pairing(ours: Floats, theirs: Floats, sd: float) -> tuple[float | None, float | None]:
    """Correlation over seeds, and how much more variance unpaired arms would have."""
    variances = float(ours.var(ddof=1)), float(theirs.var(ddof=1))
    if min(variances) == 0:
        return None, None
    covariance = (sum(variances) - sd**2) / 2
    return covariance / math.sqrt(variances[0] * variances[1]), sum(variances) / sd**2
