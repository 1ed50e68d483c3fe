"""TrialRunner: which runs answer the trials of a search, on the experiment that trains them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from attnres_cli.lab.experiment import Display, Experiment
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.time_model import TimeModel
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import RunRecord, RunSpec, Status
from attnres_cli.records.search_records import Search
from attnres_cli.store.optuna import asking

T = TypeVar("T")


@dataclass
class TrialRunner:
    """Where trials are trained. Not read: arms and seeds of `plan`, families of `search`."""

    experiment: Experiment
    plan: Plan
    search: Search
    step_s: TimeModel = lambda _point: None

    def patiently(self, work: Callable[[], T]) -> T:
        """What `work` returns, which asks Optuna; tried again while the study's server is away."""
        held = self.experiment
        return asking(held.place.study, work, held.store.patience_s)

    def records(self, points: Sequence[Point], seeds: Sequence[int]) -> list[RunRecord]:
        """The runs of these points in the study, seed by seed (see `Experiment.records`)."""
        fingerprint = self.experiment.tokens.fingerprint
        return self.experiment.records(
            [
                RunSpec(point.recipe, point.variant, seed, fingerprint)
                for seed in seeds
                for point in points
            ]
        )

    def first(self, points: Sequence[Point]) -> list[RunRecord]:
        """Their runs on the first look's seed."""
        return self.records(points, (self.search.first_seed,))

    def know(self, display: Display, records: Sequence[RunRecord], points: Sequence[Point]) -> None:
        """Let a display know which runs these are."""
        for record, point in zip(records, points, strict=True):
            display.know(record, point.recipe, self.plan.recipe, point.flops_per_token)

    def arm(self, point: Point) -> Arm:
        """A point as an arm of a plan."""
        step_s = self.step_s(point)
        return Arm(point.variant, point.n_params, point.flops_per_token, step_s, point.recipe)

    def values(self, record: RunRecord) -> tuple[float, ...] | None:
        """A run's value of each objective, infinite where it diverged; None where it failed."""
        result = record.result
        if result is None or record.status not in (Status.COMPLETE, Status.DIVERGED):
            return None
        known = {
            "val_loss": result.val_loss if math.isfinite(result.val_loss) else math.inf,
            "step_time": result.step_s,
            "params": float(result.n_params),
            "flops": float(result.flops_per_token) * result.tokens,
            "memory": float(result.peak_bytes),
        }
        return tuple(known[name] for name in self.search.objectives)

    def retry(self, families: Sequence[Family]) -> None:
        """Let failed trials be trained once more: a new trial takes the place of each."""
        for family in families:
            failed = self.patiently(family.failed)
            self.first([point for _, point in failed])
            for trial, point in failed:
                self.patiently(partial(family.try_again, trial, point))
