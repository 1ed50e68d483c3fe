"""Another table of verdicts beside the user's: of a report that was kept as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ValidationError

from attnres_cli.errors import UsageError, unknown
from attnres_cli.records.comparison_terms import Terms
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

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the difference; None before the first look."""
        look = self.look
        if look is None or look.low is None or look.high is None or not look.n:
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
    arms: tuple[OtherArm, ...]
    more: tuple[OtherTable, ...] = ()


@dataclass(frozen=True)
class Beside:
    """One arm of the user's, and the other table's of that name."""

    arm: ArmResult
    theirs: OtherArm | None
    said: Said


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
    """The table that has most in common with a comparison: recipe, data, their names, terms; of
    equal ones the first. Raises UsageError where none has its baseline.
    """
    fitting = [table for table in tables if table.baseline == mine.baseline]
    if not fitting:
        known = {table.baseline for table in tables}
        raise UsageError(f"--against: {unknown('baseline there', mine.baseline, known)}")
    return max(fitting, key=lambda table: _in_common(table, mine))


def _in_common(table: OtherTable, mine: Comparison) -> tuple[bool, ...]:
    names = (table.recipe == mine.recipe, table.data.source == mine.data.source)
    own = [terms.is_tuned or terms.by_design for terms in (table.terms, mine.terms)]
    return *are_same(table, mine), *names, table.terms == mine.terms, own[0] == own[1]


def are_same(table: OtherTable, mine: Comparison) -> tuple[bool, bool]:
    """Whether the recipe is the same, and whether the data are."""
    is_data = table.data.fingerprint == mine.data.fingerprint
    return table.recipe_digest == mine.recipe_digest, is_data


def beside(table: OtherTable, mine: Comparison) -> list[Beside]:
    """Every arm of a comparison beside the table's."""
    theirs = {arm.variant: arm for arm in table.arms}
    found = [(arm, theirs.get(arm.variant)) for arm in mine.arms]
    return [Beside(arm, other, _said(arm, other)) for arm, other in found]


def _said(arm: ArmResult, theirs: OtherArm | None) -> Said:
    if arm.verdict == "baseline":
        return "baseline"
    if theirs is None:
        return "not there"
    if arm.difference is None or arm.interval is None:
        return "no verdict here"
    if theirs.difference is None or theirs.interval is None:
        return "no verdict there"
    here, there = _is_noise(arm.interval), _is_noise(theirs.interval)
    if here and there:
        return "within noise in both"
    if here or there:
        return "within noise here" if here else "within noise there"
    signs = {math.copysign(1, arm.difference.mean), math.copysign(1, theirs.difference.mean)}
    return "same sign" if len(signs) == 1 else "opposite sign"


def _is_noise(interval: tuple[float, float]) -> bool:
    return interval[0] <= 0 <= interval[1]
