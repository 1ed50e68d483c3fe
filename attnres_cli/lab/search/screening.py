"""The first look of a search: ask, train, tell, until there are as many trials as asked for.
Several commands share its trials, and take over those of dead processes with their runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attnres_cli.lab.experiment import Display
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.trial_runner import TrialRunner, predicted_s
from attnres_cli.records.run import WAITS, Status


def screen(runner: TrialRunner, families: Sequence[Family]) -> None:
    """Trials of every family, until each has as many as asked for or has tried all points."""
    screening, experiment = _Screening(runner, families), runner.experiment
    left, plan = runner.patiently(screening.left), runner.plan
    total = sum(n_trials for n_trials, _ in left)
    if total:
        seconds = predicted_s(left, runner.step_s, len(plan.devices))
        with experiment.watcher.progress(total, seconds, plan.settings, seeks=True) as display:
            screening.display = display
            experiment.train(plan, screening.requested, display)
    experiment.failed |= runner.patiently(screening.failed)


@dataclass
class _Screening:
    """The first look while it goes on: which run answers which trial."""

    runner: TrialRunner
    families: Sequence[Family]
    display: Display | None = None
    _runs: dict[tuple[str, int], int] = field(default_factory=dict)  # of trials

    def requested(self, n_free: int) -> list[int]:
        """The runs of the trials that have not ended. New trials are asked for while fewer than
        n_free runs wait, for the variant that has the fewest.
        """
        found = self.runner.patiently(lambda: self._requested(n_free))
        if self.display is not None:
            left = self.runner.patiently(self.left)
            self.display.expect(sum(n_trials for n_trials, _ in left))
        return found

    def left(self) -> list[tuple[int, Sequence[Point]]]:
        """For each family: its trials still to be asked for or ended, if none fails; its points."""
        n_trials = self.runner.search.n_trials
        return [(family.n_left(n_trials), family.points.points) for family in self.families]

    def failed(self) -> set[int]:
        """Runs of failed trials, those of earlier processes too."""
        runner = self.runner
        lost = {
            runner.spec(point, runner.search.first_seed).identity
            for family in self.families
            for _, point in family.failed()
        }
        records = runner.experiment.store.runs(curves=False) if lost else []
        return {r.id for r in records if r.status is Status.FAILED and r.identity in lost}

    def _requested(self, n_free: int) -> list[int]:
        n_trials = self.runner.search.n_trials
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
        experiment = self.runner.experiment
        statuses = experiment.store.statuses(list(answers))
        ended = [n for n, status in statuses.items() if status not in WAITS]
        for n in ended:
            del statuses[n]
        for record in experiment.store.runs(ids=ended) if ended else ():
            statuses[record.id] = record.status  # it may wait again by now: --retry-failed
            if record.status not in WAITS:
                experiment.count_failed([record])
                for family, number in answers[record.id]:
                    family.tell(number, self.runner.values(record))
        return statuses

    def _find_runs(self, trials: Sequence[tuple[Family, int, Point]]) -> None:
        """Make a run of the study of each trial that has none here yet."""
        new = [each for each in trials if (each[0].spec, each[1]) not in self._runs]
        points = [point for _, _, point in new]
        records = self.runner.first(points)
        for (family, number, _), record in zip(new, records, strict=True):
            self._runs[family.spec, number] = record.id
        if self.display is not None:
            self.runner.know(self.display, records, points)
