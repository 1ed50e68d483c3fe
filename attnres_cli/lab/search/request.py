"""A search as it was asked for: its points, and all that defines it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
class Typed:
    """What a user types of a search, beside the recipe.

    Attributes:
        budget: as `params=2M`; the recipe's own parameters where there is none.
        space: as `aspect=15..75,n_blocks=2..16`.
        objectives: val_loss first.
        n_trials: of each variant, in all.
        n_confirmed: best shapes of each variant, which are then trained on `confirm_seeds`.
    """

    variants: Sequence[str]
    budget: Sequence[str]
    space: str
    objectives: tuple[str, ...]
    n_trials: int
    sampler: str
    n_confirmed: int
    confirm_seeds: tuple[int, ...]


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
    def n_shapes(self) -> int:
        """Shapes that all variants have in common."""
        return len({point.trunk for points in self.points.values() for point in points})

    @property
    def largest(self) -> Point:
        """The point whose training takes the most FLOPs, which decides how runs are computed."""
        every = [point for points in self.points.values() for point in points]
        return max(every, key=lambda point: point.flops)


def make(recipe: Recipe, typed: Typed) -> Request:
    """The search that is asked for. Loads the data, whose vocabulary is a part of every model.
    Raises UsageError, VariantError or DataError where what was typed is wrong.
    """
    if recipe.ladder:
        raise UsageError(f"recipe {recipe.name} has a ladder of sizes: a search has one budget")
    recipe = recipe.at_rate(recipe.optim.lr)  # scaled with the width, or searched, for each alike
    specs = list(dict.fromkeys(variant.parse(spec) for spec in typed.variants))
    space = spaces.parse(typed.space, specs)
    budget = budgets.parse(typed.budget, 1)
    _check_goals(typed, space, budget)
    tokens = sources.load(recipe)
    if not typed.budget:
        budget = budgets.parse((), recipe.model.shape(tokens.vocab_size).n_params())
    points = grid(specs, space, budget, recipe, tokens.vocab_size)
    search = Search(
        name="",
        recipe=recipe.name,
        recipe_digest=recipe.digest,
        fingerprint=tokens.fingerprint,
        budget=budget.text,
        tolerance=budgets.TOLERANCE,
        space=space.text,
        objectives=typed.objectives,
        learning_rate=lr_rule(space, recipe),
        first_seed=FIRST_SEED,
        confirm_seeds=typed.confirm_seeds,
        n_trials=typed.n_trials,
        families=(),
        codes=tuple(dict.fromkeys(code_of(str(spec)).digest for spec in specs)),
    )
    search = replace(search, name=name_of(search, [str(spec) for spec in specs]))
    goals = len(typed.objectives)
    return Request(
        search=search,
        recipe=recipe,
        tokens=tokens,
        points={str(spec): points[spec] for spec in specs},
        samplers={
            str(spec): proposals.chosen(typed.sampler, len(points[spec]), typed.n_trials, goals)
            for spec in specs
        },
        n_confirmed=typed.n_confirmed,
    )


def _check_goals(typed: Typed, space: spaces.Space, budget: budgets.Budget) -> None:
    """Refuse a goal that every shape reaches alike: rounding alone would decide who is better."""
    sizes = space.trunk["params"].values if "params" in space.trunk else budget.sizes()
    fixed = {"params": len(sizes) == 1, "flops": budget.flops is not None}
    by = "the budget" if typed.budget else "the default budget, the recipe's params,"
    for goal in typed.objectives:
        if fixed.get(goal):
            others = [name for name, is_fixed in fixed.items() if not is_fixed]
            raise UsageError(
                f"--objective {goal}: {by} fixes it for every shape, but for rounding; take "
                f"{', '.join(['step_time', *others])}, or on a GPU memory"
            )
