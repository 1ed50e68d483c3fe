"""What a gain in loss is worth in tasks: every arm against the baseline, task by task.

Seeds, looks, arms and rates are those of the table of losses; a task and a measure have a part of
an arm's rate, so that one table errs in one of twenty studies, whatever is evaluated and read. A
difference is paired by seed and by item, and its interval is for other seeds and other items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnres_cli.records.items import Items
from attnres_cli.records.run import RunRecord
from attnres_cli.stats.crossed import Crossed, Floats, crossed, mcnemar
from attnres_cli.stats.sequential import ALPHA, Look, looked, word
from attnres_cli.verdict.comparison import ArmResult, Comparison, Verdict
from attnres_cli.verdict.judge import paired_seeds
from attnres_cli.verdict.task_answers import Measure, Task, tasks_of

RULE = (
    "better or worse: 0 lies outside the interval, which is for other seeds and other items. With "
    "probability 95 % the true differences of all arms, tasks and measures of this table lie in "
    "their intervals at all looks together; the table of losses has a rate of its own. Tasks are "
    "never pooled: what several of them say alike is no verdict"
)
LEAST_ITEMS = 20
AT_CHANCE = "at chance: neither arm nor baseline is above {:.1f} %"


@dataclass(frozen=True)
class Within:
    """One seed's two models: items that the arm alone has right, and the baseline alone, with the
    exact p of McNemar's test, which is about these weights alone.
    """

    seed: int
    arm_alone: int
    baseline_alone: int
    p: float


@dataclass(frozen=True)
class Judged:
    """One arm by one measure of one task. Means are over the seeds of the last look, else over all
    that can be paired, and over items; None where there are none.
    """

    task: Task
    measure: Measure
    variant: str
    verdict: Verdict
    reason: str
    seeds: tuple[int, ...] = ()
    value: float | None = None
    difference: float | None = None
    look: Look | None = None
    detectable: float | None = None  # the least difference that the look finds in 80 % of studies
    within: tuple[Within, ...] = ()  # of shares of right items

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference; None before the first look."""
        found = self.look
        return (found.low, found.high) if found is not None and found.n else None


@dataclass(frozen=True)
class Downstream:
    """What the tasks say beside a table of losses: by task, measure and arm, the baseline first.
    `n_runs` have answered something.
    """

    comparison: Comparison
    tasks: tuple[Task, ...]
    rows: tuple[Judged, ...]
    n_runs: int


def downstream(comparison: Comparison, items: Sequence[Items]) -> Downstream:
    """The tasks that runs of a table have answered, judged."""
    tasks = tasks_of(comparison, items)
    runs: dict[str, list[RunRecord]] = {arm.variant: [] for arm in comparison.arms}
    for run in comparison.records:
        runs.setdefault(run.variant, []).append(run)
    rows = [
        row
        for task in tasks
        for measure in task.measures
        for row in _OfMeasure(comparison, task, measure, runs).rows()
    ]
    n_runs = len({run_id for task in tasks for run_id in task.answers})
    return Downstream(comparison, tuple(tasks), tuple(rows), n_runs)


@dataclass(frozen=True)
class _OfMeasure:
    comparison: Comparison
    task: Task
    measure: Measure
    runs: dict[str, list[RunRecord]]

    def rows(self) -> list[Judged]:
        """The baseline, over the seeds of the arm with most pairs, and every arm."""
        base = self.comparison.baseline
        arms = [self._arm(arm) for arm in self.comparison.arms if arm.variant != base]
        seeds = max((row.seeds for row in arms), key=len, default=()) or self._own_seeds(base)
        first = Judged(self.task, self.measure, base, "baseline", "", seeds)
        if seeds:
            first = replace(first, value=float(self._values(base, seeds).mean()))
        return [first, *arms]

    def _own_seeds(self, variant: str) -> tuple[int, ...]:
        """The seeds of an arm that have answered."""
        runs = [run for run in self.runs.get(variant, []) if run.result is not None]
        return tuple(sorted(run.seed for run in runs if not self.task.lacks(run)))

    def _values(self, variant: str, seeds: Sequence[int]) -> Floats:
        by_seed = {run.seed: run for run in self.runs[variant]}
        return self.task.values(self.measure, [by_seed[seed] for seed in seeds])

    def _arm(self, arm: ArmResult) -> Judged:
        row = Judged(self.task, self.measure, arm.variant, "blocked", arm.reason)
        if not arm.is_sound:
            return replace(row, reason=row.reason or "no seed in common with the baseline")
        if len(self.task.documents) < LEAST_ITEMS:
            return replace(row, reason=f"a task takes {LEAST_ITEMS} items or more")
        held, base = self.comparison, self.comparison.baseline
        of_both = self.runs[arm.variant], self.runs[base]
        seeds, missing = paired_seeds(held.family, held.removed, *of_both, self.task.lacks)
        part = self.task.rate_of(self.measure)
        rates = ((n, alpha * part) for n, alpha in held.family.looks(arm.variant))
        found = looked(len(seeds), rates, lambda n, alpha: self._crossed(arm, seeds[:n], alpha))
        seeds = seeds[: found.n or len(seeds)]
        row = replace(row, seeds=tuple(seeds), look=found)
        if seeds:
            ours, theirs = (self._values(name, seeds) for name in (arm.variant, base))
            value, difference = float(ours.mean()), float(ours.mean() - theirs.mean())
            row = replace(row, value=value, difference=difference)
            row = replace(row, within=self._within(seeds, ours, theirs))
        if found.n == 0:
            why, waits = missing or (f"{len(seeds)} of {found.next} seeds", True)
            return replace(row, verdict="pending" if waits else "blocked", reason=why)
        if why := self._at_chance(arm.variant, seeds):
            return replace(row, reason=why)
        return self._worded(row, found)

    def _paired(self, variant: str, seeds: Sequence[int]) -> Crossed:
        ours, theirs = (self._values(name, seeds) for name in (variant, self.comparison.baseline))
        return crossed(ours - theirs, float(np.abs(theirs).max()))

    def _crossed(self, arm: ArmResult, seeds: Sequence[int], alpha: float) -> tuple[float, float]:
        return self._paired(arm.variant, seeds).interval(alpha)

    def _worded(self, row: Judged, found: Look) -> Judged:
        """The row with the word that its interval says."""
        less = (found.low, found.high) if self.measure.is_less_better else (-found.high, -found.low)
        reason = f"look at {found.n} seeds" + (f", the next at {found.next}" if found.next else "")
        sees = self._paired(row.variant, row.seeds).detectable(found.alpha)
        return replace(row, verdict=word(*less), reason=reason, detectable=sees)

    def _within(self, seeds: Sequence[int], ours: Floats, theirs: Floats) -> tuple[Within, ...]:
        if not self.measure.is_share:
            return ()
        pairs = zip(seeds, ours, theirs, strict=True)
        return tuple(Within(seed, *mcnemar(a, b)) for seed, a, b in pairs)

    def _at_chance(self, variant: str, seeds: Sequence[int]) -> str:
        """Why shares of right items say nothing: nobody is above what guessing gives."""
        if not self.measure.is_share:
            return ""
        for name in (variant, self.comparison.baseline):
            one = next(run for run in self.runs[name] if run.seed == seeds[0])
            above = self._values(name, seeds) - self.task.guessed(one)
            low, _ = crossed(above).interval(2 * ALPHA)  # one-sided
            if low > 0:
                return ""
        return AT_CHANCE.format(100 * (self.task.chance or 0))
