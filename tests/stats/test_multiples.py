"""How many times its tokens the baseline needs for an arm's loss, with its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnres_cli.stats import multiples
from attnres_cli.stats.multiples import Budget, Worth, worth
from attnres_cli.stats.pairs import Difference, paired

ABOVE, BELOW = 0.348, 0.480  # nats per e-fold of tokens
DOUBLE = Budget(2, ABOVE * math.log(2), 0.004, 7)
HALF = Budget(0.5, -BELOW * math.log(2), 0.004, 7)


def gain(nats: float, sd: float = 0.01, n: int = 7) -> Difference:
    """An arm that ends `nats` lower."""
    half = 2.447 * sd / math.sqrt(n)
    return Difference(n, -nats, sd, (-nats - half, -nats + half), 0.0)


def value(nats: float, budgets: list[Budget]) -> Worth:
    """What a gain is worth; of no known seeds."""
    one = gain(nats)
    found = worth(one, one.ci95, {}, budgets)
    assert found is not None
    return found


def test_a_budget_that_was_trained_is_met_whatever_the_others_are():
    for budgets in ([HALF, DOUBLE], [HALF, DOUBLE, Budget(4, 0.42, 0.004, 7)]):
        assert value(DOUBLE.drop, budgets).value == pytest.approx(2)
    assert value(HALF.drop, [HALF, DOUBLE]).value == pytest.approx(0.5)
    assert value(0, [HALF, DOUBLE]).value == 1


def test_between_three_budgets_loss_is_a_parabola_over_the_logarithm_of_tokens():
    u = math.log(1.3)
    x = u / math.log(2)
    drop = DOUBLE.drop * x * (x + 1) / 2 + HALF.drop * x * (x - 1) / 2
    assert value(drop, [HALF, DOUBLE]).value == pytest.approx(1.3, rel=1e-3)


def test_nothing_is_said_beyond_the_budgets_that_were_measured():
    assert value(0.5, [HALF, DOUBLE]).value == math.inf
    assert value(-0.5, [HALF, DOUBLE]).value == 0
    far = value(0.235, [HALF, DOUBLE])
    assert 1.5 < far.low < far.value < 2
    assert far.high == math.inf
    assert (far.least, far.most) == (0.5, 2)


@pytest.mark.parametrize("nats", [-0.02, -0.0093, -0.0092, 0, 0.0092, 0.0093, 0.02])
def test_the_interval_leaves_out_1_where_that_of_the_difference_leaves_out_0(nats: float):
    found, half = value(nats, [HALF, DOUBLE]), 2.447 * 0.01 / math.sqrt(7)
    assert (found.low < 1 < found.high) == (abs(nats) < half)


def test_a_wider_interval_of_the_difference_makes_this_one_wider():
    one = gain(0.03)
    wide = (one.ci95[0] - 0.01, one.ci95[1] + 0.01)
    narrow, found = (worth(one, i, {}, [HALF, DOUBLE]) for i in (one.ci95, wide))
    assert narrow is not None
    assert found is not None
    assert found.low < narrow.low < narrow.high < found.high
    assert found.value == narrow.value


def test_noise_of_the_slope_makes_the_interval_wider_and_none_at_1():
    exact, noisy = (value(0.05, [HALF, Budget(2, DOUBLE.drop, error, 7)]) for error in (1e-6, 0.03))
    assert noisy.low < exact.low < exact.high < noisy.high
    exact, noisy = (value(0.0, [HALF, Budget(2, DOUBLE.drop, error, 7)]) for error in (1e-6, 0.03))
    assert noisy.high == pytest.approx(exact.high, rel=0.02)


def test_paired_seeds_give_the_t_test_of_the_arm_against_the_interpolated_baseline():
    random = np.random.default_rng(1)
    base, double = 1.7 + random.normal(size=7) * 0.01, 1.5 + random.normal(size=7) * 0.01
    arm = 1.65 + random.normal(size=7) * 0.01
    one, drops = paired(list(arm), list(base)), base - double
    half = 2.0 + random.normal(size=7) * 0.01
    more = base - half
    budgets = [
        Budget(ratio, float(each.mean()), 0.0, 7, dict(enumerate(each)))
        for ratio, each in ((2, drops), (0.5, more))
    ]
    found = worth(one, one.ci95, dict(enumerate(arm - base)), budgets)
    assert found is not None
    for end in (found.low, found.high):
        x = math.log(end) / math.log(2)
        between = (1 - x * x) * base + x * (x + 1) / 2 * double + x * (x - 1) / 2 * half
        assert paired(list(arm), list(between)).p == pytest.approx(0.05, abs=2e-3)


def test_drops_at_several_budgets_share_the_runs_of_the_baseline():
    rng, u = np.random.default_rng(0), math.log(2.83)
    claimed, found = [], []
    for _ in range(300):
        base, arm = rng.normal(0, 0.01, 12), rng.normal(-0.2, 0.01, 12)
        budgets = []
        for ratio in (0.5, 2, 4):
            drops = base[:7] - rng.normal(0, 0.01, 7) + 0.35 * math.log(ratio)
            error = drops.std(ddof=1) / math.sqrt(7)
            budgets.append(Budget(ratio, drops.mean(), error, 7, dict(enumerate(drops))))
        gap = arm - base
        _, _, grid, weights, drop = multiples._interpolated(budgets)
        at = int(np.abs(grid - u).argmin())
        errors, _ = multiples._error(paired(arm, base), dict(enumerate(gap)), budgets, weights)
        claimed.append(errors[at] ** 2)
        found.append(gap.mean() + drop[at])
    assert np.mean(claimed) == pytest.approx(np.var(found, ddof=1), rel=0.2)


def test_without_a_budget_or_a_falling_loss_nothing_is_said():
    one = gain(0.05)
    assert worth(one, one.ci95, {}, []) is None
    assert worth(one, one.ci95, {}, [DOUBLE]) is None
    assert worth(one, one.ci95, {}, [HALF, Budget(2, -0.01, 0.01, 7)]) is None
    assert worth(one, one.ci95, {}, [DOUBLE, Budget(4, 0.9 * DOUBLE.drop, 0.01, 7)]) is None


def test_at_equal_time_the_multiple_is_divided_by_the_ratio_of_step_times():
    found = Worth(1.2, 1.1, 1.4, 0.5, 2)
    plain = found.over(1.5)
    assert (plain.low, plain.high, plain.most) == pytest.approx((1.1 / 1.5, 1.4 / 1.5, 2 / 1.5))
    timed = found.over(1.5, 0.01)
    assert timed.value == pytest.approx(0.8)
    assert timed.low < 1.1 / 1.5
    assert timed.high > 1.4 / 1.5
    assert Worth(math.inf, 1.1, math.inf, 0.5, 2).over(2, 0.1).high == math.inf


def test_ends_of_several_looks_leave_out_1_as_the_interval_does_and_equal_arms_are_worth_1():
    one = gain(0.0212)
    for ends in ((-0.04, 0.0003), (-0.0424, -0.0001)):  # to both sides not equally far
        found = worth(one, ends, {}, [HALF, DOUBLE])
        assert found is not None
        assert (found.low < 1) == (ends[1] > 0)
    same = Difference(7, 0.0, 0.0, (0.0, 0.0), 1.0)
    exact = [Budget(b.ratio, b.drop, 0.0, 7) for b in (HALF, DOUBLE)]
    assert worth(same, (0.0, 0.0), {}, exact) == Worth(1, 1, 1, 0.5, 2)
