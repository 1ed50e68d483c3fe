"""What is read from a study, inside a transaction: rows in, frozen dataclasses out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, String, column, inspect, select, table

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.run import DataDescription, Gate, Point, Probe, RunRecord
from attnres_cli.store import rows, tables
from attnres_cli.store.tables import curve, data, recipes, runs


def records(
    connection: Connection, *wanted: ColumnElement[bool], curves: bool = True
) -> list[RunRecord]:
    """The runs that are all of this, with gates, and curves if they are asked for, by number."""
    query = select(runs, recipes.c.name.label("recipe")).join(recipes).where(*wanted)
    losses = select(curve.c.run_id, curve.c.step, curve.c.train_loss, curve.c.val_loss)
    losses = losses.join(runs).where(*wanted).order_by(curve.c.run_id, curve.c.step)
    found = connection.execute(query.order_by(runs.c.id)).all()
    of_curve: dict[int, list[Point]] = defaultdict(list)
    for run_id, *losses_at in connection.execute(losses).all() if curves else []:
        of_curve[run_id].append(Point(*losses_at))
    of_run: dict[int, list[Gate]] = defaultdict(list)
    for gate in connection.execute(select(tables.gates).join(runs).where(*wanted)):
        of_run[gate.run_id].append(rows.to_gate(gate))
    return [rows.to_record(row, of_curve[row.id], of_run[row.id]) for row in found]


def probes(connection: Connection, ids: Sequence[int]) -> dict[int, tuple[Probe, ...]]:
    """What was measured inside the models of these runs, in the order of steps."""
    of = tables.probes
    query = select(of).where(of.c.run_id.in_(ids)).order_by(of.c.step)
    found: dict[int, dict[int, list[rows.Row]]] = {run_id: defaultdict(list) for run_id in ids}
    for row in connection.execute(query):
        found[row.run_id][row.step].append(row)
    return {
        run_id: tuple(rows.to_probe(step, measured) for step, measured in steps.items())
        for run_id, steps in found.items()
    }


def facts(connection: Connection, fingerprint: str) -> DataDescription:
    """What is known of the data with that fingerprint."""
    query = select(data).where(data.c.fingerprint == fingerprint)
    return DataDescription(**connection.execute(query).mappings().one())


def recipe(connection: Connection, digest: str) -> Recipe:
    """The resolved recipe of that digest."""
    query = select(recipes.c.resolved).where(recipes.c.digest == digest)
    return Recipe.model_validate(connection.execute(query).scalar_one())


def arm_recipes(
    connection: Connection, base_digest: str | None, fingerprint: str | None
) -> list[ArmRecipe]:
    """The recipes of single arms, all of the study's or those derived from one recipe."""
    of = tables.arm_recipes
    query = select(of).order_by(of.c.matched, of.c.baseline, of.c.tuned, of.c.variant)
    if base_digest is not None:
        query = query.where(of.c.base_digest == base_digest, of.c.fingerprint == fingerprint)
    return [rows.to_arm_recipe(row) for row in connection.execute(query)]


def has_searches(connection: Connection) -> bool:
    """Whether Optuna's tables, beside ours, hold a search; Optuna itself is not asked."""
    if not inspect(connection).has_table("studies"):
        return False
    name = column("study_name", String)
    ours = select(name).select_from(table("studies", name)).where(name.startswith("attnres-"))
    return connection.execute(ours.limit(1)).first() is not None
