"""Whose a run is, inside a transaction: taking it, letting it go, ending it, forgetting it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ARRAY, Connection, Integer, delete, func, literal, select, text, update

from attnres_cli.errors import StudyError
from attnres_cli.records.run import Status
from attnres_cli.store import owner
from attnres_cli.store.rows import WAITING, Row
from attnres_cli.store.tables import curve, gates, probes, runs


def now() -> str:
    """The time as the study holds it: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def take(connection: Connection, ids: Sequence[int]) -> int | None:
    """The first of these runs that waits, now this process's; None if none waits."""
    found = _waiting(connection, ids)
    if found is not None:
        mine = {"status": Status.RUNNING, "owner": owner.this_process()}
        times = {"started_at": now(), "heartbeat_at": now()}
        taken = update(runs).where(runs.c.id == found)
        connection.execute(taken.values(**mine, **times, attempts=runs.c.attempts + 1))
    return found


def _waiting(connection: Connection, ids: Sequence[int]) -> int | None:
    """The first of these runs that waits, kept from others. SQLite has one writer at a time; on
    PostgreSQL the row is locked, and rows that others have locked are passed over.
    """
    waiting = select(runs.c.id).where(runs.c.status == Status.PENDING)
    if connection.dialect.name == "sqlite":
        free = set(connection.execute(waiting).scalars())
        return next((run_id for run_id in ids if run_id in free), None)
    asked = literal(list(ids), ARRAY(Integer))
    mine = waiting.where(runs.c.id == func.any(asked))
    mine = mine.order_by(func.array_position(asked, runs.c.id)).limit(1)
    return connection.execute(mine.with_for_update(skip_locked=True)).scalar()


def change(connection: Connection, run_id: int, values: Mapping[str, object]) -> bool:
    """Change a run that is this process's; whether it is."""
    ours = (runs.c.id == run_id, runs.c.owner == owner.this_process())
    return connection.execute(update(runs).where(*ours).values(values)).rowcount == 1


def end(
    connection: Connection, run_id: int, values: Mapping[str, object], versions: Mapping[str, str]
) -> bool:
    """The one place where a run ends; only the process that claimed it may end it, else StudyError.
    Returns False where this end was recorded before, by a server that was gone before it said so.
    """
    done = {**values, "versions": dict(versions), "owner": None}
    if change(connection, run_id, {**done, "finished_at": now()}):
        return True
    row = connection.execute(select(runs).where(runs.c.id == run_id)).mappings().one_or_none()
    if row is not None and all(row[name] == value for name, value in done.items()):
        return False
    raise StudyError(f"run {run_id} is no longer this process's: its result was not recorded")


def orphans(
    connection: Connection, ids: Sequence[int], watch: owner.Watch, *, lock: bool = False
) -> list[Row]:
    """The running ones of these runs whose process is gone; with `lock` kept from other changes."""
    running = select(runs).where(runs.c.id.in_(ids), runs.c.status == Status.RUNNING)
    if lock:  # not those that somebody is changing right now: their processes live
        running = running.order_by(runs.c.id).with_for_update(skip_locked=True)
    found = connection.execute(running).all()
    return [row for row in found if watch.is_gone(row.id, row.owner, row.heartbeat_at)]


def free(connection: Connection, orphaned: Sequence[Row], *, counts: bool = False) -> None:
    """Let these runs wait again; with all their attempts, unless these deaths count."""
    freed = update(runs).where(runs.c.id.in_([row.id for row in orphaned]))
    connection.execute(freed.values(**WAITING, **({} if counts else {"attempts": 0})))


def numbered(connection: Connection, fresh: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of runs to be made, with numbers that no run ever had, since people write them down.

    PostgreSQL's sequence gives none twice. SQLite would give the highest again once its run is
    removed, so `remove` writes the highest that ever was into the header of the file.
    """
    if connection.dialect.name != "sqlite":
        return list(fresh)
    return [{**row, "id": number} for number, row in enumerate(fresh, _highest(connection) + 1)]


def _highest(connection: Connection) -> int:
    """The highest number that a run in this file has had."""
    held = connection.execute(select(func.max(runs.c.id))).scalar() or 0
    return max(held, connection.execute(text("PRAGMA user_version")).scalar_one())


def remove(connection: Connection, ids: Sequence[int]) -> None:
    """Delete all rows of these runs. Raises StudyError where a process may be running one."""
    query = select(runs).where(runs.c.id.in_(ids)).order_by(runs.c.id).with_for_update()
    for row in connection.execute(query).all():
        _check_is_idle(row)
    if connection.dialect.name == "sqlite":  # undone with the transaction, as all else
        connection.execute(text(f"PRAGMA user_version = {_highest(connection)}"))
    for table in (curve, probes, gates):
        connection.execute(delete(table).where(table.c.run_id.in_(ids)))
    connection.execute(delete(runs).where(runs.c.id.in_(ids)))


def _check_is_idle(row: Row) -> None:
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
