"""Tuning settings for every arm: what is tried, the choice, and when there is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from studies import RESULT, SETTINGS

from attnres_cli.config.arms import LR, SCALE
from attnres_cli.config.recipe import Optim, Recipe
from attnres_cli.lab import tune
from attnres_cli.records.comparison_terms import Given
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import FIRST_TUNING_SEED, RunRecord, Status

GRID = (0.005, 0.00707, 0.01, 0.0141, 0.02)
Surface = Callable[[Optim], float | None]
"""Loss by settings; None where a run has not ended, nan where it diverged."""


@pytest.fixture
def plan(tiny_recipe: Recipe) -> Plan:
    arms = (Arm("standard", 99, 600), Arm("attnres", 99, 600))
    return Plan(tiny_recipe.at_rate(0.01), arms, (0, 1), ("cpu",), SETTINGS, "0123456789abcdef")


def bowl(lr: float, scale: float = 1.0, decay: float = 0.1) -> Surface:
    """Lowest at this rate, scale and decay, a tenth of a nat for each e-fold squared."""
    return lambda optim: (
        2
        + 0.1 * math.log(optim.lr / lr) ** 2
        + 0.1 * math.log(optim.design_lr_scale / scale) ** 2
        + 0.1 * math.log(optim.weight_decay / decay) ** 2
        + optim.warmup_fraction
    )


def trained(plan: Plan, standard: Surface, attnres: Surface) -> list[RunRecord]:
    """All tuning runs, stage by stage, with the losses of a surface."""
    records: list[RunRecord] = []
    surface = {"standard": standard, "attnres": attnres}
    for stage in tune.STAGES.values():
        for spec in stage(plan, tune.losses_of(records)).specs:
            if (loss := surface[spec.variant](spec.recipe.optim)) is None:
                continue
            result = replace(RESULT, val_loss=loss + 0.001 * (spec.seed % 10))
            of = (spec.recipe.name, spec.recipe.digest, spec.variant, spec.seed, spec.fingerprint)
            kept = {"status": Status.COMPLETE, "result": result}
            records.append(RunRecord(len(records), *of, **kept))
    return records


def chosen(plan: Plan, standard: Surface, attnres: Surface) -> dict[str, Arm]:
    found = tune.tuned(plan, tune.losses_of(trained(plan, standard, attnres)))
    return {arm.variant: arm for arm in found.arms}


def test_the_grid_has_the_recipes_rate_in_its_middle_and_a_factor_of_root_two_between():
    assert tune.rates(0.01) == GRID
    for lr in (0.012345678, 3e-4, 1.0):
        assert tune.rates(lr)[2] == lr  # whatever its digits


def test_every_arm_has_thirty_two_runs_at_one_budget_on_seeds_of_no_comparison(plan: Plan):
    records = trained(plan, bowl(0.01), bowl(0.00707, scale=10))
    counts = {name: sum(r.variant == name for r in records) for name in ("standard", "attnres")}

    assert counts == {"standard": 32, "attnres": 32}
    assert {r.seed for r in records} == set(tune.SEEDS)
    assert len(tune.SEEDS) == 4
    assert min(tune.SEEDS) >= FIRST_TUNING_SEED > max(plan.seeds)
    specs = [s for stage in tune.STAGES.values() for s in stage(plan, {}).specs]
    assert {spec.recipe.train for spec in specs} == {plan.recipe.train}


def test_each_arm_gets_the_settings_that_its_own_runs_favor(plan: Plan):
    found = chosen(plan, bowl(0.00707, decay=0.3), bowl(0.0141, scale=10))

    standard, attnres = (found[name].how for name in ("standard", "attnres"))
    assert (standard.lr, standard.changes) == (0.00707, (("optim.weight_decay", 0.3),))
    assert (attnres.lr, attnres.changes) == (0.0141, ((SCALE, 10.0),))
    assert found["attnres"].recipe == plan.recipe.changed((LR, 0.0141), (SCALE, 10.0))
    assert [trial.changes for trial in attnres.second] == [((SCALE, s),) for s in (3, 10, 30)]
    optims = [plan.recipe.at_rate(lr).optim for lr in GRID]
    losses = [bowl(0.0141, scale=10)(optim) + 0.0015 for optim in optims]
    assert attnres.losses == pytest.approx(losses)
    assert not standard.is_on_edge
    assert not attnres.is_on_edge
    assert 0 <= attnres.regret < 0.01
    rated = tune.at_rates(tune.tuned(plan, {}), plan)
    assert rated.terms.rate_only


def test_settings_of_the_recipe_that_are_best_keep_it_and_its_runs(plan: Plan):
    found = chosen(plan, bowl(0.01), bowl(0.01))
    assert {arm.recipe.digest for arm in found.values()} == {plan.recipe.digest}
    assert {arm.how.rate_digest for arm in found.values()} == {plan.recipe.digest}


@pytest.mark.parametrize("best", [0.0065, 0.0085, 0.01, 0.0115, 0.0165])
def test_the_rate_is_the_vertex_of_a_parabola_between_those_of_the_grid(plan: Plan, best: float):
    how = chosen(plan, bowl(best), bowl(best))["attnres"].how
    assert how.lr == pytest.approx(best, rel=1e-2)
    assert "parabola" in how.fit


def test_equal_losses_give_no_rate_beyond_the_grid(plan: Plan):
    how = chosen(plan, bowl(0.01), lambda optim: 3.0 if optim.lr == 0.005 else 2.0)["attnres"].how
    assert GRID[0] < how.lr < GRID[2]


def test_what_is_no_better_than_noise_keeps_the_recipes_own_number(plan: Plan):
    def noisy(optim: Optim) -> float:
        return bowl(0.01)(optim.model_copy(update={"design_lr_scale": 1.0})) - 1e-9 * optim.lr

    assert chosen(plan, bowl(0.01), noisy)["attnres"].how.changes == ()


@pytest.mark.parametrize(("best", "lr"), [(0.0035, 0.0035), (0.03, 0.03), (0.0001, 0.0025)])
def test_a_best_rate_at_the_edge_extends_the_grid_of_that_arm_once(plan: Plan, best, lr):
    found = chosen(plan, bowl(0.01), bowl(best))

    how = found["attnres"].how
    assert (len(how.rates), how.lr) == (7, pytest.approx(lr, rel=0.01))
    assert how.is_on_edge == (best == 0.0001)
    assert ("may lie beyond" in how.fit) == how.is_on_edge
    assert len(found["standard"].how.rates) == 5


@pytest.mark.parametrize(("best", "scale", "at_edge"), [(30, 30, False), (400, 100, True)])
def test_the_largest_scale_extends_them_once(plan: Plan, best, scale, at_edge):
    how = chosen(plan, bowl(0.01), bowl(0.01, scale=best))["attnres"].how

    assert how.changes == ((SCALE, float(scale)),)
    assert (len(how.second), how.is_on_edge) == (4, at_edge)


def test_settings_that_diverged_are_not_chosen_and_an_arm_that_always_did_has_none(plan: Plan):
    def unstable(optim: Optim) -> float:
        return math.nan if optim.lr >= 0.01 or optim.design_lr_scale > 3 else bowl(0.1)(optim)

    found = chosen(plan, bowl(0.01), unstable)["attnres"].how
    assert (found.lr, found.losses[2]) == (0.00707, None)
    assert "of those tried" in found.fit
    assert found.second[1].mean is None
    losses = tune.losses_of(trained(plan, bowl(0.01), lambda _optim: math.nan))
    assert [arm.variant for arm in tune.tuned(plan, losses).arms] == ["standard"]
    assert tune.diverged(plan, losses) == ["attnres"]


def test_an_arm_with_a_tuning_run_that_has_not_ended_is_left_out(plan: Plan):
    waits = chosen(plan, bowl(0.01), lambda optim: None if optim.lr == 0.02 else 2.0)
    assert waits.keys() == {"standard"}


def test_an_arm_with_its_own_width_is_tuned_at_that_width(plan: Plan):
    model = plan.recipe.model.model_copy(update={"d_ff": 40})
    own = plan.recipe.model_copy(update={"model": model})
    plan = replace(plan, arms=(plan.arms[0], replace(plan.arms[1], recipe=own)))
    found = chosen(plan, bowl(0.01), bowl(0.00707))
    assert [arm.recipe.model.d_ff for arm in found.values()] == [None, 40]


@pytest.mark.parametrize(("decay", "changes", "at_edge"), [(0.3, 0.3, False), (3.0, 0.9, True)])
def test_the_best_number_of_another_kind_is_tried_as_far_again(plan: Plan, decay, changes, at_edge):
    how = chosen(plan, bowl(0.01, decay=decay), bowl(0.01))["standard"].how
    assert how.changes == (("optim.weight_decay", changes),)
    assert (len(how.second), how.is_on_edge) == (4, at_edge)
    assert ("decay 0.9 was best: a better one may lie beyond" in how.fit) == at_edge


def given(plan: Plan, **own: Given) -> Plan:
    """The plan with settings that its recipe has for these designs."""

    def held(arm: Arm) -> Arm:
        how = own.get(arm.variant, Given(0.01, is_own=False))
        return replace(arm, recipe=plan.recipe.changed((LR, how.lr), *how.changes), how=how)

    return replace(plan, arms=tuple(map(held, plan.arms)))


def test_settings_that_a_recipe_has_for_a_design_are_kept_but_for_its_rate(plan: Plan):
    own = Given(0.02, is_own=True, changes=((SCALE, 30.0),), regret=0.004)
    plan = given(plan, attnres=own)
    records = trained(plan, bowl(0.01), bowl(0.0141, scale=10))
    of_arm = [r for r in records if r.variant == "attnres"]

    found = chosen(plan, bowl(0.01), bowl(0.0141, scale=10))["attnres"]
    assert (len(of_arm), found.how.rates[2:]) == (5 * 4, (0.0141, 0.02, 0.0283))
    assert (found.how.lr, found.how.changes) == (0.0141, ((SCALE, 30.0),))
    assert found.recipe == plan.recipe.changed((LR, 0.0141), (SCALE, 30.0))
    assert found.how.rate_digest == found.recipe.digest
    assert not found.how.second
    assert 0.004 <= found.how.regret < 0.005  # of the rate here, and of what was tuned elsewhere
    assert len(chosen(plan, bowl(0.01), bowl(0.01))["standard"].how.second) == 3


def test_three_rates_are_enough_where_the_recipes_own_is_best(plan: Plan):
    plan = given(plan, standard=Given(0.01, is_own=True), attnres=Given(0.02, is_own=True))
    records = trained(plan, bowl(0.01), bowl(0.02))
    assert len(records) == 2 * 3 * 4
    assert not tune.has_seconds(plan)


def test_what_was_at_an_edge_in_the_recipe_is_at_one_here(plan: Plan):
    plan = given(plan, attnres=Given(0.01, is_own=True, is_on_edge=True))
    how = chosen(plan, bowl(0.01), bowl(0.01))["attnres"].how
    assert (how.is_on_edge, how.may_miss) == (True, math.inf)
    assert "at an edge of what was tried" in how.fit


def test_the_largest_rate_that_trained_is_an_edge_too(plan: Plan):
    def unstable(optim: Optim) -> float:
        return math.nan if optim.lr > 0.01 else bowl(0.1)(optim)

    how = chosen(plan, bowl(0.01), unstable)["attnres"].how
    assert (how.lr, how.is_on_edge, how.may_miss) == (0.01, True, math.inf)
    assert "the largest learning rate was best" in how.fit
