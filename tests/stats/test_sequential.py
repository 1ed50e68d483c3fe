"""Looks: shares of the error rate, and intervals that hold however often a study is read."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from attnres_cli.stats.pairs import paired
from attnres_cli.stats.sequential import (
    ALPHA,
    LEAST_SEEDS,
    first_rate,
    interval,
    look,
    shares,
    sizes,
)


def rates(planned: int, share: float = 1.0):
    return ((size, ALPHA * share * part) for size, part in sizes(planned))


@pytest.mark.parametrize("planned", [1, 3, 5, 7, 12])
def test_looks_stand_at_sizes_fixed_by_the_plan_and_share_the_rate(planned: int):
    found = list(itertools.islice(sizes(planned), 30))

    assert found[0] == (max(LEAST_SEEDS, planned), 0.6)
    for (size, share), (after, next_share) in itertools.pairwise(found):
        assert after == math.ceil(1.5 * size)
        assert next_share < share
    assert sum(share for _, share in found) == pytest.approx(1)


@pytest.mark.parametrize("groups", [[1], [4], [1, 10], [2, 1, 1, 5], [1] * 50])
def test_arms_share_the_rate_and_none_loses_by_arms_that_join_later(groups: list[int]):
    found = shares(groups)

    assert sum(share * n for share, n in zip(found, groups, strict=True)) <= 1
    assert len(groups) == 1 or found[:-1] == shares(groups[:-1])
    assert first_rate(1) == pytest.approx(0.8 * 0.6 * ALPHA)
    assert first_rate(4) == pytest.approx(first_rate(1) / 4)


def test_the_interval_of_a_look_is_students_at_its_share_and_infinite_before_the_first():
    ours, theirs = np.random.default_rng(0).normal(size=(2, 5))
    none = look(ours[:4], theirs[:4], rates(3))

    assert interval(ours, theirs, 0.05) == pytest.approx(paired(ours, theirs).ci95, abs=1e-5)
    assert look(ours, theirs, rates(5, 0.5)).alpha == pytest.approx(ALPHA * 0.5 * 0.6)
    assert (none.n, none.next, none.low, none.high) == (0, 5, -math.inf, math.inf)


def test_runs_beyond_a_look_change_nothing_until_the_next_or_after_the_last():
    ours, theirs = np.random.default_rng(1).normal(size=(2, 8))

    found = [look(ours[:n], theirs[:n], rates(5)) for n in range(5, 9)]
    last = look(ours, theirs, [(6, ALPHA / 2)])

    assert found[0] == found[1] == found[2]
    assert found[3].n == found[2].next == 8
    assert found[2].low <= found[3].low
    assert found[3].high <= found[2].high
    assert (last.n, last.next) == (6, None)
    assert (last.low, last.high) == interval(ours[:6], theirs[:6], ALPHA / 2)


def test_neither_rounding_nor_looks_that_contradict_each_other_make_a_difference():
    losses = [1.5, 1.6, 1.7, 1.4, 1.5]
    ours = np.array([1.0, 1.001, 0.999, 1.0, 1.0, 90.0, 90.0, 90.0])

    rounded = look([loss - 1e-7 for loss in losses], losses, rates(5))
    contrary = look(ours, np.zeros(8), rates(5))

    assert rounded.low < 0 < rounded.high
    assert contrary.low < contrary.high


@pytest.mark.parametrize("noise", ["normal", "heavy", "stuck"])
def test_however_often_a_study_is_read_its_intervals_miss_the_truth_once_in_twenty(noise: str):
    random, n_studies = np.random.default_rng(2), 400
    size = (n_studies, 4, 12)  # the baseline, three arms, twelve seeds
    losses = random.standard_t(3, size) if noise == "heavy" else random.normal(size=size)
    if noise == "stuck":
        losses += 10 * (random.random(size) < 0.5)
    first, last = shares([2, 1])

    wrong = 0
    for base, *of in losses:
        found = [
            look(arm[:n], base[:n], rates(5, part))
            for arm, part in zip(of, (first, first, last), strict=True)
            for n in (5, 8, 12)
        ]
        wrong += not all(each.low <= 0 <= each.high for each in found)

    assert wrong <= 0.05 * n_studies
