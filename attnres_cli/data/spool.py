"""Documents, and their contents in a file without a name, mapped: memory does not bound them."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import platformdirs
from numpy.typing import NDArray

from attnres_cli.errors import DataError


@dataclass(frozen=True, slots=True)
class Document:
    """A file's name within its source, and its bytes, which may lie on a disk."""

    name: str
    content: bytes | memoryview


class Row(Document):
    """One of many documents that lie in a row: some 100 bytes of memory, however long it is."""

    __slots__ = ("_held", "_number")
    _held: Rows
    _number: int

    def __init__(self, held: Rows, number: int) -> None:
        object.__setattr__(self, "_held", held)
        object.__setattr__(self, "_number", number)

    @property
    def name(self) -> str:
        """Its number among those of its split."""
        return f"{self._held.split} {self._number:012d}"

    @property
    def content(self) -> memoryview:
        """Its bytes, mapped."""
        start = self._held.ends[self._number - 1] if self._number else 0
        return self._held.whole[start : self._held.ends[self._number]]


@dataclass(frozen=True, eq=False)
class Rows:
    """The documents of a split, one after the other."""

    split: str
    whole: memoryview
    ends: NDArray[np.int64]

    def documents(self) -> list[Document]:
        """All of them, in order."""
        return [Row(self, number) for number in range(len(self.ends))]


def mapped(contents: Iterable[bytes]) -> tuple[memoryview, NDArray[np.int64]]:
    """The contents in a row, mapped from a file that is gone when they are, and where each ends.
    Raises DataError where no disk takes them.
    """
    sizes = array("q")
    try:
        with unnamed() as file:
            for content in contents:
                sizes.append(file.write(content))
            file.flush()
            is_there = any(sizes)
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if is_there else b""
    except OSError as error:
        raise DataError(f"text that is unpacked needs a disk: {error}") from error
    return memoryview(whole), np.cumsum(np.frombuffer(sizes, np.int64))


def unnamed() -> IO[bytes]:
    """A file without a name, where tokens are kept; else where others keep such files."""
    try:
        return tempfile.TemporaryFile(dir=folder())
    except (OSError, RuntimeError):
        return tempfile.TemporaryFile()


def folder() -> Path:
    """Where tokens are kept; it is made."""
    found = platformdirs.user_cache_path("attnres") / "tokens"
    found.mkdir(parents=True, exist_ok=True)
    return found
