"""Studies of an older schema: opened to be written to they become of this one, to be read they stay
as they are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, Table, null, select, text, update

from attnres_cli.store.tables import (
    SCHEMA,
    asked,
    data,
    evaluated,
    items,
    metadata,
    schema,
    step_ratios,
    until_decided,
)

_NEWER = (items, step_ratios, until_decided, asked, evaluated)
BEFORE = {
    "0008": _NEWER,
    "0009": _NEWER[1:],
    "0010": _NEWER[2:],
    "0011": _NEWER[4:],
    "0012": (),
}
"""The tables that older schemas lack: what runs answered to items, ratios of step times, how many
seeds a table grows to, tables that were asked for, bytes of what is evaluated. All of them lack
where data lie too.
"""

PLACES = ("path", "val_path")  # columns of data

_OPTION = "attnres_schema"  # of an engine, where the study it reads is not of SCHEMA


def tables_of(version: str) -> set[str] | None:
    """The names of a schema's tables; None of one that is not known here."""
    lacking = {SCHEMA: (), **BEFORE}
    if version not in lacking:
        return None
    return metadata.tables.keys() - {table.name for table in lacking[version]}


def reading(version: str) -> dict[str, str]:
    """The options of an engine that only reads a study of that schema."""
    return {} if version == SCHEMA else {_OPTION: version}


def is_current(connection: Connection) -> bool:
    """Whether a study is of SCHEMA, so that writing to it changes no table of it."""
    return _OPTION not in connection.get_execution_options()


def lacks(connection: Connection, table: Table) -> bool:
    """Whether this only reads a study that does not have the table yet."""
    held = tables_of(connection.get_execution_options().get(_OPTION, SCHEMA))
    return held is not None and table.name not in held


def rows_of(connection: Connection, table: Table) -> Select[Any]:
    """All columns of all rows; null is where data lie if a study has no such columns."""
    if table is not data or is_current(connection):
        return select(table)
    return select(*(null().label(c.name) if c.name in PLACES else c for c in data.c))


def upgrade(connection: Connection, version: str) -> None:
    """Make a study of one of BEFORE one of SCHEMA, in the transaction that is under way."""
    for table in BEFORE[version]:
        table.create(connection)
    for column in PLACES:
        connection.execute(text(f"ALTER TABLE attnres_data ADD COLUMN {column} TEXT"))
    connection.execute(update(schema).values(version_num=SCHEMA))
