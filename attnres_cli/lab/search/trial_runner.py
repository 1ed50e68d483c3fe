"""The runs of a search: a first look of trials that Optuna proposes, then the best shapes on fresh
seeds. Several commands share its trials, and take over those of dead processes with their runs.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from optuna.trial import TrialState

from attnres_cli.data.tokens import Tokens
from attnres_cli.lab import grid, step_times
from attnres_cli.lab.experiment import Display, Experiment
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.studies import EXTRA
from attnres_cli.lab.search.trunk_grid import Trunk
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.records.gates import has_failed
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import ENDED, WAITS, RunRecord, RunResult, RunSpec, Status
from attnres_cli.records.search_records import Search
from attnres_cli.stats.optima import likeliest_common
from attnres_cli.verdict.numbers import plural

TimeModel = Callable[[Point], float | None]
"""Seconds per step of a point, None where it cannot be timed."""


@dataclass
class TrialRunner:
    """Where trials are trained. Not read: arms and seeds of `plan`, families of `search`."""

    experiment: Experiment
    plan: Plan
    search: Search
    families: Sequence[Family]
    step_s: TimeModel = lambda _point: None
    _display: Display | None = None
    _runs: dict[tuple[str, int], int] = field(default_factory=dict)  # of trials, while they train

    def first(self, points: Sequence[Point]) -> list[RunRecord]:
        """Their runs on the first look's seed (see `Experiment.records`)."""
        return self._records(points, (self.search.first_seed,))

    def _records(self, points: Sequence[Point], seeds: Sequence[int]) -> list[RunRecord]:
        specs = [self._spec(point, seed) for seed in seeds for point in points]
        return self.experiment.records(specs)

    def _spec(self, point: Point, seed: int) -> RunSpec:
        data = self.experiment.tokens.fingerprint
        return RunSpec(point.recipe, point.variant, seed, data, code_of(point.variant))

    def _values(self, record: RunRecord) -> tuple[float, ...] | None:
        """A run's value of each objective, infinite where it diverged; None where it failed, or
        failed a proof: what sees the answer is nobody's best.
        """
        result = record.result
        ended = record.status in ENDED
        if result is None or not ended or has_failed(record):
            return None
        return tuple(self._known(result)[name] for name in self.search.objectives)

    def _known(self, result: RunResult) -> dict[str, float]:
        """The value of every objective."""
        return {
            "val_loss": result.val_loss if math.isfinite(result.val_loss) else math.inf,
            "step_time": result.step_s,
            "params": float(result.n_params),
            "flops": float(result.flops_per_token) * result.tokens,
            "memory": float(result.peak_bytes),
        }

    def retry(self) -> None:
        """Let failed trials be trained once more: a new trial takes the place of each."""
        for family in self.families:
            failed = family.failed()
            records = self.first([point for _, point in failed])
            for (trial, point), record in zip(failed, records, strict=True):
                if has_failed(record):  # since others were launched together with this command
                    continue
                is_extra = EXTRA in trial.user_attrs
                family.add(point, None, TrialState.RUNNING, is_extra=is_extra)

    def screen(self) -> None:
        """Try points of every family, until each has all its trials or has tried all points."""
        experiment, plan = self.experiment, self.plan
        n_trials = [family.n_left(self.search.n_trials) for family in self.families]
        if any(n_trials):
            shown = sum(n_trials), self._predicted_s(n_trials), plan.settings
            with experiment.watcher.progress(*shown, seeks=True) as self._display:
                experiment.train(plan, self._requested, self._display)
        lost = {
            self._spec(point, self.search.first_seed).identity
            for family in self.families
            for _, point in family.failed()
        }
        records = experiment.store.runs(curves=False) if lost else []
        experiment.count_failed([run for run in records if run.identity in lost])

    def _predicted_s(self, n_trials: Sequence[int]) -> float | None:
        points = [family.points.points for family in self.families]
        trials = list(zip(n_trials, points, strict=True))
        return predicted_s(trials, self.step_s, len(self.plan.devices))

    def _requested(self, n_free: int) -> list[int]:
        """The runs of the trials that have not ended. New trials are asked for while fewer than
        n_free runs wait, for the variant that has the fewest.
        """
        n_trials = self.search.n_trials
        while True:
            statuses = self._settled()
            if sum(status is Status.PENDING for status in statuses.values()) >= n_free:
                break
            asked = sum(family.ask(n_trials, 0) for family in self.families)
            by_need = sorted(self.families, key=lambda family: len(family.counted()))
            if not asked and not any(family.ask(n_trials, 1) for family in by_need):
                break
        if self._display is not None:
            self._display.expect(sum(family.n_left(n_trials) for family in self.families))
        return list(statuses)

    def _settled(self) -> dict[int, Status]:
        """Tell Optuna what came of its trials; the runs of those that still wait."""
        running = [(t.number, f, point) for f in self.families for t, point in f.running()]
        running.sort(key=lambda each: each[0])  # of all variants in turn
        self._find_runs(running)
        store, trials = self.experiment.store, defaultdict[int, list[tuple[Family, int]]](list)
        for number, family, _ in running:
            trials[self._runs[family.spec, number]].append((family, number))
        statuses = store.statuses(list(trials))
        if removed := trials.keys() - statuses.keys():
            self._runs = {key: run for key, run in self._runs.items() if run not in removed}
            return self._settled()  # which makes them again
        ended = [n for n, status in statuses.items() if status not in WAITS]
        for record in store.runs(ids=ended) if ended else ():
            statuses[record.id] = record.status  # it may wait again by now: --retry-failed
            if record.status not in WAITS:
                self.experiment.count_failed([record])
                for family, number in trials[record.id]:
                    family.tell(number, self._values(record))
        return {n: statuses[n] for n in trials if statuses[n] in WAITS}

    def _find_runs(self, running: Sequence[tuple[int, Family, Point]]) -> None:
        """Make a run of the study of each trial that has none here yet."""
        new = [each for each in running if (each[1].spec, each[0]) not in self._runs]
        records = self.first([point for *_, point in new])
        self._continue([point for *_, point in new], records)
        for (number, family, point), record in zip(new, records, strict=True):
            self._runs[family.spec, number] = record.id
            if self._display is not None:
                recipes = point.recipe, self.plan.recipe
                self._display.know(record, *recipes, point.flops_per_token)

    def _continue(self, points: Sequence[Point], records: Sequence[RunRecord]) -> None:
        """Let runs go on from shorter ones; no shape is trained for longer than at first."""

    def confirm(self, k: int, seeds: Sequence[int]) -> None:
        """Train the k best shapes of every family on fresh seeds, for all families; and the shapes
        likeliest to be best for each two. A shape that a family has not tried to the end is trained
        beyond the trials asked for, with the options of the family's best point.
        """
        trunks = _chosen(self.families, k)
        chosen = {family.spec: [family.at(trunk) for trunk in trunks] for family in self.families}
        points = list(dict.fromkeys(itertools.chain(*chosen.values())))
        if not seeds or not points:
            return
        all_seeds = (self.search.first_seed, *seeds)
        records = self._records(points, all_seeds)
        if any(record.status in WAITS for record in records):
            on = ", ".join(map(str, seeds))
            shapes = plural(len(trunks), "shape")
            self.experiment.watcher.note(f"confirming {shapes} on seeds {on}")
        arms = tuple(replace(arm_of(point), step_s=self.step_s(point)) for point in points)
        plan = replace(self.plan, arms=arms, seeds=all_seeds)
        self.experiment.train_missing(grid.without(plan, records), records)
        for family in self.families:
            self._add_extra(family, chosen[family.spec])

    def _add_extra(self, family: Family, points: Sequence[Point]) -> None:
        """Let Optuna know what was trained beyond the trials asked for, or failed there."""
        complete, tried = family.complete(), {point for _, point in family.tried()}
        new = [point for point in points if point not in complete]
        for point, record in zip(new, self.first(new), strict=True):
            values = self._values(record)
            if values is not None:
                family.add(point, values)
            elif record.status is Status.FAILED and point not in tried:
                family.add(point, None, TrialState.FAIL)


def _chosen(families: Sequence[Family], k: int) -> list[Trunk]:
    """The shapes that are confirmed."""
    trunks: list[Trunk] = []
    for family in families:
        trunks += list(dict.fromkeys(point.trunk for point in family.best()))[:k]
    if k:
        for two in itertools.combinations([family.lowest() for family in families], 2):
            trunks += likeliest_common(*two)
    return list(dict.fromkeys(trunks))


def arm_of(point: Point) -> Arm:
    """A point as an arm of a plan, not timed."""
    sizes, code = (point.n_params, point.flops_per_token), code_of(point.variant)
    return Arm(point.variant, *sizes, None, point.recipe, code=code)


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


def timed(families: Iterable[Sequence[Point]], plan: Plan, tokens: Tokens) -> TimeModel:
    """A model of seconds per FLOP that are linear in depth. It follows from a few timed steps of
    each variant's shallowest and deepest points of the fewest parameters.
    """
    known: dict[str, tuple[list[int], list[float]]] = {}  # depths, and seconds per FLOP there
    for points in families:
        least = min(point.trunk.params for point in points)
        small = [point for point in points if point.trunk.params == least]
        by_depth = sorted(small, key=lambda point: point.trunk.n_layers)
        ends = (by_depth[0], by_depth[-1])
        arms = step_times.timed(replace(plan, arms=tuple(map(arm_of, ends))), tokens).arms
        per_flop = [arm.step_s / arm.flops_per_token for arm in arms if arm.step_s]
        depths = [point.trunk.n_layers for point in ends]
        if len(per_flop) == len(depths):
            known |= dict.fromkeys((point.variant for point in points), (depths, per_flop))

    def step_s(point: Point) -> float | None:
        if point.variant not in known:
            return None
        per_flop = float(np.interp(point.trunk.n_layers, *known[point.variant]))
        return per_flop * point.flops_per_token

    return step_s
