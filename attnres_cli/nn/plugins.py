"""Python files of a user's own, imported by path."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from attnres_cli.errors import VariantError
from attnres_cli.files import MOST_TEXT

_PACKAGE = "attnres_plugins"  # of no file; it keeps their names apart from all others


def load(file: Path) -> bool:
    """Import a file, once; whether it was not imported before. Raises VariantError for a file that
    is not Python, that has the name of another, or that raises, with its line.
    """
    if file.suffix != ".py" or not file.is_file():
        raise VariantError(f"--plugin takes a Python file, as my_variant.py; {file} is none")
    if file.stat().st_size > MOST_TEXT:
        raise VariantError(f"plugin {file} is too large: at most {MOST_TEXT:,} bytes are read")
    name = f"{_PACKAGE}.{file.stem}"
    if name in sys.modules:
        if file_of(name) == str(file):
            return False
        raise VariantError(f"two plugins are named {file.name}, {file_of(name)} too: rename one")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except VariantError as error:
        del sys.modules[name]
        raise VariantError(f"plugin {file}: {error}") from error
    except Exception as error:  # a file may raise anything
        del sys.modules[name]
        raise VariantError(f"plugin {file}{_line_of(error, file)}: {_text_of(error)}") from error
    return True


def file_of(module: str) -> str | None:
    """The file that a plugin's module came from; None for any other module."""
    if not module.startswith(f"{_PACKAGE}.") or module not in sys.modules:
        return None
    return sys.modules[module].__file__


def _line_of(error: Exception, file: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f", line {lines[-1]}" if lines else ""


def _text_of(error: Exception) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"
