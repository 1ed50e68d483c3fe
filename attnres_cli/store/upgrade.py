"""Studies of an older schema: opened to be written to they become of this one, to be read they stay
as they are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Table,
    bindparam,
    inspect,
    literal,
    null,
    select,
    text,
    update,
)

from attnres_cli.records.code import Code
from attnres_cli.store.tables import (
    SCHEMA,
    asked,
    data,
    evaluated,
    items,
    metadata,
    removed,
    runs,
    schema,
    step_ratios,
    until_decided,
)

OLDER = "0007"
"""Its runs do not say their code in a column, and are not told when removed. Its reference lines
are of tables fitted to the very tokens they were held against: they are dropped.
"""

_NEWER = (items, step_ratios, until_decided, asked, evaluated)
BEFORE = {"0008": _NEWER, "0009": _NEWER[1:], "0010": _NEWER[2:], "0011": _NEWER[4:]}
"""Schemas that lack whole tables alone: what runs answered to items, ratios of step times, how many
seeds a table grows to, tables that were asked for, bytes of what is evaluated.
"""

_NEW = {
    runs.name: {"code", "weights_sha256", "note", "tags", "origin", "way"},
    data.name: {"unigram_loss", "bigram_loss", "split"},
}
"""Columns that OLDER does not have, by table."""

_OPTION = "attnres_schema"  # of an engine, where the study it reads is not of SCHEMA


def tables_of(version: str) -> set[str] | None:
    """The names of a schema's tables; None of one that is not known here."""
    lacking = {OLDER: (removed, *_NEWER), SCHEMA: (), **BEFORE}
    if version not in lacking:
        return None
    return metadata.tables.keys() - {table.name for table in lacking[version]}


def reading(version: str) -> dict[str, str]:
    """The options of an engine that only reads a study of that schema."""
    return {} if version == SCHEMA else {_OPTION: version}


def is_older(connection: Connection) -> bool:
    """Whether this only reads a study of OLDER."""
    return connection.get_execution_options().get(_OPTION) == OLDER


def is_current(connection: Connection) -> bool:
    """Whether a study is of SCHEMA, so that writing to it changes no table of it."""
    return _OPTION not in connection.get_execution_options()


def lacks(connection: Connection, table: Table) -> bool:
    """Whether this only reads a study that does not have the table yet."""
    held = tables_of(connection.get_execution_options().get(_OPTION, SCHEMA))
    return held is not None and table.name not in held


def rows_of(connection: Connection, table: Table) -> Select[Any]:
    """All columns of all rows; null, or empty, are those that a study does not have."""
    missing = _NEW[table.name] if is_older(connection) else set()
    none = {c.name: null() if c.nullable else literal("") for c in table.c}
    return select(*(none[c.name].label(c.name) if c.name in missing else c for c in table.c))


def upgrade(connection: Connection) -> None:
    """Make a study of OLDER, or of one of BEFORE, one of SCHEMA, in the transaction that is under
    way. In SQLite, foreign keys must not be enforced in it: a table with them is made anew.
    """
    version = connection.execute(select(schema.c.version_num)).scalar_one()
    if version == OLDER:
        _upgrade_older(connection)
    for table in BEFORE.get(version, _NEWER):
        table.create(connection)
    connection.execute(update(schema).values(version_num=SCHEMA))


def _upgrade_older(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        _make_anew(connection, runs, code="''")
        _make_anew(connection, data)
    else:
        code = "ADD COLUMN code VARCHAR(12) NOT NULL DEFAULT ''"
        names = ("note TEXT", "tags JSON", "origin TEXT", "way TEXT")
        add = f"ALTER TABLE attnres_runs {code}, " + ", ".join(f"ADD COLUMN {n}" for n in names)
        unique = "UNIQUE (recipe_digest, variant, seed, fingerprint, code)"
        lines = ", ".join(
            f"DROP COLUMN {n}_entropy, ADD COLUMN {n}_loss FLOAT" for n in ("unigram", "bigram")
        )
        for statement in (
            add,
            "ALTER TABLE attnres_runs ADD COLUMN weights_sha256 VARCHAR(64)",
            f"ALTER TABLE attnres_data {lines}, ADD COLUMN split TEXT",
            "ALTER TABLE attnres_runs ALTER COLUMN code DROP DEFAULT",
            "ALTER TABLE attnres_runs DROP CONSTRAINT attnres_one_run",
            f"ALTER TABLE attnres_runs ADD CONSTRAINT attnres_one_run {unique}",
        ):
            connection.execute(text(statement))
    removed.create(connection)
    known = [
        {"run": row.id, "found": Code.of(row.versions or {}).digest}
        for row in connection.execute(select(runs.c.id, runs.c.versions)).all()
    ]
    if known:
        mine = update(runs).where(runs.c.id == bindparam("run"))
        connection.execute(mine.values(code=bindparam("found")), known)


def _make_anew(connection: Connection, table: Table, **added: str) -> None:
    """The table with its rows as it is now: SQLite changes no constraint of one that is there.
    Columns that are new have the values `added`, in SQL, or are null; others are dropped.
    """
    old = f"{table.name}_{OLDER}"
    connection.execute(text("PRAGMA legacy_alter_table = ON"))  # others go on to refer to its name
    connection.execute(text(f"ALTER TABLE {table.name} RENAME TO {old}"))
    for index in inspect(connection).get_indexes(old):
        connection.execute(text(f"DROP INDEX {index['name']}"))
    table.create(connection)
    before = {column["name"] for column in inspect(connection).get_columns(old)}
    values = {name: name for name in before if name in table.c} | added
    into, of = ", ".join(values), ", ".join(values.values())
    moved = f"INSERT INTO {table.name} ({into}) SELECT {of} FROM {old}"  # noqa: S608
    connection.execute(text(moved))
    connection.execute(text(f"DROP TABLE {old}"))
