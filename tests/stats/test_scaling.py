"""Scaling fits: the paper's Table 2, known laws, and how often intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from attnres_cli.stats.scaling import PowerLaw, fit, multipliers, shared_floor

COMPUTE = [0.6915, 1.0405, 1.6937, 3.3531, 5.5985]  # PFLOP/s-days, read off the paper's Fig. 4
TABLE_2 = {
    "baseline": [1.931, 1.895, 1.829, 1.766, 1.719],
    "block": [1.909, 1.875, 1.809, 1.746, 1.693],
    "full": [1.899, 1.874, 1.804, 1.737, 1.692],
    "mhc": [1.906, 1.869, 1.807, 1.747, 1.694],
}
LOSSES = np.array(list(TABLE_2.values()))
SIZES = np.array([COMPUTE] * 4)
LAWS = [(1.8921, 0.0566), (1.8716, 0.0582), (1.8653, 0.0574), (1.8680, 0.0566)]  # least squares


def test_the_papers_table_2_has_these_least_squares_fits_and_is_worth_this_much_compute():
    fits = [fit(COMPUTE, losses)[0] for losses in TABLE_2.values()]
    block, full, mhc = multipliers(SIZES, LOSSES)

    assert [(round(law.a, 4), round(law.alpha, 4)) for law in fits] == LAWS
    assert (block.value, full.value, mhc.value) == pytest.approx((1.274, 1.321, 1.257), abs=5e-4)
    for found in (block, full, mhc):
        assert found.compute == pytest.approx(5.5985)
        assert found.ci95[0] < found.left_out[0] < found.value < found.left_out[1] < found.ci95[1]
        assert found.ci95[0] < 1.25 < found.ci95[1]  # the paper's claim of Block


def test_at_equal_compute_the_interval_is_that_of_the_paired_log_ratio():
    ratio = np.log(LOSSES[2] / LOSSES[0])
    baseline = np.array([PowerLaw(1.89, 0.06, 0.0, 0).loss(c) for c in COMPUTE])

    (found,) = multipliers(SIZES[:2], [baseline, baseline * np.exp(ratio)])

    x = np.log(COMPUTE)
    away, end = x - x.mean(), x[-1] - x.mean()
    left = ratio - ratio.mean() - away @ ratio / (away @ away) * away
    error = np.sqrt(left @ left / 3 * (1 / 5 + end**2 / (away @ away)))
    half = 3.18245 * error / 0.06  # t of 3 degrees of freedom
    low, high = np.log(found.ci95)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-4)


@pytest.mark.parametrize("floor", [0.0, 0.7, 1.6])
@pytest.mark.parametrize("alpha", [0.06, 0.3, 1.0])
def test_exact_laws_are_found_with_the_floor_that_they_share(floor: float, alpha: float):
    truth = [PowerLaw(0.9, alpha, floor, 0), PowerLaw(0.8, 1.1 * alpha, floor, 0)]
    compute = [np.geomspace(1, 1000, 6).tolist()] * 2
    losses = [[law.loss(c) for c in sizes] for law, sizes in zip(truth, compute, strict=True)]

    found = shared_floor(compute, losses)
    laws = fit(compute, losses, found)

    assert found == pytest.approx(floor, abs=2e-3)
    for law, true in zip(laws, truth, strict=True):
        assert (law.a, law.alpha) == pytest.approx((true.a, true.alpha), rel=4e-3)
        assert law.rmse < 1e-6


def test_an_arm_is_compared_at_its_own_compute():
    law = PowerLaw(1.9, 0.06, 0.0, 0)
    dearer = 1.2 * np.array(COMPUTE)

    (found,) = multipliers(
        [COMPUTE, dearer], [[law.loss(c) for c in COMPUTE], [law.loss(1.3 * c) for c in dearer]]
    )

    assert found.value == pytest.approx(1.3)
    assert found.compute == pytest.approx(1.2 * COMPUTE[-1])


@pytest.mark.parametrize("floor", [False, True])
def test_losses_on_their_laws_to_rounding_have_no_interval(floor: bool):
    laws = [PowerLaw(1.9, 0.06, 0.5 * floor, 0), PowerLaw(1.86, 0.06, 0.5 * floor, 0)]
    losses = np.array([[law.loss(c) for c in COMPUTE] for law in laws])

    (exact,) = multipliers(SIZES[:2], losses, floor)
    (rounded,) = multipliers(SIZES[:2], losses.astype(np.float32), floor)
    (alike,) = multipliers(SIZES[:2], LOSSES[[0, 0]], floor)

    assert (exact.ci95, rounded.ci95, alike.ci95) == (None, None, None)
    assert alike.value == pytest.approx(1)
    (found,) = multipliers([[1.0, 2.0]] * 2, [[2.0, 1.9], [1.99, 1.88]])  # nor have two sizes
    assert found.value > 1
    assert (found.ci95, found.left_out) == (None, None)


def test_losses_that_cannot_be_fitted_are_refused():
    for compute, losses, message in (
        ([1.0], [2.0], "2 sizes or more, got 1"),
        ([1.0, 1.0], [2.0, 2.1], "2 sizes or more, got 1"),
        ([1.0, 2.0], [2.0, np.nan], "positive finite"),
        ([0.0, 2.0], [2.0, 1.0], "positive finite"),
    ):
        with pytest.raises(ValueError, match=message):
            fit(compute, losses)
    with pytest.raises(ValueError, match="4 sizes or more, got 3"):
        shared_floor([1.0, 2.0, 3.0], [3.0, 2.0, 1.5])
    assert shared_floor([1.0, 2.0, 4.0, 8.0], [3.0, 2.0, 1.0, 0.1]) == 0.0  # steeper than any law
    with pytest.raises(ValueError, match="does not fall with compute"):
        multipliers(SIZES[:2], [[2.0 + size for size in COMPUTE], TABLE_2["block"]])


@pytest.mark.parametrize(
    ("n_sizes", "floor", "n_seeds"),
    [
        (3, 0.0, 1),
        (4, 0.0, 10),
        pytest.param(5, 1.0, 1, marks=pytest.mark.slow),
        pytest.param(5, 1.0, 10, marks=pytest.mark.nightly),
    ],
)
def test_the_interval_holds_the_truth(n_sizes: int, floor: float, n_seeds: int):
    random = np.random.default_rng(n_seeds)
    compute = [np.geomspace(1, 8, n_sizes)] * 2
    law = PowerLaw(1.89 - floor, 0.12 if floor else 0.06, floor, 0)
    losses = np.array([[law.loss(times * c) for c in compute[0]] for times in (1.0, 1.25)])

    held, studies = 0, 400
    for _ in range(studies):
        paired = random.normal(0, 0.003, n_sizes)
        own = random.normal(0, 0.002, (2, n_sizes))
        seeds = random.normal(0, 0.003, (n_seeds, 2, n_sizes)).mean(axis=0)
        (found,) = multipliers(compute, losses * np.exp(paired + own + seeds), n_sizes > 3)
        held += found.ci95[0] < 1.25 < found.ci95[1]

    assert 0.92 < held / studies < 0.99
