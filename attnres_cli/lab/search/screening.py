"""The first look of a search: ask, train, tell, until there are as many trials as asked for.

A trial is answered by a run of the study. Trials of processes that are gone are taken over with
their runs; several commands share the trials of one search.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.time_model import predicted_s
from attnres_cli.lab.search.trial_runner import WAITS, Display, Laboratory, values_of
from attnres_cli.records.run import RunRecord, Status


def first_look(laboratory: Laboratory, families: Sequence[Family]) -> None:
    """Trials of every family, until each has as many as asked for or has tried all points."""
    looking = _Look(laboratory, families)
    left, plan = laboratory.patiently(looking.left), laboratory.plan
    total = sum(n_trials for n_trials, _ in left)
    if total:
        seconds = predicted_s(left, laboratory.step_s, len(plan.devices))
        with laboratory.progress(total, seconds, plan.settings) as display:
            looking.display = display
            laboratory.train(looking.wanted, display)
    laboratory.failed |= laboratory.patiently(looking.failed)


@dataclass
class _Look:
    """The first look while it goes on: which run answers which trial."""

    laboratory: Laboratory
    families: Sequence[Family]
    display: Display | None = None
    _runs: dict[tuple[str, int], int] = field(default_factory=dict)  # of trials

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
        return sum(n_trials for n_trials, _ in self.left())

    def left(self) -> list[tuple[int, Sequence[Point]]]:
        """How many they are of each family, beside its points."""
        n_trials = self.laboratory.n_trials
        return [(family.n_left(n_trials), family.points.points) for family in self.families]

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
        for family, number, _ in trials:
            answers[self._runs[family.spec, number]].append((family, number))
        statuses = self._told(answers)
        for key in [key for key, run_id in self._runs.items() if run_id not in statuses]:
            del self._runs[key]  # it has ended, or another command has removed it
        if any(n not in statuses for n in answers):
            return self._settled()  # which makes again what was removed
        return {n: statuses[n] for n in answers if statuses[n] in WAITS}

    def _told(self, answers: Mapping[int, Sequence[tuple[Family, int]]]) -> dict[int, Status]:
        """The statuses of the runs that are there; Optuna is told of those that have ended."""
        store = self.laboratory.store
        statuses = store.statuses(list(answers))
        ended = [n for n, status in statuses.items() if status not in WAITS]
        for n in ended:
            del statuses[n]
        for record in store.runs(ids=ended) if ended else ():
            statuses[record.id] = record.status  # it may wait again by now: --retry-failed
            if record.status not in WAITS:
                for family, number in answers[record.id]:
                    self._tell(family, number, record)
        return statuses

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

    def _tell(self, family: Family, number: int, record: RunRecord) -> None:
        """End a trial with what its run came to."""
        self.laboratory.count_failed([record])
        family.tell(number, values_of(record, self.laboratory.objectives))
