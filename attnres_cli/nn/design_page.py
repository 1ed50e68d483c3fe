"""What there is to read of a design: its docstring, taken apart, and what is found out about it.

name: equation

Symbols: ...
Options:
    option  its meaning, which may
            go on
Start: ...
Contains: other, where ...; another, where ...
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
"""How a design is called, on its page and on the command line."""

_HEADING = re.compile(r"^([A-Z][a-z]+(?: [a-z]+)?):(?:[ \t]+|$)", re.MULTILINE)
_OPTION = re.compile(r"^    (\w+)\s+(.*)$")


@dataclass(frozen=True)
class Page:
    """A design's own page. `equation` is the first line without the name, empty where the line does
    not read `name: equation`; `parts` are the rest by heading, in order; `contains` are the designs
    that it can be, and where it is; `text` is all of it.
    """

    equation: str
    parts: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    contains: Mapping[str, str] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Finding:
    """What came of one proof, by its name and the sentence it proves; `detail` is empty where it
    passed. One that means nothing before another passes is not run. `error` is what failed it.
    """

    name: str
    proof: str
    outcome: Literal["passed", "failed", "not applicable", "not run"]
    detail: str = ""
    error: Exception | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Description:
    """A design with its options, in a trunk of some size.

    Attributes:
        n_params: what it adds, and `trunk_params` what there is besides, embedding and head aside.
        extra_flops: forward FLOPs per token beyond `standard`, and `trunk_flops` those of standard.
        extra_bytes: forward reads and writes per token beyond `standard`'s residual, in bfloat16.
        equals_standard: at step 0, as it claims and as the findings prove.
        mixing: for each site, the weight of each output at step 0, a mean over random tokens and
            the width; None where the design is not linear.
        joined: for each of these, whether it shares a learned weight with the output before it.
        not_linear: why there is no such table; empty where there is.
        findings: of the quick proofs, on a small trunk.
    """

    spec: str
    n_layers: int
    d_model: int
    n_params: int
    trunk_params: int
    extra_flops: int
    trunk_flops: int
    extra_bytes: int
    equals_standard: bool
    mixing: Sequence[Sequence[float]] | None
    joined: Sequence[Sequence[bool]] | None
    not_linear: str
    findings: Sequence[Finding]


@cache
def page_of(cls: type[Any]) -> Page:
    """The page of a class: its module's docstring, or its own where that opens with an equation."""
    pages = [_page(text) for text in (cls.__doc__, inspect.getdoc(inspect.getmodule(cls))) if text]
    return next((page for page in pages if page.equation), pages[-1] if pages else Page(""))


def _page(text: str) -> Page:
    text = inspect.cleandoc(text).strip()
    first, _, rest = text.partition("\n")
    name, colon, equation = first.partition(": ")
    named = bool(colon) and re.fullmatch(NAME, name) is not None
    parts = _parts(rest)
    options, contains = _options(parts.get("Options", "")), _contains(parts.get("Contains", ""))
    return Page(equation if named else "", parts, options, contains, text)


def file_of(cls: type[Any]) -> str:
    """The file that a class is defined in; empty where there is none."""
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):
        return ""


def _parts(text: str) -> dict[str, str]:
    lead, *rest = _HEADING.split(text)
    parts = {"": lead} | dict(zip(rest[::2], rest[1::2], strict=True))
    return {name: body.strip("\n") for name, body in parts.items() if name or body.strip()}


def _contains(text: str) -> dict[str, str]:
    each = (one.partition(", where ") for one in " ".join(text.split()).rstrip(".").split("; "))
    return {name: where for name, _, where in each if name}


def _options(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if option := _OPTION.match(line):
            found[option[1]] = [option[2]]
        elif found and line.strip():
            found[next(reversed(found))].append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}
