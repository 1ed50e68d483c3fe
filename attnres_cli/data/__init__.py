"""Where tokens come from: one file per source; `load` is the only door."""

from __future__ import annotations

from pathlib import Path

from attnres_cli.data import stdlib, text
from attnres_cli.data.tokens import Tokens, entropies, split
from attnres_cli.recipe import Recipe

__all__ = ["Tokens", "entropies", "load"]


def load(recipe: Recipe) -> Tokens:
    """The tokens that a recipe names, checked to be long enough for it.

    Raises:
        DataError: missing, empty, or shorter than the recipe needs.

    """
    config = recipe.data
    if config.source == "stdlib":
        found = stdlib.documents()
    else:
        found = text.documents(Path(config.path).expanduser() if config.path is not None else None)
    tokens = split(config.source, found, config.val_fraction)
    tokens.check(recipe.model.seq_len, recipe.train.eval_tokens)
    return tokens
