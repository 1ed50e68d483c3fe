"""All rows of a study, for another one to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table

from attnres_cli.records.run import Status
from attnres_cli.store import owner, rows, tables, upgrade
from attnres_cli.store.tables import recipes, registrations, removed, runs

Row = Mapping[str, Any]

OF_RUNS = (tables.curve, tables.gates, tables.probes, tables.items)


@dataclass(frozen=True)
class Holding:
    """The rows of one study by table; those of OF_RUNS by table and run."""

    study: str
    tables: Mapping[str, Sequence[Row]]
    of_runs: Mapping[str, Mapping[int, Sequence[Row]]]

    def curve(self, run_id: int) -> list[tuple[Any, ...]]:
        """The points of a run, as they compare."""
        points = self.of_runs[tables.curve.name].get(run_id, ())
        return sorted((row["step"], row["train_loss"], row["val_loss"]) for row in points)


def holding(connection: Connection, study: str) -> Holding:
    """All that a study holds, at one moment. Raises ValueError for a value that is none of ours."""

    def of(table: Table) -> Sequence[Row]:
        if upgrade.lacks(connection, table):
            return []
        query = upgrade.rows_of(connection, table)
        found = connection.execute(query.order_by(*table.primary_key)).all()
        names = table.c.keys()
        read = [rows.sound(table, dict(zip(names, row, strict=True))) for row in found]
        return (
            [{**a, **_now(b)} for a, b in zip(read, found, strict=True)] if table is runs else read
        )

    of_runs: dict[str, dict[int, list[Row]]] = {}
    for table in OF_RUNS:
        found = of_runs[table.name] = defaultdict(list)
        for row in of(table):
            found[row["run_id"]].append(row)
    whole = [recipes, tables.data, runs, removed, registrations]
    whole += [tables.arm_recipes, tables.step_ratios, tables.until_decided]
    whole += [tables.asked, tables.evaluated]
    return Holding(study, {table.name: of(table) for table in whole}, of_runs)


def _now(row: rows.Row) -> Row:
    """What a row of a run does not say: its code in an older schema, and that its process is gone,
    so that it waits.
    """
    code = {"code": rows.code_of(row)}
    is_gone = row.status == Status.RUNNING and owner.is_alive(row.owner) is False
    return {**code, **rows.WAITING, "attempts": 0} if is_gone else code
