"""What a plan puts into a study: recipes, data, runs and preregistrations that are not there yet.

Only a transaction that is alone calls these: what is not there stays so until it is put there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, Table, insert, select, update

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.plan import Plan
from attnres_cli.records.preregister import Registration
from attnres_cli.records.run import DataDescription, RunSpec
from attnres_cli.records.search_records import is_searched, searched_name
from attnres_cli.store import claims, rows, tables
from attnres_cli.store.tables import recipes, runs


def keep(connection: Connection, table: Table, row: Mapping[str, object]) -> None:
    """Put a row there unless its primary key, one column, is."""
    (key,) = table.primary_key
    held = connection.execute(select(key).where(key == row[key.name])).first()
    if held is None:
        connection.execute(insert(table).values(**row))


def keep_data(connection: Connection, facts: DataDescription) -> None:
    """The data."""
    keep(connection, tables.data, asdict(facts))


def keep_recipe(connection: Connection, recipe: Recipe) -> None:
    """A recipe, resolved."""
    resolved = recipe.model_dump(mode="json")
    row = {"digest": recipe.digest, "name": recipe.name, "resolved": resolved}
    keep(connection, recipes, row)


def run_ids(connection: Connection, specs: Sequence[RunSpec]) -> list[int]:
    """The numbers of the runs of these specs, which are made where there are none."""
    for recipe in {spec.recipe.digest: spec.recipe for spec in specs}.values():
        keep_recipe(connection, recipe)
        if not is_searched(recipe.name):  # what a search tried is now trained for its own sake
            mine = (recipes.c.digest == recipe.digest, recipes.c.name == searched_name(recipe.name))
            connection.execute(update(recipes).where(*mine).values(name=recipe.name))
    held = _held(connection, {spec.recipe.digest for spec in specs})
    asked = {tuple(identity.values()): identity for identity in map(rows.of_spec, specs)}
    fresh = {"attempts": 0, "created_at": claims.now(), **rows.WAITING}
    missing = [identity | fresh for key, identity in asked.items() if key not in held]
    if missing:
        connection.execute(insert(runs), claims.numbered(connection, missing))
        held = _held(connection, {spec.recipe.digest for spec in specs})
    return [held[tuple(rows.of_spec(spec).values())] for spec in specs]


def _held(connection: Connection, digests: set[str]) -> dict[tuple[object, ...], int]:
    """Runs of these recipes: number by identity."""
    identity = (runs.c.recipe_digest, runs.c.variant, runs.c.seed, runs.c.fingerprint)
    query = select(*identity, runs.c.id).where(runs.c.recipe_digest.in_(digests))
    return {tuple(row[:-1]): row.id for row in connection.execute(query)}


def keep_arm_recipes(connection: Connection, plan: Plan, facts: DataDescription) -> list[ArmRecipe]:
    """Write down the recipes that arms of a plan have of their own; what then stands."""
    keep_data(connection, facts)
    for recipe in (plan.recipe, *(plan.recipe_of(arm) for arm in plan.arms)):
        keep_recipe(connection, recipe)
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


def register(connection: Connection, found: Registration, recipe: Recipe) -> None:
    """Fix what a comparison under this recipe will be (see `Store.register`)."""
    of = tables.registrations
    keep_recipe(connection, recipe)
    query = select(of.c.digest).where(of.c.recipe_digest == recipe.digest)
    held = connection.execute(query).scalar()
    if held == found.digest:
        return
    if held is not None:
        raise StudyError(
            f"recipe {recipe.name} ({recipe.digest}) is preregistered already, as {held}: "
            "what is fixed stays; take another --study"
        )
    mine = runs.c.recipe_digest == recipe.digest
    if connection.execute(select(runs.c.id).where(mine)).first() is not None:
        raise StudyError(
            f"the study holds runs of recipe {recipe.name} ({recipe.digest}): only what "
            "has no runs can be preregistered; take another --study"
        )
    row = {"recipe_digest": recipe.digest, "digest": found.digest, "made_at": claims.now()}
    connection.execute(insert(of).values(**row, document=asdict(found)))
