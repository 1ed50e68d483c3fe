"""A text file, or a folder of text files, read as bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from attnres_cli.data.tokens import Document
from attnres_cli.errors import DataError


def documents(path: Path | None, key: str = "data.path") -> list[Document]:
    """The file itself, or every file below the folder whose name does not start with a dot.

    `key` is what messages call the path.

    Raises:
        DataError: no path, nothing there, nothing in it, or no permission to read it.

    """
    if path is None:
        raise DataError("data.source text needs a file or folder: --set data.path=FILE_OR_FOLDER")
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
