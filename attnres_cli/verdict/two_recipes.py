"""Two recipes side by side: how far a design's loss differs between them, where runs can be paired.

It is no verdict: recipes are chosen after runs have been seen, and no look is planned. So there are
intervals, of all designs that both have together, and no words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.code import Code
from attnres_cli.records.evaluated import Evaluated
from attnres_cli.records.run import DataDescription, RunRecord
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.stats.sequential import ALPHA, LEAST_SEEDS, interval
from attnres_cli.verdict.select import Choice
from attnres_cli.verdict.soundness import stopped


@dataclass(frozen=True)
class Side:
    """One of the recipes, with its runs."""

    recipe: Recipe
    chosen: Choice
    data: DataDescription
    evaluated: Evaluated | None = None

    def runs(self, variant: str) -> list[RunRecord]:
        """The ended runs of a design."""
        runs = [run for run in self.chosen.records if run.variant == variant]
        return [run for run in runs if run.result is not None]


@dataclass(frozen=True)
class Row:
    """One design under both recipes.

    Attributes:
        losses: under each, by seed; of the paired seeds alone where there are some.
        difference: mean over the paired seeds of the second's loss minus the first's; None where
            the two cannot be paired, with the `reason`.
        interval: of it; None below LEAST_SEEDS pairs.
    """

    variant: str
    losses: tuple[Mapping[int, float], Mapping[int, float]]
    difference: float | None = None
    interval: tuple[float, float] | None = None
    reason: str = ""


def rows(first: Side, second: Side, baseline: str) -> list[Row]:
    """Every design that either recipe has runs of, the baseline first, then those of the first by
    loss. Intervals hold for all designs that can be paired together, at this one look.
    """
    names = dict.fromkeys(r.variant for side in (first, second) for r in side.chosen.records)
    unlike = _unlike(first, second)
    found = [_paired(name, first, second, unlike) for name in names]
    n_tests = sum(row.difference is not None for row in found)
    told = [_with_interval(row, n_tests) for row in found if any(row.losses)]

    def place(row: Row) -> tuple[bool, float]:
        mean = mean_sd(list(row.losses[0].values()))[0] if row.losses[0] else math.inf
        return row.variant != baseline, math.inf if math.isnan(mean) else mean

    return sorted(told, key=place)


def _unlike(first: Side, second: Side) -> str:
    """Why no run of one recipe can be paired with one of the other; empty where they can be."""
    if first.data.fingerprint != second.data.fingerprint:
        return "other data: their losses are of other tokens"
    one, other = first.recipe, second.recipe
    windows = {
        "model.seq_len": (one.model.seq_len, other.model.seq_len),
        "train.eval_tokens": (one.train.eval_tokens, other.train.eval_tokens),
    }
    for name, (ours, theirs) in windows.items():
        if ours != theirs:
            return f"other evaluation windows: {name} is {ours} and {theirs}"
    return ""


def _paired(variant: str, first: Side, second: Side, unlike: str) -> Row:
    """A design with its difference, or the reason why it has none."""
    both = first.runs(variant), second.runs(variant)
    ours, theirs = ({r.seed: r.result.val_loss for r in runs if r.result} for runs in both)
    seeds = sorted(ours.keys() & theirs.keys())
    reason = unlike or _blocked(both, (first, second)) or ("" if seeds else "no seed in common")
    if reason:
        return Row(variant, (ours, theirs), reason=reason)
    ours, theirs = ({seed: each[seed] for seed in seeds} for each in (ours, theirs))
    difference = mean_sd([theirs[s] - ours[s] for s in seeds])[0]
    short = "" if len(seeds) >= LEAST_SEEDS else f"{len(seeds)} of {LEAST_SEEDS} seeds in common"
    return Row(variant, (ours, theirs), difference, reason=short)


def _blocked(both: Sequence[Sequence[RunRecord]], sides: Sequence[Side]) -> str:
    """Why the runs of a design under both recipes are not alike but for the recipe."""
    for runs, side in zip(both, sides, strict=True):
        name = f"{side.recipe.name} ({side.recipe.digest})"
        if not runs:
            return f"no run under {name}"
        if why := stopped(runs, side.data):
            return f"{name}: {why}"
    if len({Code.of(run.versions) for runs in both for run in runs}) > 1:
        return "trained by other code"
    numerics = {run.result.settings.numerics for runs in both for run in runs if run.result}
    return f"computed on {' and '.join(sorted(numerics))}" if len(numerics) > 1 else ""


def _with_interval(row: Row, n_tests: int) -> Row:
    """The row with Student's interval at its part of the rate, where it has seeds enough."""
    if row.difference is None or row.reason:
        return row
    ours, theirs = (np.array([*each.values()]) for each in row.losses)
    return replace(row, interval=interval(theirs, ours, ALPHA / n_tests))
