"""Family: the search of one variant while it goes on, as Optuna's study of it holds it.

Several processes may share one. Whoever sees that a trial's run has ended tells Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from optuna import Study
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.proposals import Points
from attnres_cli.lab.search.studies import EXTRA, VOID, has_run, keep_asked, rank, run_attributes
from attnres_cli.lab.search.trunk_grid import Trunk
from attnres_cli.records.search_records import Search, on_front
from attnres_cli.store.optuna import Turn, asking

Tried = tuple[FrozenTrial, Point]
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _patient(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """The method, tried again as a whole while the server of its study is away."""

    @wraps(method)
    def tried(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return asking(self.address, partial(method, self, *args, **kwargs))

    return tried


@dataclass
class Family:
    """The trials of one variant, of which n_startup are drawn before anything is learnt. `alone`
    lets one command at a time ask for a trial; `address` is of the study of all searches.
    """

    spec: str
    points: Points
    study: Study
    storage: RDBStorage
    alone: Turn
    n_startup: int
    address: str

    @_patient
    def tried(self) -> list[Tried]:
        """Its trials of points, one of each: a complete one, or else one that has not failed."""
        found: dict[Point, FrozenTrial] = {}
        for trial in sorted(self.study.get_trials(deepcopy=False), key=rank):
            if (point := self.points.of_trial(trial)) is not None:
                found.setdefault(point, trial)
        return [(trial, point) for point, trial in found.items()]

    def counted(self) -> list[Tried]:
        """Those that count: failed ones do not, nor those beyond what was asked for."""
        return [
            (trial, point)
            for trial, point in self.tried()
            if trial.state is not TrialState.FAIL and EXTRA not in trial.user_attrs
        ]

    def failed(self) -> list[Tried]:
        """Those that failed, and have not been tried again since."""
        return [(trial, point) for trial, point in self.tried() if trial.state is TrialState.FAIL]

    def complete(self) -> dict[Point, tuple[float, ...]]:
        """The values of points that have them."""
        return {p: tuple(t.values) for t, p in self.tried() if t.state is TrialState.COMPLETE}

    def n_to_ask(self, n_trials: int) -> int:
        """Trials that are left to be asked for, if none fails."""
        left = len(self.points) - len(self.tried())
        return max(0, min(n_trials - len(self.counted()), left))

    def n_left(self, n_trials: int) -> int:
        """Trials that are left to be asked for or to be ended, if none fails."""
        running = sum(trial.state is TrialState.RUNNING for trial, _ in self.tried())
        return running + self.n_to_ask(n_trials)

    def best(self) -> list[Point]:
        """The points that are complete and finite, best first; of two goals the Pareto front."""
        order = {point: place for place, point in enumerate(self.points.points)}
        ended = {p: v for p, v in self.complete().items() if all(map(math.isfinite, v))}
        chosen = list(ended)
        if any(len(values) > 1 for values in ended.values()):
            kept = on_front(list(ended.values()))
            chosen = [point for point, is_kept in zip(ended, kept, strict=True) if is_kept]
        return sorted(chosen, key=lambda point: (ended[point], order[point]))

    def lowest(self) -> dict[Trunk, float]:
        """The lowest loss of every shape that it has tried, in the order of the space."""
        losses: dict[Trunk, float] = {}
        complete = self.complete()
        for point in self.points.points:
            loss = complete.get(point, (math.inf,))[0]
            if loss < losses.get(point.trunk, math.inf):
                losses[point.trunk] = loss
        return losses

    def at(self, trunk: Trunk) -> Point:
        """Its point of that shape: its best one, else one with its best options and rate."""
        best, there = self.best(), [p for p in self.points.points if p.trunk == trunk]
        alike = [p for p in there if best and (p.options, p.lr) == (best[0].options, best[0].lr)]
        return next(point for point in (*best, *alike, *there) if point.trunk == trunk)

    @_patient
    def keep_asked(self, search: Search, sampler: str) -> None:
        """Record what was asked for last; the sampler only if it has work to do."""
        told = sampler if self.n_to_ask(search.n_trials) else ""
        with self.alone():
            keep_asked(self.study, search, told)

    @_patient
    def running(self) -> list[Tried]:
        """Its trials that have not ended, but those that are just being asked for."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        found = [(t, point) for t in running if (point := self.points.of_trial(t)) is not None]
        for trial, point in found:
            if not has_run(trial):
                self._write(trial.number, run_attributes(self.points.trial(point)))
        return found

    @_patient
    def ask(self, n_trials: int, n_wanted: int) -> int:
        """Ask for n_wanted trials, and for all startup trials; how many were asked for. These are
        fewer where the search has all its n_trials, or no point is left.
        """
        asked = 0
        while self._lacks(n_trials, n_wanted - asked):
            with self.alone():
                self._void_abandoned()
                if self._lacks(n_trials, n_wanted - asked):
                    asked += self._ask()
        return asked

    def _lacks(self, n_trials: int, n_wanted: int) -> bool:
        asked_for = [trial for trial, _ in self.failed() if EXTRA not in trial.user_attrs]
        is_wanted = n_wanted > 0 or len(self.counted()) < self.n_startup
        return is_wanted and self.n_to_ask(n_trials) > 0 and len(asked_for) <= n_trials

    def _ask(self) -> bool:
        """Ask for a trial; whether it is to be had: another command may have added its point."""
        with unless_ended():  # whoever was let in, our connection being lost, has given it up
            number = self.study.ask(self.points.distributions).number
            points = [point for trial, point in self.tried() if trial.number == number]
            if points:
                self._write(number, run_attributes(self.points.trial(points[0])))
                return True
            self._void(number, "another trial has its point")
        return False

    def _void_abandoned(self) -> None:
        """End trials whose process died before it wrote what they try. Call it inside `alone`."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self.points.of_trial(trial) is None:
                self._void(trial.number, "its process died before it had a run")

    def _void(self, number: int, reason: str) -> None:
        self._write(number, {VOID: reason})
        self.tell(number, None)

    def _write(self, number: int, attributes: dict[str, Any]) -> None:
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
        for key, value in attributes.items():
            with unless_ended():
                self.storage.set_trial_user_attr(trial_id, key, value)

    @_patient
    def tell(self, number: int, values: Sequence[float] | None) -> None:
        """End a trial: with its values, or as failed."""
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        with unless_ended():
            self.study.tell(number, values, state=state, skip_if_finished=True)

    @_patient
    def add(
        self,
        point: Point,
        values: Sequence[float] | None = None,
        state: TrialState = TrialState.COMPLETE,
        *,
        is_extra: bool = True,
    ) -> None:
        """Let Optuna know of a point that was not asked for: one trained beyond the trials asked
        for, or one to be tried again in the place of a trial that failed and is kept.
        """
        attributes = run_attributes(self.points.trial(point)) | ({EXTRA: True} if is_extra else {})
        trial = create_trial(
            state=state,
            params=self.points.params_of(point),
            distributions=self.points.distributions_of(point),
            values=None if values is None else list(values),
            user_attrs=attributes,
        )
        self.study.add_trial(trial)


@contextmanager
def unless_ended() -> Iterator[None]:
    """Pass over a trial that another process, which saw the same run, has ended in this moment."""
    try:
        yield
    except RuntimeError as error:  # of a class of its own only in newer versions of Optuna
        if "already finished" not in str(error):
            raise
