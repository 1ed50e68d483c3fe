"""Packages that only some data need."""

from __future__ import annotations

import importlib
from typing import Any

from attnres_cli.errors import DataError


def load(package: str, needed_by: str) -> Any:
    """The package, imported.

    Raises:
        DataError: it is not installed, with the command that installs it.

    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise DataError(
            f"{needed_by} needs the package {package}, which cannot be imported ({error}): "
            f"pip install 'attnres-cli[{package}]'"
        ) from error
