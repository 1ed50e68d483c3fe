"""Paired tests, intervals and Holm's correction: against scipy, and cases worked by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap, permutation_test, ttest_1samp

from attnres_cli.stats.pairs import Difference, bca, holm, judged, mean_sd, sign_flip, word
from attnres_cli.stats.pairs import paired as paired_losses

P_VALUES = st.lists(st.floats(0, 1), max_size=12)


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


def test_p_of_holm_is_p_until_it_is_corrected():
    difference = paired([0.1, 0.3, 0.2])

    assert difference.p_holm == difference.p


@given(st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=8, unique=True))
@settings(deadline=None)
def test_the_interval_leaves_zero_out_exactly_where_p_is_below_a_twentieth(values: list[float]):
    difference = paired(values)

    low, high = difference.ci95
    assert (low > 0 or high < 0) == (difference.p < 0.05)


def test_turning_all_signs_turns_the_interval_and_keeps_p():
    values = [0.1, 0.3, -0.2, 0.25]

    plus, minus = paired(values), paired([-v for v in values])

    assert minus.p == plus.p
    assert minus.ci95 == (-plus.ci95[1], -plus.ci95[0])


@pytest.mark.parametrize("values", [[], [0.1]])
def test_fewer_than_two_differences_are_refused(values: list[float]):
    with pytest.raises(ValueError, match=f"two shared seeds or more, got {len(values)}"):
        paired(values)


@given(st.floats(-100, 100).filter(bool), st.integers(2, 12))
@settings(deadline=None)
def test_differences_without_spread_are_refused(value: float, n: int):
    with pytest.raises(ValueError, match="no spread"):
        paired([value] * n)


def test_differences_that_differ_by_rounding_alone_are_refused():
    with pytest.raises(ValueError, match="no spread"):
        paired([0.1, 0.1, np.nextafter(0.1, 1)])


def test_differences_that_are_all_zero_give_p_one():
    difference = paired([0.0, 0.0, 0.0])

    assert (difference.p, difference.mean, difference.ci95) == (1.0, 0.0, (0.0, 0.0))


@pytest.mark.parametrize("n", [2, 5, 6, 9])
@pytest.mark.parametrize("shift", [0.0, 0.4, 3.0])
def test_the_sign_flip_test_agrees_with_scipy(n: int, shift: float):
    values = np.random.default_rng(n).normal(shift, 1, n)

    theirs = permutation_test(
        (values, np.zeros(n)), lambda a, b: np.mean(a - b), permutation_type="samples"
    )

    assert sign_flip(values) == pytest.approx(theirs.pvalue)


@pytest.mark.parametrize("n", [1, 2, 7, 15])
@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0])
def test_the_sign_flip_test_counts_what_setting_every_sign_gives(n: int, shift: float):
    values = np.random.default_rng(n).normal(shift, 1, n)

    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
    as_far = np.abs(signs @ np.abs(values)) >= abs(values.sum()) - 1e-9

    assert sign_flip(values) == as_far.mean()


def test_the_sign_flip_test_of_equal_differences_is_the_binomial_test_up_to_32_pairs():
    values = np.array([1.0] * 21 + [-1.0] * 11)

    assert sign_flip(values) == pytest.approx(binomtest(21, 32).pvalue, rel=1e-12)


def test_above_32_pairs_signs_are_drawn_and_that_is_said():
    random = np.random.default_rng(5)
    ours, theirs = random.normal(0.4, 1, 33), random.normal(0, 1, 33)

    drawn, exact = judged([(ours, theirs), (ours[:32], theirs[:32])])

    assert (exact.p_sign_flip_is_exact, drawn.p_sign_flip_is_exact) == (True, False)
    assert drawn.p_sign_flip == sign_flip(ours - theirs)  # the same draws each time
    assert drawn.p_sign_flip == pytest.approx(exact.p_sign_flip, abs=0.05)


def test_drawn_signs_give_nearly_what_counting_all_gives():
    values = np.array([1.0] * 38 + [-1.0] * 22)

    assert sign_flip(values) == pytest.approx(binomtest(38, 60).pvalue, abs=0.003)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=10))
@settings(deadline=None)
def test_no_sign_flip_test_says_more_than_its_number_of_pairs_can(values: list[float]):
    assert sign_flip(values) == pytest.approx(2 / 2 ** len(values))


def test_fewer_than_six_pairs_cannot_reach_five_percent_exactly():
    assert sign_flip([1.0] * 5) > 0.05 > sign_flip([1.0] * 6)


def test_the_sign_flip_test_of_many_pairs_is_near_the_t_test():
    values = np.random.default_rng(3).normal(0.3, 1, 60)

    assert sign_flip(values) == pytest.approx(paired(values.tolist()).p, abs=0.003)


@pytest.mark.parametrize("n", [6, 12, 40])
@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_the_bootstrap_interval_agrees_with_scipy(n: int, draw: str):
    values = getattr(np.random.default_rng(n), draw)(size=n)

    theirs = bootstrap((values,), np.mean, n_resamples=20_000, rng=np.random.default_rng(1))

    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    expected = (theirs.confidence_interval.low, theirs.confidence_interval.high)
    assert bca(values) == pytest.approx(expected, abs=0.04 * width)


def test_what_pairing_buys_is_the_variance_it_takes_away():
    random = np.random.default_rng(4)
    seeds = random.normal(0, 1, 4000)
    arm, base = seeds + random.normal(0, 0.5, 4000), seeds + random.normal(0, 0.5, 4000)

    found = paired_losses(arm.tolist(), base.tolist())

    assert found.correlation == pytest.approx(np.corrcoef(arm, base)[0, 1])
    assert found.correlation == pytest.approx(0.8, abs=0.02)
    assert found.gain == pytest.approx(1 / (1 - 0.8), rel=0.1)


def test_losses_that_differ_by_rounding_of_their_own_size_are_refused():
    base = [1.6, 1.7, 1.8]
    with pytest.raises(ValueError, match="no spread"):
        paired_losses([loss + 1e-3 for loss in base], base)


def test_a_judged_comparison_holds_every_arm_with_all_that_is_known_of_it():
    base = np.random.default_rng(5).normal(1.6, 0.02, 6)
    near, far = base - [0.01, 0.0, -0.01, 0.02, 0.01, 0.0], base - [0.1, 0.11, 0.1, 0.09, 0.1, 0.1]

    first, second = judged([(near, base), (far, base)])

    assert (word(first), word(second)) == ("not separable", "better")
    assert [first.p_holm, second.p_holm] == holm([first.p, second.p])
    assert (first.p_sign_flip, second.p_sign_flip) == (sign_flip(near - base), 2 / 64)
    assert second.bca95 == bca(far - base)
    assert first.detectable is not None
    assert first.detectable > abs(first.mean)


def test_five_pairs_have_no_bootstrap_interval():
    (found,) = judged([([1.0, 2.0, 1.5, 1.2, 1.1], [0.9, 1.8, 1.6, 1.1, 1.0])])

    assert found.bca95 is None


def test_an_arm_that_is_the_baseline_is_not_separable_from_it():
    losses = [1.6, 1.7, 1.65]

    (found,) = judged([(losses, losses)])

    assert word(found) == "not separable"
    assert (found.detectable, found.p_sign_flip) == (None, 1.0)


def test_more_loss_is_worse():
    (found,) = judged([([2.0, 2.1, 2.0, 2.1], [1.0, 1.0, 1.01, 1.0])])

    assert word(found) == "worse"


def test_holm_of_a_case_worked_by_hand():
    p = [
        0.01,
        0.04,
        0.03,
        0.005,
    ]  # ordered 0.005 x 4, 0.01 x 3, 0.03 x 2, 0.04 x 1 -> at least 0.06

    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_of_nothing_is_nothing():
    assert holm([]) == []


@given(P_VALUES)
@settings(deadline=None)
def test_holm_agrees_with_its_definition(p: list[float]):
    assert holm(p) == pytest.approx(holm_by_definition(p))


@given(P_VALUES)
@settings(deadline=None)
def test_holm_lies_between_p_and_one(p: list[float]):
    corrected = holm(p)

    assert all(before <= after <= 1 for before, after in zip(p, corrected, strict=True))


@given(P_VALUES)
@settings(deadline=None)
def test_holm_never_reverses_the_order_of_two_arms(p: list[float]):
    pairs = list(zip(p, holm(p), strict=True))

    assert all(a[1] <= b[1] for a in pairs for b in pairs if a[0] <= b[0])


@given(st.permutations([0.001, 0.012, 0.02, 0.04, 0.3]))
@settings(deadline=None)
def test_holm_does_not_depend_on_the_order_of_the_arms(p: list[float]):
    expected = dict(zip(sorted(p), holm(sorted(p)), strict=True))

    assert holm(p) == [expected[value] for value in p]


def test_mean_and_sd_are_those_of_a_sample():
    assert mean_sd([1.0, 2.0, 4.0]) == pytest.approx((7 / 3, math.sqrt(7 / 3)))


def test_one_value_has_no_sd():
    assert mean_sd([1.5]) == (1.5, None)


def test_two_seeds_are_never_better_or_worse_and_three_may_be():
    two, three = [[1.0, 1.001], [1.0, 1.001, 0.999]]
    baselines = [2.0, 2.0, 2.0]

    (found,) = judged([(two, baselines[:2])])
    (more,) = judged([(three, baselines)])

    assert found.p_holm < 0.05
    assert (word(found), found.detectable) == ("not separable", None)
    assert word(more) == "better"
