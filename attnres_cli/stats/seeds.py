"""Seeds: how many a study needs, from what the runs it holds already have shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnres_cli.stats.pairs import ALPHA
from attnres_cli.stats.power import Noise, detectable, sd_interval, seeds_needed

SEEDS = range(2, 11)
"""For which detectable differences are given."""

ASSUMED = (0.0, 0.5, 0.8)
"""Correlations of two arms over seeds; at 0 pairing buys nothing."""


@dataclass(frozen=True)
class Pairing:
    """What a study can see if losses of two arms go together over seeds like this.

    Attributes:
        correlation: of an arm's losses with the baseline's; None where one does not vary.
        sd: of the difference of one seed, in the unit of the losses.
        n_arms: arms it was measured of; 0 where the correlation is assumed.
        n_pairs: the most seeds that one of them shares with the baseline; 0 likewise.
        detectable: for each of SEEDS the least difference found with a power of 80 %.
        needed: seeds with which the gap is; None where ten thousand are too few.
        range: the same at both ends of the sd's 95 % interval.

    """

    correlation: float | None
    sd: float
    n_arms: int
    n_pairs: int
    detectable: tuple[float, ...]
    needed: int | None
    range: tuple[int | None, int | None]


def assumed(noise: Noise, correlation: float, gap: float, n_tests: int) -> Pairing:
    """With arms as noisy as the baseline: sd sqrt(2 (1 - correlation)).

    Args:
        noise: of the baseline.
        correlation: below 1.
        gap: to be found, more than 0.
        n_tests: arms that p is corrected for: power is that of Holm's strictest step.

    """
    factor = math.sqrt(2 * (1 - correlation))
    ends = (factor * noise.ci95[0], factor * noise.ci95[1])
    return _pairing(correlation, factor * noise.sd, ends, (0, 0), gap, n_tests)


def measured(
    arms: Sequence[tuple[Sequence[float], Sequence[float]]], gap: float, n_tests: int
) -> Pairing | None:
    """From the losses (arm, baseline) of arms that a study holds, those of one seed at the same
    place: sd and correlation pooled over arms by their degrees of freedom. None without spread.

    The interval of sd is that of the arm with most pairs alone, since all share the baseline.
    """
    squares, degrees, products, sizes = 0.0, 0, 0.0, [0.0, 0.0]
    counted = [pair for pair in arms if len(pair[0]) > 1]
    for pair in counted:
        ours, theirs = (np.asarray(values, dtype=np.float64) for values in pair)
        a, b = ours - ours.mean(), theirs - theirs.mean()
        squares, degrees = squares + float(np.sum((a - b) ** 2)), degrees + len(a) - 1
        products += float(a @ b)
        sizes = [sizes[0] + float(a @ a), sizes[1] + float(b @ b)]
    if squares == 0:
        return None
    sd, n_pairs = math.sqrt(squares / degrees), max(len(ours) for ours, _ in counted)
    varies = min(sizes) > 0
    correlation = products / math.sqrt(sizes[0] * sizes[1]) if varies else None
    ends = sd_interval(sd, n_pairs)
    return _pairing(correlation, sd, ends, (len(counted), n_pairs), gap, n_tests)


def seconds(seeds: int, runs: Sequence[tuple[int, float]], workers: int) -> tuple[int, int, float]:
    """(runs in all, runs still to train, seconds they take) of a study with so many seeds.

    Args:
        seeds: of every arm.
        runs: for each arm, the baseline's too, those held already and the seconds that one takes.
        workers: processes that share the work; no run takes less than its own time.

    """
    left = [(max(0, seeds - held), each) for held, each in runs]
    to_train = sum(n for n, _ in left)
    work = sum(n * each for n, each in left) / workers
    longest = max((each for n, each in left if n), default=0.0)
    return seeds * len(runs), to_train, max(work, longest)


def _pairing(
    correlation: float | None,
    sd: float,
    ends: tuple[float, float],
    measured_of: tuple[int, int],
    gap: float,
    n_tests: int,
) -> Pairing:
    alpha = ALPHA / n_tests
    return Pairing(
        correlation=correlation,
        sd=sd,
        n_arms=measured_of[0],
        n_pairs=measured_of[1],
        detectable=tuple(detectable(n, sd, alpha) for n in SEEDS),
        needed=seeds_needed(gap, sd, alpha),
        range=(seeds_needed(gap, ends[0], alpha), seeds_needed(gap, ends[1], alpha)),
    )
