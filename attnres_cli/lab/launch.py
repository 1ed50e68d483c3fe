"""Claimers on a cluster, followed until one of them has come to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import BAD_INPUT, AttnresError, AwayError, UsageError, WorkersError
from attnres_cli.lab.workers.claimer import Jobs, Outcome
from attnres_cli.records.computed import may_agree
from attnres_cli.records.run import WAITS, RunRecord, Status
from attnres_cli.store.store import Store
from attnres_cli.verdict.numbers import plural

_TICK_S = 0.5
_LOOK_S = 10.0  # between looks at the study
_MOST_NAMES = 4


def follow(
    submit: Callable[[], Jobs], study: str, tell: Callable[[str], None], of: Sequence[Recipe] = ()
) -> Outcome:
    """Submit claimers, and return how the first one ended that came to its report. The others are
    cancelled then, as they are by Ctrl-C. What becomes of the runs of these recipes is told
    meanwhile, without any of all runs; and so is at once how a claimer ended before a report.

    Raises StudyError before anything is submitted where the study cannot be read, and AttnresError
    where all claimers ended before a report, with the last words of one.
    """
    progress, looked, n_told = _Progress(study, tell, of), float("-inf"), 0
    jobs = submit()
    try:
        while True:
            ended = jobs.ended()
            for outcome in ended:
                if outcome.is_done:
                    progress.look()
                    return outcome
            if len(ended) == jobs.n:
                raise _error(ended[0])
            for outcome in ended[n_told:]:
                tell(f"a job ended with code {outcome.code}: {_said(outcome)}")
            n_told = len(ended)
            if time.monotonic() - looked > _LOOK_S:
                looked = time.monotonic()
                progress.look()
            time.sleep(_TICK_S)
    finally:
        jobs.cancel()


def _said(outcome: Outcome) -> str:
    return outcome.said.removeprefix("attnres: ")


def _error(outcome: Outcome) -> AttnresError:
    said = _said(outcome)
    if outcome.code == BAD_INPUT:
        return UsageError(said)
    return WorkersError(
        f"no job came to the end; the first ended with code {outcome.code}: {said}; what is done "
        "is in the study, the same command goes on"
    )


class _Progress:
    """Tells of the runs of some recipes that were waiting, or were not there, when it was made."""

    def __init__(self, study: str, tell: Callable[[str], None], of: Sequence[Recipe]) -> None:
        self._study, self._tell, self._line, self._of = study, tell, "", of
        self._store = Store.existing(study)
        ended = [run for run in self._runs() if run.status not in WAITS]
        self._before, self._told = {run.id for run in ended}, set[int]()

    def look(self) -> None:
        """Tell what has become of them since the last look; nothing while the server is away."""
        try:
            runs = [run for run in self._runs() if run.id not in self._before]
            under_way = self._under_way([run for run in runs if run.status is Status.RUNNING])
        except AwayError:
            return
        ended = [run for run in runs if run.status not in WAITS]
        for run in ended:
            if run.id not in self._told:
                outcome = f"val loss {run.result.val_loss:.4f}" if run.result else "failed"
                self._tell(f"{run.variant} seed {run.seed}: {outcome}")
        self._told |= {run.id for run in ended}
        line = f"{len(ended)} of {plural(len(runs), 'run')} ended{under_way}"
        if runs and line != self._line:
            self._line = line
            self._tell(line)

    def _runs(self) -> list[RunRecord]:
        self._store = self._store or Store.existing(self._study)
        if self._store is None:
            return []
        runs = self._store.runs(curves=False, gates=False)
        if not self._of:
            return runs
        mine = _mine(self._store, self._of)
        return [run for run in runs if run.recipe_digest in mine]

    def _under_way(self, runs: Sequence[RunRecord]) -> str:
        """`; standard seed 0 at step 12, and 3 more`."""
        shown = runs[:_MOST_NAMES]
        at = self._store.standings([run.id for run in shown]) if self._store and shown else {}
        parts = [
            f"{run.variant} seed {run.seed} at step {at[run.id].step or 0}"
            for run in shown
            if run.id in at
        ]
        parts += [f"{len(runs) - len(shown)} more"] if len(runs) > len(shown) else []
        return f"; {', '.join(parts)}" if parts else ""


def _mine(store: Store, asked: Sequence[Recipe]) -> set[str]:
    """The digests of the recipes under which a command trains: of those that the study holds, all
    that compute what one of these does, and what single arms have instead.
    """
    held = store.recipes()
    found = {digest for digest, each in held.items() if any(may_agree(each, a) for a in asked)}
    return found | {arm.digest for arm in store.arm_recipes() if arm.base_digest in found}
