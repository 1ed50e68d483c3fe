"""Rates of looks: together they use what they share, where nothing differs."""

from __future__ import annotations

import math
from itertools import accumulate, islice

import numpy as np
import pytest
from scipy.special import stdtr

from attnres_cli.stats.boundaries import nominal
from attnres_cli.stats.power import growing, power
from attnres_cli.stats.sequential import ALPHA, every_seed, grows, sizes

N = 100_000


def first_found(looks: list[tuple[int, float]]) -> list[float]:
    """The share of null studies in which each look is the first to find a difference."""
    values = np.random.default_rng(7).normal(size=(N, looks[-1][0]))
    sums, squares = values.cumsum(axis=1), (values**2).cumsum(axis=1)
    shares, goes_on = [], np.ones(N, dtype=bool)
    for n, rate in looks:
        total, square = sums[:, n - 1], squares[:, n - 1]
        t = np.abs(total) / np.sqrt((square - total**2 / n) * n / (n - 1))
        found = goes_on & (2 * stdtr(n - 1, -t) < rate)
        goes_on &= ~found
        shares.append(found.mean())
    return shares


@pytest.mark.parametrize(
    "spending",
    [
        [(n, 0.05 * share) for n, share in every_seed(26)],
        [(n, 0.01 * share) for n, share in every_seed(12)],
        [(n, 0.05 * share) for n, share in islice(sizes(7), 4)],
        [(2, 0.02), (3, 0.02), (4, 0.0), (9, 0.02)],
    ],
    ids=["every seed to 26", "every seed to 12", "looks of a plan", "from two"],
)
def test_each_look_is_the_first_to_find_a_difference_as_often_as_it_spends(spending):
    looks = list(nominal(spending))

    found = first_found(looks)

    for share, (_, spent) in zip(found, spending, strict=True):
        assert share == pytest.approx(spent, abs=4 * math.sqrt(spent / N) + 0.01 * spent)


def test_a_first_look_tests_at_what_it_spends_later_ones_at_more_and_late_ones_at_that():
    spending = [(n, ALPHA * share) for n, share in islice(sizes(5), 9)]
    looks = list(nominal(spending))

    assert looks[0] == spending[0]
    for (n, rate), (_, spent), together in zip(
        looks[1:], spending[1:], list(accumulate(spent for _, spent in spending))[1:], strict=True
    ):
        assert rate == spent if n > 64 else spent < rate < together


def test_a_growing_study_finds_what_one_look_finds_sooner_and_the_more_the_larger_it_is():
    once = growing([(7, 0.05)], 1.0)
    looks = grows(26, 1)
    found = [growing(looks, effect) for effect in (0.0, 0.5, 1.0, 2.0)]

    assert once == (pytest.approx(power(7, 1.0, 0.05), abs=0.03), 7)
    assert found[0][0] < 0.8 * ALPHA + 0.01
    assert [share for share, _ in found] == sorted(share for share, _ in found)
    assert [seeds for _, seeds in found] == sorted((s for _, s in found), reverse=True)
    assert found[3][0] > 0.99
    assert found[3][1] < 8
