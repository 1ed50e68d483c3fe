"""Optima, over simulated searches: a first look chooses, fresh seeds judge, and errors are rare."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from test_calibration import STUDIES, limit

from attnres_cli.stats.optima import above_zero, common_best, likeliest_common, may_be_best
from attnres_cli.stats.pairs import paired
from attnres_cli.stats.sequential import ALPHA

Floats = NDArray[np.float64]

NO_INTERACTION = list(itertools.product([3, 5, 8], [2, 3, 6], [0.0, 0.8], ["normal", "heavy"]))
SLOW = {(3, 2, 0.0, "heavy"), (3, 6, 0.8, "normal"), (5, 3, 0.0, "normal"), (8, 6, 0.8, "heavy")}
FIRST_LOOKS = list(itertools.product([1, 2], [3, 8], [1.0, 3.0], [11, 24]))
SLOW |= {(1, 3, 3.0, 24), (2, 8, 1.0, 11)}


def tiers(cases: list[tuple]) -> list:
    """A covering part of a product is slow, the rest nightly."""
    marks = {True: pytest.mark.slow, False: pytest.mark.nightly}
    return [pytest.param(*case, marks=marks[case in SLOW]) for case in cases]


def studies(means: Floats, n_seeds: int, shared: float, seed: int, tails: str = "normal") -> Floats:
    """Losses by study, design, shape and seed (the first look's, then the fresh ones). The seed
    itself causes the share `shared` of the variance.
    """
    random = np.random.default_rng(seed)

    def noise(*size: int) -> Floats:
        return random.normal(0, 1, size) if tails == "normal" else random.standard_t(3, size)

    own = noise(STUDIES, *means.shape, n_seeds + 1)
    common = noise(STUDIES, 1, 1, n_seeds + 1)
    return means[:, :, None] + math.sqrt(shared) * common + math.sqrt(1 - shared) * own


def p_of(study: Floats) -> float:
    """P that one shape is best for both; the first seed chooses, all others are tested."""
    choices = study[:, :, 0].argmin(axis=1)
    return common_best(study[0, :, 1:], study[1, :, 1:], int(choices[0]), int(choices[1])).p


def differ(found: Floats) -> float:
    """The share of studies that say that the optima differ."""
    return float(np.mean([p_of(study) < ALPHA for study in found]))


def valley(n_shapes: int, best: int, depth: float) -> Floats:
    return depth * np.abs(np.arange(n_shapes) - best).astype(np.float64)


@pytest.mark.parametrize(("n_seeds", "n_shapes", "shared", "tails"), tiers(NO_INTERACTION))
def test_equal_optima_differ_in_at_most_one_search_in_twenty(n_seeds, n_shapes, shared, tails):
    for depth in (0.0, 1.0):
        means = np.stack([valley(n_shapes, n_shapes // 2, depth)] * 2)
        means[1] -= 0.5  # one design is better everywhere, by the same

        found = studies(means, n_seeds, shared, seed=n_seeds + 100 * n_shapes, tails=tails)

        assert differ(found) <= ALPHA + limit(ALPHA)


@pytest.mark.parametrize("n_seeds", [3, pytest.param(8, marks=pytest.mark.nightly)])
def test_optima_of_a_steep_and_a_flat_valley_do_not_differ(n_seeds):
    means = np.stack([valley(4, 1, 6.0), valley(4, 1, 0.1)])

    assert differ(studies(means, n_seeds, 0.5, seed=n_seeds)) <= ALPHA + limit(ALPHA)


def test_in_the_worst_case_the_error_rate_is_that_of_one_test():
    """Each design has a second best shape, which is bad for the other. Both choose the common one
    in a quarter of the searches; otherwise a single test stands in the way.
    """
    means = np.array([[0.0, 0.0, 50.0, 50.0], [0.0, 50.0, 0.0, 50.0]])

    said = differ(studies(means, 3, 0.5, seed=3))

    assert said == pytest.approx(0.75 * ALPHA, abs=limit(0.75 * ALPHA))


def confirmed(firsts: Floats, k: int) -> list[int]:
    """The shapes that a search confirms after these first looks (designs x shapes)."""
    best = [int(i) for first in firsts for i in first.argsort()[:k]]
    return list(dict.fromkeys([*best, *likeliest_common(*(dict(enumerate(f)) for f in firsts))]))


def apart(n_shapes: int, steep: float) -> Floats:
    """One design loses much below its best shape and next to nothing above it, the other the
    reverse; that shape is the same.
    """
    away = np.arange(n_shapes) - n_shapes // 2
    below, above = np.where(away < 0, -away, 0), np.where(away > 0, away, 0)
    return np.stack([steep * below + 0.1 * above, 0.1 * below + steep * above])


@pytest.mark.parametrize(("k", "n_seeds", "steep", "n_shapes"), tiers(FIRST_LOOKS))
def test_a_best_shape_that_first_looks_passed_over_is_rarely_ruled_out(k, n_seeds, steep, n_shapes):
    """First looks put others before it, and only some shapes are ever trained with fresh seeds."""
    found = studies(apart(n_shapes, steep), n_seeds, 0.5, 7)

    said = [p_of(study[:, confirmed(study[:, :, 0], k)]) < ALPHA for study in found]

    assert np.mean(said) <= ALPHA + limit(ALPHA)


@pytest.mark.parametrize(("n_seeds", "n_shapes"), [(3, 2), (3, 6), (5, 4)])
def test_optima_that_lie_clearly_apart_are_said_to_differ(n_seeds, n_shapes):
    means = np.stack([valley(n_shapes, 0, 5.0), valley(n_shapes, n_shapes - 1, 5.0)])

    assert differ(studies(means, n_seeds, 0.8, seed=5)) > 0.9


@pytest.mark.parametrize("n_shapes", [2, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_the_shapes_that_may_be_best_hold_the_best_one_in_nineteen_searches_of_twenty(n_shapes):
    means = valley(n_shapes, n_shapes - 1, 0.7)[None]

    held, kept = [], []
    for study in studies(means, 4, 0.5, seed=n_shapes):
        p = may_be_best(study[0, :, 1:], int(study[0, :, 0].argmin()))
        held.append(p[-1] >= ALPHA)
        kept.append(sum(value >= ALPHA for value in p))

    assert np.mean(held) >= 1 - ALPHA - limit(ALPHA)
    assert min(kept) >= 1  # never none at all
    assert np.mean(kept) < n_shapes


def test_a_choice_that_fresh_seeds_refute_is_no_longer_among_the_best():
    losses = np.array([[3.0, 3.1, 2.9, 3.0], [1.0, 1.2, 0.9, 1.1], [2.0, 2.1, 2.2, 1.9]])

    p = may_be_best(losses, 0)

    assert p[0] < ALPHA <= p[1]
    assert p[0] == pytest.approx(2 * min(above_zero(losses[0] - row) for row in losses[1:]))


def test_the_interaction_is_the_paired_difference_of_exchanged_and_kept_shapes():
    ours = np.array([[1.0, 1.1, 1.3], [1.5, 1.4, 1.9]])
    theirs = np.array([[1.2, 1.3, 1.5], [1.0, 1.2, 1.1]])

    found = common_best(ours, theirs, 0, 1)

    by_seed = (ours[1] - ours[0]) + (theirs[0] - theirs[1])
    assert found.interaction.mean == pytest.approx(by_seed.mean())
    assert found.interaction.ci95 == pytest.approx(paired(by_seed, [0, 0, 0]).ci95)
    assert found.p == max(found.shapes)
    assert found.shapes == pytest.approx(
        (above_zero(theirs[0] - theirs[1]), above_zero(ours[1] - ours[0]))
    )
    same = common_best(ours, ours, 0, 0)
    assert (same.p, same.hardest) == (1, 0)  # a shape that both chose is the best of both


def test_one_seed_is_no_test_and_losses_that_do_not_vary_are_no_evidence():
    one = np.array([[1.0], [2.0]])

    with pytest.raises(ValueError, match="two seeds or more, got 1"):
        may_be_best(one, 0)
    with pytest.raises(ValueError, match="got 1"):
        common_best(one, one, 0, 1)
    assert above_zero(np.array([0.2, 0.2, 0.2])) == 1
    assert above_zero(np.array([0.1 + 0.2, 0.3, 0.3])) == 1
