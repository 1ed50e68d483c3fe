"""Which files a path, a folder or a pattern means, and which of them validate."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from attnres_cli.errors import DataError

_VALIDATES = {"val", "valid", "validation"}


def found(given: str | None, suffix: str, key: str) -> list[Path]:
    """The file itself; every file of a folder with this suffix; what a pattern such as
    `shards/*.bin` matches. Sorted by name.

    Raises:
        DataError: no path, nothing there, or no permission to look.

    """
    if given is None:
        raise DataError(f"token files need a path: --set {key}=FILE_FOLDER_OR_PATTERN")
    path = Path(given).expanduser()
    try:
        if path.is_dir():
            paths = [p for p in path.iterdir() if p.suffix == suffix and p.name[0] != "."]
        elif path.exists():
            paths = [path]
        else:
            paths = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    except OSError as error:
        raise DataError(f"{key} {path} cannot be read: {error.strerror}") from error
    if not paths and not path.is_dir():
        raise DataError(f"{key} {path} does not exist: --set {key}=FILE_FOLDER_OR_PATTERN")
    files = sorted(p for p in paths if p.is_file())
    if not files:
        raise DataError(f"{key} {path} holds no {suffix} file: is data.source another one?")
    return files


def divided(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files that train, and those whose names say that they validate: val.bin, x_val_0.bin.

    Where names say `train`, only those train; a single file trains whatever it is called.
    """
    if len(paths) == 1:
        return paths, []
    val = [path for path in paths if _words(path) & _VALIDATES]
    others = [path for path in paths if path not in val]
    train = [path for path in others if "train" in _words(path)]
    return (train or others or val), (val if others else [])


def _words(path: Path) -> set[str]:
    return set(re.split(r"[^a-z]+", path.stem.lower()))
