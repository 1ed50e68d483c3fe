"""What `ablate` and `search` share: finding the runs that a study lacks, and training them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from attnres_cli.config.as_typed import bench_typed
from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.lab import branches, eval_bytes, grid, memory, step_times
from attnres_cli.lab.live import Log
from attnres_cli.lab.workers import pool
from attnres_cli.lab.workers.worker import work_here
from attnres_cli.records.gates import has_failed
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import WAITS, Event, RunRecord, RunSpec, Settings, Status
from attnres_cli.records.step_ratio import TimedArm
from attnres_cli.store.store import Store


@dataclass(frozen=True)
class Place:
    """Where runs are recorded and computed, as the user typed it. `workers` is None for as many as
    pay; `retry_failed` trains runs once more that failed before this command, or where it is one
    of several that were launched together, `retry_before` that time (UTC, ISO 8601); `in_process`
    starts no worker; `log` follows runs while they train.
    """

    study: str
    workers: int | None = None
    device: str = "auto"
    engine: str = "auto"
    retry_failed: bool = False
    in_process: bool = False
    log: Log = field(default_factory=Log)
    retry_before: str = ""


class Display(Protocol):
    """What shows how far runs are."""

    def __call__(self, event: Event | None) -> None:
        """Take an event; None now and then."""

    def know(self, record: RunRecord, recipe: Recipe, base: Recipe, flops_per_token: int) -> None:
        """Take a run, of whose recipe only what `base` has not is shown."""

    def expect(self, n_left: int) -> None:
        """Take how many runs are left."""


class More(Protocol):
    """What adds runs to a plan while it is carried out."""

    def __call__(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """Runs that are wanted beside those that are there."""

    def foreseen(self, plan: Plan) -> str:
        """What it may add to a plan whose steps have been timed."""


class Watcher(Protocol):
    """What is told how an experiment goes on. The lab itself prints nothing."""

    def note(self, line: str) -> None:
        """Take a line."""

    def warn(self, line: str) -> None:
        """Take a line that is to be heard in any case."""

    def plan(self, plan: Plan, title: str) -> None:
        """Take a plan that is about to be carried out."""

    def text(self, lines: Sequence[str]) -> None:
        """Take what is about to be searched."""

    def progress(
        self, n_runs: int, seconds: float | None, settings: Settings, *, seeks: bool = False
    ) -> AbstractContextManager[Display]:
        """A display of so many runs, predicted to take so long; of a search for the lowest loss."""


@dataclass
class Experiment:
    """Runs of one data set in one study. `failed` has the ids of those that failed for good; steps
    of the `baseline` are timed beside those of every arm.
    """

    place: Place
    store: Store
    tokens: Tokens
    watcher: Watcher
    baseline: str = ""
    failed: set[int] = field(default_factory=set)

    def records(self, specs: Sequence[RunSpec]) -> list[RunRecord]:
        """The study's runs of these specs. Missing runs are added, and wait there; failed ones wait
        again if `retry_failed` asks for it.
        """
        facts = self.tokens.description
        records = self.store.plan(specs, facts) if specs else []
        if not self.place.retry_failed:
            return records
        failed = self._failed_before(records)
        again = [spec for spec, run in zip(specs, records, strict=True) if run.id in failed]
        if not again:
            return records
        self.store.plan(again, facts, retry_failed=True)
        return self.store.plan(specs, facts)

    def _failed_before(self, records: Sequence[RunRecord]) -> set[int]:
        """Those of these runs that are to be trained once more."""
        failed = {run.id for run in records if has_failed(run)} - self.failed
        if self.place.retry_before and failed:
            ends = self.store.standings(list(failed)).values()
            later = [e.run_id for e in ends if (e.finished_at or "") >= self.place.retry_before]
            failed -= {*later}
        return failed

    def complete(self, plan: Plan, title: str, more: More | None = None) -> Plan:
        """Train what the study lacks of a plan, timed and told before, and what `more` adds to it;
        the plan as it was told.
        """
        records = self.records(plan.specs)
        branches.branch(self.store, plan, records)
        self._keep_evaluated(plan.recipe)
        plan = grid.without(plan, records, self.store.folder_of)
        if plan.missing:
            self._tell_of_lost_steps(records)
            plan = memory.fitted(plan, self.tokens, self.place.workers)
            plan = step_times.timed(plan, self.tokens, self.watcher.note, self.baseline)
            self._keep_step_ratios(plan, plan.settings.uncompiled)
            if plan.settings.compiled:
                self._time_compiled(plan)
            self.watcher.plan(plan, title)
            if more is not None:
                self.watcher.note(more.foreseen(plan))
            if lacking := memory.lacks_disk(plan, self.store.folder):
                self.watcher.warn(lacking)
        self.train_missing(plan, records, more)
        return plan

    def _keep_evaluated(self, recipe: Recipe) -> None:
        """Write the bytes of what is evaluated, where a tokenizer makes that known."""
        facts = self.tokens.description
        if self.store.evaluated(recipe.digest, facts.fingerprint) is None:
            found = eval_bytes.evaluated(recipe, self.tokens)
            if found is not None:
                self.store.keep_evaluated(recipe, facts, found)

    def _time_compiled(self, plan: Plan) -> None:
        """Time compiled steps of the arms of which the study has no ratio yet; name those that
        would take too much of the plan's time, with the command that times them.
        """
        on, digest = plan.settings, plan.recipe.digest
        held = {
            each.variant
            for each in self.store.step_ratios(digest)
            if (each.numerics, each.device_name) == (on.numerics, on.device_name)
            if each.baseline == self.baseline
        }
        names = [arm.variant for arm in plan.arms if step_times.is_timed(arm, plan)]
        names = [name for name in names if name not in (self.baseline, *held)]
        if not names:
            return
        timed = step_times.compiled(plan, self.tokens, self.watcher.note, self.baseline, held)
        self._keep_step_ratios(timed, on)
        left = {arm.variant for arm in timed.arms if arm.step_ratio is None}
        if lacking := [name for name in names if name in left]:
            typed = bench_typed([self.baseline, *lacking], plan.recipe, self.place.study)
            self.watcher.note(
                f"no step times of {', '.join(lacking)}: to compile and time them takes over "
                f"{step_times.SHARE:.0%} of the plan; later, `{typed or 'attnres bench'}`"
            )

    def _keep_step_ratios(self, plan: Plan, on: Settings) -> None:
        """Write how long steps of the arms take, computed so, where they are of the plan's own
        shape.
        """
        of, base, way = plan.recipe.digest, self.baseline, (on.numerics, on.device_name)
        timed = [arm for arm in plan.arms if step_times.is_timed(arm, plan)]
        self.store.keep_step_ratios(
            [TimedArm(of, arm.variant, base, *way, **vars(arm.step_ratio)) for arm in timed]
        )

    def _tell_of_lost_steps(self, records: Sequence[RunRecord]) -> None:
        """Where runs had come further than they begin now, as after a study was copied alone."""
        if not (missing := self.store.without_files):
            return
        waiting = [record for record in records if record.status is Status.PENDING]
        now = self.store.standings([record.id for record in waiting])
        steps = [(run, now[run.id].step) for run in waiting if run.id in now]
        lost = [f"{run.variant} seed {run.seed} (step {step})" for run, step in steps if step]
        if lost:
            self.watcher.warn(f"from the beginning again: {', '.join(lost)}; {missing}")

    def train_missing(
        self, plan: Plan, records: Sequence[RunRecord], more: More | None = None
    ) -> None:
        """Train the runs of a plan that have not ended, and what `more` adds to them; `records` are
        all of its runs.
        """
        every = [*records, *(more(records) if more else ())]
        n_left = sum(record.status in WAITS for record in every)
        if n_left:
            arms = {(arm.variant, plan.recipe_of(arm).digest): arm for arm in plan.arms}
            with self.watcher.progress(n_left, plan.seconds, plan.settings) as display:

                def know(found: Sequence[RunRecord]) -> None:
                    for record in found:
                        arm = arms[record.variant, record.recipe_digest]
                        display.know(record, plan.recipe_of(arm), plan.recipe, arm.flops_per_token)

                def requested(_n_free: int) -> list[int]:
                    if more is not None and (fresh := more(every)):
                        branches.branch(self.store, plan, fresh)
                        know(fresh)
                        every.extend(fresh)
                    now = self.store.statuses(ids := [record.id for record in every])
                    display.expect(sum(status in WAITS for status in now.values()))  # others end
                    return ids

                know(every)
                self.train(plan, requested, display)
            every = self.store.runs(ids=[record.id for record in every], curves=False)
        else:
            pool.sweep(self.store)
        self.count_failed(every)

    def prepare(self, plan: Plan) -> None:
        """Let workers of such a plan start at once later; other work goes on meanwhile."""
        if "cpu" in plan.devices and not self._is_here(plan):
            pool.prepare()

    def train(
        self, plan: Plan, requested: Callable[[int], Sequence[int]], display: Display
    ) -> None:
        """Train the requested runs until none is left; wait for those that other processes have."""
        jobs = grid.jobs(plan, self.place.study)
        if torch.cuda.is_initialized():  # what timing took: workers need that memory
            gc.collect()
            torch.cuda.empty_cache()
        with self.place.log.of(self.store, display) as on_event:
            if self._is_here(plan):
                work_here(self.store, jobs[0], requested, on_event)
            else:
                pool.run_all(self.store, jobs, requested, on_event)

    def _is_here(self, plan: Plan) -> bool:
        """Whether this process trains, and starts no worker."""
        return self.place.in_process or bool(plan.settings.shared)

    def count_failed(self, records: Sequence[RunRecord]) -> None:
        """Keep the ids of those of these runs that failed, or failed a proof."""
        self.failed |= {record.id for record in records if has_failed(record)}
