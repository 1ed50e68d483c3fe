"""The source of the running Python's standard library: real text on every machine, no download.

Its content differs between Python versions; the fingerprint says which one a run saw.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from attnres_cli.data.tokens import Document
from attnres_cli.errors import DataError

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_FEWEST_FILES = 100


def documents() -> list[Document]:
    """Every .py file of the standard library but tests, installed packages and build settings.

    Raises:
        DataError: this Python ships without its source.

    """
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
