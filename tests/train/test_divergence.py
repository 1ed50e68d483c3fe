"""What counts as diverged: no number, or far above knowing nothing for long."""

from __future__ import annotations

import math

import pytest

from attnres_cli.records.run import Point
from attnres_cli.train.loop import LONG, MARGIN, SHORTEST, has_diverged

VOCAB = 256
HIGH = math.log(VOCAB) + MARGIN + 0.1
STEPS = 400


def first_step_of(losses: list[float], start: float | None = 5.6, steps: int = STEPS) -> int | None:
    """After which step a run with these losses, evenly spaced, has diverged; None: it has not."""
    gap = steps // len(losses)
    curve = [Point(0, None, start)]
    for number, loss in enumerate(losses, 1):
        if has_diverged(curve, number * gap, loss, steps, VOCAB):
            return number * gap
        curve.append(Point(number * gap, loss, None))
    return None


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_at_once(loss: float):
    assert first_step_of([5.0, 4.0, loss, 3.0]) == 300


def test_a_loss_far_above_knowing_nothing_for_long_is():
    assert first_step_of([5.0] * 20 + [HIGH] * 80) == 20 * 4 + LONG * STEPS


def test_a_run_that_blows_up_in_its_first_steps_is():
    assert first_step_of([HIGH] * 100) == LONG * STEPS


@pytest.mark.parametrize(
    "losses",
    [
        [5.5 - i / 40 for i in range(100)],
        [5.5] * 10 + [HIGH] * 24 + [3.0] * 66,  # a long spike and its recovery
        [HIGH if i % 2 else 5.0 for i in range(100)],  # a wild one
        [math.log(VOCAB) + MARGIN - 0.1] * 100,  # nothing learned, which is no divergence
    ],
)
def test_a_run_that_learns_recovers_or_learns_nothing_is_not(losses: list[float]):
    assert first_step_of(losses) is None


def test_a_design_that_starts_badly_and_comes_down_slowly_is_not():
    assert first_step_of([40.0 - i / 4 for i in range(100)], start=40.0) is None


def test_a_design_that_starts_badly_and_goes_up_is():
    assert first_step_of([40.0 + MARGIN + 1] * 100, start=40.0) == LONG * STEPS


@pytest.mark.parametrize("start", [None, math.nan, math.inf])
def test_a_start_that_is_no_number_counts_for_nothing(start: float | None):
    assert first_step_of([HIGH] * 100, start=start) == LONG * STEPS


def test_a_short_run_is_given_some_steps():
    assert first_step_of([HIGH] * (SHORTEST - 1), steps=SHORTEST - 1) is None
    assert first_step_of([HIGH] * 40, steps=40) == SHORTEST
