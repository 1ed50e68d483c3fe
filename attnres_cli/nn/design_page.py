"""What a design's file says: its docstring, taken apart, and a digest of its code.

name: equation

Symbols: ...
Options:
    option  its meaning, which may
            go on
Start: ...
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

_HEADING = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?):(?:\s+|$)")
_OPTION = re.compile(r"^    (\w+)\s+(.*)$")


@dataclass(frozen=True)
class Page:
    """A design's own page. `equation` is the first line without the name, empty where the line does
    not read `name: equation`; `parts` are the rest by heading, in order; `text` is all of it.
    """

    equation: str
    parts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@cache
def page_of(cls: type[Any]) -> Page:
    """The page of a class: its module's docstring, or its own where that opens with an equation."""
    pages = [_page(text) for text in (cls.__doc__, inspect.getdoc(inspect.getmodule(cls))) if text]
    return next((page for page in pages if page.equation), pages[-1] if pages else Page(""))


def _page(text: str) -> Page:
    text = inspect.cleandoc(text).strip()
    first, _, rest = text.partition("\n")
    name, colon, equation = first.partition(": ")
    named = bool(colon) and re.fullmatch(r"\w+", name) is not None
    parts = _parts(rest)
    return Page(equation if named else "", parts, _options(parts.get("Options", "")), text)


def file_of(cls: type[Any]) -> str:
    """The file that a class is defined in; empty where there is none."""
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):
        return ""


def code_digest(cls: type[Any]) -> str:
    """12 hex digits of a class's file, comments and layout aside; empty where there is no file."""
    try:
        tree = ast.parse(Path(file_of(cls)).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if found := _HEADING.match(line):
            heading, line = found[1], line[found.end() :]
        parts.setdefault(heading, []).append(line)
    joined = {name: "\n".join(lines).strip("\n") for name, lines in parts.items()}
    return {name: body for name, body in joined.items() if name or body.strip()}


def _options(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if option := _OPTION.match(line):
            found[option[1]] = [option[2]]
        elif found and line.strip():
            found[next(reversed(found))].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}
