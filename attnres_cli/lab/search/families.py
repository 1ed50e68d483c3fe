"""Family: the search of one variant while it goes on, as Optuna's study of it holds it.

Several processes may share one. Whoever sees that a trial's run has ended tells Optuna.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from optuna import Study
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.proposals import Points
from attnres_cli.lab.search.studies import EXTRA, VOID, has_run, run_attributes
from attnres_cli.lab.search.trunk_grid import Trunk
from attnres_cli.records.search_records import State, Trial, on_front
from attnres_cli.store.optuna import Turn

_Tried = tuple[FrozenTrial, Point]


@dataclass
class Family:
    """The trials of one variant, of which n_startup are drawn before anything is learnt. `alone`
    lets one command at a time ask for a trial.
    """

    spec: str
    points: Points
    study: Study
    storage: RDBStorage
    alone: Turn
    n_startup: int
    _ids: dict[int, int] = field(default_factory=dict)  # of trials in the storage, by number

    def kept(self) -> list[_Tried]:
        """Its trials of points, one of each: the first that has not failed, or the first."""
        found: dict[Point, FrozenTrial] = {}
        for trial in self.study.get_trials(deepcopy=False):
            point = self.points.of_trial(trial)
            if point is None:
                continue
            if _failed(found.setdefault(point, trial)) and not _failed(trial):
                found[point] = trial
        return [(trial, point) for point, trial in found.items()]

    def complete(self) -> dict[Point, tuple[float, ...]]:
        """The points that have values."""
        ended = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        points = {trial.number: self.points.of_trial(trial) for trial in ended}
        return {
            point: tuple(trial.values)
            for trial in reversed(ended)
            if (point := points[trial.number]) is not None
        }

    def counted(self) -> list[_Tried]:
        """Those that count: failed ones do not, nor those beyond what was asked for."""
        return _counting(self.kept())

    def n_left(self, n_trials: int) -> int:
        """Trials that are left to be asked for or to be ended, if none fails."""
        tried = self.kept()
        running = sum(trial.state is TrialState.RUNNING for trial, _ in tried)
        return running + self._n_to_ask(n_trials, tried)

    def n_to_ask(self, n_trials: int) -> int:
        """Trials that are left to be asked for, if none fails."""
        return self._n_to_ask(n_trials, self.kept())

    def _n_to_ask(self, n_trials: int, tried: Sequence[_Tried]) -> int:
        return max(0, min(n_trials - len(_counting(tried)), len(self.points) - len(tried)))

    def best(self) -> list[Point]:
        """The points that are complete and finite, best first; of two goals the Pareto front."""
        complete = self.complete().items()
        ended = [(values, point) for point, values in complete if all(map(math.isfinite, values))]
        kept = on_front([values for values, _ in ended])
        front = [each for each, is_kept in zip(ended, kept, strict=True) if is_kept]
        chosen = front if ended and len(ended[0][0]) > 1 else ended
        order = {point: place for place, point in enumerate(self.points.points)}
        return [point for _, point in sorted(chosen, key=lambda each: (each[0], order[each[1]]))]

    def lowest(self) -> dict[Trunk, float]:
        """The lowest loss of every shape that it has tried, in the order of the space."""
        losses: dict[Trunk, float] = {}
        complete = self.complete()
        for point in self.points.points:
            loss = complete[point][0] if point in complete else math.inf
            if loss < losses.get(point.trunk, math.inf):
                losses[point.trunk] = loss
        return losses

    def at(self, trunk: Trunk) -> Point:
        """Its point of that shape: its best one, else one with its best options and rate."""
        best, there = self.best(), [p for p in self.points.points if p.trunk == trunk]
        tried = [point for point in best if point.trunk == trunk]
        alike = [p for p in there if best and (p.options, p.lr) == (best[0].options, best[0].lr)]
        return [*tried, *alike, *there][0]

    def running(self) -> list[_Tried]:
        """Its trials that have not ended, but those that are just being asked for."""
        found = []
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            point = self.points.of_trial(trial)
            if point is not None:
                found.append((trial, point))
                if not has_run(trial):
                    self._write_run(trial.number, point)
        return found

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
        tried = self.kept()
        counted = _counting(tried)
        n_failed = sum(_failed(trial) for trial, _ in tried if EXTRA not in trial.user_attrs)
        is_done = len(counted) >= n_trials or len(tried) >= len(self.points)
        return (
            not is_done
            and n_failed <= n_trials
            and max(self.n_startup - len(counted), n_wanted) > 0
        )

    def tell(self, number: int, values: Sequence[float] | None) -> None:
        """End a trial: with its values, or as failed."""
        if values is None:
            self._end(number, TrialState.FAIL)
        else:
            self._end(number, TrialState.COMPLETE, values)

    def add(self, point: Point, values: Sequence[float] | None) -> None:
        """Let Optuna know of a point that was trained beyond the trials asked for, or failed."""
        state = TrialState.FAIL if values is None else TrialState.COMPLETE
        self._add(point, state, values, {EXTRA: True})

    def failed(self) -> list[_Tried]:
        """Those that failed, and have not been tried again since."""
        return [(trial, point) for trial, point in self.kept() if _failed(trial)]

    def try_again(self, trial: FrozenTrial, point: Point) -> None:
        """Begin a trial in the place of one that failed, which Optuna keeps as it is."""
        extra = {EXTRA: True} if EXTRA in trial.user_attrs else {}
        self._add(point, TrialState.RUNNING, None, extra)

    def _add(
        self,
        point: Point,
        state: TrialState,
        values: Sequence[float] | None,
        more: Mapping[str, object],
    ) -> None:
        trial = create_trial(
            state=state,
            params=self.points.params_of(point),
            distributions=self.points.distributions,
            values=None if values is None else list(values),
            user_attrs={**run_attributes(trial_of(point, self.points)), **more},
        )
        self.study.add_trial(trial)

    def _ask(self) -> bool:
        """Ask for a trial; whether it is to be had: another command may have added its point."""
        with unless_ended():  # whoever was let in, our connection being lost, has given it up
            number = self.study.ask(self.points.distributions).number
            for trial, point in self.kept():
                if trial.number == number:
                    self._write_run(number, point)
                    return True
            self._void(number, "another trial has its point")
        return False

    def _void_abandoned(self) -> None:
        """End trials whose process died before it wrote what they try. Call it inside `alone`."""
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if self.points.of_trial(trial) is None:
                self._void(trial.number, "its process died before it had a run")

    def _void(self, number: int, reason: str) -> None:
        self._write(number, VOID, reason)
        self._end(number, TrialState.FAIL)

    def _write_run(self, number: int, point: Point) -> None:
        for key, value in run_attributes(trial_of(point, self.points)).items():
            self._write(number, key, value)

    def _write(self, number: int, key: str, value: object) -> None:
        trial_id = self._id(number)
        if self.storage.get_trial(trial_id).state is TrialState.RUNNING:
            with unless_ended():
                self.storage.set_trial_user_attr(trial_id, key, value)

    def _end(self, number: int, state: TrialState, values: Sequence[float] | None = None) -> None:
        with unless_ended():
            self.study.tell(number, values, state=state, skip_if_finished=True)

    def _id(self, number: int) -> int:
        if number not in self._ids:
            study_id = self.storage.get_study_id_from_name(self.study.study_name)
            found = self.storage.get_trial_id_from_study_id_trial_number(study_id, number)
            self._ids[number] = found
        return self._ids[number]


def _counting(tried: Sequence[_Tried]) -> list[_Tried]:
    """Those that are neither failed nor beyond what was asked for."""
    return [
        (trial, point)
        for trial, point in tried
        if not _failed(trial) and EXTRA not in trial.user_attrs
    ]


def _failed(trial: FrozenTrial) -> bool:
    return trial.state is TrialState.FAIL


@contextmanager
def unless_ended() -> Iterator[None]:
    """Pass over a trial that another process, which saw the same run, has ended in this moment."""
    try:
        yield
    except RuntimeError as error:  # of a class of its own only in newer versions of Optuna
        if "already finished" not in str(error):
            raise


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
