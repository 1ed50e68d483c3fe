"""Names, paths and files as others give them: checked as they enter, bounded as they are read."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from attnres_cli.errors import AttnresError, UsageError

MOST_TEXT = 2**20
"""Bytes of what a person writes: a recipe, a preregistration, a plugin."""

_LONGEST_NAME, _LONGEST_FILE = 100, 200
_UNSAFE = re.compile(r"[^\w.:=,+-]+")


@lru_cache(maxsize=1024)  # thousands of runs have the names of a few designs
def check_name(name: str, what: str) -> str:
    """The name of a recipe, design or tag as it came, if it is one. Raises ValueError for one that
    could not stand in a line of text or, part by part between slashes, in a path.
    """
    parts = name.split("/")
    if not name.isprintable() or len(name) > _LONGEST_NAME or "\\" in name:
        raise ValueError(
            f"{what}: expected at most {_LONGEST_NAME} printable characters without a backslash, "
            f"got {name[:_LONGEST_NAME]!r}"
        )
    if name and not all(part.strip(". ") for part in parts):
        raise ValueError(f"{what}: a name is no path, as quick or quick/wide, got {name!r}")
    return name


def slug(name: str) -> str:
    """The name as one part of a file's: no slash, nothing that a shell or a folder would read."""
    return _UNSAFE.sub("-", name).lstrip(".-")[:_LONGEST_FILE] or "unnamed"


def path_of(text: str | Path, what: str, error: type[AttnresError] = UsageError) -> Path:
    """The path, with ~ as a home. Raises `error` where no path can be meant."""
    try:
        path = Path(text).expanduser()
        path.stat()  # links may go in a circle, a name be too long, a folder closed to us
    except (FileNotFoundError, NotADirectoryError):
        return path
    except RuntimeError as reason:
        raise error(f"{what} {text}: there is no such home") from reason
    except (OSError, ValueError) as reason:  # ValueError: a name with a null in it
        told = getattr(reason, "strerror", None) or "it is no path"
        raise error(f"{what} {str(text)[:_LONGEST_NAME]} cannot be read: {told}") from reason
    return path


def read_text(
    path: Path, what: str, error: type[AttnresError] = UsageError, most: int = MOST_TEXT
) -> str:
    """The text of a file of at most so many bytes. Raises `error` for any other, or none."""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise error(f"{what} {path} is no file")  # a pipe could be read for ever
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise error(f"{what} {path} is too large: at most {most:,} bytes are read")
        return content.decode()
    except OSError as reason:
        raise error(f"{what} {path} cannot be read: {reason.strerror}") from reason
    except UnicodeDecodeError as reason:
        raise error(f"{what} {path} is not UTF-8 text") from reason


def write_new(path: Path, text: str, error: type[AttnresError] = UsageError) -> None:
    """Write a file that is not there yet. Raises `error` where it is, or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as out:  # never over a file that is there
            out.write(text)
    except FileExistsError:
        raise error(f"{path} is there already: take another name, or move it") from None
    except OSError as reason:
        raise error(f"{path} cannot be written: {reason.strerror}") from reason


def sha256(path: Path) -> str:
    """64 hex digits of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
