"""What tests train on: recipes with changes, and texts as tokens."""

from __future__ import annotations

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.data.documents import Document, parts
from attnres_cli.data.tokens import Streams, of_bytes


def changed(recipe: Recipe, **sections: dict) -> Recipe:
    values = recipe.model_dump()
    for section, changes in sections.items():
        values[section] |= changes
    return validate(values, "test")


def split(source: str, documents: list[Document], val_fraction: float) -> Streams:
    return of_bytes(source, *parts(documents, val_fraction))
