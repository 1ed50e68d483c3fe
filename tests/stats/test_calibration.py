"""Simulated studies: how often a verdict is wrong where nothing differs, right where it does."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from attnres_cli.stats.power import POWER, detectable
from attnres_cli.stats.sequential import ALPHA, interval, word

STUDIES = 1500
SLACK = 4  # standard errors of a share of so many studies: a right share fails once in 30,000

Losses = NDArray[np.float64]

NULL_STUDIES = list(itertools.product([5, 7, 12], [1, 3, 11], [0.0, 0.8], ["normal", "heavy"]))
COVERING = {(5, 1, 0.0, "normal"), (5, 11, 0.8, "heavy"), (7, 3, 0.0, "heavy")}
COVERING |= {(12, 1, 0.8, "normal"), (12, 3, 0.8, "normal")}


def losses(n_arms: int, n_seeds: int, shared: float, tails: str, seed: int) -> Losses:
    """Losses by study, arm (the baseline first) and seed. The seed itself causes the share `shared`
    of the variance.
    """
    random = np.random.default_rng(seed)

    def noise(*shape: int) -> Losses:  # heavy tails: of infinite variance
        return random.normal(0, 1, shape) if tails == "normal" else random.standard_t(2, shape)

    own = noise(STUDIES, n_arms + 1, n_seeds)
    return math.sqrt(shared) * noise(STUDIES, 1, n_seeds) + math.sqrt(1 - shared) * own


def words(study: Losses) -> list[str]:
    """The verdicts of one look that spends the whole error rate; the baseline is the first row."""
    rate = ALPHA / (len(study) - 1)
    return [word(*interval(arm, study[0], rate)) for arm in study[1:]]


def limit(rate: float) -> float:
    return SLACK * math.sqrt(rate * (1 - rate) / STUDIES)


@pytest.mark.parametrize(
    ("n_seeds", "n_arms", "shared", "tails"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in COVERING else pytest.mark.nightly)
        for case in NULL_STUDIES
    ],
)
def test_at_most_one_null_study_in_twenty_names_an_arm(n_seeds, n_arms, shared, tails):
    studies = losses(n_arms, n_seeds, shared, tails, seed=n_seeds + 100 * n_arms)

    named = np.mean([any(w != "inconclusive" for w in words(study)) for study in studies])

    assert named <= ALPHA + limit(ALPHA)
    if tails == "normal" and n_arms == 1:
        assert named >= ALPHA - limit(ALPHA)  # nor is it timid


@pytest.mark.parametrize(("n_seeds", "n_arms"), [(5, 1), (8, 4)])
def test_four_studies_in_five_find_the_detectable_difference(n_seeds: int, n_arms: int):
    studies = losses(n_arms, n_seeds, 0.8, "normal", seed=n_seeds)
    studies[:, 1] -= detectable(n_seeds, math.sqrt(2 * 0.2), ALPHA / n_arms)

    said = np.array([words(study) for study in studies])

    found = np.mean(said[:, 0] == "better")
    assert found >= POWER - limit(POWER)
    if n_arms == 1:
        assert found <= POWER + limit(POWER)
    assert np.mean(said[:, 0] == "worse") < 0.001


def test_a_difference_gets_the_wrong_sign_no_more_often_than_the_error_rate_allows():
    studies = losses(3, 5, 0.5, "normal", seed=1)
    studies[:, 1] -= 0.05  # next to nothing

    wrong = np.mean([words(study)[0] == "worse" for study in studies])

    assert wrong <= ALPHA / 2 + limit(ALPHA / 2)
