"""Code: the digests of what decides a run's numbers. Runs of different code are never one arm."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from functools import cache, cached_property

from attnres_cli.nn import code

_PREFIX = "code_"  # of their names among a run's versions


@dataclass(frozen=True)
class Code:
    """Digests of a design with the files that it imports, and of what all designs share; all empty
    where they are not known, the design's alone where its class is of no file.
    """

    design: str = ""
    trunk: str = ""
    engine: str = ""
    loop: str = ""
    data: str = ""

    @classmethod
    def of(cls, versions: Mapping[str, str]) -> Code:
        """The code among the versions of a run, unknown unless all of it is there. Code of which a
        release says that it kept the numbers of an earlier one is that one (`code.KEPT`).
        """
        found = [versions.get(f"{_PREFIX}{part}") for part in _PARTS]
        return cls() if None in found else _first(*found)

    @property
    def shared(self) -> tuple[str, ...]:
        """The digests of what all designs share."""
        return astuple(self)[1:]

    def changed(self, now: Code) -> list[str]:
        """The names of the parts that are not the same now."""
        return [p.name for p in fields(self) if getattr(self, p.name) != getattr(now, p.name)]

    @property
    def versions(self) -> dict[str, str]:
        """The same as a run's versions hold it; empty where it is unknown."""
        found = {f"{_PREFIX}{part.name}": getattr(self, part.name) for part in fields(self)}
        return found if any(found.values()) else {}

    @cached_property
    def digest(self) -> str:
        """12 hex digits of all of it; empty where it is unknown."""
        held = astuple(self)
        return hashlib.sha256("\n".join(held).encode()).hexdigest()[:12] if any(held) else ""


_PARTS = tuple(part.name for part in fields(Code))


@cache
def _first(*digests: str) -> Code:
    """The code that gave these numbers first. A study has a few, and thousands of runs."""
    return Code(*map(code.first, _PARTS, digests))
