"""Differences over seeds x items: their variances, and how often their intervals hold the truth."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from attnres_cli.stats.crossed import crossed, mcnemar, per_unit
from attnres_cli.stats.pairs import paired

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
from crossed import CASES, ITEMS, SEEDS, misses, parts, rates

CALIBRATED = [(3, 0.05), *((n, alpha) for n in SEEDS[2:] for alpha in (0.05, 0.002))]
COVERING = {(3, 0.05, 50), (5, 0.05, 200), (5, 0.002, 50), (12, 0.05, 50)}


@pytest.mark.parametrize("axis", [0, 1])
def test_items_or_seeds_that_all_agree_leave_students_interval_over_the_others(axis: int):
    values = np.random.default_rng(0).normal(size=(7, 50)[axis])

    found = crossed(np.repeat(np.expand_dims(values, 1 - axis), (40, 5)[axis], axis=1 - axis))

    assert found.interval(0.05) == pytest.approx(paired(values, [0.0] * len(values)).ci95)
    if axis == 0:
        assert found.of_items == pytest.approx(0, abs=1e-12)


def test_each_variance_is_estimated_from_its_own_part():
    random, truth = np.random.default_rng(1), (0.3, 2.0, 1.5)  # sd of seeds, items, residual
    seeds, items, residual = (
        sd * random.normal(size=shape)
        for sd, shape in zip(truth, ((4000, 4, 1), (4000, 1, 30), (4000, 4, 30)), strict=True)
    )

    found = [crossed(values) for values in seeds + items + residual]

    a, b, e = (sd**2 for sd in truth)
    assert np.mean([each.of_seeds for each in found]) == pytest.approx(a / 4 + e / 120, rel=0.05)
    assert np.mean([each.of_items for each in found]) == pytest.approx(b / 30, rel=0.05)


def test_equal_answers_have_an_interval_of_rounding_and_one_seed_or_item_has_none():
    low, high = crossed(np.zeros((5, 20)), size=3.0).interval(0.05)

    assert low == -high
    assert 0 < high < 1e-5
    for shape in ((1, 50), (5, 1)):
        with pytest.raises(ValueError, match="two seeds and two items or more"):
            crossed(np.zeros(shape))


def test_a_ratio_is_one_of_sums_and_spreads_only_as_the_ratio_does():
    random = np.random.default_rng(2)
    units = random.integers(1, 100, 400).astype(float)
    values = 2.0 * units + random.normal(size=(3, 400))

    found = per_unit(values, units)

    assert found.mean() == pytest.approx(values.sum() / (3 * units.sum()))
    # All items have the same ratio to rounding: long ones do not make the others look uncertain.
    assert found.std() < 0.05 < (values / units.mean()).std()


@pytest.mark.parametrize(("first", "second"), [(0, 0), (3, 1), (10, 2), (60, 40), (5, 5)])
def test_mcnemar_is_the_exact_sign_test_on_items_that_only_one_has_right(first: int, second: int):
    ours = np.array([1.0] * first + [0.0] * second + [1.0, 0.0])
    theirs = np.array([0.0] * first + [1.0] * second + [1.0, 0.0])

    p = binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(ours, theirs) == (first, second, pytest.approx(p))


def test_the_simulated_rule_is_the_one_that_reports_use():
    d = parts(0.3, 0.3, 0.4)(np.random.default_rng(3), 300, 5, 50)

    mine = [not low <= 0 <= high for low, high in (crossed(v).interval(0.2) for v in d)]

    assert mine == misses(d, 0.2)["both"].tolist()
    assert 20 < sum(mine) < 100


def most(alpha: float, n: int) -> float:
    """A fifth above alpha, and four standard errors of a share of n studies."""
    return alpha + 0.2 * alpha + 4 * math.sqrt(alpha * (1 - alpha) / n)


@pytest.mark.parametrize("case", CASES)
def test_intervals_hold_the_truth_at_five_seeds(case: str):
    assert rates(CASES[case], 1000, 5, 100, 0.05)["both"] <= most(0.05, 1000)


@pytest.mark.parametrize(
    ("n_seeds", "alpha", "n_items"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in COVERING else pytest.mark.nightly)
        for case in ((*calibrated, n) for calibrated in CALIBRATED for n in ITEMS)
    ],
)
def test_intervals_hold_the_truth_at_other_sizes(n_seeds: int, alpha: float, n_items: int):
    """The tail is not tested below five seeds, where right answers agree by chance."""
    n = 2000 if n_items < 1000 else 800
    found = {case: rates(draw, n, n_seeds, n_items, alpha) for case, draw in CASES.items()}

    assert max(each["both"] for each in found.values()) <= most(alpha, n)


@pytest.mark.parametrize("ratios", [(1, 0, 0), (0, 1, 0), (1 / 3, 1 / 3, 1 / 3)])
def test_a_detectable_difference_is_found_in_four_of_five_studies(ratios):
    random, alpha = np.random.default_rng(4), 0.02
    d = parts(*ratios)(random, 1000, 7, 60)
    s, e = ratios[0], ratios[2]
    truth = crossed(d[0])  # with the variances that its estimates are of
    seen = type(truth)(0.0, 7, 60, s + e, ratios[1], 0.0).detectable(alpha)

    found = np.mean([crossed(values + seen).interval(alpha)[0] > 0 for values in d])

    assert 0.76 < found < 0.95  # more where no part dominates: the interval is wider than it must
