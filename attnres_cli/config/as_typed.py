"""Recipes and comparisons as someone would type them: settings by key, `--set`, commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnres_cli.config import complete, strict_yaml
from attnres_cli.config import recipe as recipes
from attnres_cli.config.overrides import takes_text
from attnres_cli.config.reading import as_tuples
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import RecipeError

PLUGIN = "FILE"
"""In a command, for the file of a plugin that is not known here."""

_SEARCHED = "/search"


def ablate_typed(
    variants: Sequence[str], recipe: str, overrides: Sequence[str], seeds: Iterable[int]
) -> list[str]:
    """The words of the command that trains these, the first being the baseline, on these seeds."""
    seeded = ["--seeds", _seeds_typed(sorted(seeds))]
    return _of_arms("ablate", variants, recipe, overrides, seeded)


def bench_typed(variants: Sequence[str], recipe: Recipe, study: str) -> str:
    """The command that times steps of these, the first being the baseline, for a study; empty where
    none gives the recipe.
    """
    typed = overrides_of(recipe)
    kept = ["--study", study]
    return "" if typed is None else shlex.join(_of_arms("bench", variants, *typed, kept))


def _of_arms(
    command: str,
    variants: Sequence[str],
    recipe: str,
    overrides: Sequence[str],
    more: Sequence[str],
) -> list[str]:
    base = variants[0]
    words = ["attnres", command, *dict.fromkeys(variants), "--recipe", recipe]
    words += [part for override in overrides for part in ("--set", override)]
    words += more if base == "standard" else [*more, "--baseline", base]
    return words + plugins_typed(variants)


def overrides_of(recipe: Recipe) -> tuple[str, list[str]] | None:
    """The shipped recipe of that name, or `quick`, and the `--set` values that make it this one,
    parsed back to be sure; None where none do, as of a value that this version refuses.
    """
    name = plain_name(recipe.name)
    name = name if name in complete.recipes() else "quick"
    shipped, found = recipes.load(name), []
    mine, theirs = ((each.arms, each.optim.lr) for each in (recipe, shipped))
    if shipped.arms and mine != theirs:  # a rate for every design, beside which others are typed
        found = [f"optim.lr={recipe.optim.lr}"]
    if shipped.ladder and not recipe.ladder:  # of one of its sizes
        found.append("ladder=[]")
    before = settings(recipes.load(name, found))
    found += [
        typed(key, value) for key, value in settings(recipe).items() if value != before.get(key)
    ]
    try:
        is_same = recipes.load(name, found).digest == recipe.digest
    except RecipeError:
        return None
    return (name, found) if is_same else None


def typed(key: str, value: Any) -> str:
    """`key=value` as `--set` takes it."""
    return f"{key}={value or ''}" if takes_text(key) else f"{key}={as_yaml(value)}"


def as_yaml(value: object) -> str:
    """A value as recipes take it; text that YAML would read otherwise in quotes."""
    try:
        is_plain = isinstance(value, str) and strict_yaml.load(value, "") == value
    except RecipeError:
        is_plain = False
    readable = isinstance(value, str) and value.isprintable()  # YAML has no halves of characters
    return str(value) if is_plain else json.dumps(value, ensure_ascii=not readable)


def plugins_typed(variants: Iterable[str]) -> list[str]:
    """The `--plugin` options that these designs need in a command typed here; none if installed."""
    here, words = Path.cwd(), []
    for file in complete.plugins_of(variants):
        if file is not None and file.is_relative_to(here):
            file = file.relative_to(here)
        words += ["--plugin", PLUGIN if file is None else str(file)]
    return words


def _seeds_typed(seeds: list[int]) -> str:
    """As --seeds takes them: `3` for 0, 1, 2; else a list, `7,` where it is of one."""
    if seeds == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(str(seed) for seed in seeds) + ("," if len(seeds) == 1 else "")


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The settings, as section.key, that are not the same in all."""
    first, *others = held = [settings(recipe) for recipe in recipes]
    every = dict.fromkeys(key for each in held for key in each)
    return [key for key in every if any(other.get(key) != first.get(key) for other in others)]


def settings(recipe: Recipe) -> dict[str, Any]:
    """By section.key, all that decides about a run; of designs as `arms.attnres.optim.lr`."""
    sections = recipe.model_dump(mode="json").items()
    held = {name: values for name, values in sections if isinstance(values, dict)}
    held["optim"]["part_lr_scale"] = dict(recipe.optim.part_lr_scale)
    arms = {f"arms.{name}.{key}": v for name, changes in recipe.arms for key, v in changes}
    return arms | _leaves(held)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict)
        found |= _leaves(value, f"{prefix}{key}.") if nested else {prefix + key: as_tuples(value)}
    return found


def searched_name(recipe: str) -> str:
    """What a recipe is called with the sizes of a trial: `quick/search`. Reports of recipes leave
    such out, since a trial's run is compared with none; `ablate` trains it under its own name.
    """
    return recipe.removesuffix(_SEARCHED) + _SEARCHED


def plain_name(recipe: str) -> str:
    """The name of the recipe that a trial's was made of; of others their own."""
    return recipe.removesuffix(_SEARCHED)


def is_searched(recipe: str) -> bool:
    """Whether that is the name of a trial's recipe."""
    return recipe.endswith(_SEARCHED)
