"""Megatron's token files: numbers, whose type and count, and documents, a .idx file beside says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from attnres_cli.data.tokens import Array

MAGIC = b"MMIDIDX\0\0"
_HEAD = struct.Struct("<9sQBQQ")  # magic, version, type of a token, sequences, places of documents
_TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats


def tokens(path: Path) -> Array:
    """The tokens, as a read-only map. Raises ValueError where the file is not of its index."""
    magic, version, code, n_sequences, _ = index(path)
    beside = path.with_suffix(".idx")
    if (magic, version) != (MAGIC, 1):
        raise ValueError(f"needs an index of Megatron's version 1 beside it, {beside.name}")
    if code not in _TYPES:
        raise ValueError(f"has tokens of type {code} by {beside.name}, expected whole numbers")
    if beside.stat().st_size < _HEAD.size + 4 * n_sequences:
        raise ValueError(f"has an index that is truncated: {beside.name}")
    dtype, n_tokens = np.dtype(_TYPES[code]), int(np.sum(_lengths(path), dtype=np.int64))
    if (size := path.stat().st_size) != n_tokens * dtype.itemsize:
        raise ValueError(
            f"has {size} bytes, {beside.name} says {n_tokens} tokens of {dtype.name}: it is "
            "truncated, or of another index"
        )
    return np.asarray(np.memmap(path, dtype, mode="r"))


def ends(path: Path) -> Array:
    """Places of the last tokens of its documents, each of one sequence or several. Raises
    ValueError where the index does not say.
    """
    *_, n_sequences, n_places = index(path)
    beside, start = path.with_suffix(".idx"), _HEAD.size + 12 * n_sequences
    if beside.stat().st_size < start + 8 * n_places:
        raise ValueError(f"has an index that is truncated: {beside.name}")
    places = np.fromfile(beside, "<i8", n_places, offset=start)  # a document's first sequence
    after = np.concatenate(([0], np.cumsum(_lengths(path), dtype=np.int64)))[places[1:]]
    return np.unique(after[after > 0]) - 1


def index(path: Path) -> tuple[bytes, int, int, int, int]:
    """The header of the index beside a file; zeros where there is none."""
    beside = path.with_suffix(".idx")
    head = b""
    if beside.is_file():
        with beside.open("rb") as file:
            head = file.read(_HEAD.size)
    magic, version, code, sequences, documents = _HEAD.unpack(head.ljust(_HEAD.size, b"\0"))
    return magic, version, code, sequences, documents


def _lengths(path: Path) -> Array:
    """Tokens of each sequence."""
    n = index(path)[3]
    if not n:
        return np.zeros(0, np.int32)
    return np.memmap(path.with_suffix(".idx"), "<i4", "r", _HEAD.size, (n,))
