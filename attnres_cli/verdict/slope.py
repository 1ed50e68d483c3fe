"""The baseline's loss at other budgets of tokens: what a difference in loss is worth."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunRecord
from attnres_cli.stats.multiples import Budget
from attnres_cli.verdict.numbers import plural

_LEAST_RUNS = 2  # at one budget of tokens
_LEAST_RATIO = math.sqrt(2) * 0.995
"""Budgets nearer than this measure the noise of seeds: at a factor of 1.1, twelve runs of recipe
`quick` beside six give 0.39 with a standard error of some 0.1. Whole steps make 1.41 a little less.
"""
_MOST_RATIO = 4.5
_STATED, _STATED_OF = "as the recipe states", "standard"
_SEVERAL = 2  # budgets beside the own, without which no multiple of tokens is known
_OWN = Budget(1, 0.0, 0.0, 0)

Losses = Mapping[int, float]
"""By seed, nats per token."""


@dataclass(frozen=True)
class Slope:
    """How the baseline's loss falls with its tokens, and how that is known.

    Attributes:
        value: nats per token per e-fold of tokens, above 0, between the nearest budgets on both
            sides of the recipe's own; the own is one of them where a side has none.
        budgets: what it ends lower by at each; empty where only `value` is known.
    """

    value: float
    source: str
    budgets: tuple[Budget, ...] = ()


def slope_of(
    digest: str, baseline: str, runs: Sequence[RunRecord], recipes: Mapping[str, Recipe]
) -> Slope | None:
    """The slope of the baseline's loss at the recipe of this digest. `runs` are of one fingerprint,
    `recipes` those of their digests.

    It is measured at budgets of two runs or more that lie a factor of 1.41 to 4.5 from the recipe's
    own, which needs two too, and that were computed alike. What the recipe states, of `standard`,
    goes before a single budget, and gives another baseline no budgets. None: not known, or loss
    does not fall.
    """
    recipe = recipes[digest].of(baseline)
    own, known = recipe.steps * recipe.tokens_per_step, stated(recipe)
    if known is not None and baseline != _STATED_OF:
        known = Slope(known.value, f"{known.source} of {_STATED_OF}")
    held = _losses(baseline, own, runs, [d for d, r in recipes.items() if is_budget(r, recipe)])
    others = [n for n in held if _LEAST_RATIO <= max(n / own, own / n) <= _MOST_RATIO]
    if own not in held or not others or (len(others) < _SEVERAL and known and known.budgets):
        return known
    budgets = tuple(_budget(n / own, held[n], held[own]) for n in sorted(others))
    ends = [f"{n:,} tokens ({plural(len(held[n]), 'run')})" for n in sorted([own, *others])]
    return _sloping(budgets, f"measured at {', '.join(ends[:-1])} and {ends[-1]}")


def _losses(
    baseline: str, own: int, runs: Sequence[RunRecord], digests: Sequence[str]
) -> dict[int, dict[int, float]]:
    """The baseline's losses under these recipes by tokens and seed, where there are enough that
    were computed as those at its own tokens.
    """
    ended = [run for run in runs if run.variant == baseline and run.recipe_digest in digests]
    results = [(run.seed, run.result) for run in ended if run.result is not None]
    ways = {found.settings.numerics for _, found in results if found.tokens == own}
    losses: dict[int, dict[int, float]] = defaultdict(dict)
    for seed, found in results:
        if found.settings.numerics in ways:
            losses[found.tokens][seed] = found.val_loss
    return {n: of for n, of in losses.items() if _is_enough(of)}


def is_budget(other: Recipe, recipe: Recipe) -> bool:
    """Whether two recipes differ in their tokens alone; warm-ups of as many steps are the same."""
    warmups = [math.ceil(each.optim.warmup_fraction * each.steps) for each in (other, recipe)]
    same = recipe.at(other.train.tokens)
    if warmups[0] == warmups[1]:
        fraction = {"warmup_fraction": other.optim.warmup_fraction}
        same = same.model_copy(update={"optim": same.optim.model_copy(update=fraction)})
    return other.digest == same.digest


def stated(recipe: Recipe) -> Slope | None:
    """The slope that the recipe states; None if it states none."""
    if isinstance(recipe.slope, tuple):
        return _sloping(tuple(Budget(*each) for each in recipe.slope), _STATED)
    return None if recipe.slope is None else Slope(recipe.slope, _STATED)


def _sloping(budgets: Sequence[Budget], source: str) -> Slope | None:
    """The slope between the nearest budgets on both sides."""
    low = max((b for b in budgets if b.ratio < 1), key=lambda b: b.ratio, default=_OWN)
    high = min((b for b in budgets if b.ratio > 1), key=lambda b: b.ratio, default=_OWN)
    value = (high.drop - low.drop) / math.log(high.ratio / low.ratio)
    return Slope(value, source, tuple(budgets)) if value > 0 else None


def _is_enough(losses: Losses) -> bool:
    return len(losses) >= _LEAST_RUNS and math.isfinite(sum(losses.values()))


def _budget(ratio: float, theirs: Losses, own: Losses) -> Budget:
    """What the baseline ends lower by at `theirs` than at its own budget: over the seeds that both
    have, where those are enough.
    """
    shared = sorted(theirs.keys() & own.keys())
    if len(shared) >= _LEAST_RUNS:
        drops = {seed: own[seed] - theirs[seed] for seed in shared}
        error = float(np.std([*drops.values()], ddof=1)) / math.sqrt(len(drops))
        return Budget(ratio, fmean(drops.values()), error, len(drops), drops)
    groups = [[*own.values()], [*theirs.values()]]
    error = math.sqrt(sum(float(np.var(group, ddof=1)) / len(group) for group in groups))
    return Budget(ratio, fmean(groups[0]) - fmean(groups[1]), error, min(map(len, groups)))
