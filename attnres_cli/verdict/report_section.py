"""A chapter: one comparison with all that a page and its figures show of it; and the chapters of
several recipes, in what order they stand and what tells them apart.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnres_cli.config import address
from attnres_cli.config.arms import place_of
from attnres_cli.config.as_typed import ablate_typed, differing, overrides_of, settings
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import Probe, RunRecord
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.numbers import plural

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
        typed = None if recipe is None or not runs else overrides_of(recipe)
        if typed is None or runs[0].result is None:
            return ""
        alone = arm.own is not None or arm.recipe_digest != self.comparison.recipe_digest
        base = arm.variant if alone else self.comparison.baseline
        words = ablate_typed([base, arm.variant], *typed, arm.losses)
        on = runs[0].result.settings
        return shlex.join(
            [*words, "--device", on.device, "--engine", on.engine, "--study", "again.db"]
        )


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
            parts.append(f"data {held.data.called}")
        found.append(", ".join(parts))
    return found


def _words(recipe: Recipe, others: Sequence[Recipe]) -> list[str]:
    mine, model = settings(recipe), recipe.model
    parts = [f"{plural(model.n_layers, 'layer')} of width {model.d_model}"]
    for key in differing(others):
        if key not in _TOLD and (value := mine.get(key)) is not None:
            design, inner = place_of(key) or ("", key)
            text = f"{value:,}" if type(value) is int else str(value)
            whose = f" for {design}" if design else ""
            parts.append(f"{inner.partition('.')[2]} {text}{whose}")
    return parts
