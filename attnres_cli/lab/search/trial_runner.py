"""Where the runs of a search are trained, and its best shapes confirmed on fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.lab import grid
from attnres_cli.lab.search import confirmation
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.time_model import Speed
from attnres_cli.lab.workers.pool import run_all
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import Event, RunRecord, RunSpec, Settings, Status
from attnres_cli.store.optuna import asking
from attnres_cli.store.store import Store

_ENDED = (Status.COMPLETE, Status.DIVERGED)
WAITS = (Status.PENDING, Status.RUNNING)


class Display(Protocol):
    """What shows how far runs are."""

    def __call__(self, event: Event | None) -> None:
        """Take an event; None now and then."""

    def know(self, record: RunRecord, recipe: Recipe, base: Recipe, flops_per_token: int) -> None:
        """Take a run, of whose recipe only what `base` has not is shown."""

    def expect(self, n_left: int) -> None:
        """Take how many runs are left."""


T = TypeVar("T")

Progress = Callable[[int, float | None, Settings], AbstractContextManager[Display]]
"""Of so many runs, predicted to take so many seconds."""


@dataclass
class Laboratory:
    """Where the runs of a search are trained.

    Attributes:
        study: path or URL of the study, as workers open it.
        plan: the recipe, devices and settings of every run; its arms and seeds are not read.
        objectives: of a trial, val_loss first.
        retry_failed: whether runs that failed before are trained once more; set by `retry`.
        failed: run ids.

    """

    study: str
    store: Store
    tokens: Tokens
    plan: Plan
    objectives: tuple[str, ...]
    n_trials: int
    first_seed: int
    progress: Progress
    step_s: Speed
    note: Callable[[str], None]
    retry_failed: bool = False
    failed: set[int] = field(default_factory=set)

    def retry(self, families: Sequence[Family]) -> None:
        """From now on train failed runs once more: those of trials that failed wait again, and a
        new trial takes the place of each.
        """
        self.retry_failed = True
        for family in families:
            failed = self.patiently(family.failed)
            self.records([point for _, point in failed], (self.first_seed,))
            for trial, point in failed:
                self.patiently(partial(family.try_again, trial, point))

    def confirm(self, families: Sequence[Family], k: int, seeds: Sequence[int]) -> None:
        """The k best shapes of every family, and the COMMON best of every two together, for all
        families, on fresh seeds.

        A shape that a family has not tried to the end is trained now, with the options of its own
        best point, beyond the trials asked for.
        """
        chosen = self.patiently(partial(confirmation.chosen, families, k))
        trunks = list(dict.fromkeys(p.trunk for points in chosen.values() for p in points))
        if not seeds or not trunks:
            return
        points = list(dict.fromkeys(point for found in chosen.values() for point in found))
        all_seeds = tuple(dict.fromkeys((self.first_seed, *seeds)))
        records = self.records(points, all_seeds)
        self.count_failed(records)
        if any(record.status in WAITS for record in records):
            shapes = "1 shape" if len(trunks) == 1 else f"{len(trunks)} shapes"
            which = self.patiently(partial(confirmation.which, families, k, len(self.objectives)))
            self.note(f"confirming {shapes}, {which}, on seeds {', '.join(map(str, seeds))}")
            self._train_all(points, all_seeds, records)
        for family in families:
            self.patiently(partial(self._add_extra, family, chosen[family.spec]))

    def patiently(self, work: Callable[[], T]) -> T:
        """What `work` returns, which asks Optuna; tried again while the study's server is away."""
        return asking(self.study, work, self.store.patience_s)

    def records(self, points: Sequence[Point], seeds: Sequence[int]) -> list[RunRecord]:
        """The runs of these points in the study; those that it lacks wait there now, and so do
        those that failed before this command, if they are to be trained once more.
        """
        fingerprint = self.tokens.fingerprint
        specs = [
            RunSpec(point.recipe, point.variant, seed, fingerprint)
            for seed in seeds
            for point in points
        ]
        records = self.store.plan(specs, self.tokens.description) if specs else []
        again = [
            spec
            for spec, record in zip(specs, records, strict=True)
            if record.status is Status.FAILED and record.id not in self.failed
        ]
        if not self.retry_failed or not again:
            return records
        self.store.plan(again, self.tokens.description, retry_failed=True)
        return self.store.plan(specs, self.tokens.description)

    def train(
        self,
        wanted: Callable[[int], Sequence[int]],
        display: Display,
    ) -> None:
        """Train what is wanted, until nothing is; what other processes have is waited for."""
        run_all(self.store, grid.jobs(self.plan, self.study), wanted, display)

    def _train_all(
        self, points: Sequence[Point], seeds: Sequence[int], records: Sequence[RunRecord]
    ) -> None:
        arms = tuple(self._arm(point) for point in points)
        plan = grid.without(replace(self.plan, arms=arms, seeds=tuple(seeds)), records)
        with self.progress(len(plan.missing), plan.seconds, plan.settings) as display:
            self.know(display, records, [point for _ in seeds for point in points])
            ids = [record.id for record in records]
            self.train(lambda _n_free: ids, display)
        self.count_failed(self.store.runs(ids=ids, curves=False))

    def know(self, display: Display, records: Sequence[RunRecord], points: Sequence[Point]) -> None:
        """Let a display know of these runs, each of its point."""
        for record, point in zip(records, points, strict=True):
            display.know(record, point.recipe, self.plan.recipe, point.flops_per_token)

    def _arm(self, point: Point) -> Arm:
        step_s = self.step_s(point)
        return Arm(point.variant, point.n_params, point.flops_per_token, step_s, point.recipe)

    def count_failed(self, records: Sequence[RunRecord]) -> None:
        """Keep the numbers of those of these runs that failed."""
        self.failed |= {record.id for record in records if record.status is Status.FAILED}

    def _add_extra(self, family: Family, points: Sequence[Point]) -> None:
        """Let Optuna know what was trained beyond the trials asked for, or failed there."""
        complete, tried = family.complete(), {point for _, point in family.kept()}
        new = [point for point in points if point not in complete]
        for point, record in zip(new, self.records(new, (self.first_seed,)), strict=True):
            values = values_of(record, self.objectives)
            is_lost = record.status is Status.FAILED and point not in tried
            if values is not None or is_lost:
                family.add(point, values)


def values_of(record: RunRecord, objectives: Sequence[str]) -> tuple[float, ...] | None:
    """What a run has of each objective, None where it has failed. A loss that diverged is infinite:
    it is an answer, and the worst.
    """
    result = record.result
    if result is None or record.status not in _ENDED:
        return None
    known = {
        "val_loss": result.val_loss if math.isfinite(result.val_loss) else math.inf,
        "step_time": result.step_s,
        "params": float(result.n_params),
        "flops": float(result.flops_per_token) * result.tokens,
        "memory": float(result.peak_bytes),
    }
    return tuple(known[name] for name in objectives)
