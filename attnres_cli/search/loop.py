"""Ask, train, tell: trials of a search until there are as many as asked for, then confirmation.

A trial is answered by a run of the study. Trials of processes that are gone are taken over with
their runs; several commands share the trials of one search.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

from attnres_cli import ablate
from attnres_cli.data import Tokens
from attnres_cli.launch import run_all
from attnres_cli.plan import Arm, Plan
from attnres_cli.recipe import Recipe
from attnres_cli.run import Event, RunRecord, RunSpec, Settings, Status
from attnres_cli.search import confirmation, pruning
from attnres_cli.search.families import Family
from attnres_cli.search.points import Point
from attnres_cli.store import Store
from attnres_cli.store.optuna import asking

_ENDED = (Status.COMPLETE, Status.DIVERGED)
_WAITS = (Status.PENDING, Status.RUNNING)


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
        pruning: which trials are ended early, None where none is.
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
    step_s: Callable[[Point], float | None]
    note: Callable[[str], None]
    pruning: pruning.Pruning | None = None
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

    def look(self, families: Sequence[Family]) -> None:
        """Trials of every family, until each has as many as asked for or has tried all points."""
        looking = _Look(self, families)
        total = self.patiently(looking.n_left)
        if total:
            seconds = self.patiently(partial(self._predicted, families))
            with self.progress(total, seconds, self.plan.settings) as display:
                looking.display = display
                self.train(looking.wanted, display, looking.goes_on)
        self.failed |= self.patiently(looking.failed)

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
        if any(record.status in _WAITS for record in records):
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
        records = self.store.plan(specs, self.tokens.facts) if specs else []
        again = [
            spec
            for spec, record in zip(specs, records, strict=True)
            if record.status is Status.FAILED and record.id not in self.failed
        ]
        if not self.retry_failed or not again:
            return records
        self.store.plan(again, self.tokens.facts, retry_failed=True)
        return self.store.plan(specs, self.tokens.facts)

    def train(
        self,
        wanted: Callable[[int], Sequence[int]],
        display: Display,
        goes_on: Callable[[Event], bool] = lambda _event: True,
    ) -> None:
        """Train what is wanted, until nothing is; what other processes have is waited for."""
        run_all(self.store, ablate.jobs(self.plan, self.study), wanted, display, goes_on)

    def _train_all(
        self, points: Sequence[Point], seeds: Sequence[int], records: Sequence[RunRecord]
    ) -> None:
        arms = tuple(self._arm(point) for point in points)
        plan = ablate.without(replace(self.plan, arms=arms, seeds=tuple(seeds)), records)
        with self.progress(len(plan.missing), plan.seconds, plan.settings) as display:
            self.know(display, records, [point for _ in seeds for point in points])
            ids = [record.id for record in records]
            self.train(lambda _n_free: ids, display)
        there = self.store.statuses(ids)  # some may have been removed
        self.count_failed(self.store.runs(ids=list(there), curves=False))

    def know(self, display: Display, records: Sequence[RunRecord], points: Sequence[Point]) -> None:
        """Let a display know of these runs, each of its point."""
        for record, point in zip(records, points, strict=True):
            display.know(record, point.recipe, self.plan.recipe, point.flops_per_token)

    def _arm(self, point: Point) -> Arm:
        step_s = self.step_s(point)
        return Arm(point.variant, point.n_params, point.flops_per_token, step_s, point.recipe)

    def _predicted(self, families: Sequence[Family]) -> float | None:
        """Seconds of the trials that are left, each like the mean of its variant's points."""
        total = 0.0
        for family in families:
            each = [(self.step_s(point), point.steps) for point in family.points.points]
            took = [step_s * steps for step_s, steps in each if step_s is not None]
            if len(took) < len(each):
                return None
            total += family.n_left(self.n_trials) * sum(took) / len(took)
        return total / len(self.plan.devices)

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


@dataclass
class _Look:
    """The first look while it goes on: which run answers which trial."""

    laboratory: Laboratory
    families: Sequence[Family]
    display: Display | None = None
    _runs: dict[tuple[str, int], int] = field(default_factory=dict)  # of trials
    _trials: Mapping[int, list[tuple[Family, int, Point]]] = field(default_factory=dict)  # of runs
    _losses: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def wanted(self, n_free: int) -> list[int]:
        """The runs of the trials that have not ended; of new trials too, as long as fewer than
        n_free wait and there are trials left: of the variant that has the fewest.
        """
        found = self.laboratory.patiently(lambda: self._wanted(n_free))
        if self.display is not None:
            self.display.expect(self.laboratory.patiently(self.n_left))
        return found

    def n_left(self) -> int:
        """Trials that are left to be asked for or to be ended, if none fails."""
        return sum(family.n_left(self.laboratory.n_trials) for family in self.families)

    def _wanted(self, n_free: int) -> list[int]:
        n_trials = self.laboratory.n_trials
        while True:
            statuses = self._settled()
            n_waiting = sum(status is Status.PENDING for status in statuses.values())
            if n_waiting >= n_free:
                return list(statuses)
            asked = sum(family.ask(n_trials, 0) for family in self.families)
            by_need = sorted(self.families, key=lambda each: len(each.counted()))
            if not asked and not any(family.ask(n_trials, 1) for family in by_need):
                return list(statuses)

    def _settled(self) -> Mapping[int, Status]:
        """Tell Optuna what came of its trials; the runs of those that still wait."""
        trials = [
            (family, trial.number, point)
            for family in self.families
            for trial, point in family.running()
        ]
        trials.sort(key=lambda each: each[1])  # of all variants in turn
        self._find_runs(trials)
        answers = defaultdict(list)
        for family, number, point in trials:
            answers[self._runs[family.spec, number]].append((family, number, point))
        self._trials = answers
        statuses = self.laboratory.store.statuses(list(answers))
        ended = [n for n, status in statuses.items() if status not in _WAITS]
        for record in self.laboratory.store.runs(ids=ended) if ended else ():
            for family, number, point in answers[record.id]:
                self._tell(family, number, point, record)
        for key in [key for key, run_id in self._runs.items() if run_id not in statuses]:
            del self._runs[key]  # it has ended, or another command has removed it
        return {n: statuses[n] for n in answers if statuses.get(n) in _WAITS}

    def goes_on(self, event: Event) -> bool:
        """Whether a run is to be trained further, as the pruner of its variant sees it."""
        judged, trials = self.laboratory.pruning, self._trials.get(event.run_id)
        if judged is None or trials is None or event.loss is None:
            return True
        if not math.isfinite(event.loss):  # it diverges, which is a result
            return True
        before, steps = self._losses[event.run_id], trials[0][2].steps
        losses = [each for each in before if each[0] < event.step]  # it may have gone back
        self._losses[event.run_id] = [*losses, (event.step, event.loss)]
        found = pruning.looks(self._losses[event.run_id], steps)
        now = [look for look in found if pruning.end(look, steps) == event.step]
        if not now or not judged.first <= now[0] <= judged.last:
            return True
        return self.laboratory.patiently(lambda: not _pruned(trials, now[0], found[now[0]]))

    def failed(self) -> set[int]:
        """Runs of failed trials, those of earlier processes too."""
        first_seed = self.laboratory.first_seed
        lost = {
            (point.recipe.digest, point.variant, first_seed)
            for family in self.families
            for trial, point in family.kept()
            if trial.state.name == "FAIL"
        }
        records = self.laboratory.store.runs(curves=False) if lost else []
        return {
            r.id
            for r in records
            if r.status is Status.FAILED and (r.recipe_digest, r.variant, r.seed) in lost
        }

    def _find_runs(self, trials: Sequence[tuple[Family, int, Point]]) -> None:
        """Make a run of the study of each trial that has none here yet."""
        new = [each for each in trials if (each[0].spec, each[1]) not in self._runs]
        points = [point for _, _, point in new]
        records = self.laboratory.records(points, (self.laboratory.first_seed,))
        for (family, number, _), record in zip(new, records, strict=True):
            self._runs[family.spec, number] = record.id
        if self.display is not None:
            self.laboratory.know(self.display, records, points)

    def _tell(self, family: Family, number: int, point: Point, record: RunRecord) -> None:
        """End a trial, with what its run came to at the looks, which the median is taken of."""
        result, judged = record.result, self.laboratory.pruning
        if judged is not None and result is not None:
            curve = [(p.step, p.train_loss) for p in result.curve if p.train_loss is not None]
            found = pruning.looks(curve, point.steps).items()
            looks = {n: loss for n, loss in found if judged.first <= n <= judged.last}
            family.report(number, looks)
        self.laboratory.count_failed([record])
        family.tell(number, values_of(record, self.laboratory.objectives))


def _pruned(trials: Sequence[tuple[Family, int, Point]], look: int, loss: float) -> bool:
    """Whether all of these trials, which one run answers, are ended at this look."""
    for family, number, _ in trials:
        family.report(number, {look: loss})
    return all([family.prunes(number) for family, number, _ in trials])  # noqa: C419 - each is


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
