"""A text file, or a folder of text files, read as bytes."""

from __future__ import annotations

from pathlib import Path

from attnres_cli.data.tokens import Document
from attnres_cli.errors import DataError


def documents(path: Path | None) -> list[Document]:
    """The file itself, or every file below the folder whose name does not start with a dot.

    Raises:
        DataError: no path, nothing there, nothing in it, or no permission to read it.

    """
    if path is None:
        raise DataError("data.source text needs a file or folder: --set data.path=FILE_OR_FOLDER")
    if not path.exists():
        raise DataError(f"data.path {path} does not exist: --set data.path=FILE_OR_FOLDER")
    try:
        found = _folder(path) if path.is_dir() else [Document(path.name, path.read_bytes())]
    except OSError as error:
        raise DataError(f"data.path {path} cannot be read: {error.strerror}") from error
    found = [document for document in found if document.content]
    if not found:
        raise DataError(f"data.path {path} holds no text: every file in it is empty")
    return found


def _folder(root: Path) -> list[Document]:
    relative = (path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file())
    visible = (name for name in relative if not any(part[0] == "." for part in name.parts))
    return [Document(name.as_posix(), (root / name).read_bytes()) for name in visible]
