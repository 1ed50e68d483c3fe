"""What several parts of a store ask, in a transaction that is under way."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, String, column, inspect, select, table

from attnres_cli.records.run import DataDescription, Gate, Point, RunRecord
from attnres_cli.store import rows, tables, upgrade
from attnres_cli.store.tables import curve, data, recipes, runs

ARM_RECIPES = select(tables.arm_recipes, recipes.c.name.label("recipe")).join(
    recipes, recipes.c.digest == tables.arm_recipes.c.base_digest
)


def records(
    connection: Connection, *mine: ColumnElement[bool], curves: bool = True, gates: bool = True
) -> list[RunRecord]:
    """The runs that are all of this, by number, with curves and gates if they are asked for."""
    query = select(runs, recipes.c.name.label("recipe")).join(recipes).where(*mine)
    losses = select(curve.c.run_id, curve.c.step, curve.c.train_loss, curve.c.val_loss)
    losses = losses.join(runs).where(*mine).order_by(curve.c.run_id, curve.c.step)
    found = every(connection, query.order_by(runs.c.id))
    of_curve: dict[int, list[Point]] = defaultdict(list)
    for run_id, *losses_at in connection.execute(losses).all() if curves else []:
        of_curve[run_id].append(rows.to_point(*losses_at))
    of_run: dict[int, list[Gate]] = defaultdict(list)
    met = select(tables.gates).join(runs).where(*mine)
    for gate in every(connection, met) if gates else []:
        of_run[gate.run_id].append(rows.to_gate(gate))
    return [rows.to_record(row, of_curve[row.id], of_run[row.id]) for row in found]


def every(connection: Connection, query: Select[Any]) -> list[Any]:
    """All rows, by names that are read in a twentieth of the time of SQLAlchemy's."""
    result = connection.execute(query)
    row = namedtuple("Row", result.keys())  # type: ignore[misc]
    return [row._make(each) for each in result.all()]


def facts(connection: Connection, fingerprint: str) -> DataDescription:
    """What is known of the data with that fingerprint."""
    query = upgrade.rows_of(connection, data).where(data.c.fingerprint == fingerprint)
    return rows.to_facts(connection.execute(query).one())


def has_searches(connection: Connection) -> bool:
    """Whether Optuna's tables, beside ours, hold a search; Optuna itself is not asked."""
    if not inspect(connection).has_table("studies"):
        return False
    name = column("study_name", String)
    ours = select(name).select_from(table("studies", name)).where(name.startswith("attnres-"))
    return connection.execute(ours.limit(1)).first() is not None
