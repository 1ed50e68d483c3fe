"""The shapes that a search tried for one variant, and which may be the best. The first look, one
seed, chooses; fresh seeds, which chose nothing, judge.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnres_cli.errors import last_line
from attnres_cli.records import gates
from attnres_cli.records.run import RunRecord, Settings, Status
from attnres_cli.records.search_records import Cell, Family, Search, State, Trial, on_front
from attnres_cli.stats.optima import may_be_best
from attnres_cli.stats.pairs import mean_interval
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict.numbers import plural

_WAITS = {Status.PENDING: "is pending", Status.RUNNING: "is running, or was killed"}
_UNCONFIRMED_SHOWN = 5

Runs = Mapping[tuple[str, str, int], RunRecord]
"""By variant, recipe and seed."""


@dataclass(frozen=True)
class Shape:
    """A trial of a variant: what its first look promised, and what fresh seeds gave.

    Attributes:
        family: the variant as it was typed.
        fresh: losses by seed, of the fresh seeds that have one that counts.
        missing: why each of the others has none: `seed 3 failed: ...`.
        numerics: of its runs, which are paired only if they are one; settings: of the first.
        errors: seed and error, a line or `diverged`, of the first look and runs that failed.
        on_front: whether no other is better in both objectives, where there are two.
        may_be_best: whether it is in the set of its variant's confirmed shapes that holds the best
            with 95 % confidence; None where that was not tested. is_lowest: among them, by mean.
    """

    family: str
    trial: Trial
    fresh: Mapping[int, float]
    missing: tuple[str, ...]
    numerics: frozenset[str]
    settings: Settings | None = None
    errors: tuple[tuple[int, str], ...] = ()
    on_front: bool = False
    may_be_best: bool | None = None
    is_lowest: bool = False

    @property
    def promised(self) -> float:
        """Loss of the first look, of one seed; lucky where it is the lowest of many."""
        return self.trial.values[0]

    @property
    def is_complete(self) -> bool:
        """Whether the first look gave a loss."""
        return self.trial.outcome == "complete"

    @property
    def error(self) -> str | None:
        """Why the first look came to nothing."""
        return self.errors[0][1] if self.trial.outcome in ("failed", "diverged") else None

    @property
    def mean(self) -> float | None:
        """Over the fresh seeds; None without any."""
        return sum(self.fresh.values()) / len(self.fresh) if self.fresh else None

    @property
    def ci95(self) -> tuple[float, float] | None:
        """The t interval of the mean; None of fewer than two seeds."""
        return mean_interval(np.array(list(self.fresh.values()))) if len(self.fresh) > 1 else None

    @property
    def surprise(self) -> float | None:
        """Fresh mean minus first look: above zero where the first look was lucky."""
        return None if self.mean is None else self.mean - self.promised

    @property
    def is_confirmed(self) -> bool:
        """Whether every fresh seed has a loss that counts."""
        return bool(self.fresh) and not self.missing

    @property
    def cell(self) -> Cell:
        """Its sizes."""
        return self.trial.cell


@dataclass(frozen=True)
class Optimum:
    """One variant's search.

    Attributes:
        results: of every trial, in their order.
        reason: why it is not said which shapes may be best; empty where it is.
    """

    family: Family
    results: tuple[Shape, ...]
    reason: str = ""

    @property
    def failed(self) -> list[tuple[Trial, int, str]]:
        """Trial, seed and error of all runs that failed, and first looks that diverged, by seed."""
        found = [(each.trial, seed, why) for each in self.results for seed, why in each.errors]
        return sorted(found, key=lambda each: each[1])

    @cached_property
    def shapes(self) -> list[Shape]:
        """Those of different runs with a first look, the lowest first."""
        ended = [shape for shape in reversed(self.results) if shape.is_complete]
        by_run = {(shape.trial.variant, shape.trial.recipe_digest): shape for shape in ended}
        return sorted(by_run.values(), key=lambda shape: (shape.promised, shape.trial.number))

    @cached_property
    def confirmed(self) -> list[Shape]:
        """Shapes with all fresh seeds, the lowest mean first."""
        return sorted((s for s in self.shapes if s.is_confirmed), key=lambda s: s.mean or math.inf)

    @property
    def counts(self) -> dict[str, int]:
        """Trials asked for by what became of them; `extra`: those beyond."""
        trials = self.family.trials
        found = Counter("extra" if trial.is_extra else trial.outcome for trial in trials)
        return {word: found[word] for word in (*State, "diverged", "extra")}

    @property
    def n_shapes(self) -> int:
        """How many different shapes; learning rates and options do not tell them apart."""
        return len({shape.cell for shape in self.shapes})

    @property
    def best(self) -> Shape | None:
        """The lowest mean over fresh seeds; without those the lowest first look; None of none."""
        return next(iter(self.confirmed or self.shapes), None)

    @property
    def front(self) -> list[Trial]:
        """The Pareto front, the lowest loss first; empty where there is one objective."""
        return sorted((s.trial for s in self.results if s.on_front), key=lambda t: t.values)

    @property
    def listed(self) -> list[Shape]:
        """The shapes in a table: confirmed ones, those with some fresh seeds, and the best first
        look; without any fresh seed the five best first looks. With two goals the front too.
        """
        more = [
            shape
            for shape in self.shapes
            if shape.on_front or (shape.missing and (shape.fresh or shape is self.shapes[0]))
        ]
        if self.confirmed:
            return self.confirmed + [shape for shape in more if not shape.is_confirmed]
        return [s for s in self.shapes if s in more or s in self.shapes[:_UNCONFIRMED_SHOWN]]


def named(shape: Shape) -> str:
    """`6 layers of width 160 with 4 heads (aspect 26.7)`."""
    return f"{sizes(shape.cell)} (aspect {float(shape.trial.dimensions['aspect']):.3g})"


def sizes(of: Cell) -> str:
    """`6 layers of width 160 with 4 heads`."""
    n_layers, d_model, n_heads, *_ = of
    return f"{plural(n_layers, 'layer')} of width {d_model} with {plural(n_heads, 'head')}"


def brief(trial: Trial) -> str:
    """`6 x 354, 2 heads`."""
    return f"{layers_by_width(trial)}, {plural(trial.dimensions['n_heads'], 'head')}"


def layers_by_width(trial: Trial) -> str:
    """`6 x 354`."""
    return f"{trial.dimensions['n_layers']} x {trial.dimensions['d_model']}"


def optimum(search: Search, family: Family, runs: Runs) -> Optimum:
    """What a variant's trials and their runs, on the search's data, say."""
    results = [_shape(search, family, trial, runs) for trial in family.trials]
    found = Optimum(family, _with_front(results))
    reason = untested(search, found.confirmed)
    return replace(found, reason=reason) if reason else _set_of_best(found, search)


def _shape(search: Search, family: Family, trial: Trial, runs: Runs) -> Shape:
    first, key = search.first_seed, (trial.variant, trial.recipe_digest)
    held = {seed: runs.get((*key, seed)) for seed in (first, *search.confirm_seeds)}
    mine = [run.result for run in held.values() if run is not None and run.result is not None]
    judging = search.confirm_seeds if trial.outcome == "complete" else ()
    losses = {seed: _loss(held[seed]) for seed in judging}
    errors = [(first, "diverged")] if trial.outcome == "diverged" else []
    for seed, run in held.items():
        is_own = seed == first and trial.state is State.FAILED
        if is_own or (run is not None and run.status is Status.FAILED):
            errors.append((seed, last_line(run.error if run else None)))
    return Shape(
        family=family.variant,
        trial=trial,
        fresh={seed: loss for seed, loss in losses.items() if isinstance(loss, float)},
        missing=tuple(f"seed {n} {why}" for n, why in losses.items() if isinstance(why, str)),
        numerics=frozenset(result.settings.numerics for result in mine),
        settings=mine[0].settings if mine else None,
        errors=tuple(errors),
    )


def _loss(run: RunRecord | None) -> float | str:
    """A run's loss, or why it does not count."""
    if run is None:
        return "was not trained"
    if run.result is None:
        return _WAITS.get(run.status) or f"failed: {last_line(run.error)}"
    if run.status is Status.DIVERGED or not math.isfinite(run.result.val_loss):
        return "diverged"
    unmet = [gate.name for gate in run.gates if not gate.passed and gate.name not in gates.DOUBTS]
    return f"did not pass the gate '{unmet[0]}'" if unmet else run.result.val_loss


def _with_front(results: Sequence[Shape]) -> tuple[Shape, ...]:
    """The same, with those marked that are on the front of two objectives."""
    values = {
        shape.trial.number: shape.trial.values
        for shape in results
        if len(shape.trial.values) > 1 and all(map(math.isfinite, shape.trial.values))
    }
    kept = dict(zip(values, on_front(list(values.values())), strict=True))
    return tuple(replace(shape, on_front=kept.get(shape.trial.number, False)) for shape in results)


def _set_of_best(found: Optimum, search: Search) -> Optimum:
    """With the shapes marked that may be the best of the confirmed ones."""
    confirmed = found.confirmed
    losses = np.array([[s.fresh[seed] for seed in search.confirm_seeds] for s in confirmed])
    choice = min(range(len(confirmed)), key=lambda i: confirmed[i].promised)
    marks = {
        shape.trial.number: replace(shape, may_be_best=p >= ALPHA, is_lowest=shape is confirmed[0])
        for shape, p in zip(confirmed, may_be_best(losses, choice), strict=True)
    }
    return replace(found, results=tuple(marks.get(s.trial.number, s) for s in found.results))


def untested(search: Search, confirmed: Sequence[Shape]) -> str:
    """Why nothing can be tested on these shapes; empty where it can."""
    if not search.confirm_seeds:
        return "no shape was trained with fresh seeds"
    if not confirmed:
        return f"no shape has all of the {len(search.confirm_seeds)} fresh seeds"
    if len(search.confirm_seeds) < 2:
        return "a test takes two fresh seeds or more, this search has one"
    numerics = sorted({name for shape in confirmed for name in shape.numerics})
    if len(numerics) > 1:
        return f"runs were computed in different ways: {', '.join(numerics)}"
    return ""
