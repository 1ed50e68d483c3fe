"""What becomes of the runs of one study that are brought into another."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Fate(enum.StrEnum):
    """What became of a run of another study."""

    ADDED = "added"
    REPLACED = "ended there, not here: taken"
    EQUAL = "equal"
    OTHER_MEANS = "computed by other means, what is here stays"
    UNFINISHED = "not ended there, what is here stays"
    RUNNING = "running there: left out"


@dataclass(frozen=True)
class Merged:
    """A run of another study: its number there, and here, where it is here."""

    there: int
    here: int | None
    fate: Fate
