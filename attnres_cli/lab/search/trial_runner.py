"""TrialRunner: which runs answer the trials of a search, and how long these will take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from attnres_cli.data.tokens import Tokens
from attnres_cli.lab import step_times
from attnres_cli.lab.experiment import Display, Experiment
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.records.gates import has_failed
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import RunRecord, RunSpec, Status
from attnres_cli.records.search_records import Search
from attnres_cli.store.optuna import asking

T = TypeVar("T")
TimeModel = Callable[[Point], float | None]
"""Seconds per step of a point, None where it cannot be timed."""


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
        return self.experiment.records(
            [self.spec(point, seed) for seed in seeds for point in points]
        )

    def spec(self, point: Point, seed: int) -> RunSpec:
        """A run of a point."""
        data, code = self.experiment.tokens.fingerprint, code_of(point.variant)
        return RunSpec(point.recipe, point.variant, seed, data, code)

    def first(self, points: Sequence[Point]) -> list[RunRecord]:
        """Their runs on the first look's seed."""
        return self.records(points, (self.search.first_seed,))

    def know(self, display: Display, records: Sequence[RunRecord], points: Sequence[Point]) -> None:
        """Let a display know which runs these are."""
        for record, point in zip(records, points, strict=True):
            display.know(record, point.recipe, self.plan.recipe, point.flops_per_token)

    def arm(self, point: Point) -> Arm:
        """A point as an arm of a plan."""
        return Arm(
            point.variant,
            point.n_params,
            point.flops_per_token,
            self.step_s(point),
            point.recipe,
            code=code_of(point.variant),
        )

    def values(self, record: RunRecord) -> tuple[float, ...] | None:
        """A run's value of each objective, infinite where it diverged; None where it failed, or
        failed a proof: what sees the answer is nobody's best.
        """
        result = record.result
        ended = record.status in (Status.COMPLETE, Status.DIVERGED)
        if result is None or not ended or has_failed(record):
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


def predicted_s(
    trials: Sequence[tuple[int, Sequence[Point]]], step_s: TimeModel, n_workers: int
) -> float | None:
    """Seconds of these (number of trials, points) at n_workers; None where one cannot be timed. A
    trial is taken to need the mean time of its family's points.
    """
    total = 0.0
    for n_trials, points in trials:
        took = [(step_s(point), point.steps) for point in points]
        each = [per_step * steps for per_step, steps in took if per_step is not None]
        if len(each) < len(took):
            return None
        total += n_trials * sum(each) / len(each)
    return total / n_workers


def timed(families: Sequence[Sequence[Point]], plan: Plan, tokens: Tokens) -> TimeModel:
    """A model of seconds per FLOP that are linear in depth. It follows from a few timed steps of
    each variant's shallowest and deepest points of the fewest parameters.
    """
    slopes: dict[str, tuple[tuple[int, float | None], tuple[int, float | None]]] = {}
    for points in families:
        least = min(point.trunk.params for point in points)
        small = [point for point in points if point.trunk.params == least]
        by_depth = sorted(small, key=lambda point: point.trunk.n_layers)
        ends = (by_depth[0], by_depth[-1])
        arms = [Arm(p.variant, p.n_params, p.flops_per_token, None, p.recipe) for p in ends]
        found = step_times.timed(replace(plan, arms=tuple(arms)), tokens).arms
        per_flop = [arm.step_s and arm.step_s / arm.flops_per_token for arm in found]
        shallow, deep = zip((p.trunk.n_layers for p in ends), per_flop, strict=True)
        slopes |= dict.fromkeys((point.variant for point in points), (shallow, deep))

    def step_s(point: Point) -> float | None:
        (shallow, fast), (deep, slow) = slopes[point.variant]
        if fast is None or slow is None:
            return None
        share = (point.trunk.n_layers - shallow) / max(1, deep - shallow)
        return (fast + share * (slow - fast)) * point.flops_per_token

    return step_s
