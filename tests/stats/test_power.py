"""Power: against scipy's noncentral t, published sample sizes, and simulated studies."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import nct

from attnres_cli.stats.looks import ALPHA
from attnres_cli.stats.power import (
    POWER,
    _gauss_legendre,
    detectable,
    noise,
    power,
    seeds_needed,
)


@pytest.mark.parametrize("n", [2, 3, 6, 10, 100])
@pytest.mark.parametrize("effect", [0.1, 0.5, 1.0, 1.5])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 12])
def test_power_agrees_with_the_noncentral_t(n: int, effect: float, alpha: float):
    edge, centre = stdtrit(n - 1, 1 - alpha / 2), effect * np.sqrt(n)
    if centre > 8:
        pytest.skip("scipy gives nan there")

    expected = nct.sf(edge, n - 1, centre) + nct.cdf(-edge, n - 1, centre)

    assert power(n, effect, alpha) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("n", [2, 5, 50])
def test_without_a_difference_power_is_the_error_rate(n: int):
    assert power(n, 0.0, ALPHA) == pytest.approx(ALPHA, abs=1e-5)


@pytest.mark.parametrize(
    ("arms", "expected"), [(1, [10, 6, 5, 4, 3]), (6, [16, 9, 7, 5, 4])], ids=["one arm", "six"]
)
def test_seeds_needed_are_those_of_the_tables(arms: int, expected: list[int]):
    effects = [1.0, 1.5, 2.0, 3.0, 4.0]

    found = [seeds_needed(-effect * 0.02, 0.02, ALPHA / arms) for effect in effects]

    assert found == expected


@pytest.mark.parametrize("mean", [0.0, 1e-6])
def test_what_no_study_could_find_has_no_number_of_seeds(mean: float):
    assert seeds_needed(mean, 1.0, ALPHA) is None


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_least_detectable_difference_has_just_the_power_promised(n: int):
    found = detectable(n, 0.02, ALPHA / 4)

    assert power(n, found / 0.02, ALPHA / 4) == pytest.approx(POWER, abs=1e-4)
    assert seeds_needed(found * 1.001, 0.02, ALPHA / 4) == n


def test_more_seeds_detect_less():
    found = [detectable(n, 1.0, ALPHA) for n in range(2, 20)]

    assert found == sorted(found, reverse=True)


def test_the_noise_floor_holds_the_true_spread_in_nineteen_studies_of_twenty():
    studies = np.random.default_rng(0).normal(3, 0.5, (3000, 4))

    floors = [noise(study.tolist()) for study in studies]

    held = np.mean([floor.ci95[0] < 0.5 < floor.ci95[1] for floor in floors])
    assert held == pytest.approx(0.95, abs=0.016)
    assert floors[0].sd == pytest.approx(studies[0].std(ddof=1))


def test_one_run_has_no_noise_floor():
    with pytest.raises(ValueError, match="two seeds or more, got 1"):
        noise([1.0])


def test_the_nodes_of_the_quadrature_are_numpys():
    nodes, weights = _gauss_legendre(400)

    expected = np.polynomial.legendre.leggauss(400)
    np.testing.assert_allclose(nodes, expected[0], atol=1e-15)
    np.testing.assert_allclose(weights, expected[1], rtol=1e-9)
