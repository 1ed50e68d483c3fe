"""Several recipes on one page: in what order they stand, and what tells them apart in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.verdict.chapter import Chapter

_TOLD = ("model.n_layers", "model.d_model")
"""Settings that a name begins with, whether they differ or not."""


def of(chapter: Chapter) -> str:
    """The recipe and the data that a chapter is of, as --recipe takes them."""
    comparison = chapter.comparison
    return f"{comparison.recipe_digest}@{comparison.data.fingerprint}"


def split(chapters: Sequence[Chapter]) -> tuple[list[Chapter], list[Chapter]]:
    """The chapters to show whole, in order, and those to name alone: recipes in which no arm has a
    verdict, such as trials of a search with one seed. The newest, the last given, is shown whole.

    In order: the newest's name first; then by name, data, depth, width and tokens.
    """
    last = chapters[-1]
    judged = {of(each) for each in chapters if any(a.difference for a in each.comparison.arms)}

    def place(chapter: Chapter) -> tuple[object, ...]:
        comparison, recipe = chapter.comparison, chapter.recipe
        size = (0, 0, 0)
        if recipe is not None:
            size = (recipe.model.n_layers, recipe.model.d_model, recipe.train.tokens)
        name = comparison.recipe
        other = name != last.comparison.recipe
        return other, name, comparison.data.fingerprint, size, comparison.recipe_digest

    ordered = sorted(chapters, key=place)
    told = {*judged, of(last)}
    whole = [chapter for chapter in ordered if of(chapter) in told]
    return whole, [chapter for chapter in ordered if of(chapter) not in told]


def names(chapters: Sequence[Chapter]) -> list[str]:
    """Each chapter's size and settings that others of its name have not: `4 layers of width 64, lr
    0.01`; empty where all are of one recipe on the same data.
    """
    if len({of(chapter) for chapter in chapters}) < 2:
        return [""] * len(chapters)
    data = {chapter.comparison.data.fingerprint for chapter in chapters}
    found = []
    for chapter in chapters:
        comparison, parts = chapter.comparison, []
        if chapter.recipe is not None:
            same = [each.recipe for each in chapters if each.comparison.recipe == comparison.recipe]
            parts = _words(chapter.recipe, [recipe for recipe in same if recipe is not None])
        if len(data) > 1:
            parts.append(f"data {comparison.data.source} ({comparison.data.fingerprint})")
        found.append(", ".join(parts))
    return found


def _words(recipe: Recipe, others: Sequence[Recipe]) -> list[str]:
    mine, theirs = settings(recipe), [settings(other) for other in others]
    model = recipe.model
    parts = [f"{model.n_layers} layers of width {model.d_model}"]
    for key, value in mine.items():
        if key not in _TOLD and any(other.get(key) != value for other in theirs):
            text = f"{value:,}" if type(value) is int else str(value)
            parts.append(f"{key.partition('.')[2]} {text}")
    return parts


def differing(recipes: Sequence[Recipe]) -> list[str]:
    """The settings, as section.key, that are not the same in all."""
    held = [settings(recipe) for recipe in recipes]
    keys = dict.fromkeys(key for values in held for key in values)
    return [key for key in keys if any(each.get(key) != held[0].get(key) for each in held)]


def settings(recipe: Recipe) -> Mapping[str, Any]:
    """By section.key, all that decides about a run and is set."""
    held = recipe.model_dump(mode="json", exclude_none=True)
    return {
        f"{section}.{key}": value
        for section, values in held.items()
        if isinstance(values, dict)
        for key, value in values.items()
    }
