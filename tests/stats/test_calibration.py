"""Simulated studies: how often a verdict is wrong where nothing differs, right where it does."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from attnres_cli.stats.looks import ALPHA, interval, word
from attnres_cli.stats.pairs import paired
from attnres_cli.stats.power import POWER, detectable

STUDIES = 1500
SLACK = 4  # standard errors of a share of so many studies: a right share fails once in 30,000

Losses = NDArray[np.float64]


def losses(
    n_arms: int, n_seeds: int, shared: float, tails: str, seed: int, studies: int = STUDIES
) -> Losses:
    """Studies x (arms and the baseline first) x seeds, of which `shared` of the variance is the
    seed's own.
    """
    random = np.random.default_rng(seed)

    def noise(*shape: int) -> Losses:
        if tails == "normal":
            return random.normal(0, 1, shape)
        return random.standard_t(2, shape)  # of infinite variance

    own = noise(studies, n_arms + 1, n_seeds)
    return math.sqrt(shared) * noise(studies, 1, n_seeds) + math.sqrt(1 - shared) * own


def words(study: Losses) -> list[str]:
    """The verdicts of one look with all of the rate, the baseline being the first row."""
    rate = ALPHA / (len(study) - 1)
    return [word(*interval(arm, study[0], rate)) for arm in study[1:]]


def limit(rate: float, studies: int = STUDIES) -> float:
    return SLACK * math.sqrt(rate * (1 - rate) / studies)


@pytest.mark.slow
@pytest.mark.parametrize("tails", ["normal", "heavy"])
@pytest.mark.parametrize("shared", [0.0, 0.8])
@pytest.mark.parametrize("n_arms", [1, 3, 11])
@pytest.mark.parametrize("n_seeds", [5, 7, 12])
def test_of_studies_without_any_difference_one_in_twenty_at_most_names_an_arm(
    n_seeds: int, n_arms: int, shared: float, tails: str
):
    studies = losses(n_arms, n_seeds, shared, tails, seed=n_seeds + 100 * n_arms)

    named = np.mean([any(w != "not separable" for w in words(study)) for study in studies])

    assert named <= ALPHA + limit(ALPHA)
    if tails == "normal" and n_arms == 1:
        assert named >= ALPHA - limit(ALPHA)  # nor is it timid


@pytest.mark.parametrize("n_arms", [1, 4])
@pytest.mark.parametrize("n_seeds", [5, 8])
def test_where_one_arm_is_better_by_what_is_detectable_four_studies_in_five_say_so(
    n_seeds: int, n_arms: int
):
    studies = losses(n_arms, n_seeds, 0.8, "normal", seed=n_seeds)
    studies[:, 1] -= detectable(n_seeds, math.sqrt(2 * 0.2), ALPHA / n_arms)

    said = np.array([words(study) for study in studies])

    found = np.mean(said[:, 0] == "better")
    assert found >= POWER - limit(POWER)
    if n_arms == 1:
        assert found <= POWER + limit(POWER)
    assert np.mean(said[:, 0] == "worse") < 0.001


def test_a_difference_never_gets_the_wrong_sign_more_often_than_an_error_is_allowed():
    studies = losses(3, 5, 0.5, "normal", seed=1)
    studies[:, 1] -= 0.05  # next to nothing

    wrong = np.mean([words(study)[0] == "worse" for study in studies])

    assert wrong <= ALPHA / 2 + limit(ALPHA / 2)


@pytest.mark.parametrize("n_seeds", [2, 5])
def test_the_interval_holds_the_true_difference_in_nineteen_studies_of_twenty(n_seeds: int):
    studies = losses(1, n_seeds, 0.8, "normal", seed=7)
    studies[:, 1] += 0.7

    ends = [paired(arm.tolist(), base.tolist()).ci95 for base, arm in studies]

    held = np.mean([low < 0.7 < high for low, high in ends])
    assert held == pytest.approx(0.95, abs=limit(0.05))
