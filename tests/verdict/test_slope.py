"""The slope of loss over tokens, from runs at several budgets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.verdict.slope import Slope, slope_of

RECIPE = load("quick").of("standard").at(2**19)
OWN = RECIPE.steps * RECIPE.tokens_per_step


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    tokens = recipe.steps * recipe.tokens_per_step
    return {"recipe": ("quick", recipe.digest), "tokens": tokens}


Measure = Callable[..., Slope | None]


@pytest.fixture
def slope(make_arm) -> Measure:
    """A function of losses of `standard` by the budget as a multiple of the recipe's own."""

    def measure(losses: Mapping[float, Sequence[float]], recipe: Recipe = RECIPE) -> Slope | None:
        runs, recipes = [], {recipe.digest: recipe}
        for times, of in losses.items():
            other = recipe.at(round(times * OWN))
            recipes.setdefault(other.digest, other)
            runs += make_arm("standard", *of, **of_recipe(other))
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


def test_a_loss_that_does_not_fall_has_no_slope(slope: Measure):
    assert slope({0.5: [1.7, 1.7], 1: [1.7, 1.7]}) is None


def test_runs_of_another_size_say_nothing_of_it(make_arm):
    wide = load("quick", ["model.d_model=128", "train.tokens=220k"]).of("standard")
    recipes = {wide.digest: wide, RECIPE.digest: RECIPE}
    runs = make_arm("standard", 2.0, 2.0, **of_recipe(wide))
    runs += make_arm("standard", 1.7, 1.7, **of_recipe(RECIPE))

    assert slope_of(RECIPE.digest, "standard", runs, recipes) is None
