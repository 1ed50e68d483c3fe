"""What a study was before it is upgraded, kept beside it."""

from __future__ import annotations

import filecmp
import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

from sqlalchemy import Connection, inspect, literal, select, table, text

from attnres_cli.console import say
from attnres_cli.errors import StudyError
from attnres_cli.store.tables import PREFIX, VERSION_TABLE


def keep(connection: Connection, schema: str) -> None:
    """Copy a study that holds anything, before its schema is changed, and say where to.

    Args:
        connection: in a transaction that holds the lock for writing, so that nothing changes
            between the copy and the upgrade, and of two processes one makes it.
        schema: of the study.

    Raises:
        StudyError: the copy cannot be made, as where the disk is full; nothing is left of it.

    """
    if not _holds_rows(connection):
        return
    if connection.dialect.name != "sqlite":
        say(f"the study is upgraded from schema {schema}: a backup of it is its administrator's")
        return
    main = text("SELECT file FROM pragma_database_list WHERE name = 'main'")
    path = Path(str(connection.execute(main).scalar_one()))
    copy = _copied(path, schema)
    say(f"study {path.name} is upgraded from schema {schema}; as it was, it is kept as {copy.name}")


def _holds_rows(connection: Connection) -> bool:
    names = inspect(connection).get_table_names()
    ours = [name for name in names if name.startswith(PREFIX) and name != VERSION_TABLE]
    first = (select(literal(1)).select_from(table(name)).limit(1) for name in ours)
    return any(connection.execute(query).first() is not None for query in first)


def _copied(path: Path, schema: str) -> Path:
    """The copy, whole or not there: `study.schema-0004.db`, or with a number where another copy of
    this name is kept already.
    """
    partial = path.with_name(f".{path.name}.schema-{schema}.partial")
    try:
        partial.unlink(missing_ok=True)  # of a process that was killed
        with (
            closing(sqlite3.connect(path)) as source,
            closing(sqlite3.connect(partial)) as target,
        ):
            source.backup(target)  # what is in the log of the study too
        shutil.copymode(path, partial)
        for number in count(1):
            ending = f".schema-{schema}" + (f"-{number}" if number > 1 else "") + path.suffix
            copy = path.with_name(path.name.removesuffix(path.suffix) + ending)
            if not copy.exists():
                return partial.rename(copy)
            if filecmp.cmp(partial, copy, shallow=False):  # of an upgrade that was killed
                partial.unlink()
                return copy
    except (sqlite3.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        needed = path.stat().st_size / 1e6
        raise StudyError(
            f"study {path.name} is of an older attnres (schema {schema}), and the copy that is "
            f"kept before it is upgraded cannot be made ({error}): {path.parent} takes "
            f"{needed:.1f} MB for it; the study is unchanged"
        ) from error
    raise AssertionError("count has no end")
