"""Preregistration: what a comparison will be, fixed before its first run. No torch, no SQL."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from attnres_cli.config import recipe as recipes
from attnres_cli.config.margin import Margin
from attnres_cli.config.reading import Section, as_tuple, explain
from attnres_cli.config.recipe import Recipe
from attnres_cli.config.shipped import plan_text
from attnres_cli.config.strict_yaml import documents
from attnres_cli.errors import RecipeError
from attnres_cli.records.comparison_terms import Match, Terms
from attnres_cli.records.run import FIRST_TUNING_SEED

LEAST_SEEDS = 5  # of a verdict: stats/sequential.py, which says why

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
    tune_lr: Literal[True] | None = None  # None, as in studies of before: not said
    match: Annotated[tuple[Match, ...] | None, BeforeValidator(as_tuple)] = None
    until: Literal["decided"] | None = None


class _File(_Said):
    """What a user writes."""

    recipe: str
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(as_tuple), Field(min_length=LEAST_SEEDS)]
    set: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()


class Registration(_Said):
    """Arms (the baseline among them), seeds, metric and test of one recipe; of as many texts as
    differ only in where they lie, None for one.
    """

    recipe_digest: str
    texts: int | None = None

    @property
    def digest(self) -> str:
        """12 hex digits over all of it."""
        canonical = json.dumps(self.model_dump(exclude_none=True), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]

    @property
    def n_runs(self) -> int:
        """Runs that it takes, on each of its terms; at most, where it ends when it is decided."""
        return len(self.arms) * len(self.seeds)

    def has(self, terms: Terms) -> bool:
        """Whether a comparison on these terms is registered: equal tokens, and what it adds."""
        if terms.is_tuned:
            return bool(self.tune_lr) and terms.match == "tokens"
        return terms.match in ("tokens", *(self.match or ()))


Canonical = Callable[[str, Recipe], str]
"""Names a spec under a recipe."""


def read(path: str, canonical: Canonical) -> list[tuple[Registration, Recipe]]:
    """What each document of a YAML file says (recipe, and set as --set, arms, baseline, seeds,
    metric, test and, if wanted, hypothesis, margin, tune_lr and match), with its recipe; of a
    ladder, for each size. `path` may be the name of a plan that comes with the tool. Raises
    RecipeError, with the key and what is allowed, where that cannot be meant.
    """
    origin = f"preregistration {path}"
    text = plan_text(path) or recipes.text_at(path, "preregistration")
    parts = documents(text, origin) or [None]
    found = []
    for number, values in enumerate(parts, 1):
        where = f"{origin}, document {number}" if len(parts) > 1 else origin
        found += _said(values, where, canonical)
    if len({(recipe.digest, recipe.data) for _, recipe in found}) < len(found):
        raise RecipeError(f"{origin}: two of its comparisons have the same recipe: write one")
    if len({said.digest for said, _ in found}) > len({recipe.digest for _, recipe in found}):
        raise RecipeError(
            f"{origin}: two texts that differ only in data.path need the same arms, seeds and words"
        )
    n = Counter(recipe.digest for _, recipe in found)
    texts = {digest: many for digest, many in n.items() if many > 1}
    return [
        (said.model_copy(update={"texts": texts.get(recipe.digest)}), recipe)
        for said, recipe in found
    ]


def _said(values: Any, origin: str, canonical: Canonical) -> list[tuple[Registration, Recipe]]:
    """What one document says."""
    if not isinstance(values, dict):
        raise RecipeError(f"{origin}: expected keys {', '.join(_File.model_fields)}")
    try:
        said = _File.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{origin}: {explain(error.errors()[0], _File)}") from None
    if len(set(said.seeds)) < len(said.seeds):
        raise RecipeError(f"{origin}: seeds: different ones are needed, got {list(said.seeds)}")
    found = []
    for size in recipes.rungs(recipes.load(said.recipe, said.set)):
        recipe = size.named(partial(_named, canonical, size))
        found.append((_registration(said, recipe, origin, canonical), recipe))
    return found


def _named(canonical: Canonical, recipe: Recipe, spec: str) -> str:
    return canonical(spec, recipe)


def _registration(said: _File, recipe: Recipe, origin: str, canonical: Canonical) -> Registration:
    baseline = canonical(said.baseline, recipe)
    arms = dict.fromkeys([baseline, *(canonical(spec, recipe) for spec in said.arms)])
    if len(arms) < 2:
        raise RecipeError(f"{origin}: arms: one beside the baseline {baseline} is needed")
    meant = {"arms": tuple(arms), "baseline": baseline, "seeds": tuple(sorted(said.seeds))}
    held = said.model_dump(exclude={"recipe", "set"}) | meant
    return Registration(recipe_digest=recipe.digest, **held)
