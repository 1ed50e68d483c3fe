"""Documents: texts by name, from files or the standard library, split into train and validation."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from attnres_cli.errors import DataError
from attnres_cli.files import path_of

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_FEWEST_FILES = 100


@dataclass(frozen=True)
class Document:
    """A file's name within its source, and its bytes, which may lie on a disk."""

    name: str
    content: bytes | memoryview


def of_path(given: str | Path | None, key: str = "data.path") -> list[Document]:
    """The file, or every visible file below the folder; DataError calls the path `key`."""
    if given is None:
        raise DataError("data.source text needs a file or folder: --set data.path=FILE_OR_FOLDER")
    path = path_of(given, key, DataError)
    try:
        if not path.exists():
            raise DataError(f"{key} {path} does not exist: --set {key}=FILE_OR_FOLDER")
        if not (path.is_dir() or path.is_file()):
            raise DataError(f"{key} {path} is no file or folder")
        found = _folder(path) if path.is_dir() else [Document(path.name, path.read_bytes())]
    except OSError as error:
        raise DataError(f"{key} {path} cannot be read: {error.strerror}") from error
    found = [document for document in found if document.content]
    if not found:
        raise DataError(
            f"{key} {path} holds no text: no file in it that is neither hidden nor empty"
        )
    return found


def _folder(root: Path) -> list[Document]:
    found = []
    for folder, subfolders, files in os.walk(root, onerror=_refuse):  # rglob passes errors over
        subfolders[:] = [name for name in subfolders if name[0] != "."]
        found += [Path(folder, name) for name in files if name[0] != "."]
    paths = sorted(path for path in found if path.is_file())
    return [Document(path.relative_to(root).as_posix(), path.read_bytes()) for path in paths]


def _refuse(error: OSError) -> NoReturn:
    raise error


def standard_library() -> list[Document]:
    """Every .py file of the running Python's standard library, without tests and build settings."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if _belongs(name)]
        paths += [Path(folder, name) for name in files if name.endswith(".py") and _belongs(name)]
    found = [
        Document(path.relative_to(root).as_posix(), path.read_bytes())
        for path in sorted(paths)
        if not path.is_symlink()
    ]
    if len(found) < _FEWEST_FILES:
        raise DataError(
            f"this Python has only {len(found)} source files in {root}: "
            "use your own text with --set data.source=text --set data.path=FILE_OR_FOLDER"
        )
    return found


def _belongs(name: str) -> bool:
    # config-3.11-... and _sysconfigdata_... record how this interpreter was built
    return name not in _LEFT_OUT and not name.startswith(("config-", "_sysconfigdata"))


def parts(documents: list[Document], val_fraction: float) -> tuple[list[Document], list[Document]]:
    """Training and validation documents: whole files validate, in the order of their names' hashes,
    until they hold val_fraction of the bytes. A file of more than a tenth of that stays in
    training, so that none dominates; if the others are too few, the smallest go first; if one file
    holds nearly all, its end validates.
    """
    ordered = by_path(documents)
    wanted = val_fraction * sum(len(document.content) for document in ordered)
    chosen = _validation_names(ordered, wanted)
    val = [d for d in ordered if d.name in chosen]
    if sum(len(d.content) for d in val) >= wanted / 2:
        return [d for d in ordered if d.name not in chosen], val
    largest = max(ordered, key=lambda document: len(document.content))  # it holds nearly all
    cut = max(0, len(largest.content) - round(wanted))
    start, end = (
        Document(largest.name, content)
        for content in (largest.content[:cut], largest.content[cut:])
    )
    return [*(d for d in ordered if d is not largest), start], [end]


def by_path(documents: list[Document]) -> list[Document]:
    """The documents in the order of their names."""
    return sorted(documents, key=lambda document: document.name)


def _name_hash(document: Document) -> bytes:
    return hashlib.sha256(os.fsencode(document.name)).digest()


def _validation_names(ordered: list[Document], wanted: float) -> set[str]:
    chosen: set[str] = set()
    held = 0
    small = [d for d in ordered if len(d.content) <= wanted / 10]
    by_hash = sorted(small, key=_name_hash)
    if sum(len(d.content) for d in small) < wanted:
        by_hash = sorted(ordered, key=lambda d: (len(d.content), _name_hash(d)))
    for document in by_hash:
        if held >= wanted or len(chosen) == len(ordered) - 1:  # one file stays for training
            break
        chosen.add(document.name)
        held += len(document.content)
    return chosen
