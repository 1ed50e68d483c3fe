"""Seeds needed before arms are trained: against the tables, the formula and simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attnres_cli.stats.looks import first_rate, interval, word
from attnres_cli.stats.power import (
    ASSUMED,
    POWER,
    SEEDS,
    assumed,
    measured,
    noise,
    seconds,
    seeds_needed,
)

LOSSES = [1.50, 1.52, 1.47, 1.51, 1.53]


def test_pairing_saves_the_seeds_it_should():
    floor = noise(LOSSES)

    rows = [assumed(floor, rho, 0.02, first_rate(4)) for rho in ASSUMED]

    factors = [row.sd / floor.sd for row in rows]
    assert factors == pytest.approx([1.414, 1.0, 0.632], abs=1e-3)  # sqrt(2 (1 - rho))
    assert [row.needed for row in rows] == sorted((row.needed for row in rows), reverse=True)
    assert rows[1].needed == seeds_needed(0.02, floor.sd, first_rate(4))


def test_the_range_of_seeds_is_that_of_the_noise_floors_interval():
    floor = noise(LOSSES)

    row = assumed(floor, 0.5, 0.02, first_rate(1))

    assert row.range == tuple(seeds_needed(0.02, end, first_rate(1)) for end in floor.ci95)
    assert row.range[0] < row.needed < row.range[1]


def test_what_is_detectable_with_the_seeds_needed_is_no_more_than_the_gap():
    row = assumed(noise(LOSSES), 0.8, 0.03, first_rate(3))

    at = dict(zip(SEEDS, row.detectable, strict=True))
    assert at[row.needed] <= 0.03 < at[row.needed - 1]


def test_more_arms_need_more_seeds():
    needed = [assumed(noise(LOSSES), 0.5, 0.02, first_rate(n)).needed for n in (1, 4, 12)]

    assert needed == sorted(set(needed))


@pytest.mark.parametrize("rho", [0.0, 0.7, 0.95])
def test_the_correlation_of_long_studies_is_found(rho: float):
    random = np.random.default_rng(1)
    base = random.normal(0, 0.02, 4000)
    arms = [
        rho * base + math.sqrt(1 - rho**2) * random.normal(0, 0.02, 4000) + offset
        for offset in (1.5, 1.6)
    ]

    found = measured([(arm, base) for arm in arms], 0.01, first_rate(2))

    assert found.correlation == pytest.approx(rho, abs=0.03)
    assert found.sd == pytest.approx(0.02 * math.sqrt(2 * (1 - rho)), rel=0.03)
    assert (found.n_arms, found.n_pairs) == (2, 4000)


def test_arms_count_by_their_degrees_of_freedom():
    found = measured(
        [([1.0, 2.0, 3.0], [1.0, 2.0, 2.0]), ([5.0, 6.0], [5.0, 5.0])], 0.1, first_rate(2)
    )

    # squared deviations of the differences 0, 0, 1 and 0, 1: 2/3 and 1/2, of 2 and 1 degrees
    assert found.sd == pytest.approx(math.sqrt((2 / 3 + 1 / 2) / 3))


def test_without_shared_seeds_nothing_is_measured():
    assert measured([], 0.1, 0.05) is None
    assert measured([([1.0], [1.1])], 0.1, 0.05) is None


def test_an_arm_that_does_not_vary_has_no_correlation():
    found = measured([([1.0, 1.0], [1.0, 1.2])], 0.1, 0.05)

    assert found.correlation is None
    assert found.sd > 0


def test_a_study_of_the_seeds_needed_finds_the_gap_as_often_as_promised():
    random, sd, gap, n_arms = np.random.default_rng(2), 0.02, 0.03, 3
    floor = noise([0.0, math.sqrt(2) * sd])  # an sd of just that
    needed = assumed(floor, 0.5, gap, first_rate(n_arms)).needed
    found = 0
    for _ in range(1500):
        shared = random.normal(0, sd * math.sqrt(0.5), needed)
        own = random.normal(0, sd * math.sqrt(0.5), (n_arms + 1, needed))
        base, *arms = shared + own
        arms[0] = arms[0] - gap
        low, high = interval(arms[0], base, first_rate(n_arms))
        found += word(low, high) == "better"

    assert found / 1500 >= POWER - 0.03


def test_held_runs_cost_nothing():
    assert seconds(5, [(3, 10.0), (0, 20.0)], 2) == (10, 7, 60.0)


def test_no_study_takes_less_than_its_longest_run():
    assert seconds(1, [(0, 10.0), (0, 20.0)], 16) == (2, 2, 20.0)
    assert seconds(2, [(5, 10.0)], 1) == (2, 0, 0.0)
