"""Scaling fits: the paper's Table 2, known laws, and how often intervals hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnres_cli.stats.scaling import PowerLaw, fit, fit_floor, multiplier

COMPUTE = [0.6915, 1.0405, 1.6937, 3.3531, 5.5985]  # PFLOP/s-days, read off the paper's Fig. 4
TABLE_2 = {
    "baseline": [1.931, 1.895, 1.829, 1.766, 1.719],
    "block": [1.909, 1.875, 1.809, 1.746, 1.693],
    "full": [1.899, 1.874, 1.804, 1.737, 1.692],
    "mhc": [1.906, 1.869, 1.807, 1.747, 1.694],
}


def single(losses: list[float]) -> dict[float, dict[int, float]]:
    return {size: {0: loss} for size, loss in zip(COMPUTE, losses, strict=True)}


@pytest.mark.parametrize(
    ("arm", "a", "alpha"),
    [
        ("baseline", 1.8921, 0.0566),
        ("block", 1.8716, 0.0582),
        ("full", 1.8653, 0.0574),
        ("mhc", 1.8680, 0.0566),
    ],
)
def test_the_papers_table_2_has_these_least_squares_fits(arm: str, a: float, alpha: float):
    found = fit(COMPUTE, TABLE_2[arm])

    assert (round(found.a, 4), round(found.alpha, 4)) == (a, alpha)


@pytest.mark.parametrize(("arm", "expected"), [("block", 1.274), ("full", 1.321), ("mhc", 1.257)])
def test_the_papers_losses_are_worth_this_much_compute(arm: str, expected: float):
    found = multiplier(single(TABLE_2[arm]), single(TABLE_2["baseline"]), 5.6)

    assert found.value == pytest.approx(expected, abs=5e-4)
    assert found.ci95 is None  # one run each
    assert found.left_out is not None
    assert found.left_out[0] < found.value < found.left_out[1]


def test_the_papers_printed_curves_give_its_quarter():
    baseline, block = PowerLaw(1.891, 0.057, 0, 0), PowerLaw(1.870, 0.058, 0, 0)

    assert baseline.compute(block.loss(5.6)) / 5.6 == pytest.approx(1.254, abs=5e-4)


@pytest.mark.parametrize("floor", [0.0, 0.7, 1.6])
@pytest.mark.parametrize("alpha", [0.06, 0.3, 1.0])
def test_a_law_that_holds_exactly_is_found_with_its_floor(floor: float, alpha: float):
    truth = PowerLaw(0.9, alpha, floor, 0)
    compute = np.geomspace(1, 1000, 6).tolist()

    found = fit_floor(compute, [truth.loss(c) for c in compute])

    assert found.floor == pytest.approx(floor, abs=2e-3)
    assert (found.a, found.alpha) == pytest.approx((0.9, alpha), rel=4e-3)
    assert found.rmse < 1e-6


def test_losses_that_would_need_a_negative_floor_get_none():
    compute = [1.0, 2.0, 4.0, 8.0]

    found = fit_floor(compute, [3.0, 2.0, 1.0, 0.1])  # steeper than any power law

    assert found.floor == 0.0


def test_a_law_read_backwards_is_the_compute_it_was_read_at():
    law = PowerLaw(2.0, 0.1, 0.5, 0)

    assert law.compute(law.loss(7.0)) == pytest.approx(7.0)
    assert law.compute(0.5) == math.inf


def test_two_budgets_and_one_loss_are_enough_for_a_multiplier():
    baseline = fit([1.0, 2.0], [2.0, 1.9])

    assert baseline.compute(1.9) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("compute", "losses", "message"),
    [
        ([1.0], [2.0], "2 budgets or more, got 1"),
        ([1.0, 1.0], [2.0, 2.1], "2 budgets or more, got 1"),
        ([1.0, 2.0], [2.0, math.nan], "positive finite"),
        ([0.0, 2.0], [2.0, 1.0], "positive finite"),
    ],
)
def test_what_cannot_be_fitted_is_refused(compute: list[float], losses: list[float], message: str):
    with pytest.raises(ValueError, match=message):
        fit(compute, losses)


def test_three_budgets_are_too_few_for_a_floor():
    with pytest.raises(ValueError, match="4 budgets or more, got 3"):
        fit_floor([1.0, 2.0, 3.0], [3.0, 2.0, 1.5])


def test_arms_of_different_numbers_of_sizes_are_refused():
    short = {size: {0: 1.0 / size} for size in COMPUTE[:3]}
    with pytest.raises(ValueError, match="the arm has 3 sizes, the baseline 5"):
        multiplier(short, single(TABLE_2["baseline"]), 1.0)


def test_a_baseline_that_more_compute_makes_worse_has_no_multiplier():
    rising = {size: {0: 2.0 + size} for size in COMPUTE}
    with pytest.raises(ValueError, match="with any compute"):
        multiplier(single(TABLE_2["block"]), rising, 1.0)


def test_an_interval_may_be_open_where_some_draws_never_reach_the_loss():
    arm = {1.0: {0: 2.00, 1: 2.04}, 2.0: {0: 1.90, 1: 1.96}}
    baseline = {1.0: {0: 2.01, 1: 2.05}, 2.0: {0: 1.99, 1: 2.03}}

    found = multiplier(arm, baseline, 2.0)

    assert found.ci95 is not None
    assert found.ci95[0] < found.value < found.ci95[1]
    assert math.isinf(found.ci95[1])


@pytest.mark.parametrize(("n_seeds", "least"), [(3, 0.88), (5, 0.91), (10, 0.93)])
def test_the_interval_holds_the_true_multiplier_about_as_often_as_it_says(
    n_seeds: int, least: float
):
    random = np.random.default_rng(n_seeds)
    baseline, arm = PowerLaw(1.89, 0.06, 0, 0), PowerLaw(1.86, 0.06, 0, 0)
    truth = baseline.compute(arm.loss(6.0)) / 6.0

    def drawn(law: PowerLaw, shared: np.ndarray) -> dict[float, dict[int, float]]:
        return {
            size: dict(enumerate(law.loss(size) + row + random.normal(0, 0.002, n_seeds)))
            for size, row in zip(COMPUTE[:4], shared, strict=True)
        }

    held, studies = 0, 400
    for _ in range(studies):
        shared = random.normal(0, 0.002, (4, n_seeds))
        low, high = multiplier(drawn(arm, shared), drawn(baseline, shared), 6.0).ci95 or (0, 0)
        held += low < truth < high

    assert held / studies > least - 0.03
