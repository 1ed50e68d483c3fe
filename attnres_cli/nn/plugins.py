"""Python files of a user's own, imported by path; and what is said of those that raise."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

from attnres_cli.errors import AttnresError, VariantError
from attnres_cli.files import MOST_TEXT

SUPER_FIRST = "begin it with super().__init__(d_model, n_sublayers)"
_PACKAGE = "attnres_plugins"  # of no file; it keeps their names apart from all others
_ALL = "Hidden, Norms, Residual, VariantError, register"
_LONGEST = 300  # characters of what was raised


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
    except Exception as error:  # a file may raise anything
        del sys.modules[name]
        raise VariantError(f"plugin {blamed(error, [str(file)])}") from error
    return True


def file_of(module: str) -> str | None:
    """The file that a plugin's module came from; None for any other module."""
    if not module.startswith(f"{_PACKAGE}.") or module not in sys.modules:
        return None
    return sys.modules[module].__file__


def blamed(error: BaseException, files: Collection[str]) -> str:
    """`FILE, line 12, in read: TypeError: ..., and what to do`, of the last line of these files
    that an error passed through; without a place where it passed through none.
    """
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    if isinstance(error, SyntaxError) and error.filename in files:
        return f"{error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    where = ""
    if frames:
        inside = "" if frames[-1].name == "<module>" else f", in {frames[-1].name}"
        where = f"{frames[-1].filename}, line {frames[-1].lineno}{inside}: "
    text = " ".join(str(error).split())[:_LONGEST]
    if isinstance(error, AttnresError):
        return where + text
    return f"{where}{type(error).__name__}: {text}{_remedy(error)}"


def place_of(method: Callable[..., object]) -> str:
    """`FILE, line 12, in read`: where a method is written."""
    code = inspect.unwrap(method).__code__
    return f"{code.co_filename}, line {code.co_firstlineno}, in {code.co_name}"


def _remedy(error: BaseException) -> str:
    if any(call in str(error) for call in ("before Module.__init__() call", "Residual.__init__()")):
        return f"; {SUPER_FIRST}"
    if isinstance(error, ModuleNotFoundError):
        return f"; install {error.name} where attnres is, or put its folder on PYTHONPATH"
    if isinstance(error, ImportError):
        return (
            f"; a design needs of attnres no more than: from attnres_cli.nn.residual import {_ALL}"
        )
    return ""
