"""The slope of loss over tokens: what a difference in loss is worth in compute."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunRecord
from attnres_cli.verdict.numbers import plural

_LEAST_RUNS = 2  # at one budget of tokens
_LEAST_RATIO = math.sqrt(2)
"""Budgets nearer than this measure the noise of seeds: at a factor of 1.1, twelve runs of recipe
`quick` beside six give 0.39 with a standard error of some 0.1.
"""


@dataclass(frozen=True)
class Slope:
    """Nats per token that the baseline gains per e-fold of its tokens, above 0, and how that is
    known.
    """

    value: float
    source: str


def slope_of(
    digest: str, baseline: str, runs: Sequence[RunRecord], recipes: Mapping[str, Recipe]
) -> Slope | None:
    """The slope of the baseline's loss at the recipe of this digest. `runs` are of one fingerprint,
    `recipes` those of their digests.

    It is measured between the nearest budgets of tokens on both sides of the recipe's own, a factor
    of 1.41 or more from it, with two runs or more each; the own is one of them where a side has
    none. Where fewer than two such budgets are held it is what the recipe states. None: not known,
    or loss does not fall.
    """
    recipe = recipes[digest].of(baseline)
    losses: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        if run.result is None or run.variant != baseline:
            continue
        other = recipes[run.recipe_digest]
        if other.digest == recipe.at(other.train.tokens).digest:
            losses[run.result.tokens].append(run.result.val_loss)
    own = recipe.steps * recipe.tokens_per_step
    held = [n for n, of in losses.items() if len(of) >= _LEAST_RUNS and math.isfinite(sum(of))]
    low = max((n for n in held if n * _LEAST_RATIO <= own), default=own)
    high = min((n for n in held if n >= own * _LEAST_RATIO), default=own)
    if low == high or not {low, high} <= set(held):
        return None if recipe.slope is None else Slope(recipe.slope, "as the recipe states")
    value = (fmean(losses[low]) - fmean(losses[high])) / math.log(high / low)
    ends = [f"{n:,} tokens ({plural(len(losses[n]), 'run')})" for n in (low, high)]
    return Slope(value, f"measured at {' and '.join(ends)}") if value > 0 else None
