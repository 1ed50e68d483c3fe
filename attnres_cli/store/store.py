"""Store: what the laboratory asks of a study. Transactions are short and never span training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import (
    ARRAY,
    Connection,
    Integer,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)

from attnres_cli.config import address
from attnres_cli.errors import NoStudyError, StudyError
from attnres_cli.records import gates
from attnres_cli.records.asked import Asked
from attnres_cli.records.items import Items
from attnres_cli.records.merged import Merged
from attnres_cli.records.run import ENDED, RunRecord, Status
from attnres_cli.records.step_ratio import TimedArm
from attnres_cli.store import merge, owner, rows, sqlite, tables
from attnres_cli.store.engine import connect, runs_folder
from attnres_cli.store.holding import OF_RUNS, Holding
from attnres_cli.store.planner import Planner, free, highest
from attnres_cli.store.queries import facts, records
from attnres_cli.store.retry import patient, patiently, retry_s
from attnres_cli.store.rows import Row, now
from attnres_cli.store.tables import curve, runs

MAX_ATTEMPTS = 2  # of a run whose worker process died, before it counts as failed


class Store(Planner):
    """One study, in which every run is once: (recipe digest, variant, seed, data, code). One
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
        """The study there, only to be read; None if there is none, StudyError if none may be."""
        if not address.is_url(study):
            sqlite.check_file(sqlite.path_of(study), create=True)
        try:
            return cls.open(study, create=False)
        except NoStudyError:
            return None

    @patient
    def claim(self, ids: Sequence[int]) -> RunRecord | None:
        """The first of these runs that waits, now this process's; None if none waits."""
        mine = {"status": Status.RUNNING, "owner": owner.this_process()}
        times = {"started_at": now(), "heartbeat_at": now()}
        with self._write() as connection:
            found = _waiting(connection, ids)
            if found is None:
                return None
            taken = update(runs).where(runs.c.id == found)
            connection.execute(taken.values(**mine, **times, attempts=runs.c.attempts + 1))
            return records(connection, runs.c.id == found)[0]

    def beat(self, run_id: int, step: int, *, further: bool = False) -> bool:
        """Say that this process lives and how far its run is; whether the run is still its own.
        `further`: it has a later checkpoint than before, and may die MAX_ATTEMPTS times more.
        """
        said: dict[str, object] = {"step": step, "heartbeat_at": now()}
        if further:
            said["attempts"] = 1
        try:
            with self._write() as connection:
                return _change(connection, run_id, said)
        finally:  # who trains for long keeps no connection: a server has a hundred or so
            self._writing.pool.dispose()

    def let_go(self, run_id: int) -> None:
        """Let a run that this process has claimed wait again; no death of it is counted."""
        with self._write() as connection:
            _change(connection, run_id, {**rows.WAITING, "attempts": 0})

    @patient
    def finish(self, record: RunRecord) -> None:
        """Record the result of a run that this process has claimed: curve, gates, probes."""
        from attnres_cli.store import arrays  # with numpy, which lists of runs need not wait for

        result = record.result
        assert result is not None
        with self._write() as connection:
            values = rows.of_result(result)
            if not _end(connection, record.id, values, record.versions):
                return
            met = gates.of(result, facts(connection, record.fingerprint))
            probes = [row for probe in result.probes for row in arrays.of_probe(record.id, probe)]
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
            _end(connection, run_id, failed, versions)

    @patient
    def release(self, ids: Sequence[int], *, cause: str | None = None) -> int:
        """Let runs of processes that are gone wait again; returns how many. Call it now and then:
        on another host a process is gone when its heartbeat has not moved for STALE_S. With a cause
        of death, runs that were started MAX_ATTEMPTS times without coming further fail instead.
        """
        with self._read() as connection:  # most often there is nothing to write
            if not self._orphans(connection, ids):
                return 0
        with self._write() as connection:
            orphans = self._orphans(connection, ids, lock=True)
            free(connection, orphans, counts=cause is not None)
            guilty = [row.id for row in orphans if row.attempts >= MAX_ATTEMPTS]
            if cause is not None and guilty:
                failed = {"status": Status.FAILED, "error": cause, "finished_at": now()}
                connection.execute(update(runs).where(runs.c.id.in_(guilty)).values(failed))
        return len(orphans)

    @patient
    def remove(self, ids: Sequence[int], reason: str | None = None) -> None:
        """Delete these runs, all or none; StudyError where a process may be running one. The study
        goes on to tell of them, see `removed`, but for those of tables of which no run has drawn a
        point of its curve: whoever sees curves may remove runs for what they will give.
        """
        query = select(runs).where(runs.c.id.in_(ids)).order_by(runs.c.id).with_for_update()
        with self._write() as connection:
            found = connection.execute(query).all()
            for row in found:
                _check_is_idle(row)
            seen = _seen(connection)
            told = [rows.of_removed(row, reason) for row in found if row.recipe_digest in seen]
            if told:
                connection.execute(insert(tables.removed), told)
            if connection.dialect.name == "sqlite":  # undone with the transaction, as all else
                connection.execute(text(f"PRAGMA user_version = {highest(connection)}"))
            for table in OF_RUNS:
                connection.execute(delete(table).where(table.c.run_id.in_(ids)))
            connection.execute(delete(runs).where(runs.c.id.in_(ids)))

    @patient
    def keep_items(self, found: Items) -> bool:
        """Write what a run answered to a task's items, in place of what it did before; whether the
        run is there.
        """
        from attnres_cli.store import arrays

        row, of = arrays.of_items(found), tables.items
        with self._write() as connection:
            run = select(runs.c.id).where(runs.c.id == found.run_id).with_for_update()
            if connection.execute(run).one_or_none() is None:
                return False
            mine = (of.c.run_id == found.run_id, of.c.task == found.task)
            connection.execute(delete(of).where(*mine))
            connection.execute(insert(of), row)
        return True

    @patient
    def keep_step_ratios(self, timed: Sequence[TimedArm]) -> None:
        """Write how long steps of arms take, in place of what was measured before."""
        of = tables.step_ratios
        with self._write(alone=True) as connection:
            for each in timed:
                row = vars(each)
                mine = [column == row[column.name] for column in of.primary_key]
                connection.execute(delete(of).where(*mine))
                connection.execute(insert(of), row)

    def ask(self, found: Sequence[Asked]) -> None:
        """Keep that these tables were asked for; once more changes nothing. It is not tried again:
        whoever asks shall not wait for it.
        """
        of = tables.asked
        with self._write(alone=True) as connection:
            held = {rows.to_asked(row) for row in connection.execute(select(of))}
            fresh = [vars(each) | {"asked_at": now()} for each in found if each not in held]
            if fresh:
                connection.execute(insert(of), fresh)

    @patient
    def note(self, run_id: int, text: str) -> None:
        """Write what people say of a run, in place of what they said; empty takes it away."""
        with self._write() as connection:
            connection.execute(update(runs).where(runs.c.id == run_id).values(note=text or None))

    @patient
    def tag(self, ids: Sequence[int], tag: str, *, away: bool = False) -> int:
        """Give these runs a tag, or take it away; how many of them that changed."""
        query = select(runs.c.id, runs.c.tags).where(runs.c.id.in_(ids)).order_by(runs.c.id)
        with self._write() as connection:
            found = connection.execute(query.with_for_update()).all()
            changed = [row for row in found if (tag in (row.tags or ())) == away]
            for row in changed:
                tags = sorted({*(row.tags or ()), tag} - ({tag} if away else set()))
                connection.execute(update(runs).where(runs.c.id == row.id).values(tags=tags))
        return len(changed)

    @patient
    def merge(self, parts: Sequence[Holding]) -> list[list[Merged]]:
        """Write what these studies hold and this one does not, all or nothing; what became of the
        runs of each. Raises StudyError, see `merge.merge`.
        """
        with self._write(alone=True) as connection:
            return [merge.merge(connection, part) for part in parts]


def _seen(connection: Connection) -> set[str]:
    """The digests of recipes of which a run has a step behind it, or was removed; with them those
    that arms have in the same tables.
    """
    made, begun = tables.arm_recipes, (runs.c.step > 0) | runs.c.status.in_(ENDED)
    found = set(connection.execute(select(runs.c.recipe_digest).where(begun)).scalars())
    found |= set(connection.execute(select(tables.removed.c.recipe_digest)).scalars())
    pairs = connection.execute(select(made.c.base_digest, made.c.digest)).all()
    bases = {base for base, digest in pairs if found & {base, digest}}
    return found | bases | {digest for base, digest in pairs if base in bases}


def _waiting(connection: Connection, ids: Sequence[int]) -> int | None:
    """The first of these runs that waits, kept from others: SQLite has one writer at a time."""
    waiting = select(runs.c.id).where(runs.c.status == Status.PENDING)
    if connection.dialect.name == "sqlite":
        free = set(connection.execute(waiting).scalars())
        return next((run_id for run_id in ids if run_id in free), None)
    asked = literal(list(ids), ARRAY(Integer))
    mine = waiting.where(runs.c.id == func.any(asked))
    mine = mine.order_by(func.array_position(asked, runs.c.id)).limit(1)
    return connection.execute(mine.with_for_update(skip_locked=True)).scalar()


def _change(connection: Connection, run_id: int, values: Mapping[str, object]) -> bool:
    """Change a run that is this process's; whether it is."""
    ours = (runs.c.id == run_id, runs.c.owner == owner.this_process())
    return connection.execute(update(runs).where(*ours).values(values)).rowcount == 1


def _end(
    connection: Connection, run_id: int, values: Mapping[str, object], versions: Mapping[str, str]
) -> bool:
    """The one place where a run ends; only the process that claimed it may end it, else StudyError.
    Returns False where this end was recorded before, by a server that was gone before it said so.
    """
    done = {**values, "versions": dict(versions), "owner": None}
    if _change(connection, run_id, {**done, "finished_at": now()}):
        return True
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    if row is not None and all(row[name] == value for name, value in done.items()):
        return False
    raise StudyError(f"run {run_id} is no longer this process's: its result was not recorded")


def _check_is_idle(row: Row) -> None:
    """Raise StudyError where a process may be running a run."""
    if row.status != Status.RUNNING:
        return
    alive = owner.is_alive(row.owner)
    if alive is None:  # one look cannot see whether a heartbeat moves
        said = datetime.fromisoformat(row.heartbeat_at) if row.heartbeat_at else None
        alive = said is not None and (datetime.now(UTC) - said).total_seconds() < 2 * owner.STALE_S
    if alive:
        host, _, pid, _ = row.owner.split("|")
        raise StudyError(
            f"run {row.id} is running (process {pid} on {host.partition('/')[0]}): stop that first"
        )
