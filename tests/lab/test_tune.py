"""Tuning a learning rate for every arm: the grid, the choice, and when there is none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from studies import RESULT, SETTINGS

from attnres_cli.config.recipe import Recipe
from attnres_cli.lab import tune
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import FIRST_TUNING_SEED, RunRecord, Status

GRID = tune.rates(0.01)


@pytest.fixture
def plan(tiny_recipe: Recipe) -> Plan:
    arms = (Arm("standard", 99, 600), Arm("attnres", 99, 600))
    return Plan(tiny_recipe, arms, (0, 1), ("cpu",), SETTINGS, "0123456789abcdef")


def parabola(best: float, bend: float = 0.1) -> list[float | None]:
    """Losses at the rates of the grid that are lowest at `best`."""
    return [2 + bend * math.log(lr / best) ** 2 for lr in GRID]


def ended(plan: Plan, **losses: list[float | None]) -> list[RunRecord]:
    """The tuning runs of a plan with these losses at the five rates; None has not ended."""
    records, grid = [], tune.rates(plan.recipe.optim.lr)
    for number, spec in enumerate(tune.grid(plan).specs):
        loss = losses[spec.variant][grid.index(spec.recipe.optim.lr)]
        if loss is not None:
            result = replace(RESULT, val_loss=loss)
            of = (spec.recipe.name, spec.recipe.digest, spec.variant, spec.seed, spec.fingerprint)
            records.append(RunRecord(number, *of, status=Status.COMPLETE, result=result))
    return records


def test_the_grid_has_the_recipes_rate_in_its_middle_and_a_factor_of_root_two_between():
    assert GRID == (0.005, 0.00707, 0.01, 0.0141, 0.02)
    for lr in (0.012345678, 3e-4, 1.0):
        assert tune.rates(lr)[2] == lr  # whatever its digits


def test_the_vertex_of_a_parabola_is_found_between_the_rates_of_the_grid():
    for best in (0.0065, 0.0085, 0.01, 0.0115, 0.0165):
        lr, is_on_edge, _ = tune.choose(GRID, parabola(best), 0.01)
        assert (lr, is_on_edge) == (pytest.approx(best, rel=1e-2), False)


def test_a_best_rate_on_the_edge_is_taken_as_it_is_with_a_warning():
    for best, chosen in (0.001, 0.005), (0.2, 0.02):
        lr, is_on_edge, fit = tune.choose(GRID, parabola(best), 0.01)
        assert (lr, is_on_edge) == (chosen, True)
        assert "may lie beyond" in fit


def test_rates_that_diverged_are_left_out_and_nothing_is_fitted_next_to_them():
    for losses, chosen, words in (
        ([*parabola(0.0085)[:4], None], pytest.approx(0.0085, rel=1e-2), "parabola"),
        ([*parabola(0.02)[:4], None], 0.0141, "diverged"),
        ([None] * 5, 0.01, "every rate"),  # the shared one is kept
    ):
        lr, is_on_edge, fit = tune.choose(GRID, losses, 0.01)
        assert (lr, is_on_edge) == (chosen, False)
        assert words in fit


def test_equal_losses_give_no_rate_beyond_the_grid():
    lr, _, _ = tune.choose(GRID, [2.0] * 5, 0.01)
    assert lr in GRID
    lr, is_on_edge, fit = tune.choose(GRID, [3.0, 2.0, 2.0, 2.0, 3.0], 0.01)
    assert GRID[0] < lr < GRID[2]
    assert not is_on_edge
    assert "parabola" in fit


def test_arms_are_tried_at_the_same_rates_and_budget_on_seeds_of_no_comparison(plan: Plan):
    specs = tune.grid(plan).specs
    standard, attnres = (
        [(s.recipe.optim.lr, s.seed, s.recipe.train) for s in specs if s.variant == name]
        for name in ("standard", "attnres")
    )
    assert standard == attnres
    assert len(specs) == 2 * 5 * len(tune.SEEDS)
    assert {train for _, _, train in standard} == {plan.recipe.train}
    assert min(spec.seed for spec in specs) >= FIRST_TUNING_SEED > max(plan.seeds)


def test_each_arm_gets_the_rate_that_its_own_runs_favor(plan: Plan):
    records = ended(plan, standard=parabola(0.0085), attnres=parabola(0.0115))
    tuned = tune.tuned(plan, records)
    lrs = [tuned.recipe_of(arm).optim.lr for arm in tuned.arms]
    assert lrs == pytest.approx([0.0085, 0.0115], rel=1e-2)
    assert tuned.seeds == plan.seeds
    assert tuned.arms[1].how.losses == pytest.approx(parabola(0.0115))
    shared = ended(plan, standard=parabola(0.01), attnres=parabola(0.01))
    assert tune.tuned(plan, shared).specs == plan.specs  # which keep the recipe and its runs


def test_a_rate_at_which_one_seed_diverged_counts_as_diverged(plan: Plan):
    records = ended(plan, standard=parabola(0.0085), attnres=parabola(0.0085))
    last = next(r for r in records if r.variant == "attnres" and r.seed == tune.SEEDS[1])
    gone = replace(last.result, status=Status.DIVERGED, val_loss=math.nan)
    records[records.index(last)] = replace(last, result=gone)
    found = tune.tuned(plan, records).arms[1].how.losses
    assert found[0] is None
    assert None not in found[1:]


def test_an_arm_with_a_tuning_run_that_has_not_ended_is_left_out(plan: Plan):
    records = ended(plan, standard=parabola(0.01), attnres=[*parabola(0.01)[:4], None])
    assert [arm.variant for arm in tune.tuned(plan, records).arms] == ["standard"]


def test_an_arm_with_its_own_width_is_tuned_at_that_width(plan: Plan):
    model = plan.recipe.model.model_copy(update={"d_ff": 40})
    own = plan.recipe.model_copy(update={"model": model})
    plan = replace(plan, arms=(plan.arms[0], replace(plan.arms[1], recipe=own)))
    tuned = tune.tuned(plan, ended(plan, standard=parabola(0.0085), attnres=parabola(0.0085)))
    assert [tuned.recipe_of(arm).model.d_ff for arm in tuned.arms] == [None, 40]
    assert {spec.recipe.model.d_ff for spec in tune.grid(plan).specs} == {None, 40}
