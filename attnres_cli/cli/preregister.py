"""`attnres report --preregister FILE`: fix a comparison before its first run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnres_cli.config.recipe import Recipe


def keep(path: str, study: str) -> None:
    """Write what the file says into the study, which is made if it is not there.

    Raises:
        RecipeError: the file, or its recipe, cannot be meant.
        VariantError: an arm cannot.
        StudyError: the study holds runs of the recipe, or another preregistration of it.

    """
    from attnres_cli.records.preregister import read
    from attnres_cli.store.store import Store

    found, recipe = read(path, _canonical)
    Store.open(study, create=True).register(found, recipe)
    sys.stdout.write(
        f"preregistered {found.digest}: {len(found.arms)} arms x {len(found.seeds)} seeds under "
        f"recipe {recipe.name} ({recipe.digest}) in study {study}; reports label all else as "
        "exploratory\n"
    )


def _canonical(spec: str, recipe: Recipe) -> str:
    import torch

    from attnres_cli.nn.variant import parse

    typed, depth = parse(spec), 2 * recipe.model.n_layers
    with torch.device("meta"):
        typed.build(recipe.model.d_model, depth)
    return str(typed.at_depth(depth))
