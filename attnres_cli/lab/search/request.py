"""A search as it was asked for: its points, and all that defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from attnres_cli.config.recipe import Recipe
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import UsageError
from attnres_cli.lab.search import budget as budgets
from attnres_cli.lab.search import proposals
from attnres_cli.lab.search import space as spaces
from attnres_cli.lab.search.points import Point, grid, lr_rule
from attnres_cli.lab.search.studies import name_of
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.nn import variant
from attnres_cli.records.search_records import Search

FIRST_SEED = 0
"""Of the first look."""


@dataclass(frozen=True)
class Request:
    """A search that can be carried out, and the points it may try. `points` and `samplers` (kind,
    and what is said of it) are by spec as typed; `search` has no families: those say what was done.
    """

    search: Search
    recipe: Recipe
    tokens: Tokens
    points: Mapping[str, Sequence[Point]]
    samplers: Mapping[str, tuple[str, str]]
    n_confirmed: int

    @property
    def every(self) -> list[Point]:
        """The points of all variants."""
        return list(chain(*self.points.values()))

    @property
    def n_trials(self) -> dict[str, int]:
        """How many trials each design gets: no more than it has points."""
        asked = self.search.n_trials
        return {spec: min(asked, len(points)) for spec, points in self.points.items()}


def make(
    recipe: Recipe,
    variants: Sequence[str],
    budget: Sequence[str],
    space: str,
    objectives: tuple[str, ...],
    n_trials: int,
    sampler: str,
    n_confirmed: int,
    confirm_seeds: tuple[int, ...],
) -> Request:
    """The search that is asked for, of what is typed. Loads the data, whose vocabulary is a part of
    every model. Raises UsageError, VariantError or DataError where what was typed is wrong.
    """
    if recipe.ladder:
        raise UsageError(f"recipe {recipe.name} has a ladder of sizes: a search has one budget")
    recipe = recipe.at_rate(recipe.optim.lr)  # scaled with the width, or searched, for each alike
    parsed = list(dict.fromkeys(variant.parse(spec) for spec in variants))
    searched = spaces.parse(space, parsed)
    cost = budgets.parse(budget, 1)
    _check_goals(objectives, searched, cost, is_default=not budget)
    tokens = sources.load(recipe)
    if not budget:
        cost = budgets.parse((), recipe.model.shape(tokens.vocab_size).n_params())
    found = grid(parsed, searched, cost, recipe, tokens.vocab_size)
    points = {str(spec): of_spec for spec, of_spec in found.items()}
    search = Search(
        name="",
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        fingerprint=tokens.fingerprint,
        budget=cost.text,
        tolerance=budgets.TOLERANCE,
        space=searched.text,
        objectives=objectives,
        learning_rate=lr_rule(searched, recipe),
        first_seed=FIRST_SEED,
        confirm_seeds=confirm_seeds,
        n_trials=n_trials,
        families=(),
        codes=tuple(dict.fromkeys(code_of(spec).digest for spec in points)),
    )
    search = replace(search, name=name_of(search, list(points)))
    samplers = {
        spec: proposals.chosen(sampler, len(of), n_trials, len(objectives))
        for spec, of in points.items()
    }
    return Request(search, recipe, tokens, points, samplers, n_confirmed)


def _check_goals(
    goals: Sequence[str], space: spaces.Space, budget: budgets.Budget, *, is_default: bool
) -> None:
    """Refuse a goal that every shape reaches alike: rounding alone would decide who is better."""
    sizes = space.size("params").values or budget.sizes()
    fixed = {"params": len(sizes) == 1, "flops": budget.flops is not None}
    by = "the default budget, the recipe's params," if is_default else "the budget"
    others = ", ".join(["step_time", *(name for name, is_fixed in fixed.items() if not is_fixed)])
    for goal in goals:
        if fixed.get(goal):
            raise UsageError(
                f"--objective {goal}: {by} fixes it for every shape, but for rounding; take "
                f"{others}, or on a GPU memory"
            )
