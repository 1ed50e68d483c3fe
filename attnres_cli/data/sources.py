"""Where tokens come from: one file per source; `load` is the only door."""

from __future__ import annotations

import json
from dataclasses import replace

from attnres_cli.config.recipe import Data, Recipe
from attnres_cli.data import (
    documents,
    duplicates,
    huggingface,
    overlap,
    separators,
    stdlib,
    synthetic,
    text,
    tokenfiles,
    tokenizers,
)
from attnres_cli.data.documents import Document, by_path, parts
from attnres_cli.data.spool import Row
from attnres_cli.data.tokens import Streams, Tokens

_REMEDY = {
    "stdlib": ", --set data.edition=2",
    **dict.fromkeys(("text", "huggingface"), ", --set data.deduplicate=true"),
}
"""What to do if much of validation stands in training."""

_SHOWN = 60  # characters of what trains


def load(recipe: Recipe) -> Tokens:
    """The tokens that a recipe names; DataError where they cannot be read, or do not suffice."""
    config = recipe.data
    if config.source in synthetic.TASKS:
        return synthetic.episodes(config, recipe.model.seq_len, recipe.train.eval_tokens)
    is_text = config.source not in tokenfiles.FORMATS
    tokens = _texts(config) if is_text else tokenfiles.load(config)
    if config.documents == "isolated":
        tokens = tokens.isolated(separators.of(config))
    tokens.check(recipe.model.seq_len, recipe.train.eval_tokens)
    unit = "byte" if is_text and config.tokenizer in (None, "bytes") else "token"
    found = overlap.measure(tokens.train, tokens.val, tokens.fingerprint).words(
        unit, _REMEDY.get(config.source, "")
    )
    return replace(tokens, split="; ".join(filter(None, (tokens.split, found))))


def beginning(config: Data, tokens: Tokens) -> str:
    """The first 60 characters that train, as a JSON string, so that a person sees what they are;
    empty where the recipe names no text of its own.
    """
    if config.source not in _REMEDY or config.source == "stdlib" or not isinstance(tokens, Streams):
        return ""
    first = tokens.train[0 : 4 * _SHOWN].tolist()
    text = tokenizers.of(config.tokenizer).decode(first)
    return json.dumps(text[:_SHOWN], ensure_ascii=False)


def _texts(config: Data) -> Streams:
    """Documents, split whole, as bytes or by the tokenizer. Those of rows are kept."""
    found, tokenizer = None, tokenizers.of(config.tokenizer).identity
    if config.source == "text":
        found = text.found(config)
    key = huggingface.stamp(config, tokenizer) if found is None else found.stamp(tokenizer)
    known = key and tokenizers.recalled(key)
    if known:
        return known
    train, val, split, remarks = _halves(config, found)
    separator = tokenizers.NOTHING if config.source == "stdlib" else config.separator
    tokens = tokenizers.streams(config.source, train, val, config.tokenizer, separator, key)
    joined = tokenizers.between((train, val), config.tokenizer, separator)
    tokens = replace(tokens, split="; ".join(filter(None, (split, *remarks, joined))))
    if config.documents == "isolated":
        separators.check(config, (train, tokens.train), (val, tokens.val))
    if key:
        tokenizers.remember(key, tokens)
    return tokens


def halves(config: Data) -> tuple[list[Document], list[Document]]:
    """The documents of a source of text that train, and those that validate; DataError as above."""
    return _halves(config)[:2]


def _halves(
    config: Data, found: text.Found | None = None
) -> tuple[list[Document], list[Document], str, tuple[str, ...]]:
    """The same, how they were parted in words, and remarks."""
    if config.source == "stdlib" and config.edition == 2:
        return *stdlib.halves(config.val_fraction), ()
    train, val, remarks = _documents(config, found)
    what = "row" if config.source == "huggingface" or isinstance(train[0], Row) else "file"
    if config.deduplicate:
        train, val, split = duplicates.without(by_path(train), val, config.val_fraction, what)
        return train, val, split, remarks
    n_copies = overlap.copies([*train, *(val or [])])
    if n_copies:
        n_all = len(train) + len(val or [])
        remarks = (*remarks, f"{n_copies:,} of {n_all:,} {what}s are exact copies of another")
    if val is None:
        train, val = parts(train, config.val_fraction)
        return train, val, documents.rule(train, val, config.val_fraction, what), remarks
    train, val = by_path(train), by_path(val)
    split = f"{what}s that train: {len(train)}, others that validate: {len(val)}"
    return train, val, split, remarks


def _documents(
    config: Data, found: text.Found | None
) -> tuple[list[Document], list[Document] | None, tuple[str, ...]]:
    """Those that train, or of which a part validates where there are none that do; remarks."""
    if config.source == "huggingface":
        return huggingface.documents(config)
    if config.source == "stdlib":
        return documents.standard_library(), None, ()
    return (found or text.found(config)).documents()
