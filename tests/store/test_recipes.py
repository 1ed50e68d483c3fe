"""The recipes that a study holds."""

from __future__ import annotations

import pytest
from studies import FACTS

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunSpec
from attnres_cli.store.store import Store


def test_recipes_are_in_the_order_of_their_first_runs(any_study: str, tiny_recipe: Recipe):
    store, rates = Store.open(any_study, create=True), (0.5, 0.125, 0.25)
    for lr in rates:
        store.plan([RunSpec(tiny_recipe.at_rate(lr), "standard", 0, FACTS.fingerprint)], FACTS)

    found = store.recipes()

    assert [recipe.optim.lr for recipe in found.values()] == list(rates)
    assert all(digest == recipe.digest for digest, recipe in found.items())


@pytest.mark.parametrize("any_study", ["sqlite"], indirect=True)
def test_a_recipe_of_a_search_has_the_name_under_which_it_is_trained_now(
    any_study: str, tiny_recipe: Recipe
):
    store = Store.open(any_study, create=True)
    searched = tiny_recipe.model_copy(update={"name": f"{tiny_recipe.name}/search"})
    for recipe in (searched, tiny_recipe):
        store.plan([RunSpec(recipe, "standard", 0, FACTS.fingerprint)], FACTS)

    assert [recipe.name for recipe in store.recipes().values()] == [tiny_recipe.name]
