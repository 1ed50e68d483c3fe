"""Which token ends a document, for documents that are isolated: no token attends beyond it."""

from __future__ import annotations

import numpy as np

from attnres_cli.config.recipe import Data
from attnres_cli.data import megatron, tokenfiles, tokenizers
from attnres_cli.data.documents import Document
from attnres_cli.data.tokens import Stream
from attnres_cli.errors import DataError

_OF_SHARDS = {20240520: 50256, 20240801: 128000}  # by llm.c's magic: those of GPT-2, of Llama 3
_MOST = 1024  # documents of a file of Megatron's that are looked at
_AT_ONCE = 2**24  # tokens


def of(config: Data) -> int:
    """The token. Raises DataError where none is known."""
    if config.source not in tokenfiles.FORMATS:
        return _of_text(config)
    if config.separator is not None:
        return int(config.separator)
    ends = _of_files(config)
    if len(ends) == 1:
        return ends[0]
    what = "documents end in different tokens" if ends else "no file says which token ends one"
    raise DataError(
        f"data.documents isolated, data.source {config.source}: {what}; --set data.separator=TOKEN "
        "names it, such as 50256 of GPT-2"
    )


def check(config: Data, *halves: tuple[list[Document], Stream]) -> None:
    """Raise DataError where a token that is to end documents stands within one too. A tokenizer's
    own token for the end never does.
    """
    if config.separator is None:
        return
    separator = _of_text(config)
    for documents, tokens in halves:
        parts = (tokens[at : at + _AT_ONCE] for at in range(0, len(tokens), _AT_ONCE))
        n = sum(np.count_nonzero(part == separator) for part in parts)
        if n != len(documents) - 1:
            raise DataError(
                f"data.documents isolated: {config.separator!r} stands within documents too, "
                f"{n - len(documents) + 1:,} times: --set data.separator= to what none of them has"
            )


def _of_text(config: Data) -> int:
    known, typed = tokenizers.of(config.tokenizer), config.separator
    if typed is None and known.end is not None:
        return known.end[0]
    given = [] if typed in (None, tokenizers.NOTHING) else [str(typed)]
    for found in known.encode(given):
        if len(found) == 1:
            return int(found[0])
    what = "bytes" if config.tokenizer in (None, "bytes") else config.tokenizer
    raise DataError(
        f"data.documents isolated needs one token that stands between documents, and {what} with "
        f"data.separator {typed or 'unset'} has none: --set data.tokenizer=tiktoken:gpt2, or "
        r"--set data.separator=$'\x1e'"
    )


def _of_files(config: Data) -> list[int]:
    """What the first file that trains says: the token of its tokenizer, or the different last
    tokens of evenly spread documents.
    """
    if config.source not in ("llmc", "megatron"):
        return []
    path = tokenfiles.divided(tokenfiles.found(config.path, ".bin", "data.path"))[0][0]
    if config.source == "llmc":
        return [_OF_SHARDS[tokenfiles.magic_of(path)]]
    try:
        ends = megatron.ends(path)
    except ValueError as error:
        raise DataError(f"token file {path} {error}") from error
    some = ends[np.linspace(0, len(ends) - 1, min(_MOST, len(ends))).astype(np.int64)]
    return [int(token) for token in np.unique(megatron.tokens(path)[some])]
