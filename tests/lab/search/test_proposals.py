"""Optuna proposes points of the space, none twice, and goes on after an interruption."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from optuna.trial import create_trial

from attnres_cli.config.recipe import load
from attnres_cli.errors import UsageError
from attnres_cli.lab.search import budget, points, space
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.proposals import Feasible, Points, chosen, n_startup
from attnres_cli.lab.search.studies import VOID
from attnres_cli.nn import variant

optuna.logging.set_verbosity(optuna.logging.WARNING)


def of(text: str, spec: str = "attnres", size: str = "params=2M") -> Points:
    typed, asked = [variant.parse(spec)], budget.parse([size], 1)
    return Points(points.grid(typed, space.parse(text, typed), asked, load("quick"), 256)[typed[0]])


SMALL = of("n_layers=3..6,n_heads=2|4")


@pytest.fixture(scope="module")
def wide() -> Points:
    return of("aspect=4..80,heads_per_layer=0.1..1,n_blocks=2..8,norm=softmax|sigmoid")


def loss(point: Point) -> float:
    """A bowl: the deeper the better up to 9 layers, the best number of blocks is 4."""
    return abs(point.trunk.n_layers - 9) + abs(int(point.dimensions.get("n_blocks", 4)) - 4)


def searched(
    found: Points, kind: str, n: int, seed: int = 1, storage: object = None, n_goals: int = 1
) -> list[Point]:
    goals: dict[str, Any] = {"storage": storage, "directions": ["minimize"] * n_goals}
    study = optuna.create_study(study_name="s", load_if_exists=True, **goals)
    study.sampler = Feasible(found, kind, seed, n_startup(kind, 24))
    for _ in range(n):
        trial = study.ask(found.distributions)
        point = found.of_key[found._key(trial.params)]
        study.tell(trial, [loss(point), point.flops][:n_goals])
    tried = [found.of_trial(trial) for trial in study.trials]
    return [point for point in tried if point is not None]


def test_there_is_one_point_for_every_choice_of_parameters(wide: Points):
    assert len(wide.of_key) == len(wide) > 200


def test_two_shapes_that_are_alike_but_for_their_depth_are_both_tried():
    found = of("n_layers=20..32,heads_per_layer=1", "standard", "params=5M")
    assert len(found.of_key) == len(found)
    assert set(searched(found, "grid", len(found))) == set(found.points)


def test_void_trials_have_tried_nothing():
    params = SMALL.params_of(SMALL.points[0])

    def tried(**attributes: str) -> set[Point]:
        given = {"params": params, "distributions": SMALL.distributions, "value": 1.0}
        return SMALL.tried([create_trial(user_attrs=attributes, **given)])

    assert tried() == {SMALL.points[0]}
    assert tried(**{VOID: "its process died"}) == set()


@pytest.mark.parametrize("kind", ["tpe", "random", "brute", "grid"])
def test_an_interrupted_search_goes_on_as_if_it_had_not_been_and_tries_nothing_twice(kind, wide):
    storage = optuna.storages.InMemoryStorage()
    searched(wide, kind, 9, storage=storage)
    continued = searched(wide, kind, 15, storage=storage)
    assert continued == searched(wide, kind, 24)
    assert len(set(continued)) == 24


@pytest.mark.parametrize("kind", ["tpe", "gp", "random", "brute", "grid"])
def test_a_small_space_is_tried_to_its_last_point(kind: str):
    assert set(searched(SMALL, kind, len(SMALL))) == set(SMALL.points)


def test_two_goals_are_searched_by_nsga2_over_several_generations(wide: Points):
    assert len(set(searched(wide, "nsga2", 24, n_goals=2))) == 24


def test_another_study_has_other_proposals(wide: Points):
    assert searched(wide, "random", 5, seed=1) != searched(wide, "random", 5, seed=2)


@pytest.mark.slow
def test_tpe_comes_nearer_to_the_best_than_chance(wide: Points):
    def mean_of_last(kind: str) -> float:
        tried = (searched(wide, kind, 40, seed)[-15:] for seed in range(3))
        losses = [loss(point) for points in tried for point in points]
        return sum(losses) / len(losses)

    assert mean_of_last("tpe") < 0.8 * mean_of_last("random")


def test_the_sampler_is_chosen_with_a_reason():
    for asked, n_points, n_goals, kind, why in (
        ("auto", 24, 1, "grid", "grid: 24 points, no more than trials"),
        ("auto", 41, 1, "tpe", "tpe: 41 points, more than trials"),
        ("auto", 41, 2, "nsga2", "nsga2: 41 points, more than trials, and 2 objectives"),
        ("gp", 41, 1, "gp", "gp: as asked; 41 points, 40 trials at most"),
    ):
        assert chosen(asked, n_points, 40, n_goals) == (kind, why)


def test_a_sampler_that_does_not_fit_is_refused():
    for asked, n_goals, says in (
        ("tpee", 1, "did you mean 'tpe'"),
        ("grid", 1, "--trials 41, or brute"),
        ("nsga2", 1, "two objectives"),
    ):
        with pytest.raises(UsageError, match=says):
            chosen(asked, 41, 40, n_goals)
