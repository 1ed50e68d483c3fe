"""Store: what the laboratory asks of a study. Transactions are short and never span training."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import ColumnElement, Engine, insert, select, update

from attnres_cli.config import address
from attnres_cli.config.recipe import Recipe
from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.plan import Plan
from attnres_cli.records.preregister import Registration
from attnres_cli.records.run import DataDescription, Probe, RunRecord, RunSpec, Standing, Status
from attnres_cli.store import claims, owner, planned, queries, registered, rows, tables
from attnres_cli.store.engine import connect, exists, runs_folder
from attnres_cli.store.retry import patient, patiently, retry_s
from attnres_cli.store.tables import curve, runs
from attnres_cli.store.transactions import Transactions

MAX_ATTEMPTS = 2
"""How often a run whose worker process died is started again before it counts as failed."""


class Store:
    """One study.

    Every run is in it once: (recipe digest, variant, seed, data fingerprint). A run is claimed by
    one process at a time; a claim ends with the run, or with the process.

    Attributes:
        folder: where its runs keep files on this machine, which may not be there.
        patience_s: for how many seconds all but `beat` and `let_go` is tried again while a server
            is away; then they raise `AwayError`.

    """

    def __init__(self, engine: Engine, folder: Path, name: str) -> None:
        self.folder = folder
        self.patience_s = retry_s()
        self._study = Transactions(engine, name, folder.parent)
        weakref.finalize(self, engine.pool.dispose)

    @classmethod
    def open(cls, study: str, *, create: bool) -> Store:
        """The study of that path or URL; with `create` it is made or upgraded, without it only
        read.

        Raises:
            StudyError: it cannot be opened, is damaged, newer, or no study; `AwayError`: its server
                cannot be reached at this moment.
            UsageError: the environment says no number of seconds to try again.

        """
        folder = runs_folder(study)
        engine = patiently(
            lambda: connect(study, create=create, keeps=True), retry_s(), only_up=True
        )
        return cls(engine, folder, address.parted(study)[0])

    @classmethod
    def existing(cls, study: str, *, upgrade: bool = False) -> Store | None:
        """The study of that path or URL, None if there is none yet; only an upgrade writes.

        Raises:
            StudyError: it cannot be opened, or could not be made there.

        """
        there = patiently(lambda: exists(study), retry_s(), only_up=True)
        return cls.open(study, create=upgrade) if there else None

    @patient
    def plan(
        self, specs: Sequence[RunSpec], facts: DataDescription, *, retry_failed: bool = False
    ) -> list[RunRecord]:
        """Make every spec a run of the study, unless it is one; the runs, in the order of specs.

        Runs whose process is gone wait again; so do failed ones, if asked for.
        """
        with self._study.alone() as connection:
            planned.keep_data(connection, facts)
            ids = planned.run_ids(connection, specs)
            claims.free(connection, claims.orphans(connection, ids, self._study.watch, lock=True))
            if retry_failed:
                failed = (runs.c.id.in_(ids), runs.c.status == Status.FAILED)
                connection.execute(update(runs).where(*failed).values(**rows.WAITING, attempts=0))
        found = self.runs(ids=ids)  # curves are not read while nobody else may write
        if len(found) < len(ids):  # another command has removed one just now
            return self.plan(specs, facts)
        return found

    @patient
    def claim(self, ids: Sequence[int]) -> RunRecord | None:
        """The first of these runs that waits, now this process's; None if none waits."""
        with self._study.write() as connection:
            found = claims.take(connection, ids)
            return None if found is None else queries.records(connection, runs.c.id == found)[0]

    def beat(self, run_id: int, step: int, *, further: bool = False) -> bool:
        """Say that this process lives and how far its run is; whether the run is still its own.

        `further`: the run would go on from a later step than before, so that its process may die
        MAX_ATTEMPTS times more.
        """
        said: dict[str, object] = {"step": step, "heartbeat_at": claims.now()}
        if further:
            said["attempts"] = 1
        try:
            with self._study.write() as connection:
                return claims.change(connection, run_id, said)
        finally:  # who trains for long keeps no connection: a server has a hundred or so
            self._study.hang_up()

    def let_go(self, run_id: int) -> None:
        """Let a run that this process has claimed wait again; no death of it is counted."""
        with self._study.write() as connection:
            claims.change(connection, run_id, {**rows.WAITING, "attempts": 0})

    @patient
    def finish(self, record: RunRecord) -> None:
        """Record the result of a run that this process has claimed: curve, gates, probes."""
        assert record.result is not None
        with self._study.write() as connection:
            values = rows.of_result(record.result)
            if not claims.end(connection, record.id, values, record.versions):
                return
            points = [rows.of_point(record.id, point) for point in record.result.curve]
            if points:
                connection.execute(insert(curve), points)
            found = [row for each in record.result.probes for row in rows.of_probe(record.id, each)]
            if found:
                connection.execute(insert(tables.probes), found)
            met = gates.of(record.result, queries.facts(connection, record.fingerprint))
            written = [rows.of_gate(record.id, gate) for gate in met]
            connection.execute(insert(tables.gates), written)

    @patient
    def fail(
        self, run_id: int, error: str, versions: Mapping[str, str], step: int | None = None
    ) -> None:
        """Record why a run that this process has claimed came to nothing, and after which step."""
        error = error.replace("\0", "")  # PostgreSQL has no such character
        failed: dict[str, object] = {"status": Status.FAILED, "error": error}
        if step is not None:
            failed["step"] = step
        with self._study.write() as connection:
            claims.end(connection, run_id, failed, versions)

    @patient
    def release(self, ids: Sequence[int], *, cause: str | None = None) -> int:
        """Let runs of processes that are gone wait again; how many there were.

        A process on another host counts as gone when its heartbeat has not moved for STALE_S: call
        this now and then. With a cause of death, runs that have been started MAX_ATTEMPTS times
        without coming further fail instead.
        """
        with self._study.read() as connection:  # most often there is nothing to write
            if not claims.orphans(connection, ids, self._study.watch):
                return 0
        with self._study.write() as connection:
            orphans = claims.orphans(connection, ids, self._study.watch, lock=True)
            claims.free(connection, orphans, counts=cause is not None)
            guilty = [row.id for row in orphans if row.attempts >= MAX_ATTEMPTS]
            if cause is not None and guilty:
                failed = {"status": Status.FAILED, "error": cause}
                connection.execute(update(runs).where(runs.c.id.in_(guilty)).values(failed))
        return len(orphans)

    @patient
    def runs(
        self,
        *,
        ids: Sequence[int] | None = None,
        recipe_digest: str | None = None,
        curves: bool = True,
    ) -> list[RunRecord]:
        """Runs of the study, in the order of `ids` if given, else as they were planned.

        One that has been removed is not among them. Without curves they are there ten times as
        fast: of a study, curves are most of the rows.
        """
        wanted: list[ColumnElement[bool]] = [] if ids is None else [runs.c.id.in_(ids)]
        if recipe_digest is not None:
            wanted.append(runs.c.recipe_digest == recipe_digest)
        with self._study.read() as connection:
            found = queries.records(connection, *wanted, curves=curves)
        records = {record.id: record for record in found}
        return found if ids is None else [records[n] for n in ids if n in records]

    @patient
    def has_searches(self) -> bool:
        """Whether Optuna's tables, beside ours, hold a search; Optuna itself is not asked."""
        with self._study.read() as connection:
            return queries.has_searches(connection)

    @patient
    def probes(self, ids: Sequence[int]) -> dict[int, tuple[Probe, ...]]:
        """What was measured inside the models of these runs, in the order of steps.

        `runs` leaves it out: of a thousand runs it is much more than all else.
        """
        with self._study.read() as connection:
            return queries.probes(connection, ids)

    @patient
    def statuses(self, ids: Sequence[int]) -> dict[int, Status]:
        """The status of each of these runs that is there: less to read than the runs."""
        query = select(runs.c.id, runs.c.status).where(runs.c.id.in_(ids))
        with self._study.read() as connection:
            return {row.id: Status(row.status) for row in connection.execute(query)}

    @patient
    def standings(self, ids: Sequence[int] | None = None) -> dict[int, Standing]:
        """Where runs stand at this moment, all of the study's if none are named."""
        query = select(runs) if ids is None else select(runs).where(runs.c.id.in_(ids))
        with self._study.read() as connection:
            return {row.id: rows.to_standing(row) for row in connection.execute(query)}

    @patient
    def remove(self, ids: Sequence[int]) -> None:
        """Forget these runs with their curves: all of them, or none.

        Those that are gone already are passed over: the server may have removed them, and been away
        before it said so.

        Raises:
            StudyError: the process of one may be running it.

        """
        with self._study.write() as connection:
            claims.remove(connection, ids)

    @patient
    def owners(self, ids: Sequence[int]) -> dict[int, str]:
        """Which of these runs are running, and the process that runs each."""
        query = select(runs.c.id, runs.c.owner).where(
            runs.c.id.in_(ids), runs.c.status == Status.RUNNING
        )
        with self._study.read() as connection:
            return {row.id: row.owner for row in connection.execute(query)}

    def owns(self, run_id: int) -> bool:
        """Whether this process is the one that runs that run."""
        return self.owners([run_id]).get(run_id) == owner.this_process()

    def folder_of(self, record: RunRecord) -> Path:
        """Where that run keeps files. Its name has more than the id: studies of nearly one name
        may share `folder`.
        """
        digest = hashlib.sha256(repr(record.identity).encode()).hexdigest()
        return self.folder / f"{record.id}-{digest[:8]}"

    @patient
    def recipe(self, digest: str) -> Recipe:
        """The resolved recipe of that digest."""
        with self._study.read() as connection:
            return queries.recipe(connection, digest)

    @patient
    def data(self, fingerprint: str) -> DataDescription:
        """What is known of the data with that fingerprint."""
        with self._study.read() as connection:
            return queries.facts(connection, fingerprint)

    @patient
    def arm_recipes(
        self, base_digest: str | None = None, fingerprint: str | None = None
    ) -> list[ArmRecipe]:
        """The recipes of single arms, all of the study's or those derived from one recipe."""
        with self._study.read() as connection:
            return queries.arm_recipes(connection, base_digest, fingerprint)

    @patient
    def keep_arm_recipes(self, plan: Plan, facts: DataDescription) -> list[ArmRecipe]:
        """Write down the recipes that arms of a plan have of their own; what then stands.

        What follows from the recipe and from runs of the study is written anew. What was matched
        by time stays as it was first measured.
        """
        if not plan.arm_recipes:
            return []
        with self._study.alone() as connection:
            return planned.keep_arm_recipes(connection, plan, facts)

    @patient
    def register(self, found: Registration, recipe: Recipe) -> None:
        """Fix what a comparison under this recipe will be. The same once more changes nothing.

        Raises:
            StudyError: the study holds runs of the recipe, or another preregistration of it.

        """
        with self._study.alone() as connection:
            registered.register(connection, found, recipe)

    @patient
    def registrations(self) -> list[Registration]:
        """All preregistrations of the study.

        Raises:
            StudyError: one has been changed since.

        """
        with self._study.read() as connection:
            return registered.registrations(connection)
