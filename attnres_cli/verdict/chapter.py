"""A chapter: one comparison with all that a page and its figures show of it; and the chapters of
several recipes, in what order they stand and what tells them apart.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnres_cli.config import address, complete, strict_yaml
from attnres_cli.config import recipe as recipes
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import RecipeError
from attnres_cli.records.run import Probe, RunRecord
from attnres_cli.records.search_records import plain_name
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.format import plural

PLUGIN = "FILE"
"""In a command, for the file of a plugin that is not known here."""

_TOLD = ("model.n_layers", "model.d_model")
"""Settings that a name begins with, whether they differ or not."""


@dataclass(frozen=True)
class Chapter:
    """One comparison and all that is shown with it: probes are by run number, recipes by digest."""

    comparison: Comparison
    probes: Mapping[int, Probe] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    study: str = ""

    def runs_of(self, variant: str) -> list[RunRecord]:
        """The ended runs of an arm, by seed."""
        runs = [run for run in self.comparison.records if run.variant == variant]
        return sorted((run for run in runs if run.result is not None), key=lambda run: run.seed)

    def probes_of(self, variant: str) -> list[Probe]:
        """The last probe of each ended run of an arm, by seed; runs without one are left out."""
        numbers = [run.id for run in self.runs_of(variant)]
        return [self.probes[number] for number in numbers if number in self.probes]

    @property
    def recipe(self) -> Recipe | None:
        """The shared recipe, None where it is not known."""
        return self.recipes.get(self.comparison.recipe_digest)

    @property
    def recipe_and_data(self) -> str:
        """As --recipe takes them: `digest@fingerprint`."""
        return f"{self.comparison.recipe_digest}@{self.comparison.data.fingerprint}"

    @property
    def study_name(self) -> str:
        """The study as a page may show it to anyone: of a URL, without its password."""
        return address.parted(self.study)[0]

    def command(self, arm: ArmResult) -> str:
        """The command that trains an arm's runs again in a study of their own, beside the baseline,
        or alone where the arm has its own recipe; empty where no command gives its recipe. It names
        the device, but cannot name the kind of machine.
        """
        recipe, runs = self.recipes.get(arm.recipe_digest), self.runs_of(arm.variant)
        if recipe is None or not runs or runs[0].result is None:
            return ""
        typed = overrides_of(recipe)
        if typed is None:
            return ""
        alone = arm.own is not None or arm.recipe_digest != self.comparison.recipe_digest
        base = arm.variant if alone else self.comparison.baseline
        words = ablate_typed([base, arm.variant], *typed, arm.losses)
        settings = runs[0].result.settings
        words += ["--device", settings.device, "--engine", settings.engine, "--study", "again.db"]
        return shlex.join(words)


def ablate_typed(
    variants: Sequence[str], recipe: str, overrides: Sequence[str], seeds: Iterable[int]
) -> list[str]:
    """The words of the command that trains these, the first being the baseline, on these seeds."""
    base = variants[0]
    words = ["attnres", "ablate", *dict.fromkeys(variants), "--recipe", recipe]
    words += [part for override in overrides for part in ("--set", override)]
    words += ["--seeds", _seeds_typed(sorted(seeds))]
    words += [] if base == "standard" else ["--baseline", base]
    return words + plugins_typed(variants)


def overrides_of(recipe: Recipe) -> tuple[str, list[str]] | None:
    """The shipped recipe of that name, or `quick`, and the `--set` values that make it this one,
    parsed back to be sure; None where none do, as of a value that this version refuses.
    """
    name = plain_name(recipe.name)
    name = name if name in recipes.names() else "quick"
    shipped, found = recipes.load(name), []
    mine, theirs = ((each.rates, each.optim.lr) for each in (recipe, shipped))
    if shipped.rates and mine != theirs:  # a rate for every design, beside which others are typed
        found = [f"optim.lr={recipe.optim.lr}"]
    before = settings(recipes.load(name, found))
    found += [
        f"{key}={as_yaml(value)}"
        for key, value in settings(recipe).items()
        if value != before.get(key)
    ]
    try:
        is_same = recipes.load(name, found).digest == recipe.digest
    except RecipeError:
        return None
    return (name, found) if is_same else None


def as_yaml(value: object) -> str:
    """A value as recipes and `--set` take it; text that YAML would read otherwise in quotes."""
    try:
        is_plain = isinstance(value, str) and strict_yaml.load(value, "") == value
    except RecipeError:
        is_plain = False
    return str(value) if is_plain else json.dumps(value)


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


def split(chapters: Sequence[Chapter]) -> tuple[list[Chapter], list[Chapter]]:
    """The chapters to show whole, in order, and those to name alone: recipes in which no arm has a
    verdict, such as trials of a search with one seed. The newest, the last given, is shown whole.

    In order: the newest's name first; then by name, data, depth, width and tokens.
    """
    newest = chapters[-1]
    told = {c.recipe_and_data for c in chapters if any(a.difference for a in c.comparison.arms)}
    told.add(newest.recipe_and_data)

    def place(chapter: Chapter) -> tuple[object, ...]:
        held, recipe, size = chapter.comparison, chapter.recipe, (0, 0, 0)
        if recipe is not None:
            size = (recipe.model.n_layers, recipe.model.d_model, recipe.train.tokens)
        is_other = held.recipe != newest.comparison.recipe
        return is_other, held.recipe, held.data.fingerprint, size, held.recipe_digest

    ordered = sorted(chapters, key=place)
    whole = [chapter for chapter in ordered if chapter.recipe_and_data in told]
    return whole, [chapter for chapter in ordered if chapter.recipe_and_data not in told]


def names(chapters: Sequence[Chapter]) -> list[str]:
    """Each chapter's size and settings that others of its name have not: `4 layers of width 64, lr
    0.01`; empty where all are of one recipe on the same data.
    """
    if len({chapter.recipe_and_data for chapter in chapters}) < 2:
        return [""] * len(chapters)
    n_data = len({chapter.comparison.data.fingerprint for chapter in chapters})
    found = []
    for chapter in chapters:
        held, parts = chapter.comparison, []
        if chapter.recipe is not None:
            same = [c.recipe for c in chapters if c.comparison.recipe == held.recipe and c.recipe]
            parts = _words(chapter.recipe, same)
        if n_data > 1:
            parts.append(f"data {held.data.source} ({held.data.fingerprint})")
        found.append(", ".join(parts))
    return found


def _words(recipe: Recipe, others: Sequence[Recipe]) -> list[str]:
    mine, model = settings(recipe), recipe.model
    parts = [f"{plural(model.n_layers, 'layer')} of width {model.d_model}"]
    for key in differing(others):
        if key not in _TOLD and (value := mine.get(key)) is not None:
            section, _, name = key.partition(".")
            text = f"{value:,}" if type(value) is int else str(value)
            parts.append(f"lr {text} for {name}" if section == "rates" else f"{name} {text}")
    return parts


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The settings, as section.key, that are not the same in all."""
    first, *others = held = [settings(recipe) for recipe in recipes]
    every = dict.fromkeys(key for each in held for key in each)
    return [key for key in every if any(other.get(key) != first.get(key) for other in others)]


def settings(recipe: Recipe) -> dict[str, Any]:
    """By section.key, all that decides about a run; rates by design as `rates.attnres`."""
    sections = recipe.model_dump(mode="json").items()
    held = {name: values for name, values in sections if isinstance(values, dict)}
    return {f"rates.{name}": lr for name, lr in recipe.rates} | _leaves(held)


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict)
        found |= _leaves(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return found
