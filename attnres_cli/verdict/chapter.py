"""A chapter: one comparison with the runs, probes and recipes that a page and its figures show."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnres_cli.config import address, complete
from attnres_cli.config import recipe as recipes
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import RecipeError
from attnres_cli.records.run import Probe, RunRecord
from attnres_cli.records.search_records import plain_name
from attnres_cli.verdict.comparison import ArmResult, Comparison

_NOT_HELD = ("name", "description", "variants", "ladder")
"""Of a recipe, what decides nothing about a run."""


@dataclass(frozen=True)
class Chapter:
    """One comparison and all that is shown with it: probes are by run number, recipes by digest."""

    comparison: Comparison
    runs: Sequence[RunRecord]
    probes: Mapping[int, Probe] = field(default_factory=dict)
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    study: str = ""

    def runs_of(self, variant: str) -> list[RunRecord]:
        """The ended runs of an arm, by seed."""
        ended = [run for run in self.runs if run.variant == variant and run.result is not None]
        return sorted(ended, key=lambda run: run.seed)

    def probes_of(self, variant: str) -> list[Probe]:
        """The last probe of each ended run of an arm, by seed; runs without one are left out."""
        numbers = [run.id for run in self.runs_of(variant)]
        return [self.probes[number] for number in numbers if number in self.probes]

    @property
    def recipe(self) -> Recipe | None:
        """The shared recipe, None where it is not known."""
        return self.recipes.get(self.comparison.recipe_digest)

    @property
    def study_name(self) -> str:
        """The study as a page may show it to anyone: of a URL, without its password."""
        return address.parted(self.study)[0]

    def command(self, arm: ArmResult) -> str:
        """The command that trains an arm's runs again in a study of their own, beside the baseline,
        or alone where the arm has its own recipe; empty where the recipe is not known. It names the
        device, but cannot name the kind of machine.
        """
        recipe, runs = self.recipes.get(arm.recipe_digest), self.runs_of(arm.variant)
        if recipe is None or not runs or runs[0].result is None:
            return ""
        name, overrides = overrides_of(recipe)
        alone = arm.own is not None or arm.recipe_digest != self.comparison.recipe_digest
        base = arm.variant if alone else self.comparison.baseline
        words = ["attnres", "ablate", *dict.fromkeys([base, arm.variant]), "--recipe", name]
        words += [part for override in overrides for part in ("--set", override)]
        words += ["--seeds", seeds_typed(sorted(arm.losses))]
        words += [] if base == "standard" else ["--baseline", base]
        words += plugins_typed([base, arm.variant])
        settings = runs[0].result.settings
        words += ["--device", settings.device, "--engine", settings.engine, "--study", "again.db"]
        return shlex.join(words)


def chapter(comparison: Comparison, records: Iterable[RunRecord], study: str) -> Chapter:
    """A comparison with its runs, or where none has ended with all of its recipe's runs so far."""
    arms = {(arm.variant, arm.recipe_digest): arm.losses for arm in comparison.arms}
    runs = [run for run in records if run.fingerprint == comparison.data.fingerprint]
    if not arms:
        mine = [run for run in runs if run.recipe_digest == comparison.recipe_digest]
        return Chapter(comparison, mine, study=study)
    mine = [run for run in runs if run.seed in arms.get((run.variant, run.recipe_digest), {})]
    return Chapter(comparison, mine, study=study)


def overrides_of(recipe: Recipe) -> tuple[str, list[str]]:
    """The shipped recipe of that name, or `quick`, and the `--set` values that make it this one."""
    name = plain_name(recipe.name)
    name = name if name in recipes.names() else "quick"
    wanted, shipped = recipe.model_dump(mode="json"), recipes.load(name).model_dump(mode="json")
    found = [
        f"{section}.{key}={_scalar(value)}"
        for section, values in wanted.items()
        if section not in _NOT_HELD
        for key, value in values.items()
        if value != shipped[section][key]
    ]
    try:
        recipes.load(name, found)
    except RecipeError:  # as a file of the user's own that is not known to this version
        return recipe.name, []
    return name, found


PLUGIN = "FILE"
"""In a command, for the file of a plugin that is not known here."""


def plugins_typed(variants: Iterable[str]) -> list[str]:
    """The `--plugin` options that these designs need in a command typed here; none if installed."""
    here, words = Path.cwd(), []
    for file in complete.plugins_of(variants):
        if file is None:
            words += ["--plugin", PLUGIN]
        else:
            path = file.relative_to(here) if file.is_relative_to(here) else file
            words += ["--plugin", str(path)]
    return words


def seeds_typed(seeds: list[int]) -> str:
    """As --seeds takes them: `3` for 0, 1, 2; else a list, `7,` where it is of one."""
    if seeds == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(str(seed) for seed in seeds) + ("," if len(seeds) == 1 else "")


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
