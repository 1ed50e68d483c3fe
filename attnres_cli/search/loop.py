"""Ask, train, tell: trials of a search until there are as many as asked for, then confirmation.

A trial is answered by a run of the study. Whoever sees that the run has ended tells Optuna, so
that trials of processes that are gone are taken over with their runs; several commands share the
trials of one search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from optuna import Study
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from attnres_cli import ablate
from attnres_cli.data import Tokens
from attnres_cli.launch import Job, run_all
from attnres_cli.plan import Arm, Plan
from attnres_cli.run import Event, RunRecord, RunSpec, Status
from attnres_cli.search.points import Point
from attnres_cli.search.proposals import Points
from attnres_cli.search.shapes import Trunk
from attnres_cli.search.studies import EXTRA, VOID, explained, has_run, run_attributes
from attnres_cli.store import Store
from attnres_cli.trials import State, Trial

_BOTH_ENDED = (Status.COMPLETE, Status.DIVERGED)
_WAITS = (Status.PENDING, Status.RUNNING)
_STALE = timedelta(minutes=5)  # of a trial whose process died before it was written

Progress = Callable[[Plan, list[RunRecord]], AbstractContextManager[Callable[[Event | None], None]]]


@dataclass
class Family:
    """The search of one variant while it goes on."""

    spec: str
    points: Points
    study: Study
    n_startup: int

    def kept(self) -> list[tuple[FrozenTrial, Point]]:
        """Its trials that try something, each point once: the first to be there has it."""
        found: dict[Point, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            point = self.points.of_trial(trial)
            if point is not None:
                found.setdefault(point, trial)
        return [(trial, point) for point, trial in found.items()]

    def counted(self) -> list[tuple[FrozenTrial, Point]]:
        """Those that count: failed ones do not, nor those beyond what was asked for."""
        return [
            (trial, point)
            for trial, point in self.kept()
            if trial.state is not TrialState.FAIL and EXTRA not in trial.user_attrs
        ]

    def lacks(self, n_trials: int) -> bool:
        """Whether trials are left to be asked for or to be ended."""
        counted = self.counted()
        running = any(trial.state is TrialState.RUNNING for trial, _ in counted)
        return running or len(counted) < min(n_trials, len(self.points))

    def best(self) -> list[Point]:
        """The points that are complete and finite, best first; of two goals only those that no
        other one beats in both.
        """
        ended = [
            (tuple(trial.values), point)
            for trial, point in self.kept()
            if trial.state is TrialState.COMPLETE and all(map(math.isfinite, trial.values))
        ]
        front = [
            (values, point)
            for values, point in ended
            if not any(_beats(other, values) for other, _ in ended)
        ]
        chosen = front if ended and len(ended[0][0]) > 1 else ended
        return [point for _, point in sorted(chosen, key=lambda each: each[0])]


def _beats(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


@dataclass
class Laboratory:
    """Where the runs of a search are trained.

    Attributes:
        study: path or URL of the study, as workers open it.
        plan: the recipe, devices and settings of every run; its arms and seeds are not read.
        objectives: of a trial, val_loss first.
        failed: run ids.

    """

    study: str
    store: Store
    storage: RDBStorage
    tokens: Tokens
    plan: Plan
    objectives: tuple[str, ...]
    n_trials: int
    first_seed: int
    progress: Progress
    step_s: Callable[[Point], float | None]
    note: Callable[[str], None]
    failed: set[int] = field(default_factory=set)

    def look(self, families: Sequence[Family]) -> None:
        """Trials of every family, until each has as many as asked for or has tried all points."""
        while True:
            waiting: dict[int, Point] = {}
            for family in families:
                with explained():
                    waiting |= self._next(family)
            if not waiting:
                break
            self._train(list(waiting.values()), (self.first_seed,), list(waiting))
        lost = {
            (point.recipe.digest, point.variant, self.first_seed)
            for family in families
            for trial, point in family.kept()
            if trial.state is TrialState.FAIL
        }
        records = self.store.runs() if lost else []  # those of earlier processes too
        found = [r for r in records if (r.recipe_digest, r.variant, r.seed) in lost]
        self._count_failed(found)

    def _count_failed(self, records: Sequence[RunRecord]) -> None:
        self.failed |= {record.id for record in records if record.status is Status.FAILED}

    def confirm(self, families: Sequence[Family], k: int, seeds: Sequence[int]) -> None:
        """The k best shapes of every family, for all families, on fresh seeds.

        A shape that a family has not tried is tried now, with the options of its own best point,
        beyond the trials asked for.
        """
        best = [trunk for family in families for trunk in _shapes(family.best(), k)]
        trunks = list(dict.fromkeys(best))
        chosen = {family.spec: self._at(family, trunks) for family in families}
        if not seeds or not trunks:
            return
        points = [point for found in chosen.values() for point in found]
        all_seeds = tuple(dict.fromkeys((self.first_seed, *seeds)))
        records = self._records(points, all_seeds)
        self._count_failed(records)
        missing = [record.id for record in records if record.status in _WAITS]
        if missing:
            self.note(
                f"confirming {len(trunks)} shapes, the {k} best of each variant, on seeds "
                f"{', '.join(map(str, seeds))}"
            )
            self._train(points, all_seeds, missing)
        for family in families:
            with explained():
                self._add_extra(family, chosen[family.spec])

    def arm(self, point: Point) -> Arm:
        """A point as an arm of a plan."""
        step_s = self.step_s(point)
        return Arm(point.variant, point.n_params, point.flops_per_token, step_s, point.recipe)

    def _next(self, family: Family) -> dict[int, Point]:
        """Runs that are to be trained for the next trials, by id; empty where there are no more."""
        while True:
            waiting = self._settle(family)
            mine = {run.id: point for run, point in waiting if run.status is Status.PENDING}
            if mine:
                return mine
            asked = self._ask(family)
            if not asked:
                return {run.id: point for run, point in waiting}  # another process has them

    def _settle(self, family: Family) -> list[tuple[RunRecord, Point]]:
        """Tell Optuna what came of its trials; the runs of those that still wait."""
        running = []
        for trial in family.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            point = family.points.of_trial(trial)
            if point is not None:
                running.append((trial, point))
            elif trial.datetime_start is None or datetime.now() - trial.datetime_start > _STALE:
                self._void(family, trial.number, "its process died before it had a run")
        found = []
        records = self._records([point for _, point in running], (self.first_seed,))
        for (trial, point), record in zip(running, records, strict=True):
            if not has_run(trial):
                self._write_run(family, trial.number, point)
            if record.status in _WAITS:
                found.append((record, point))
            else:
                self._tell(family, trial.number, record)
        return found

    def _records(self, points: Sequence[Point], seeds: Sequence[int]) -> list[RunRecord]:
        """The runs of these points in the study; those that it lacks wait there now."""
        fingerprint = self.tokens.fingerprint
        specs = [
            RunSpec(point.recipe, point.variant, seed, fingerprint)
            for seed in seeds
            for point in points
        ]
        return self.store.plan(specs, self.tokens.facts) if specs else []

    def _tell(self, family: Family, number: int, record: RunRecord) -> None:
        values = values_of(record, self.objectives)
        if values is None:
            _end(family.study, number, TrialState.FAIL)
        else:
            _end(family.study, number, TrialState.COMPLETE, values)

    def _ask(self, family: Family) -> int:
        """Ask for the next trials: those drawn before anything is learnt at once, then as many as
        there are workers. How many there were.
        """
        asked = 0
        while True:
            counted, tried = family.counted(), len(family.kept())
            n_failed = sum(trial.state is TrialState.FAIL for trial, _ in family.kept())
            is_done = len(counted) >= self.n_trials or tried >= len(family.points)
            if is_done or n_failed > self.n_trials:
                return asked
            at_once = max(family.n_startup - len(counted), len(self.plan.devices) - asked)
            if at_once <= 0:
                return asked
            trial = family.study.ask(family.points.distributions)
            asked += self._keep(family, trial.number)

    def _keep(self, family: Family, number: int) -> bool:
        """Whether a trial just asked for is to be had: another process may have asked for the same
        point, or for the last of the trials, in the same moment.
        """
        earlier = {point: t for t, point in family.kept() if t.number < number}
        (trial,) = [t for t in family.study.get_trials(deepcopy=False) if t.number == number]
        point = family.points.of_trial(trial)
        counted = [t for t, _ in family.counted() if t.number < number]
        if point is None or point in earlier:
            self._void(family, number, "another trial has its point")
        elif len(counted) >= self.n_trials:
            self._void(family, number, "there were as many as asked for")
        else:
            self._write_run(family, number, point)
            return True
        return False

    def _void(self, family: Family, number: int, reason: str) -> None:
        self._write(family, number, VOID, reason)
        _end(family.study, number, TrialState.FAIL)

    def _write_run(self, family: Family, number: int, point: Point) -> None:
        for key, value in run_attributes(trial_of(point, family.points)).items():
            self._write(family, number, key, value)

    def _write(self, family: Family, number: int, key: str, value: object) -> None:
        study_id = self.storage.get_study_id_from_name(family.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        if self.storage.get_trial(trial_id).state is TrialState.RUNNING:
            with unless_ended():
                self.storage.set_trial_user_attr(trial_id, key, value)

    def _train(self, points: Sequence[Point], seeds: Sequence[int], ids: Sequence[int]) -> None:
        """Train these runs; those that other processes have are waited for."""
        arms = tuple(dict.fromkeys(self.arm(point) for point in points))
        plan = replace(self.plan, arms=arms, seeds=tuple(seeds))
        records = self.store.runs(ids=ids)
        plan = ablate.without(plan, self._records(points, seeds))
        n_devices = min(len(plan.devices), len(ids))
        jobs = [
            Job(self.study, tuple(ids), name, plan.settings, plan.recipe)
            for name in plan.devices[:n_devices]
        ]
        with self.progress(plan, records) as on_event:
            self._count_failed(run_all(self.store, jobs, on_event))

    def _at(self, family: Family, trunks: Sequence[Trunk]) -> list[Point]:
        """The family's point at each of these shapes."""
        best = family.best()
        found = []
        for trunk in trunks:
            there = [point for point in best if point.trunk == trunk]
            there += [p for p in family.points.points if p.trunk == trunk and _is_like(p, best)]
            there += [point for point in family.points.points if point.trunk == trunk]
            found.append(there[0])
        return found

    def _add_extra(self, family: Family, points: Sequence[Point]) -> None:
        """Let Optuna know what was trained beyond the trials asked for."""
        tried = {point for _, point in family.kept()}
        new = [point for point in points if point not in tried]
        for point, record in zip(new, self._records(new, (self.first_seed,)), strict=True):
            values = values_of(record, self.objectives)
            if values is None:
                continue
            trial = create_trial(
                params=family.points.params_of(point),
                distributions=family.points.distributions,
                values=list(values),
                user_attrs={**run_attributes(trial_of(point, family.points)), EXTRA: True},
            )
            family.study.add_trial(trial)


@contextmanager
def unless_ended() -> Iterator[None]:
    """Pass over a trial that another process, which saw the same run, has ended in this moment."""
    try:
        yield
    except RuntimeError as error:  # of a class of its own only in newer versions of Optuna
        if "already finished" not in str(error):
            raise


def _end(
    study: Study, number: int, state: TrialState, values: Sequence[float] | None = None
) -> None:
    with unless_ended():
        study.tell(number, values, state=state, skip_if_finished=True)


def _shapes(points: Sequence[Point], k: int) -> list[Trunk]:
    """The first k different shapes."""
    return list(dict.fromkeys(point.trunk for point in points))[:k]


def _is_like(point: Point, best: Sequence[Point]) -> bool:
    return bool(best) and (point.options, point.lr) == (best[0].options, best[0].lr)


def trial_of(point: Point, points: Points) -> Trial:
    """A point as a trial that has just begun; its number is not known here."""
    kept = ("n_layers", "d_model", "n_heads", "d_ff", "aspect", "heads_per_layer", "tokens")
    names = [*kept, *(name for name in points.names if name not in kept)]
    names += [name for name, _ in point.options if name not in names]
    return Trial(
        number=-1,
        state=State.RUNNING,
        dimensions={name: point.dimensions[name] for name in names},
        variant=point.variant,
        recipe_digest=point.recipe.digest,
        n_params=point.n_params,
        flops=point.flops,
    )


def values_of(record: RunRecord, objectives: Sequence[str]) -> tuple[float, ...] | None:
    """What a run has of each objective, None where it has failed. A loss that diverged is infinite:
    it is an answer, and the worst.
    """
    result = record.result
    if result is None or record.status not in _BOTH_ENDED:
        return None
    known = {
        "val_loss": result.val_loss if math.isfinite(result.val_loss) else math.inf,
        "step_time": result.step_s,
        "params": float(result.n_params),
        "flops": float(result.flops_per_token) * result.tokens,
        "memory": float(result.peak_bytes),
    }
    return tuple(known[name] for name in objectives)


def speeds(
    families: Sequence[Sequence[Point]], plan: Plan, tokens: Tokens
) -> Callable[[Point], float | None]:
    """Seconds per step that a point is predicted to take, from a few timed steps of the shallowest
    and the deepest one of its variant; None where one of those cannot be trained.
    """
    slopes: dict[str, tuple[tuple[int, float | None], tuple[int, float | None]]] = {}
    for points in families:
        by_depth = sorted(points, key=lambda point: point.trunk.n_layers)
        ends = (by_depth[0], by_depth[-1])
        arms = [Arm(p.variant, p.n_params, p.flops_per_token, None, p.recipe) for p in ends]
        timed = ablate.timed(replace(plan, arms=tuple(arms)), tokens).arms
        per_flop = [arm.step_s and arm.step_s / arm.flops_per_token for arm in timed]
        shallow, deep = zip((p.trunk.n_layers for p in ends), per_flop, strict=True)
        slopes |= dict.fromkeys((point.variant for point in points), (shallow, deep))

    def step_s(point: Point) -> float | None:
        (shallow, fast), (deep, slow) = slopes[point.variant]
        if fast is None or slow is None:
            return None
        share = (point.trunk.n_layers - shallow) / max(1, deep - shallow)
        return (fast + share * (slow - fast)) * point.flops_per_token

    return step_s
