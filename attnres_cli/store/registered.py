"""Preregistrations in a study, inside a transaction: fixed once, and read as they were written."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, insert, select

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.preregister import Registration, of_document
from attnres_cli.store import claims, planned, rows, tables
from attnres_cli.store.tables import recipes, runs


def register(connection: Connection, found: Registration, recipe: Recipe) -> None:
    """Fix what a comparison under this recipe will be. The same once more changes nothing.

    Raises:
        StudyError: the study holds runs of the recipe, or another preregistration of it.

    """
    of = tables.registrations
    planned.insert_missing(connection, recipes, rows.of_recipe(recipe))
    held = connection.execute(
        select(of.c.digest).where(of.c.recipe_digest == recipe.digest)
    ).scalar()
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
    row = {"recipe_digest": recipe.digest, "digest": found.digest}
    document = asdict(found)
    connection.execute(insert(of).values(**row, made_at=claims.now(), document=document))


def registrations(connection: Connection) -> list[Registration]:
    """All preregistrations of the study.

    Raises:
        StudyError: one has been changed since.

    """
    held = connection.execute(select(tables.registrations)).all()
    found = [of_document(row.document) for row in held]
    for row, one in zip(held, found, strict=True):
        if (row.digest, row.recipe_digest) != (one.digest, one.recipe_digest):
            raise StudyError(
                f"preregistration {row.digest} is not what was written: restore a copy of the study"
            )
    return found
