"""A search as it was asked for: its points, and all that defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from attnres_cli import data, proofs, variant
from attnres_cli.data import Tokens
from attnres_cli.errors import UsageError
from attnres_cli.recipe import Recipe
from attnres_cli.residual import comes_with_the_tool, registry
from attnres_cli.search import budget as budgets
from attnres_cli.search import space as spaces
from attnres_cli.search.points import Point, grid, lr_rule
from attnres_cli.search.shapes import absent
from attnres_cli.search.studies import name_of
from attnres_cli.trials import Search


@dataclass(frozen=True)
class Wanted:
    """What is to be done.

    Attributes:
        search: without families, which are what has been done.
        points: of each variant, by its spec as the user may type it.

    """

    search: Search
    recipe: Recipe
    tokens: Tokens
    points: Mapping[str, Sequence[Point]]

    @property
    def n_shapes(self) -> int:
        """Shapes that all variants have in common."""
        return len({point.trunk for points in self.points.values() for point in points})

    @property
    def largest(self) -> Point:
        """The point whose training takes the most FLOPs, which decides how runs are computed."""
        every = [point for points in self.points.values() for point in points]
        return max(every, key=lambda point: point.flops)


def make(
    recipe: Recipe,
    typed: Sequence[str],
    budget: Sequence[str],
    space: str,
    objectives: tuple[str, ...],
    first_seed: int,
    confirm_seeds: tuple[int, ...],
    n_trials: int,
) -> Wanted:
    """The search of these variants. Loads the data, whose vocabulary is a part of every model.

    Raises:
        UsageError: a budget or space that cannot be meant, or without any shape.
        VariantError: an unknown variant, or a design of the user's own that is unfair.
        DataError: the recipe's data cannot be had.

    """
    if recipe.ladder:
        raise UsageError(f"recipe {recipe.name} has a ladder of sizes: a search has one budget")
    specs = list(dict.fromkeys(variant.parse(spec) for spec in typed))
    found = spaces.parse(space, specs)
    asked = budgets.parse(budget, 1)
    tokens = data.load(recipe)
    if not budget:
        asked = budgets.parse((), recipe.model.shape(tokens.vocab_size).n_params())
    points = grid(specs, found, asked, recipe, tokens.vocab_size)
    _admit(points, tokens.vocab_size)
    names = [str(spec) for spec in specs]
    search = Search(
        name="",
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        fingerprint=tokens.fingerprint,
        budget=asked.text,
        tolerance=budgets.TOLERANCE,
        space=found.text,
        objectives=objectives,
        learning_rate=lr_rule(found, recipe),
        first_seed=first_seed,
        confirm_seeds=confirm_seeds,
        n_trials=n_trials,
        families=(),
        absent=absent(found, {point.trunk for held in points.values() for point in held}),
    )
    search = replace(search, name=name_of(search, names))
    return Wanted(search, recipe, tokens, {str(spec): points[spec] for spec in specs})


def _admit(points: Mapping[variant.Variant, Sequence[Point]], vocab_size: int) -> None:
    """Refuse a design of the user's own that cannot be trained fairly (`proofs.admit`)."""
    for spec, found in points.items():
        if comes_with_the_tool(registry()[spec.name]):
            continue
        model = found[0].recipe.model
        proofs.admit(variant.parse(found[0].variant), model.shape(vocab_size))
