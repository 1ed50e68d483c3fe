"""How many bytes of text an evaluation predicts, by which tokenizers are compared.

A loss in nats per token is of a tokenizer's own tokens. Over the UTF-8 bytes of the text that the
evaluated tokens stand for, it is the same unit for all tokenizers. It decides no number of a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from attnres_cli.config.recipe import Recipe
from attnres_cli.data import cache, tokenfiles, tokenizers
from attnres_cli.data.tokenizers import Tokenizer
from attnres_cli.data.tokens import Streams, Tokens, Windows
from attnres_cli.errors import DataError, required
from attnres_cli.files import path_of, read_text
from attnres_cli.records.evaluated import Evaluated

_TIKTOKEN = "tiktoken:"
_MOST_BYTES = 2**28  # of a tokenizer's file

BytesOf = Callable[[int], int]
"""Bytes of one token's text, whatever stands beside it."""


def evaluated(recipe: Recipe, tokens: Tokens) -> Evaluated | None:
    """The tokens that a recipe's evaluation predicts, and the bytes of their text. None where a
    token is a byte, where no text is known, as of files of tokens, and where a tokenizer does not
    give the text back: what it drops would be no byte.
    """
    name = recipe.data.tokenizer
    if name in (None, "bytes") or recipe.data.source in tokenfiles.FORMATS:
        return None
    if not isinstance(tokens, Streams) or not len(tokens.val):
        return None
    assert name is not None
    known, size = tokenizers.of(name), (recipe.train.eval_tokens, recipe.model.seq_len)
    facts = json.dumps(["bytes", tokens.fingerprint, known.identity, *size])
    key = hashlib.sha256(facts.encode(errors="surrogatepass")).hexdigest()[:32]

    def count() -> list[int]:
        windows = tokens.eval_batches(size[0], 64, size[1])
        return [counted(known, bytes_of(name), windows) if _is_faithful(known, tokens) else 0]

    (n_bytes,) = cache.remembered(key, count)
    n_tokens = size[0] // size[1] * size[1]
    return Evaluated(n_tokens, n_bytes) if n_bytes else None


def counted(known: Tokenizer, of: BytesOf | None, batches: Iterable[Windows]) -> int:
    """Bytes of the text that windows (B, T + 1) predict: all their tokens but the first. `of` is
    None where bytes are only known of tokens in a row. The end of a text has none.
    """
    end, total = known.end[0] if known.end else -1, 0
    for windows in batches:
        if of is None:
            total += sum(_decoded(known, end, window) for window in windows.tolist())
            continue
        found, times = np.unique(windows[:, 1:], return_counts=True)
        pairs = zip(found.tolist(), times.tolist(), strict=True)
        total += sum(n * of(token) for token, n in pairs if token != end)
    return total


def _decoded(known: Tokenizer, end: int, window: Sequence[int]) -> int:
    """Bytes that a window's text has beyond that of its first token."""
    parts: list[list[int]] = [[]]
    for token in window:
        if token == end:
            parts.append([])
        else:
            parts[-1].append(token)
    whole = sum(len(known.decode(part).encode()) for part in parts if part)
    return whole - len(known.decode(parts[0][:1]).encode())


def _is_faithful(known: Tokenizer, tokens: Streams) -> bool:
    """Whether the beginning of the validation text comes back from its tokens as it was."""
    text = (tokens.val_text or b"").decode(errors="ignore")
    (found,) = known.encode([text])
    return bool(text) and known.decode(found) == text


def bytes_of(name: str) -> BytesOf | None:
    """Bytes of each token of a tokenizer, if it is one of bytes: tiktoken's, and those of a file
    whose decoder is ByteLevel, in which each character of a token stands for a byte.
    """
    if name.startswith(_TIKTOKEN):
        package = required("tiktoken", "tiktoken", f"tokenizer {name}", DataError)
        encoding = package.get_encoding(name.removeprefix(_TIKTOKEN))
        return lambda token: len(encoding.decode_single_token_bytes(token))
    path = path_of(name, "tokenizer", DataError)
    held = json.loads(read_text(path, "tokenizer", DataError, _MOST_BYTES))
    vocab = held["model"]["vocab"]
    if (held.get("decoder") or {}).get("type") != "ByteLevel" or not isinstance(vocab, dict):
        return None
    sizes = {token: len(text) for text, token in vocab.items()}
    sizes |= {each["id"]: len(each["content"].encode()) for each in held.get("added_tokens") or ()}
    return sizes.__getitem__
