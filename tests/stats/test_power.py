"""Power and the seeds that a study needs: against scipy, published tables and simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import stdtrit
from scipy.stats import nct

from attnres_cli.stats.power import (
    ASSUMED,
    POWER,
    SEEDS,
    assumed,
    detectable,
    measured,
    noise,
    power,
    seconds,
    seeds_needed,
)
from attnres_cli.stats.sequential import ALPHA, first_rate

LOSSES = [1.50, 1.52, 1.47, 1.51, 1.53]


@pytest.mark.parametrize("n", [2, 3, 6, 10, 100])
def test_power_agrees_with_the_noncentral_t(n: int):
    for effect in (0.1, 0.5, 1.0, 1.5):
        for alpha in (0.05, 0.05 / 12):
            edge, centre = stdtrit(n - 1, 1 - alpha / 2), effect * np.sqrt(n)
            if centre > 8:
                continue  # scipy gives nan there

            expected = nct.sf(edge, n - 1, centre) + nct.cdf(-edge, n - 1, centre)

            assert power(n, effect, alpha) == pytest.approx(expected, abs=1e-5)
    assert power(n, 0.0, ALPHA) == pytest.approx(ALPHA, abs=1e-5)


def test_seeds_needed_match_published_tables():
    effects = [1.0, 1.5, 2.0, 3.0, 4.0]

    for arms, expected in ((1, [10, 6, 5, 4, 3]), (6, [16, 9, 7, 5, 4])):
        found = [seeds_needed(-effect * 0.02, 0.02, ALPHA / arms) for effect in effects]
        assert found == expected
    # too small for any study:
    assert seeds_needed(0.0, 1.0, ALPHA) is seeds_needed(1e-6, 1.0, ALPHA) is None


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_least_detectable_difference_is_found_with_exactly_the_promised_power(n: int):
    found = detectable(n, 0.02, ALPHA / 4)

    assert power(n, found / 0.02, ALPHA / 4) == pytest.approx(POWER, abs=1e-4)
    assert seeds_needed(found * 1.001, 0.02, ALPHA / 4) == n
    assert detectable(n + 1, 0.02, ALPHA / 4) < found


def test_the_noise_floor_holds_the_true_spread_in_nineteen_studies_of_twenty():
    studies = np.random.default_rng(0).normal(3, 0.5, (3000, 4))

    floors = [noise(study.tolist()) for study in studies]

    held = np.mean([floor.ci95[0] < 0.5 < floor.ci95[1] for floor in floors])
    assert held == pytest.approx(0.95, abs=0.016)
    assert floors[0].sd == pytest.approx(studies[0].std(ddof=1))
    with pytest.raises(ValueError, match="two seeds or more, got 1"):
        noise([1.0])


def test_pairing_saves_the_seeds_it_should_and_the_fewest_that_detect_the_gap_are_named():
    floor = noise(LOSSES)

    rows = [assumed(floor, rho, 0.02, first_rate(4)) for rho in ASSUMED]
    row, paired = assumed(floor, 0.5, 0.02, first_rate(1)), assumed(floor, 0.8, 0.03, first_rate(3))

    factors = [row.sd / floor.sd for row in rows]
    assert factors == pytest.approx([1.414, 1.0, 0.632], abs=1e-3)  # sqrt(2 (1 - rho))
    assert [row.needed for row in rows] == sorted((row.needed for row in rows), reverse=True)
    assert rows[1].needed == seeds_needed(0.02, floor.sd, first_rate(4))
    needed = [assumed(floor, 0.5, 0.02, first_rate(n)).needed for n in (1, 4, 12)]
    assert needed == sorted(set(needed))  # more arms need more seeds
    assert row.range == tuple(seeds_needed(0.02, end, first_rate(1)) for end in floor.ci95)
    assert row.range[0] < row.needed < row.range[1]
    at = dict(zip(SEEDS, paired.detectable, strict=True))
    assert at[paired.needed] <= 0.03 < at[paired.needed - 1]


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.95])
def test_the_correlation_of_long_studies_is_found(rho: float):
    random = np.random.default_rng(1)
    base = random.normal(0, 0.02, 4000)
    arm = rho * base + math.sqrt(1 - rho**2) * random.normal(0, 0.02, 4000) + 1.5

    found = measured("attnres", arm, base, 0.01, first_rate(2))

    assert found.correlation == pytest.approx(rho, abs=0.03)
    assert found.sd == pytest.approx(0.02 * math.sqrt(2 * (1 - rho)), rel=0.03)
    assert (found.arm, found.n_pairs) == ("attnres", 4000)


def test_an_arm_without_pairs_or_spread_is_not_measured():
    constant = measured("attnres", [1.0, 1.0], [1.0, 1.2], 0.1, 0.05)

    assert measured("attnres", [], [], 0.1, 0.05) is None
    assert measured("attnres", [1.0], [1.1], 0.1, 0.05) is None
    assert measured("attnres", [1.0, 1.5], [1.5, 2.0], 0.1, 0.05) is None
    assert constant.correlation is None
    assert constant.sd > 0


def test_a_study_costs_its_missing_runs_and_lasts_as_long_as_its_longest():
    assert seconds(5, [(3, 10.0), (0, 20.0)], 2) == (10, 7, 60.0)
    assert seconds(1, [(0, 10.0), (0, 20.0)], 16) == (2, 2, 20.0)
    assert seconds(2, [(5, 10.0)], 1) == (2, 0, 0.0)
