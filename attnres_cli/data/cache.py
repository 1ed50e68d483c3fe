"""Tokens that a tokenizer has made of a text, kept on disk: it takes seconds, mapping them none.

Each text and tokenizer has one .npy file, in $XDG_CACHE_HOME/attnres/tokens or ~/.cache. It appears
whole or not at all, whichever process writes it. Its name has its fingerprint: a file that holds
something else is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import platformdirs

from attnres_cli.data.tokens import Array

T = TypeVar("T")

Halves = tuple[Array, Array]  # training tokens, validation tokens

_NAME = re.compile(r"[0-9a-f]{32}-(\d+)-([0-9a-f]{16})\.npy")


def fingerprint(vocab_size: int, halves: Halves) -> str:
    """16 hex digits over both halves, where the cut between them is, and the vocabulary."""
    digest = hashlib.sha256(b"%d %d " % (vocab_size, len(halves[0])))
    for half in halves:
        digest.update(np.ascontiguousarray(half).data)
    return digest.hexdigest()[:16]


def find(key: str, vocab_size: int) -> Halves | None:
    """Maps of the file kept under a key of 32 hex digits; None where none is, or not as it was."""
    with contextlib.suppress(OSError, RuntimeError):  # no permission; nobody's home is known
        for path in folder().glob(f"{key}-*.npy"):
            if (name := _NAME.fullmatch(path.name)) is None:
                continue
            halves = _mapped(path, int(name[1]))
            if halves is not None and fingerprint(vocab_size, halves) == name[2]:
                return halves
    return None


def keep(key: str, vocab_size: int, halves: Halves) -> None:
    """Keep both halves under a key; nothing is kept where the disk does not take it."""
    name = f"{key}-{len(halves[0])}-{fingerprint(vocab_size, halves)}.npy"
    with contextlib.suppress(OSError, RuntimeError):
        unfinished = folder() / f".{key}-{os.getpid()}"
        try:
            with unfinished.open("wb") as file:
                np.save(file, np.concatenate(halves), allow_pickle=False)
            unfinished.replace(folder() / name)
        finally:
            unfinished.unlink(missing_ok=True)


def remembered(key: str, make: Callable[[], T]) -> T:
    """Return what `make` returned under a key of 32 hex digits, kept as JSON and checked."""
    with contextlib.suppress(OSError, RuntimeError):
        for path in folder().glob(f"{key}-*.json"):
            content = path.read_bytes()
            if path.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
                found: T = json.loads(content)
                return found
    value = make()
    content = json.dumps(value).encode()
    with contextlib.suppress(OSError, RuntimeError):
        unfinished = folder() / f".{key}-{os.getpid()}"
        try:
            unfinished.write_bytes(content)
            unfinished.replace(folder() / f"{key}-{hashlib.sha256(content).hexdigest()[:16]}.json")
        finally:
            unfinished.unlink(missing_ok=True)
    return value


def folder() -> Path:
    """Where tokens are kept; it is made."""
    found = platformdirs.user_cache_path("attnres") / "tokens"
    found.mkdir(parents=True, exist_ok=True)
    return found


def _mapped(path: Path, n_train: int) -> Halves | None:
    try:
        tokens = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):  # gone meanwhile, cut off, of nonsense
        return None
    return (tokens[:n_train], tokens[n_train:]) if tokens.ndim == 1 else None
