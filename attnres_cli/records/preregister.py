"""Preregistration: what a comparison will be, fixed before its first run. No torch, no SQL."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from attnres_cli.config import recipe as recipes
from attnres_cli.config.margin import Margin
from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import Section, as_tuple
from attnres_cli.config.strict_yaml import load
from attnres_cli.errors import RecipeError
from attnres_cli.records.run import FIRST_TUNING_SEED

LEAST_SEEDS = 5  # of a verdict: stats/looks.py, which says why

Seed = Annotated[int, Field(ge=0, lt=FIRST_TUNING_SEED)]


class _Said(Section):
    """What decides a verdict."""

    arms: Annotated[tuple[str, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    baseline: str
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(as_tuple), Field(min_length=2)]
    metric: Literal["val_loss"]
    test: Literal["paired-t", "paired-t-holm"]  # the latter in studies of before: its arms as now
    hypothesis: str = ""
    margin: Margin = None


class _File(_Said):
    """What a user writes."""

    recipe: str
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(as_tuple), Field(min_length=LEAST_SEEDS)]
    set: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()


class Registration(_Said):
    """Arms (the baseline among them), seeds, metric and test of one recipe."""

    recipe_digest: str

    @property
    def digest(self) -> str:
        """12 hex digits over all of it."""
        canonical = json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def n_runs(self) -> int:
        """Runs that it takes."""
        return len(self.arms) * len(self.seeds)


def read(path: str, canonical: Callable[[str, Recipe], str]) -> tuple[Registration, Recipe]:
    """What a YAML file says (recipe, and set as --set, arms, baseline, seeds, metric, test and, if
    wanted, hypothesis), and its recipe. `canonical` names a spec under a recipe. Raises
    RecipeError, with the key and what is allowed, where that cannot be meant.
    """
    origin = f"preregistration {path}"
    values = load(recipes.text_at(path, "preregistration"), origin)
    if not isinstance(values, dict):
        raise RecipeError(f"{origin}: expected keys {', '.join(_File.model_fields)}")
    try:
        said = _File.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{origin}: {recipes.explain(error.errors()[0], _File)}") from None
    if len(set(said.seeds)) < len(said.seeds):
        raise RecipeError(f"{origin}: seeds: different ones are needed, got {list(said.seeds)}")
    typed = recipes.load(said.recipe, said.set)
    recipe = typed.named(lambda spec: canonical(spec, typed))
    if recipe.ladder:
        raise RecipeError(f"{origin}: recipe {said.recipe} is a ladder: only one size can be fixed")
    baseline = canonical(said.baseline, recipe)
    arms = dict.fromkeys([baseline, *(canonical(spec, recipe) for spec in said.arms)])
    if len(arms) < 2:
        raise RecipeError(f"{origin}: arms: one beside the baseline {baseline} is needed")
    meant = {"arms": tuple(arms), "baseline": baseline, "seeds": tuple(sorted(said.seeds))}
    held = said.model_dump(exclude={"recipe", "set"}) | meant
    return Registration(recipe_digest=recipe.digest, **held), recipe
