"""Store: what the laboratory asks of a study. Transactions are short and never span training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from sqlalchemy import Connection, insert, update

from attnres_cli.config import address
from attnres_cli.config.recipe import Recipe
from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.plan import Plan
from attnres_cli.records.preregister import Registration
from attnres_cli.records.run import DataDescription, RunRecord, RunSpec, Status
from attnres_cli.store import claims, planned, postgres, rows, tables
from attnres_cli.store.engine import connect, exists, runs_folder
from attnres_cli.store.reader import Reader, facts, records
from attnres_cli.store.retry import patient, patiently, retry_s
from attnres_cli.store.tables import curve, runs

MAX_ATTEMPTS = 2
"""How often a run whose worker process died is started again before it counts as failed."""


class Store(Reader):
    """One study, in which every run is once: (recipe digest, variant, seed, data fingerprint). One
    process at a time may claim a run; the claim ends with the run, or with the process.
    """

    @classmethod
    def open(cls, study: str, *, create: bool) -> Store:
        """The study of that path or URL; with `create` it is made, without it only read. Raises
        StudyError where it cannot be used, as `AwayError` where its server cannot be reached.
        """
        folder = runs_folder(study)
        engine = patiently(
            lambda: connect(study, create=create, keeps=True), retry_s(), only_up=True
        )
        return cls(engine, folder, address.parted(study)[0])

    @classmethod
    def existing(cls, study: str) -> Store | None:
        """The study of that path or URL, only to be read; None if there is none yet."""
        there = patiently(lambda: exists(study), retry_s(), only_up=True)
        return cls.open(study, create=False) if there else None

    @contextmanager
    def _write(self, *, alone: bool = False) -> Iterator[Connection]:
        """Change rows of the study; `alone`, what others may be about to write too."""
        with self._explained(), self._writing.begin() as connection:
            if alone and connection.dialect.name == "postgresql":
                postgres.alone(connection)
            yield connection

    @patient
    def plan(
        self, specs: Sequence[RunSpec], facts: DataDescription, *, retry_failed: bool = False
    ) -> list[RunRecord]:
        """Make every spec a run of the study, unless it is one; the runs, in the order of specs.
        Runs whose process is gone wait again, and failed ones if asked for.
        """
        with self._write(alone=True) as connection:
            planned.keep_data(connection, facts)
            ids = planned.run_ids(connection, specs)
            claims.free(connection, claims.orphans(connection, ids, self._watch, lock=True))
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
        with self._write() as connection:
            found = claims.take(connection, ids)
            return None if found is None else records(connection, runs.c.id == found)[0]

    def beat(self, run_id: int, step: int, *, further: bool = False) -> bool:
        """Say that this process lives and how far its run is; whether the run is still its own.
        `further`: it has a later checkpoint than before, and may die MAX_ATTEMPTS times more.
        """
        said: dict[str, object] = {"step": step, "heartbeat_at": claims.now()}
        if further:
            said["attempts"] = 1
        try:
            with self._write() as connection:
                return claims.change(connection, run_id, said)
        finally:  # who trains for long keeps no connection: a server has a hundred or so
            self._writing.pool.dispose()

    def let_go(self, run_id: int) -> None:
        """Let a run that this process has claimed wait again; no death of it is counted."""
        with self._write() as connection:
            claims.change(connection, run_id, {**rows.WAITING, "attempts": 0})

    @patient
    def finish(self, record: RunRecord) -> None:
        """Record the result of a run that this process has claimed: curve, gates, probes."""
        result = record.result
        assert result is not None
        with self._write() as connection:
            values = rows.of_result(result)
            if not claims.end(connection, record.id, values, record.versions):
                return
            met = gates.of(result, facts(connection, record.fingerprint))
            probes = [row for probe in result.probes for row in rows.of_probe(record.id, probe)]
            parts = [(curve, [asdict(point) for point in result.curve]), (tables.probes, probes)]
            for table, found in [*parts, (tables.gates, [asdict(gate) for gate in met])]:
                written = [rows.without_nan(row | {"run_id": record.id}) for row in found]
                if written:
                    connection.execute(insert(table), written)

    @patient
    def fail(
        self, run_id: int, error: str, versions: Mapping[str, str], step: int | None = None
    ) -> None:
        """Record why a run that this process has claimed came to nothing, and after which step."""
        error = error.replace("\0", "")  # PostgreSQL has no such character
        failed: dict[str, object] = {"status": Status.FAILED, "error": error}
        if step is not None:
            failed["step"] = step
        with self._write() as connection:
            claims.end(connection, run_id, failed, versions)

    @patient
    def release(self, ids: Sequence[int], *, cause: str | None = None) -> int:
        """Let runs of processes that are gone wait again; returns how many. Call it now and then:
        on another host a process is gone when its heartbeat has not moved for STALE_S. With a cause
        of death, runs that were started MAX_ATTEMPTS times without coming further fail instead.
        """
        with self._read() as connection:  # most often there is nothing to write
            if not claims.orphans(connection, ids, self._watch):
                return 0
        with self._write() as connection:
            orphans = claims.orphans(connection, ids, self._watch, lock=True)
            claims.free(connection, orphans, counts=cause is not None)
            guilty = [row.id for row in orphans if row.attempts >= MAX_ATTEMPTS]
            if cause is not None and guilty:
                failed = {"status": Status.FAILED, "error": cause}
                connection.execute(update(runs).where(runs.c.id.in_(guilty)).values(failed))
        return len(orphans)

    @patient
    def remove(self, ids: Sequence[int]) -> None:
        """Delete these runs with their curves: all or none, but for those that are gone already.
        Raises StudyError where a process may be running one.
        """
        with self._write() as connection:
            claims.remove(connection, ids)

    @patient
    def keep_arm_recipes(self, plan: Plan, facts: DataDescription) -> list[ArmRecipe]:
        """Record the recipes that arms of a plan have of their own, and return what then stands.
        What was matched by time stays as it was first measured; all else is written anew.
        """
        if not plan.arm_recipes:
            return []
        with self._write(alone=True) as connection:
            return planned.keep_arm_recipes(connection, plan, facts)

    @patient
    def register(self, found: Registration, recipe: Recipe) -> None:
        """Fix what a comparison under this recipe will be; the same once more changes nothing.
        Raises StudyError where the recipe has runs, or another preregistration.
        """
        with self._write(alone=True) as connection:
            planned.register(connection, found, recipe)
