"""Numbers of runs. One names a run for ever: commands hold it for hours, people write it down.

PostgreSQL's sequence gives no number twice. SQLite would give the highest again once its run is
removed, so the highest that ever was stands in the header of the file, in PRAGMA user_version,
which is written and undone with the transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, func, select, text

from attnres_cli.store.tables import runs


def numbered(
    connection: Connection, fresh: Sequence[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """Rows of runs to be made, with numbers where the database does not see to that."""
    if connection.dialect.name != "sqlite":
        return list(fresh)
    return [{**row, "id": number} for number, row in enumerate(fresh, _highest(connection) + 1)]


def retire(connection: Connection) -> None:
    """Let no run have again the numbers that there are; before some of them are removed."""
    if connection.dialect.name == "sqlite":
        connection.execute(text(f"PRAGMA user_version = {_highest(connection)}"))


def _highest(connection: Connection) -> int:
    """The highest number that a run has had."""
    held = connection.execute(select(func.max(runs.c.id))).scalar() or 0
    return max(held, connection.execute(text("PRAGMA user_version")).scalar_one())
