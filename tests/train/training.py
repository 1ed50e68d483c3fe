"""How tests train: settings, recipes with changes, nobody who listens."""

from __future__ import annotations

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.records.run import Settings

SETTINGS = Settings("cpu", "test", "fp32", compiled=False, threads=1, engine="eager")


def changed(recipe: Recipe, **sections: dict) -> Recipe:
    """The recipe with some keys of its sections changed."""
    values = recipe.model_dump()
    for section, changes in sections.items():
        values[section] |= changes
    return validate(values, "test")


def quiet(step: int, loss: float | None) -> None:
    """Nobody listens."""
