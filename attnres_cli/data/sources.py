"""Where tokens come from: one file per source; `load` is the only door."""

from __future__ import annotations

from pathlib import Path

from attnres_cli.config.recipe import Data, Recipe
from attnres_cli.data import documents, huggingface, synthetic, tokenfiles, tokenizers
from attnres_cli.data.documents import by_path, parts
from attnres_cli.data.tokens import Streams, Tokens
from attnres_cli.errors import DataError
from attnres_cli.files import path_of


def load(recipe: Recipe) -> Tokens:
    """The tokens that a recipe names; DataError where they cannot be read, or do not suffice."""
    config = recipe.data
    if config.source in synthetic.TASKS:
        return synthetic.episodes(config, recipe.model.seq_len, recipe.train.eval_tokens)
    tokens = tokenfiles.load(config) if config.source in tokenfiles.FORMATS else _texts(config)
    tokens.check(recipe.model.seq_len, recipe.train.eval_tokens)
    return tokens


def _texts(config: Data) -> Streams:
    """Documents, split whole, as bytes or by the tokenizer."""
    path, val_path = config.path, config.val_path
    if config.source == "huggingface":
        train, val = huggingface.documents(config)
    elif config.source == "stdlib":
        train, val = documents.standard_library(), None
    elif val_path is None:
        train, val = documents.of_path(path), None
    else:
        train, val = documents.of_path(path), documents.of_path(val_path, "data.val_path")
        _refuse_nested(path_of(str(path), "data.path"), path_of(val_path, "data.val_path"))
    halves = parts(train, config.val_fraction) if val is None else (by_path(train), by_path(val))
    return tokenizers.streams(config.source, *halves, config.tokenizer)


def _refuse_nested(path: Path, val_path: Path) -> None:
    """Raise DataError where a file below one of them lies below the other too."""
    one, other = path.resolve(), val_path.resolve()
    if one.is_relative_to(other) or other.is_relative_to(one):
        raise DataError(
            f"data.path {path} and data.val_path {val_path} share files: validation on what was "
            "trained on says nothing; move the validation text beside, not below"
        )
