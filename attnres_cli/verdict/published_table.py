"""Another table of verdicts beside the user's: of a report that was kept as JSON."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ValidationError, field_validator

from attnres_cli.errors import UsageError, unknown
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.comparison import ArmResult, Comparison

Said = Literal[
    "same sign", "opposite sign", "within noise in both", "within noise here",
    "within noise there", "not there", "no verdict here", "no verdict there", "baseline",
]  # fmt: skip

RULE = (
    "within noise: the interval of a difference, which is that of its verdict table, holds 0; "
    "where neither does, the signs of both are compared"
)


class _Difference(BaseModel):
    mean: float


class _Look(BaseModel):
    n: int
    low: float | None = None
    high: float | None = None


class OtherArm(BaseModel):
    """An arm of the other table, as `attnres report --format json` writes it."""

    variant: str
    verdict: str
    difference: _Difference | None = None  # from its baseline, nats per token
    look: _Look | None = None
    recipe_digest: str = ""
    losses: Mapping[int, float | None] = {}  # by seed; None where it diverged

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference; None before the first look."""
        if (look := self.look) is None or look.low is None or look.high is None or not look.n:
            return None
        return look.low, look.high


class _Data(BaseModel):
    source: str
    fingerprint: str


class OtherTable(BaseModel):
    """One comparison of another report, and those below it in `more`."""

    title: str
    recipe: str
    recipe_digest: str
    baseline: str
    data: _Data
    terms: Terms
    versions: tuple[str, ...]
    settings: tuple[str, ...] = ()
    codes: Mapping[str, str] = {}
    arms: tuple[OtherArm, ...]
    more: tuple[OtherTable, ...] = ()

    @field_validator("more", mode="before")
    @classmethod
    def _comparisons(cls, held: object) -> object:
        """Without tables over texts, which have no arms of one recipe."""
        if not isinstance(held, list):
            return held
        return [one for one in held if not isinstance(one, dict) or "recipe_digest" in one]


@dataclass(frozen=True)
class Beside:
    """One arm of the user's, and the other table's of that name."""

    table: OtherTable
    arm: ArmResult
    theirs: OtherArm | None
    said: Said


@dataclass(frozen=True)
class Again:
    """Runs that both have trained: one recipe, design, seed and data.

    Attributes:
        gaps: of final losses, yours minus theirs, nats per token; inf where one of two diverged.
        other_code: of which designs the code is not theirs.
    """

    gaps: tuple[float, ...]
    other_code: tuple[str, ...]

    @property
    def n_equal(self) -> int:
        """Of how many the losses are the same, bit for bit."""
        return self.gaps.count(0.0)

    @property
    def n_diverged(self) -> int:
        """How many diverged on one side alone."""
        return self.gaps.count(math.inf)

    @property
    def apart(self) -> tuple[float, float] | None:
        """Median and largest of how far apart the others are; None where there are none."""
        sizes = [abs(gap) for gap in self.gaps if gap and math.isfinite(gap)]
        return (statistics.median(sizes), max(sizes)) if sizes else None


def read(text: str, origin: str) -> list[OtherTable]:
    """The tables of a report in JSON. Raises UsageError where it is none of comparisons."""
    try:
        first = OtherTable.model_validate_json(text)
    except ValidationError:
        raise UsageError(
            f"{origin} holds no verdicts: `attnres report --format json --output FILE` writes them"
        ) from None
    return [first.model_copy(update={"more": ()}), *first.more]


def nearest(tables: Sequence[OtherTable], mine: Comparison) -> OtherTable:
    """The table that has most in common with a comparison: recipe, data, their names, terms, then
    runs of its arms; of equal ones the first. Raises UsageError where none has its baseline.
    """
    fitting = [table for table in tables if table.baseline == mine.baseline]
    if not fitting:
        known = {table.baseline for table in tables}
        raise UsageError(f"--against: {unknown('baseline there', mine.baseline, known)}")
    return max(fitting, key=lambda table: _in_common(table, mine))


def _in_common(table: OtherTable, mine: Comparison) -> tuple[int, ...]:
    names = (table.recipe == mine.recipe, table.data.source == mine.data.source)
    own = [terms.is_tuned or terms.by_design for terms in (table.terms, mine.terms)]
    runs = sum(len(row.theirs.losses) for row in beside(table, mine) if row.theirs)
    return *are_same(table, mine), *names, table.terms == mine.terms, own[0] == own[1], runs


def are_same(table: OtherTable, mine: Comparison) -> tuple[bool, bool]:
    """Whether the recipe is the same, and whether the data are."""
    is_data = table.data.fingerprint == mine.data.fingerprint
    return table.recipe_digest == mine.recipe_digest, is_data


def beside(table: OtherTable, mine: Comparison) -> list[Beside]:
    """Every arm of a comparison beside the table's."""
    theirs = {arm.variant: arm for arm in table.arms}
    found = [(arm, theirs.get(arm.variant)) for arm in mine.arms]
    return [Beside(table, arm, other, _said(arm, other)) for arm, other in found]


def again(table: OtherTable, mine: Comparison) -> Again:
    """What came of the runs that both have."""
    codes = {run.variant: shown(run) for run in mine.records}
    gaps: list[float] = []
    other: list[str] = []
    for row in beside(table, mine) if are_same(table, mine)[1] else ():
        arm, theirs = row.arm, row.theirs
        if theirs is None or theirs.recipe_digest != arm.recipe_digest:
            continue
        seeds = [seed for seed in arm.losses if seed in theirs.losses]
        gaps += [_gap(arm.losses[seed], theirs.losses[seed]) for seed in seeds]
        if seeds and table.codes.get(arm.variant) != codes.get(arm.variant):
            other.append(arm.variant)
    return Again(tuple(gaps), tuple(other))


def _gap(mine: float, theirs: float | None) -> float:
    if theirs is None and math.isnan(mine):
        return 0.0
    return math.inf if theirs is None or math.isnan(mine) else mine - theirs


def _said(arm: ArmResult, theirs: OtherArm | None) -> Said:
    if arm.verdict == "baseline":
        return "baseline"
    if theirs is None:
        return "not there"
    if arm.difference is None or arm.interval is None:
        return "no verdict here"
    if theirs.difference is None or theirs.interval is None:
        return "no verdict there"
    here, there = (low <= 0 <= high for low, high in (arm.interval, theirs.interval))
    if here and there:
        return "within noise in both"
    if here or there:
        return "within noise here" if here else "within noise there"
    is_same = arm.difference.mean * theirs.difference.mean > 0
    return "same sign" if is_same else "opposite sign"
