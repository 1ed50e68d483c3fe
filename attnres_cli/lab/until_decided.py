"""`--until decided`: arms get seeds one after the other until each has its word."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from attnres_cli.errors import UsageError
from attnres_cli.lab.experiment import Experiment
from attnres_cli.records.gates import has_failed
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import WAITS, RunRecord, RunSpec
from attnres_cli.stats.power import growing
from attnres_cli.stats.sequential import MOST, grows
from attnres_cli.store.store import Store
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.numbers import duration, plural

_UNDECIDED = ("inconclusive", "pending")


@dataclass(frozen=True)
class Until:
    """That arms are trained until they are decided: on `most` seeds or less, None for as many as
    the study says, or MOST; on `seeds` alone where a plan has fixed them.
    """

    most: int | None = None
    seeds: tuple[int, ...] = ()

    def fixed(self, store: Store | None, plan: Plan, baseline: str, *, write: bool = False) -> int:
        """The most seeds of a plan's table; `write` puts that into the study before its first arm.
        Raises UsageError where the study says otherwise.
        """
        if self.seeds:
            return len(self.seeds)
        held = (
            store.until_decided(plan.recipe.digest, plan.fingerprint, baseline) if store else None
        )
        if write and store is not None and held is None:
            assert plan.data is not None
            most = self.most or MOST
            held = store.keep_until_decided(plan.recipe, plan.data, baseline, most)
        if held is not None and self.most not in (None, held):
            raise UsageError(
                f"--most {self.most}: this table was planned with --most {held}, which stays; "
                "leave --most out, or take another --study"
            )
        return self.most or held or MOST


def foreseen(plan: Plan, most: int) -> str:
    """What a plan that grows to so many seeds takes, at most and for a difference of a size."""

    def takes(n: int) -> str:
        seconds = replace(plan, seeds=tuple(range(n))).seconds
        return plural(n, "seed") + ("" if seconds is None else f", {duration(seconds)}")

    power, mean = growing(grows(most, max(1, len(plan.arms) - 1)), 1.0)
    return (
        f"until decided: at most {takes(most)}; a difference of one standard deviation over seeds "
        f"is found in {power:.0%} of studies, after about {takes(ceil(mean))}"
    )


@dataclass(frozen=True)
class Growing:
    """What a plan's table needs next: called with the runs that it has, it adds those that failed
    on later seeds, and those of the next seeds of arms that are not decided, once all of its runs
    have ended. `judged` reads the study.
    """

    experiment: Experiment
    plan: Plan
    baseline: str
    most: int
    seeds: tuple[int, ...]
    judged: Callable[[], Comparison | None]

    def __call__(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """The runs that are added; none while some train, or once all is decided."""
        store, added = self.experiment.store, list[RunRecord]()
        if any(now in WAITS for now in store.statuses([run.id for run in records]).values()):
            return added
        held = {run.identity for run in records}
        while (found := self.judged()) is not None:
            specs = [*self._failed(found), *self._next(found).specs]
            fresh = self.experiment.records([s for s in specs if s.identity not in held])
            added += fresh
            held |= {run.identity for run in fresh}
            if not fresh or any(run.status in WAITS for run in fresh):
                break
        return added

    def foreseen(self, plan: Plan) -> str:
        """How many seeds a plan may take."""
        return foreseen(plan, self.most)

    def _next(self, found: Comparison) -> Plan:
        """The seeds that arms have at their next look: more of them where workers would wait."""
        open_ = [arm for arm in found.arms if self._is_open(arm, found)]
        if not open_:
            return replace(self.plan, arms=())
        n = min(arm.look.next or 0 for arm in open_ if arm.look)
        if found.family.most is not None:
            n += max(0, len(self.plan.devices) // (1 + len(open_)) - 1)
        names = {self.baseline, *(arm.variant for arm in open_)}
        excluded = {gone.seed for gone in found.removed if gone.reason and gone.variant in names}
        order = dict.fromkeys([*found.family.seeds, *self.seeds])
        more = (seed for seed in itertools.count() if seed not in order and not self.seeds)
        usable = (seed for seed in itertools.chain(order, more) if seed not in excluded)
        arms = tuple(arm for arm in self.plan.arms if arm.variant in names)
        return replace(
            self.plan, arms=arms, seeds=tuple(itertools.islice(usable, min(n, self.most)))
        )

    def _failed(self, found: Comparison) -> list[RunSpec]:
        """The failed runs of the plan's arms: the plan itself has only the first seeds."""
        failed = {run.identity: run.seed for run in found.records if has_failed(run)}
        seeds = dict.fromkeys(failed.values())
        specs = (self.plan.spec(arm, seed) for arm in self.plan.arms for seed in seeds)
        return [spec for spec in specs if spec.identity in failed]

    def _is_open(self, arm: ArmResult, found: Comparison) -> bool:
        """Whether more seeds may decide an arm of the plan."""
        names = (self.baseline, arm.variant)
        is_asked = arm.variant in {each.variant for each in self.plan.arms}
        if not is_asked or arm.verdict not in _UNDECIDED or arm.look is None:
            return False
        if any(has_failed(run) for run in found.records if run.variant in names):
            return False
        return arm.look.next is not None and arm.look.next <= self.most
