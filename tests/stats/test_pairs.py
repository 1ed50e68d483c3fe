"""Paired tests, intervals and Holm's correction: against scipy, and cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from attnres_cli.stats.pairs import Difference, Signs, far, holm, mean_sd, signs
from attnres_cli.stats.pairs import paired as paired_losses


def paired(differences: list[float]) -> Difference:
    return paired_losses(differences, [0.0] * len(differences))


def holm_by_definition(p: list[float]) -> list[float]:
    """The largest, over all p up to this one, of p times how many are at least as large."""
    return [min(1.0, max(q * sum(other >= q for other in p) for q in p if q <= mine)) for mine in p]


@pytest.mark.parametrize("n", [2, 3, 5, 40])
@pytest.mark.parametrize("shift", [0.0, -0.02, 3.0])
def test_the_paired_test_agrees_with_scipy(n: int, shift: float):
    values = np.random.default_rng(n).normal(shift, 0.1, n)

    ours, theirs = paired(values.tolist()), ttest_1samp(values, 0)

    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert ours.ci95 == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (ours.n, ours.mean, ours.sd) == pytest.approx((n, values.mean(), values.std(ddof=1)))


def test_too_few_differences_and_those_without_spread_are_refused_unless_all_are_zero():
    zero = paired([0.0, 0.0, 0.0])
    assert (zero.p, zero.mean, zero.ci95) == (1.0, 0.0, (0.0, 0.0))
    for values in ([], [0.1]):
        with pytest.raises(ValueError, match=f"two shared seeds or more, got {len(values)}"):
            paired(values)
    for values in ([-3.5] * 2, [100.0] * 12, [0.1, 0.1, np.nextafter(0.1, 1)]):
        with pytest.raises(ValueError, match="no spread"):
            paired(values)
    base = [1.6, 1.7, 1.8]
    with pytest.raises(ValueError, match="no spread"):  # but the rounding of losses of that size
        paired_losses([loss + 1e-3 for loss in base], base)


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_agrees_with_its_definition_and_keeps_the_order_of_arms(p: list[float]):
    corrected = holm(p)

    assert corrected == pytest.approx(holm_by_definition(p))
    assert all(before <= after <= 1 for before, after in zip(p, corrected, strict=True))
    pairs = list(zip(p, corrected, strict=True))
    assert all(a[1] <= b[1] for a in pairs for b in pairs if a[0] <= b[0])
    # by hand, in order: 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1 raised to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    "n", [5, pytest.param(7, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow)]
)
def test_one_normal_sample_in_a_hundred_has_a_value_far_from_the_others(n: int):
    samples = np.random.default_rng(n).normal(size=(4000, n))

    assert np.mean([bool(far(sample)) for sample in samples]) == pytest.approx(0.01, abs=0.006)


def test_values_have_a_mean_and_two_an_sd_and_one_far_from_the_others_is_found():
    values = [0.01, -0.01, 0.02, 0.3, 0.0, -0.02, 0.01]

    assert mean_sd([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, math.sqrt(7 / 3)))
    assert mean_sd([1.5]) == (1.5, None)
    assert far(values) == [3]
    assert far(values[:4]) == far([1.0] * 6) == []


def test_the_sign_test_is_binomial_and_zeros_count_for_nothing():
    assert signs([-1, -2, -3, -4, -5, -6, 7]) == Signs(-3, pytest.approx(2 * 8 / 2**7))
    assert signs([0, 0, 1]) == Signs(0, 1.0)
    assert signs([0.0]) == Signs(0, 1.0)
    assert signs([-1] * 7).p == pytest.approx(2 / 2**7)
