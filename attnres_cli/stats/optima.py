"""Optima: which of some shapes may be the best, and whether two designs can share theirs.

Of many noisy trials the lowest is lucky, and a difference between two such optima is lucky twice.
All tests here compare with a shape that was chosen beforehand, on other seeds: on the seeds that
they look at nothing was chosen, so that each is an ordinary t test of its level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from attnres_cli.stats.pairs import Difference, paired

Floats = NDArray[np.float64]
Shape = TypeVar("Shape")

COMMON = 2
"""Shapes that a search confirms because they may be best for two designs at once. Where one shape
is best for both, but stands out in neither first look, over 20 of 100 simulated searches without
such shapes said that the optima differ; with two, at most 5 did (tests/stats/test_optima.py).
"""


@dataclass(frozen=True)
class CommonBest:
    """Whether one shape can be the best of two designs."""

    p: float  # that some shape is the best of both: the greatest of `shapes`
    shapes: tuple[float, ...]  # p of each: its excess over both chosen shapes is not above zero
    hardest: int  # the shape of that greatest p
    mean: float  # its excess, in the unit of the losses
    sd: float
    interaction: Difference  # what exchanging their chosen shapes costs both designs


def common_best(ours: Floats, theirs: Floats, our_choice: int, their_choice: int) -> CommonBest:
    """Test that no shape is the best of both designs, from losses of shapes x seeds (the same for
    both) and the indices of the shapes that their first looks chose, on other seeds.

    If shape c is best for both, ours[c] - ours[our_choice] + theirs[c] - theirs[their_choice] is
    not above zero on average, whichever shapes were chosen. All shapes must be ruled out, the true
    one, if there is one, too: so the rate of error is at most that of a single test, whatever their
    number (an intersection-union test, Berger 1982). That the designs weigh two shapes differently
    is not enough: the interaction alone may be large where both optima are one. Raises ValueError
    below two seeds, or where differences have no spread.
    """
    excess = ours - ours[our_choice] + theirs - theirs[their_choice]
    shapes = tuple(above_zero(row) for row in excess)
    hardest = int(np.argmax(shapes))
    exchanged = ours[their_choice] + theirs[our_choice]
    kept = ours[our_choice] + theirs[their_choice]
    return CommonBest(
        p=shapes[hardest],
        shapes=shapes,
        hardest=hardest,
        mean=float(excess[hardest].mean()),
        sd=float(excess[hardest].std(ddof=1)),
        interaction=paired(exchanged.tolist(), kept.tolist()),
    )


def likeliest_common(ours: Mapping[Shape, float], theirs: Mapping[Shape, float]) -> list[Shape]:
    """The shapes likeliest to be best for both: their first looks add up to the least."""
    both = [shape for shape in ours if shape in theirs]
    return sorted(both, key=lambda shape: ours[shape] + theirs[shape])[:COMMON]


def may_be_best(losses: Floats, choice: int) -> list[float]:
    """For each shape p that it is the best: those with p >= alpha hold the best one with a
    confidence of 1 - alpha, whatever their number. `losses` are shapes x seeds, two or more.

    Of each shape it is tested whether it is above the one chosen on other seeds; of the chosen one,
    whether it is above any other, corrected for their number (Bonferroni).
    """
    found = [above_zero(row - losses[choice]) for row in losses]
    below = [above_zero(losses[choice] - row) for i, row in enumerate(losses) if i != choice]
    found[choice] = min([1.0, *(len(below) * p for p in below)])
    return found


def above_zero(values: Floats) -> float:
    """One-sided p of the t test that the mean is not above zero; 1 where nothing varies."""
    n = len(values)
    if n < 2:
        raise ValueError(f"a test takes two seeds or more, got {n}")
    mean, sd = float(values.mean()), float(values.std(ddof=1))
    # Differences of losses near 1 that are equal but for rounding have about this much spread.
    if sd <= 8 * np.finfo(np.float64).eps * max(1.0, abs(mean)):
        return 1.0
    return float(scipy.special.stdtr(n - 1, -mean / (sd / math.sqrt(n))))


def least_mean(values: Floats, alpha: float) -> float:
    """The one-sided lower bound of the mean at 1 - alpha: above zero where `above_zero` < alpha."""
    n = len(values)
    error = float(values.std(ddof=1)) / math.sqrt(n)
    return float(values.mean()) - float(scipy.special.stdtrit(n - 1, 1 - alpha)) * error


def parabola_vertex(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Where the parabola through three points with ascending x is least; None: nowhere."""
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (right - left) / (x[2] - x[0])
    if not bend > 0:
        return None
    return (x[0] + x[1]) / 2 - left / (2 * bend)
