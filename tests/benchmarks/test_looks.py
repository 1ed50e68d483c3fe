"""Looks: shares of the error rate, and intervals that hold whenever one looks."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attnres_cli.stats.pairs import paired
from attnres_cli.stats.power import ALPHA

FOLDER = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.append(str(FOLDER))
from looks import LEAST_SEEDS, interval, look, shares, sizes  # noqa: E402


@pytest.mark.parametrize("planned", [1, 3, 5, 7, 12])
def test_looks_stand_at_sizes_fixed_by_the_plan_and_share_the_rate(planned: int):
    found = list(itertools.islice(sizes(planned), 30))

    assert found[0] == (max(LEAST_SEEDS, planned), 0.8)
    for (size, share), (after, next_share) in itertools.pairwise(found):
        assert after == math.ceil(1.5 * size)
        assert next_share < share
    assert sum(share for _, share in found) == pytest.approx(1)


@pytest.mark.parametrize("groups", [[1], [4], [1, 10], [2, 1, 1, 5], [1] * 50])
def test_arms_share_the_rate_however_many_join_and_none_loses_by_those_after_it(groups: list[int]):
    found = shares(groups)

    assert sum(share * n for share, n in zip(found, groups, strict=True)) <= 1
    assert len(groups) == 1 or found[:-1] == shares(groups[:-1])


def test_before_the_first_look_nothing_is_said():
    found = look([1.0] * 4, [2.0, 2.1, 2.0, 2.1], planned=3, share=1.0)

    assert (found.n, found.next, found.low, found.high) == (0, 5, -math.inf, math.inf)


def test_the_interval_of_a_look_is_students_at_its_share():
    random = np.random.default_rng(0)
    ours, theirs = random.normal(size=(2, 5))

    low, high = interval(ours, theirs, 0.05)

    assert (low, high) == pytest.approx(paired(ours, theirs).ci95, abs=1e-5)
    assert look(ours, theirs, 5, 0.5).alpha == pytest.approx(ALPHA * 0.5 * 0.8)


def test_runs_beyond_a_look_change_nothing_until_the_next():
    random = np.random.default_rng(1)
    ours, theirs = random.normal(size=(2, 8))

    found = [look(ours[:n], theirs[:n], 5, 1.0) for n in range(5, 9)]

    assert found[0] == found[1] == found[2]
    assert found[3].n == found[2].next == 8
    assert found[3].low >= found[2].low
    assert found[3].high <= found[2].high


def test_a_difference_of_rounding_is_never_one():
    losses = [1.5, 1.6, 1.7, 1.4, 1.5]

    found = look([loss - 1e-7 for loss in losses], losses, 5, 1.0)

    assert found.low < 0 < found.high


def test_looks_that_contradict_each_other_leave_an_interval():
    theirs = np.zeros(8)
    ours = np.array([1.0, 1.001, 0.999, 1.0, 1.0, 90.0, 90.0, 90.0])

    found = look(ours, theirs, 5, 1.0)

    assert found.low < found.high


@pytest.mark.parametrize("noise", ["normal", "heavy", "stuck"])
def test_whoever_looks_whenever_at_most_one_study_in_twenty_has_an_interval_without_the_truth(
    noise: str,
):
    random = np.random.default_rng(2)
    n_studies, arms, seeds = 400, 3, 12
    size = (n_studies, arms + 1, seeds)
    losses = random.standard_t(3, size) if noise == "heavy" else random.normal(size=size)
    if noise == "stuck":
        losses += 10 * (random.random(size) < 0.5)
    share = shares([2, 1])
    of_arm = [share[0], share[0], share[1]]

    wrong = sum(
        any(
            not found.low <= 0 <= found.high
            for arm in range(arms)
            for n in (5, 8, 12)
            if (found := look(study[arm + 1][:n], study[0][:n], 5, of_arm[arm]))
        )
        for study in losses
    )

    assert wrong <= 0.05 * n_studies


def test_the_error_rates_of_workflows_are_printed():
    command = [sys.executable, str(FOLDER / "workflows.py"), "200"]

    done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if " | looks | " in line]
    assert len(rows) == 9 + 8
