"""Tokens that a tokenizer has made of a text, kept on disk: it takes seconds, mapping them none.

Each text and tokenizer has one .npy file, in $XDG_CACHE_HOME/attnres/tokens or ~/.cache. It appears
whole or not at all, whichever process writes it. Its name has its fingerprint: a file that holds
something else is made again. Of more than a gibibyte only the size is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from attnres_cli.data.spool import folder as folder
from attnres_cli.data.tokens import Array

T = TypeVar("T")

Halves = tuple[Array, Array]  # training tokens, validation tokens

_CHECKED = 2**30  # bytes up to which a file is read whole before it is used, at some 1 GB/s
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
            if halves is None:
                continue
            is_huge = sum(half.nbytes for half in halves) > _CHECKED
            if is_huge or fingerprint(vocab_size, halves) == name[2]:
                return halves
    return None


def keep(key: str, vocab_size: int, halves: Sequence[Iterable[Array]]) -> None:
    """Keep both halves, each in pieces, under a key; nothing is kept where the disk does not take
    it.
    """
    with contextlib.suppress(OSError, RuntimeError):
        unfinished = folder() / f".{key}-{os.getpid()}"
        try:
            n_train = _written(unfinished, halves)
            held = _mapped(unfinished, n_train)
            assert held is not None
            digest = fingerprint(vocab_size, held)
            unfinished.replace(folder() / f"{key}-{n_train}-{digest}.npy")
        finally:
            unfinished.unlink(missing_ok=True)


def _written(path: Path, halves: Sequence[Iterable[Array]]) -> int:
    """Write an array of .npy piece by piece, its header at the end; tokens of the first half."""
    sizes = [0, 0]
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    with path.open("wb") as file:
        for number, half in enumerate(halves):
            for piece in half:
                if not file.tell():
                    dtype = piece.dtype
                    _header(file, dtype, 0)
                file.write(np.ascontiguousarray(piece).data)
                sizes[number] += len(piece)
        file.seek(0)
        _header(file, dtype, sum(sizes))
    return sizes[0]


def _header(file: IO[bytes], dtype: np.dtype[Any], size: int) -> None:
    """That of one dimension; NumPy leaves room in it for any size."""
    facts = {"descr": dtype.str, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, facts)


def remembered(key: str, make: Callable[[], T]) -> T:
    """Return what `make` returned under a key of 32 hex digits, kept as JSON and checked."""
    found: T | None = recalled(key)
    if found is not None:
        return found
    value = make()
    remember(key, value)
    return value


def recalled(key: str) -> Any:
    """What was kept as JSON under a key of 32 hex digits; None where nothing is, or not whole."""
    with contextlib.suppress(OSError, RuntimeError):
        for path in folder().glob(f"{key}-*.json"):
            content = path.read_bytes()
            if path.stem.endswith(hashlib.sha256(content).hexdigest()[:16]):
                return json.loads(content)
    return None


def remember(key: str, value: object) -> None:
    """Keep a value as JSON, where the disk takes it."""
    content = json.dumps(value).encode()
    with contextlib.suppress(OSError, RuntimeError):
        unfinished = folder() / f".{key}-{os.getpid()}"
        try:
            unfinished.write_bytes(content)
            unfinished.replace(folder() / f"{key}-{hashlib.sha256(content).hexdigest()[:16]}.json")
        finally:
            unfinished.unlink(missing_ok=True)


def _mapped(path: Path, n_train: int) -> Halves | None:
    try:
        tokens = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError):  # gone meanwhile, cut off, of nonsense
        return None
    return (tokens[:n_train], tokens[n_train:]) if tokens.ndim == 1 else None
