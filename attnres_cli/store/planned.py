"""What a plan puts into a study: recipes, data and runs that are not there yet.

Only a transaction that is alone calls these: what is not there stays so until it is put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Table, insert, select, update

from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import DataDescription, RunSpec
from attnres_cli.records.search_records import is_searched, searched_name
from attnres_cli.store import claims, numbers, rows, tables
from attnres_cli.store.tables import data, recipes, runs


def insert_missing(connection: Connection, table: Table, row: Mapping[str, object]) -> None:
    """Put a row there unless its primary key, one column, is."""
    (key,) = table.primary_key
    held = connection.execute(select(key).where(key == row[key.name])).first()
    if held is None:
        connection.execute(insert(table).values(**row))


def keep_data(connection: Connection, facts: DataDescription) -> None:
    """The data as a row, with what an older attnres did not find out about them."""
    row = rows.of_data(facts)
    insert_missing(connection, data, row)
    lines = {name: row[name] for name in rows.LINES if row[name] is not None}
    if lines:
        this = data.c.fingerprint == facts.fingerprint
        connection.execute(update(data).where(this).values(**lines))


def run_ids(connection: Connection, specs: Sequence[RunSpec]) -> list[int]:
    """The numbers of the runs of these specs, which are made where there are none."""
    for recipe in {spec.recipe.digest: spec.recipe for spec in specs}.values():
        insert_missing(connection, recipes, rows.of_recipe(recipe))
        if not is_searched(recipe.name):  # what a search tried is now trained for its own sake
            mine = (recipes.c.digest == recipe.digest, recipes.c.name == searched_name(recipe.name))
            connection.execute(update(recipes).where(*mine).values(name=recipe.name))
    wanted = {tuple(identity.values()): identity for identity in map(rows.of_spec, specs)}
    held = _held(connection, {spec.recipe.digest for spec in specs})
    fresh = {"attempts": 0, "created_at": claims.now(), **rows.WAITING}
    missing = [identity | fresh for key, identity in wanted.items() if key not in held]
    if missing:
        connection.execute(insert(runs), numbers.numbered(connection, missing))
        held = _held(connection, {spec.recipe.digest for spec in specs})
    return [held[tuple(rows.of_spec(spec).values())] for spec in specs]


def keep_arm_recipes(connection: Connection, plan: Plan, facts: DataDescription) -> list[ArmRecipe]:
    """Write down the recipes that arms of a plan have of their own; what then stands.

    What follows from the recipe and from runs of the study is written anew. What was matched by
    time stays as it was first measured.
    """
    insert_missing(connection, data, rows.of_data(facts))
    for recipe in (plan.recipe, *(plan.recipe_of(arm) for arm in plan.arms)):
        insert_missing(connection, recipes, rows.of_recipe(recipe))
    of, kept = tables.arm_recipes, []
    for found in plan.arm_recipes:
        row = rows.of_arm_recipe(found)
        same = [of.c[column.name] == row[column.name] for column in of.primary_key]
        held = connection.execute(select(of).where(*same)).first()
        if held is None:
            connection.execute(insert(of).values(row))
        elif found.terms.match != "time" or found.terms.is_tuned:
            connection.execute(update(of).where(*same).values(row))
        else:
            found = rows.to_arm_recipe(held)
        kept.append(found)
    return kept


def _held(connection: Connection, digests: set[str]) -> dict[tuple[object, ...], int]:
    """Runs of these recipes: number by identity."""
    identity = (runs.c.recipe_digest, runs.c.variant, runs.c.seed, runs.c.fingerprint)
    query = select(*identity, runs.c.id).where(runs.c.recipe_digest.in_(digests))
    return {tuple(row[:-1]): row.id for row in connection.execute(query)}
