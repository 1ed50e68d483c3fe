"""The slope of loss over tokens, from runs at several budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.verdict.slope import Slope, slope_of

RECIPE = load("quick").of("standard").at(2**19)
OWN = RECIPE.steps * RECIPE.tokens_per_step


Measure = Callable[..., Slope | None]


@pytest.fixture
def slope(make_arm) -> Measure:
    """A function of losses of `standard` by the budget as a multiple of the recipe's own."""

    def measure(losses: Mapping[float, Sequence[float]], recipe: Recipe = RECIPE) -> Slope | None:
        runs, recipes = [], {recipe.digest: recipe}
        for times, of in losses.items():
            other = recipe.at(round(times * OWN))
            recipes.setdefault(other.digest, other)
            tokens = other.steps * other.tokens_per_step
            runs += make_arm("standard", *of, recipe=("quick", other.digest), tokens=tokens)
        return slope_of(recipe.digest, "standard", runs, recipes)

    return measure


def test_it_is_measured_between_the_nearest_budgets_on_both_sides(slope: Measure):
    found = slope({0.25: [9, 9], 0.5: [2.0, 2.2], 1: [1.7, 1.7], 2: [1.4, 1.4], 4: [0, 0]})

    assert found is not None
    assert found.value == pytest.approx(0.7 / math.log(4))


@pytest.mark.parametrize("other", [0.5, 2])
def test_the_recipes_own_budget_is_one_end_where_there_is_none_beyond(slope: Measure, other: float):
    found = slope({1: [1.7, 1.7], other: [1.7 - 0.4 * math.log(other)] * 2})

    assert found is not None
    assert found.value == pytest.approx(0.4)


@pytest.mark.parametrize(
    "losses",
    [
        {1: [1.7, 1.7]},
        {1: [1.7, 1.7], 0.5: [2.0]},
        {1: [1.7, 1.7], 2: [1.4, math.nan]},
        {1: [1.7, 1.7], 0.9: [1.8, 1.8], 1.1: [1.6, 1.6]},
        {},
    ],
    ids=["one budget", "one run", "one diverged", "nearly the same budgets", "nothing"],
)
def test_where_it_cannot_be_measured_the_recipe_may_state_it(slope: Measure, losses):
    stated = RECIPE.model_copy(update={"slope": 0.43})

    assert slope(losses) is None
    assert slope(losses, stated) == Slope(0.43, "as the recipe states")
    assert slope({0.5: [1.7, 1.7], 1: [1.7, 1.7]}) is None  # a loss that does not fall


def test_runs_of_another_size_say_nothing_of_it(make_arm):
    wide = load("quick", ["model.d_model=128", "train.tokens=220k"]).of("standard")
    runs = [
        run
        for recipe, loss in ((wide, 2.0), (RECIPE, 1.7))
        for run in make_arm(
            "standard", loss, loss, recipe=("quick", recipe.digest),
            tokens=recipe.steps * recipe.tokens_per_step,
        )
    ]  # fmt: skip

    recipes = {wide.digest: wide, RECIPE.digest: RECIPE}
    assert slope_of(RECIPE.digest, "standard", runs, recipes) is None


def test_one_budget_of_runs_does_not_go_before_several_that_are_stated(slope: Measure):
    stated = RECIPE.model_copy(update={"slope": ((0.5, -0.3, 0.01, 7), (2, 0.2, 0.01, 7))})
    one = {1: [1.7, 1.7], 2: [1.4, 1.4]}
    found = slope(one, stated)
    assert found is not None
    assert [budget.drop for budget in found.budgets] == [-0.3, 0.2]
    more = slope(one | {0.5: [2.0, 2.1]}, stated)
    assert more is not None
    assert [budget.n for budget in more.budgets] == [2, 2]


def test_what_a_recipe_states_of_standard_gives_no_other_baseline_budgets():
    stated = RECIPE.model_copy(update={"slope": ((0.5, -0.3, 0.01, 7), (2, 0.2, 0.01, 7))})
    found = slope_of(stated.digest, "attnres", [], {stated.digest: stated})
    assert found is not None
    assert (found.budgets, found.source) == ((), "as the recipe states of standard")


def test_runs_that_were_computed_otherwise_are_no_budgets(make_arm):
    runs, recipes = [], {}
    for times, precision, loss in ((1, "fp32", 1.7), (2, "bf16", 1.2), (0.5, "fp32", 2.0)):
        other = RECIPE.at(round(times * OWN))
        recipes[other.digest] = other
        of = {"recipe": ("quick", other.digest), "settings": {"precision": precision}}
        tokens = other.steps * other.tokens_per_step
        runs += make_arm("standard", loss, loss, tokens=tokens, **of)
    found = slope_of(RECIPE.digest, "standard", runs, recipes | {RECIPE.digest: RECIPE})
    assert found is not None
    assert [round(budget.ratio, 1) for budget in found.budgets] == [0.5]
