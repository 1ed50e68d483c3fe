"""What a gain in loss is worth in tasks: every arm against the baseline, task by task.

Seeds, looks, arms and rates are those of the table of losses; a task and a measure have a part of
an arm's rate, so that one table errs in one of twenty studies, whatever is evaluated and read. A
difference is paired by seed and by item, and its interval is for other seeds and other items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnres_cli.records.items import Items
from attnres_cli.records.run import RunRecord
from attnres_cli.stats.crossed import Crossed, Floats, crossed, mcnemar
from attnres_cli.stats.sequential import ALPHA, Look, looked, word
from attnres_cli.verdict.comparison import ArmResult, Comparison, Verdict
from attnres_cli.verdict.judge import paired_seeds, unlooked
from attnres_cli.verdict.task_answers import Measure, Task, tasks_of

RULE = (
    "better or worse: 0 lies outside the interval, which is for other seeds and other items. With "
    "probability 95 % the true differences of all arms, tasks and measures of this table lie in "
    "their intervals at all looks together; the table of losses has a rate of its own. Tasks are "
    "never pooled: what several of them say alike is no verdict"
)
LEAST_ITEMS = 20
_NONE: Floats = np.zeros((0, 0))
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
        return self.look.interval if self.look else None


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
    runs: dict[str, dict[int, RunRecord]] = {arm.variant: {} for arm in comparison.arms}
    for run in comparison.records:
        runs.setdefault(run.variant, {})[run.seed] = run
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
    """Arms by one measure of one task; `runs` are by arm and seed."""

    comparison: Comparison
    task: Task
    measure: Measure
    runs: Mapping[str, Mapping[int, RunRecord]]

    def rows(self) -> list[Judged]:
        """The baseline, over the seeds of the arm with most pairs, and every arm."""
        base = self.comparison.baseline
        arms = [self._arm(arm) for arm in self.comparison.arms if arm.variant != base]
        ended = {seed: run for seed, run in self.runs.get(base, {}).items() if run.result}
        own = sorted(seed for seed, run in ended.items() if not self.task.lacks(run))
        seeds = max((row.seeds for row in arms), key=len, default=()) or tuple(own)
        value = float(self._values(base, seeds).mean()) if seeds else None
        return [Judged(self.task, self.measure, base, "baseline", "", seeds, value), *arms]

    def _values(self, variant: str, seeds: Sequence[int]) -> Floats:
        return self.task.values(self.measure, [self.runs[variant][seed] for seed in seeds])

    def _arm(self, arm: ArmResult) -> Judged:
        row = Judged(self.task, self.measure, arm.variant, "blocked", arm.reason)
        if not arm.is_sound:
            return replace(row, reason=row.reason or "no seed in common with the baseline")
        if len(self.task.documents) < LEAST_ITEMS:
            return replace(row, reason=f"a task takes {LEAST_ITEMS} items or more")
        held, names = self.comparison, (arm.variant, self.comparison.baseline)
        mine, base = ([*self.runs[name].values()] for name in names)
        seeds, missing = paired_seeds(held.family, held.removed, mine, base, self.task.lacks)
        part = self.task.rate_of(self.measure)
        rates = ((n, alpha * part) for n, alpha in held.family.spending(arm.variant))
        ours, theirs = (self._values(name, seeds) for name in names) if seeds else (_NONE, _NONE)

        def over(n: int) -> Crossed:
            return crossed(ours[:n] - theirs[:n], float(np.abs(theirs[:n]).max()))

        found = looked(len(seeds), rates, lambda n, alpha: over(n).interval(alpha))
        n = found.n or len(seeds)
        ours, theirs = ours[:n], theirs[:n]
        row = replace(row, seeds=tuple(seeds[:n]), look=found)
        if n:
            value, difference = float(ours.mean()), float(ours.mean() - theirs.mean())
            pairs = zip(seeds, ours, theirs, strict=False) if self.measure.is_share else ()
            within = tuple(Within(seed, *mcnemar(a, b)) for seed, a, b in pairs)
            row = replace(row, value=value, difference=difference, within=within)
        if found.n == 0:
            return replace(row, **unlooked(found, len(seeds), missing))
        if self.measure.is_share and self._is_at_chance(arm.variant, seeds[0], ours, theirs):
            return replace(row, reason=AT_CHANCE.format(100 * (self.task.chance or 0)))
        ends = (found.low, found.high) if self.measure.is_less_better else (-found.high, -found.low)
        sees = over(n).detectable(found.alpha)
        return replace(row, verdict=word(*ends), reason=found.reason, detectable=sees)

    def _is_at_chance(self, variant: str, seed: int, *both: Floats) -> bool:
        """Whether neither arm nor baseline is above what guessing gives: their shares of right
        items say nothing.
        """
        for name, values in zip((variant, self.comparison.baseline), both, strict=True):
            low, _ = crossed(values - self.task.guessed(self.runs[name][seed])).interval(2 * ALPHA)
            if low > 0:  # one-sided
                return False
        return True
