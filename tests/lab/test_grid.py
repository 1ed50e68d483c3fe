"""The grid: a study's runs of a design whose code has changed are never mixed with new ones."""

from __future__ import annotations

import pytest

from attnres_cli.config.recipe import load
from attnres_cli.errors import VariantError
from attnres_cli.lab import grid
from attnres_cli.lab.workers.provenance import made_with
from attnres_cli.records.run import RunSpec


@pytest.fixture
def plan():
    recipe = load("smoke")
    arms = grid.resolve(["standard", "denseformer"], recipe, 256)
    return grid.make(recipe, arms, (0, 1), "0123456789abcdef", "cpu", 1)


@pytest.mark.parametrize("variant", ["standard", "denseformer"])
def test_runs_of_other_code_of_a_design_are_refused(variant: str, plan, make_run):
    recipe = ("smoke", plan.recipe.digest)
    now = made_with(RunSpec(plan.recipe, variant, 0, plan.fingerprint))
    same = make_run(variant, 0, recipe=recipe, versions=now)
    older = make_run(variant, 0, recipe=recipe, versions=now | {"code_design": "0123456789ab"})
    unknown = make_run(variant, 0, recipe=recipe, versions={"attnres": "0.1.0"})

    grid.check_code(plan, [same, unknown])
    with pytest.raises(VariantError, match=rf"{variant}\.py, or a file that it imports, has chan"):
        grid.check_code(plan, [same, older])


def test_runs_of_other_code_under_another_recipe_do_not_matter(plan, make_run):
    other = make_run("denseformer", 0, versions={"code_design": "0123456789ab"})

    grid.check_code(plan, [other])
