"""Data that are not loaded, for plans that count steps and train nothing."""

from __future__ import annotations

import numpy as np

from attnres_cli.config.recipe import Recipe
from attnres_cli.data import tokenizers
from attnres_cli.data.tokens import Streams

_VOCABULARIES = {
    "tiktoken:gpt2": 50_257,
    "tiktoken:cl100k_base": 100_277,
    "tiktoken:o200k_base": 200_019,
}
"""Sizes of encodings that tiktoken would download."""


class Unread(Streams):
    """Tokens of which nothing is known but the vocabulary."""


def unread(recipe: Recipe) -> Unread:
    """What stands for a recipe's text. Raises DataError where there is no such tokenizer."""
    name, nothing = recipe.data.tokenizer, np.zeros(0, dtype=np.int64)
    size = _VOCABULARIES.get(name or "") or tokenizers.of(name).vocab_size
    return Unread(recipe.data.source, nothing, nothing, "0" * 16, size)
