"""Bring all that other studies hold into one, in one transaction: whole, or not at all.

A run is known by its identity. Where both studies have it, the one that has ended stands; if both
have, the one that is here, where the other's result is equal or was computed by other means (a
device, a number of threads or a torch that rounds otherwise). Else one of the two is wrong, and
nothing is merged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, update

from attnres_cli.config.as_typed import searched_name
from attnres_cli.errors import StudyError
from attnres_cli.records.merged import Fate, Merged
from attnres_cli.records.run import ENDED, Status
from attnres_cli.store import tables
from attnres_cli.store.holding import OF_RUNS, Holding, Row, holding
from attnres_cli.store.planner import highest
from attnres_cli.store.tables import (
    IDENTITY,
    items,
    recipes,
    registrations,
    removed,
    runs,
    until_decided,
)

_MEANS = ("device", "device_name", "precision", "compiled", "threads", "way")
_MOST_TOLD = 5


def merge(connection: Connection, part: Holding) -> list[Merged]:
    """Write what that study holds and this one does not; what became of each of its runs. Raises
    StudyError where a result or a preregistration is not what is here, or a run here that would be
    replaced is running.
    """
    here = holding(connection, "")
    keyed = (recipes, tables.data, tables.arm_recipes, tables.step_ratios, tables.asked)
    for table in (*keyed, tables.evaluated):
        _add(connection, table, table.primary_key.columns.keys(), part, here)
    _grow(connection, part, here)
    _rename(connection, part, here)
    _register(connection, part, here)
    _add(connection, removed, (*IDENTITY, "removed_at"), part, here, without=("id",))
    by_identity = {_identity(row): row for row in here.tables[runs.name]}
    pairs = [(row, by_identity.get(_identity(row))) for row in part.tables[runs.name]]
    fates = [(row, held, _fate(row, held, part, here)) for row, held in pairs]
    wrong = [
        f"{held['origin'] or 'run ' + str(held['id'])} and {part.study} run {row['id']} are one "
        f"run with two results, {_loss(held)} and {_loss(row)}"
        for row, held, fate in fates
        if fate is None and held is not None
    ]
    if wrong:
        more = f"; and {len(wrong) - _MOST_TOLD} more" if len(wrong) > _MOST_TOLD else ""
        raise StudyError(
            f"nothing is merged: {'; '.join(wrong[:_MOST_TOLD])}{more}. `attnres verify` tells "
            "which is right, `attnres runs rm` removes the other"
        )
    for row, held, fate in fates:
        if held is not None and fate is Fate.EQUAL:
            _answer(connection, part, row["id"], here, held["id"])
    return [_take(connection, part, row, held, fate) for row, held, fate in fates if fate]


def _fate(row: Row, held: Row | None, part: Holding, here: Holding) -> Fate | None:
    """None where one of two results must be wrong."""
    if held is None:
        return Fate.RUNNING if row["status"] == Status.RUNNING else Fate.ADDED
    if not _has_ended(row):
        return Fate.UNFINISHED
    if held["status"] == Status.RUNNING:
        raise StudyError(
            f"nothing is merged: run {held['id']}, which has ended in {part.study}, is running "
            "here: stop that first"
        )
    if not _has_ended(held):
        return Fate.REPLACED
    weights = {held["weights_sha256"], row["weights_sha256"]}
    if None in weights:  # of a run that went on from a shorter one, curves have points elsewhere
        is_same = here.curve(held["id"]) == part.curve(row["id"])
    else:
        is_same = len(weights) == 1
    if is_same and _loss(held) == _loss(row):
        return Fate.EQUAL
    return Fate.OTHER_MEANS if _means(row) != _means(held) else None


def _take(connection: Connection, part: Holding, row: Row, held: Row | None, fate: Fate) -> Merged:
    """Write a run where it says more than what is here; its tags are added in any case."""
    there, origin = row["id"], {"origin": row["origin"] or f"{part.study} run {row['id']}"}
    if fate is Fate.RUNNING:
        return Merged(there, None, fate)
    if held is None:
        number = _insert(connection, {**row, **origin})
    else:
        number = held["id"]
        said = {
            "note": held["note"] or row["note"],
            "tags": sorted({*(held["tags"] or ()), *(row["tags"] or ())}) or None,
        }
        first = min(row["created_at"], held["created_at"])  # as long as one of both is planned
        whole = {**row, **origin, "id": number, "created_at": first}
        values = {**whole, **said} if fate is Fate.REPLACED else said
        connection.execute(update(runs).where(runs.c.id == number).values(values))
    if fate in (Fate.ADDED, Fate.REPLACED):
        for table in OF_RUNS:
            connection.execute(delete(table).where(table.c.run_id == number))
            found = [{**each, "run_id": number} for each in part.of_runs[table.name].get(there, ())]
            if found:
                connection.execute(insert(table), found)
    return Merged(there, number, fate)


def _answer(connection: Connection, part: Holding, there: int, here: Holding, number: int) -> None:
    """Write what a run that is equal in both studies answered to items of tasks there alone."""
    held = {row["task"] for row in here.of_runs[items.name].get(number, ())}
    found = part.of_runs[items.name].get(there, ())
    fresh = [{**row, "run_id": number} for row in found if row["task"] not in held]
    if fresh:
        connection.execute(insert(items), fresh)


def _insert(connection: Connection, row: Row) -> int:
    """Write a run under a number that no run here has had."""
    values = {name: value for name, value in row.items() if name != "id"}
    if connection.dialect.name == "sqlite":
        values["id"] = highest(connection) + 1
    return int(connection.execute(insert(runs).values(values).returning(runs.c.id)).scalar_one())


def _add(
    connection: Connection,
    table: Table,
    key: Collection[str],
    part: Holding,
    here: Holding,
    without: Collection[str] = (),
) -> None:
    """Write the rows whose key is not here."""
    held = {tuple(row[name] for name in key) for row in here.tables[table.name]}
    fresh = [
        {name: value for name, value in row.items() if name not in without}
        for row in part.tables[table.name]
        if tuple(row[name] for name in key) not in held
    ]
    if fresh:
        connection.execute(insert(table), fresh)


def _rename(connection: Connection, part: Holding, here: Holding) -> None:
    """What only a search has tried here, and was trained for its own sake there, has that name."""
    names = {row["digest"]: row["name"] for row in here.tables[recipes.name]}
    for row in part.tables[recipes.name]:
        if names.get(row["digest"]) == searched_name(row["name"]):
            mine = recipes.c.digest == row["digest"]
            connection.execute(update(recipes).where(mine).values(name=row["name"]))


def _register(connection: Connection, part: Holding, here: Holding) -> None:
    """Write the preregistrations that are not here. Raises StudyError where another is."""
    held = {row["recipe_digest"]: row["digest"] for row in here.tables[registrations.name]}
    planned = {run["recipe_digest"]: run["created_at"] for run in reversed(_runs_of(here))}
    for row in part.tables[registrations.name]:
        recipe = row["recipe_digest"]
        if recipe not in held and planned.get(recipe, row["made_at"]) < row["made_at"]:
            raise StudyError(
                f"nothing is merged: recipe {recipe} was preregistered in {part.study} after runs "
                "of it were planned here"
            )
        if held.get(recipe, row["digest"]) != row["digest"]:
            raise StudyError(
                f"nothing is merged: recipe {recipe} is preregistered as {row['digest']} in "
                f"{part.study}, as {held[recipe]} here: what is fixed stays"
            )
    _add(connection, registrations, ["recipe_digest"], part, here)


def _grow(connection: Connection, part: Holding, here: Holding) -> None:
    """Write how far tables grow that are not here. Raises StudyError where one grows otherwise."""
    table, (*key, _) = until_decided, until_decided.c.keys()
    held = {tuple(row[name] for name in key): row["most"] for row in here.tables[table.name]}
    for row in part.tables[table.name]:
        mine = tuple(row[name] for name in key)
        of = (row["recipe_digest"], row["fingerprint"])
        arms = [r for r in _runs_of(here) if (r["recipe_digest"], r["fingerprint"]) == of]
        if mine not in held and any(run["variant"] != row["baseline"] for run in arms):
            raise StudyError(
                f"nothing is merged: recipe {row['recipe_digest']} is trained until decided in "
                f"{part.study}, and was planned otherwise here"
            )
        if held.get(mine, row["most"]) != row["most"]:
            raise StudyError(
                f"nothing is merged: recipe {row['recipe_digest']} is trained until decided with "
                f"--most {row['most']} in {part.study}, {held[mine]} here: what is fixed stays"
            )
    _add(connection, table, key, part, here)


def _runs_of(here: Holding) -> list[Row]:
    """Runs that are or were there, in the order in which they were planned."""
    every = [*here.tables[runs.name], *here.tables[removed.name]]
    return sorted(every, key=lambda run: run["created_at"])


def _identity(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in IDENTITY)


def _has_ended(row: Row) -> bool:
    return row["status"] in ENDED


def _loss(row: Row) -> str:
    return row["status"] if row["val_loss"] is None else repr(row["val_loss"])


def _means(row: Row) -> tuple[Any, ...]:
    """What decides how numbers are rounded."""
    return (*(row[name] for name in _MEANS), row["versions"])
