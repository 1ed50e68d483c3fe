"""Store: what the laboratory asks of a study. Transactions are short and never span training."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from attnres_cli.errors import StudyError
from attnres_cli.recipe import Recipe
from attnres_cli.run import DataFacts, Point, RunRecord, RunSpec, Standing, Status
from attnres_cli.store import owner, rows
from attnres_cli.store.engine import connect, exists, immediate, runs_folder
from attnres_cli.store.tables import curve, data, recipes, runs

MAX_ATTEMPTS = 2
"""How often a run whose worker process died is started again before it counts as failed."""


class Store:
    """One study.

    Every run is in it once: (recipe digest, variant, seed, data fingerprint). A run is claimed by
    one process at a time; a claim ends with the run, or with the process.

    Attributes:
        folder: where its runs keep files, which may not be there.

    """

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.folder = folder
        self._engine = engine
        self._writing = immediate(engine)
        self._watch = owner.Watch()

    @classmethod
    def open(cls, study: str, *, create: bool) -> Store:
        """The study at that path; with `create` it is made or upgraded, without it only read.

        Raises:
            StudyError: it cannot be opened, is damaged, newer, or no study.

        """
        return cls(connect(study, create=create), runs_folder(study))

    @classmethod
    def held(cls, study: str) -> list[RunRecord]:
        """The runs of the study at that path, none if there is no study yet; nothing is written.

        Raises:
            StudyError: it cannot be opened, or could not be made there.

        """
        return cls.open(study, create=False).runs() if exists(study) else []

    def plan(
        self, specs: Sequence[RunSpec], facts: DataFacts, *, retry_failed: bool = False
    ) -> list[RunRecord]:
        """Make every spec a run of the study, unless it is one; the runs, in the order of specs.

        Runs whose process is gone wait again; so do failed ones, if asked for.
        """
        with self._write() as connection:
            _keep_data(connection, facts)
            for spec in specs:
                _insert_missing(connection, recipes, "digest", rows.of_recipe(spec.recipe))
            ids = [_run_id(connection, spec) for spec in specs]
            self._free_orphans(connection, ids)
            if retry_failed:
                failed = (runs.c.id.in_(ids), runs.c.status == Status.FAILED)
                connection.execute(update(runs).where(*failed).values(**rows.WAITING, attempts=0))
        return self.runs(ids=ids)

    def claim(self, ids: Sequence[int]) -> RunRecord | None:
        """The first of these runs that waits, now this process's; None if none waits."""
        with self._write() as connection:
            waiting = select(runs.c.id).where(runs.c.status == Status.PENDING)
            free = set(connection.execute(waiting).scalars())
            found = next((run_id for run_id in ids if run_id in free), None)
            if found is None:
                return None
            connection.execute(
                update(runs)
                .where(runs.c.id == found)
                .values(
                    status=Status.RUNNING,
                    owner=owner.this_process(),
                    attempts=runs.c.attempts + 1,
                    started_at=_now(),
                    heartbeat_at=_now(),
                )
            )
        return self.runs(ids=[found])[0]

    def beat(self, run_id: int, step: int, *, further: bool = False) -> bool:
        """Say that this process lives and how far its run is; whether the run is still its own.

        `further`: the run would go on from a later step than before, so that its process may die
        MAX_ATTEMPTS times more.
        """
        said: dict[str, object] = {"step": step, "heartbeat_at": _now()}
        if further:
            said["attempts"] = 1
        with self._write() as connection:
            ours = (runs.c.id == run_id, runs.c.owner == owner.this_process())
            return connection.execute(update(runs).where(*ours).values(said)).rowcount == 1

    def let_go(self, run_id: int) -> None:
        """Let a run that this process has claimed wait again; no death of it is counted."""
        with self._write() as connection:
            ours = (runs.c.id == run_id, runs.c.owner == owner.this_process())
            connection.execute(update(runs).where(*ours).values(**rows.WAITING, attempts=0))

    def finish(self, record: RunRecord) -> None:
        """Record the result of a run that this process has claimed, with its curve."""
        assert record.result is not None
        with self._write() as connection:
            _end(connection, record.id, rows.of_result(record.result), record.versions)
            points = [asdict(point) | {"run_id": record.id} for point in record.result.curve]
            if points:
                connection.execute(insert(curve), points)

    def fail(
        self, run_id: int, error: str, versions: Mapping[str, str], step: int | None = None
    ) -> None:
        """Record why a run that this process has claimed came to nothing, and after which step."""
        failed: dict[str, object] = {"status": Status.FAILED, "error": error}
        if step is not None:
            failed["step"] = step
        with self._write() as connection:
            _end(connection, run_id, failed, versions)

    def release(self, ids: Sequence[int], *, cause: str | None = None) -> int:
        """Let runs of processes that are gone wait again; how many there were.

        A process on another host counts as gone when its heartbeat has not moved for STALE_S: call
        this now and then. With a cause of death, runs that have been started MAX_ATTEMPTS times
        without coming further fail instead.
        """
        with self._read() as connection:  # most often there is nothing to write
            if not self._orphans(connection, ids):
                return 0
        with self._write() as connection:
            orphans = self._free_orphans(connection, ids)
            for row in orphans:
                if cause is not None and row.attempts >= MAX_ATTEMPTS:
                    failed = {"status": Status.FAILED, "error": cause}
                    connection.execute(update(runs).where(runs.c.id == row.id).values(failed))
                elif cause is None:
                    again = {"attempts": 0}
                    connection.execute(update(runs).where(runs.c.id == row.id).values(again))
        return len(orphans)

    def runs(
        self, *, ids: Sequence[int] | None = None, recipe_digest: str | None = None
    ) -> list[RunRecord]:
        """Runs of the study, in the order of `ids` if given, else as they were planned."""
        query = select(runs, recipes.c.name.label("recipe")).join(recipes)
        if ids is not None:
            query = query.where(runs.c.id.in_(ids))
        if recipe_digest is not None:
            query = query.where(runs.c.recipe_digest == recipe_digest)
        with self._read() as connection:
            found = connection.execute(query.order_by(runs.c.id)).all()
            chosen = [row.id for row in found]
            points = connection.execute(
                select(curve).where(curve.c.run_id.in_(chosen)).order_by(curve.c.step)
            ).all()
        curves: dict[int, list[Point]] = defaultdict(list)
        for point in points:
            curves[point.run_id].append(rows.to_point(point))
        records = {row.id: rows.to_record(row, curves[row.id]) for row in found}
        return [records[run_id] for run_id in (chosen if ids is None else ids)]

    def statuses(self, ids: Sequence[int]) -> dict[int, Status]:
        """The status of each of these runs that is there: less to read than the runs."""
        query = select(runs.c.id, runs.c.status).where(runs.c.id.in_(ids))
        with self._read() as connection:
            return {row.id: Status(row.status) for row in connection.execute(query)}

    def standings(self, ids: Sequence[int] | None = None) -> dict[int, Standing]:
        """Where runs stand at this moment, all of the study's if none are named."""
        query = select(runs) if ids is None else select(runs).where(runs.c.id.in_(ids))
        with self._read() as connection:
            return {row.id: rows.to_standing(row) for row in connection.execute(query)}

    def remove(self, ids: Sequence[int]) -> None:
        """Forget these runs with their curves: all of them, or none.

        Raises:
            StudyError: one is not there, or its process may be running it.

        """
        with self._write() as connection:
            found = {r.id: r for r in connection.execute(select(runs).where(runs.c.id.in_(ids)))}
            for run_id in ids:
                if run_id not in found:
                    raise StudyError(f"there is no run {run_id}: `attnres runs` lists them")
                _check_is_idle(found[run_id])
            connection.execute(delete(curve).where(curve.c.run_id.in_(ids)))
            connection.execute(delete(runs).where(runs.c.id.in_(ids)))

    def owners(self, ids: Sequence[int]) -> dict[int, str]:
        """Which of these runs are running, and the process that runs each."""
        query = select(runs.c.id, runs.c.owner).where(
            runs.c.id.in_(ids), runs.c.status == Status.RUNNING
        )
        with self._read() as connection:
            return {row.id: row.owner for row in connection.execute(query)}

    def owns(self, run_id: int) -> bool:
        """Whether this process is the one that runs that run."""
        return self.owners([run_id]).get(run_id) == owner.this_process()

    def folder_of(self, record: RunRecord) -> Path:
        """Where that run keeps files. Its name has more than the id: studies of nearly one name
        may share `folder`.
        """
        identity = (record.recipe_digest, record.variant, record.seed, record.fingerprint)
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()
        return self.folder / f"{record.id}-{digest[:8]}"

    def recipe(self, digest: str) -> Recipe:
        """The resolved recipe of that digest."""
        with self._read() as connection:
            query = select(recipes.c.resolved).where(recipes.c.digest == digest)
            return Recipe.model_validate(connection.execute(query).scalar_one())

    def data(self, fingerprint: str) -> DataFacts:
        """What is known of the data with that fingerprint."""
        with self._read() as connection:
            query = select(data).where(data.c.fingerprint == fingerprint)
            return DataFacts(**connection.execute(query).mappings().one())

    def _orphans(self, connection: Connection, ids: Sequence[int]) -> list[rows.Row]:
        """The running runs whose process is gone."""
        running = select(runs).where(runs.c.id.in_(ids), runs.c.status == Status.RUNNING)
        return [
            row
            for row in connection.execute(running).all()
            if self._watch.is_gone(row.id, row.owner, row.heartbeat_at)
        ]

    def _free_orphans(self, connection: Connection, ids: Sequence[int]) -> list[rows.Row]:
        """Let orphans wait again; their rows as they were."""
        orphans = self._orphans(connection, ids)
        freed = update(runs).where(runs.c.id.in_([row.id for row in orphans]))
        connection.execute(freed.values(**rows.WAITING))
        return orphans

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with _explained(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        with _explained(), self._engine.connect() as connection:
            yield connection


@contextmanager
def _explained() -> Iterator[None]:
    """What the database refuses (disk full, locked for a minute, damaged), as a StudyError."""
    try:
        yield
    except DBAPIError as error:
        raise StudyError(f"the study cannot be used: {error.orig}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _insert_missing(
    connection: Connection, table: object, key: str, row: Mapping[str, object]
) -> None:
    column = table.c[key]  # type: ignore[attr-defined]
    held = connection.execute(select(column).where(column == row[key])).first()
    if held is None:
        connection.execute(insert(table).values(**row))  # type: ignore[arg-type]


def _keep_data(connection: Connection, facts: DataFacts) -> None:
    """The data as a row, with what an older attnres did not find out about them."""
    row = rows.of_data(facts)
    _insert_missing(connection, data, "fingerprint", row)
    lines = {name: row[name] for name in rows.LINES if row[name] is not None}
    if lines:
        this = data.c.fingerprint == facts.fingerprint
        connection.execute(update(data).where(this).values(**lines))


def _run_id(connection: Connection, spec: RunSpec) -> int:
    identity = rows.of_spec(spec)
    same = [runs.c[name] == value for name, value in identity.items()]
    held = connection.execute(select(runs.c.id).where(*same)).scalar()
    if held is not None:
        return held
    made = insert(runs).values(**identity, **rows.WAITING, attempts=0, created_at=_now())
    return connection.execute(made.returning(runs.c.id)).scalar_one()


def _check_is_idle(row: rows.Row) -> None:
    """Raise StudyError where a process may be running a run."""
    if row.status != Status.RUNNING:
        return
    if owner.is_here(row.owner):
        alive = owner.is_alive(row.owner)
    else:  # one look cannot see whether a heartbeat moves
        said = datetime.fromisoformat(row.heartbeat_at) if row.heartbeat_at else None
        alive = said is not None and (datetime.now(UTC) - said).total_seconds() < 2 * owner.STALE_S
    if alive:
        host, _, pid, _ = row.owner.split("|")
        raise StudyError(
            f"run {row.id} is running (process {pid} on {host.partition('/')[0]}): stop that first"
        )


def _end(
    connection: Connection, run_id: int, values: Mapping[str, object], versions: Mapping[str, str]
) -> None:
    """The one place where a run ends. Only the process that claimed it may end it."""
    done = (
        update(runs)
        .where(runs.c.id == run_id, runs.c.owner == owner.this_process())
        .values(**values, versions=dict(versions), owner=None, finished_at=_now())
    )
    if connection.execute(done).rowcount != 1:
        raise StudyError(f"run {run_id} is no longer this process's: its result was not recorded")
