"""The paper's numbers beside the user's: gaps, ranks, and whether their signs agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from attnres_cli.config.shipped import paper
from attnres_cli.errors import UsageError, unknown
from attnres_cli.records.items import Kind
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.downstream import Downstream, Judged
from attnres_cli.verdict.select import options_of

_DIGITS = 4  # of differences of numbers that are printed with three decimals

Said = Literal[
    "same sign", "opposite sign", "within noise", "no gap in the paper", "not in the paper",
    "no verdict", "baseline",
]  # fmt: skip

RULE = (
    "within noise: the interval of your difference, which is that of your verdict table, holds 0; "
    "else the signs of both differences are compared"
)


@dataclass(frozen=True)
class Beside:
    """One arm in both. Gaps are differences from the same baseline, nats per token.

    `paper_loss` is as printed, None where the paper has no such arm. The ranks are among the arms
    that both have, least loss first, equal ones sharing a rank; None where either has no gap.
    """

    arm: ArmResult
    paper_loss: float | None
    paper_gap: float | None
    paper_rank: int | None
    rank: int | None
    said: Said

    @property
    def reason(self) -> str:
        """Why there is no verdict, or what is wrong with the baseline."""
        return self.arm.reason if self.said in ("baseline", "no verdict") else ""


def losses() -> dict[str, float]:
    """The paper's losses by spec of one model: Table 4 with Fig. 6, and Table 2 at its size."""
    held = paper()
    size, same = held["against"]["size"], held["against"]["same"]
    of_size = {spec: loss for spec, loss in held["table2"][size].items() if spec not in same}
    return {**of_size, **held["table4"]}


def beside(comparison: Comparison) -> list[Beside]:
    """Every arm beside the paper's of that name. Raises UsageError where it lacks the baseline."""
    theirs, baseline = losses(), comparison.baseline
    if baseline not in theirs:
        raise UsageError(f"--against paper: {unknown('baseline in the paper', baseline, theirs)}")
    gaps = {spec: round(loss - theirs[baseline], _DIGITS) for spec, loss in theirs.items()}
    ours = {arm.variant: arm.difference.mean for arm in comparison.arms if arm.difference}
    ours |= {baseline: 0.0} if comparison.base is not None else {}
    both = ours.keys() & gaps.keys()
    ranks, paper_ranks = _ranks(ours, both), _ranks(gaps, both)
    found = []
    for arm in comparison.arms:
        name, gap = arm.variant, gaps.get(arm.variant)
        ranked = paper_ranks.get(name), ranks.get(name)
        found.append(Beside(arm, theirs.get(name), gap, *ranked, _said(arm, gap)))
    return found


def is_known(comparison: Comparison) -> bool:
    """Whether the paper has the baseline and some other arm of a comparison."""
    theirs = losses()
    known = {arm.variant for arm in comparison.arms} & theirs.keys()
    return comparison.baseline in theirs and not known <= {comparison.baseline}


def _ranks(gaps: Mapping[str, float], names: Collection[str]) -> dict[str, int]:
    return {name: 1 + sum(gaps[other] < gaps[name] for other in names) for name in names}


def _said(arm: ArmResult, gap: float | None) -> Said:
    """The word for an arm, of which the paper has this gap."""
    if arm.verdict == "baseline":
        return "baseline"
    if gap is None:
        return "not in the paper"
    if arm.difference is None or arm.interval is None:
        return "no verdict"
    low, high = arm.interval
    if low <= 0 <= high:
        return "within noise"
    if gap == 0:
        return "no gap in the paper"
    return "same sign" if (gap < 0) == (arm.difference.mean < 0) else "opposite sign"


@dataclass(frozen=True)
class BesideTasks:
    """One arm's tasks of one kind beside the paper's benchmarks of that kind, which are others.

    `gains` are the paper's, in points, by benchmark, of Block AttnRes; none where it has none of
    that kind or not that arm. `said` is by task, by the measure of it that is judged first.
    """

    kind: Kind
    variant: str
    gains: Mapping[str, float]
    said: Mapping[str, Said]

    @property
    def mean(self) -> float | None:
        """Of the gains; None where there are none."""
        return fmean(self.gains.values()) if self.gains else None


def beside_tasks(found: Downstream) -> list[BesideTasks]:
    """Every arm's tasks by their kind."""
    rows: dict[tuple[Kind, str], list[Judged]] = {}
    for row in found.rows:
        if row.verdict != "baseline" and row.measure is row.task.measures[0]:
            rows.setdefault((row.task.kind, row.variant), []).append(row)
    is_standard, told = found.comparison.baseline == "standard", []
    for (kind, variant), judged in rows.items():
        gains = _gains(kind) if is_standard and options_of(variant)[0] == "attnres" else {}
        said = {row.task.name: _said_of(row, gains) for row in judged}
        told.append(BesideTasks(kind, variant, gains, said))
    return told


def _gains(kind: Kind) -> dict[str, float]:
    """Table 3, what AttnRes gains over the baseline in points, of benchmarks of one kind."""
    held, written = paper()["table3"], paper()["table3_written"]
    names = {Kind.CHOICE: [name for name in held if name not in written], Kind.GENERATION: written}
    return {name: round(held[name][1] - held[name][0], 1) for name in names.get(kind, [])}


def _said_of(row: Judged, gains: Mapping[str, float]) -> Said:
    """The word for a task beside benchmarks that gain so much."""
    if not gains:
        return "not in the paper"
    if row.verdict == "inconclusive":
        return "within noise"
    if row.verdict not in ("better", "worse"):
        return "no verdict"
    is_same = (row.verdict == "better") == (fmean(gains.values()) > 0)
    return "same sign" if is_same else "opposite sign"
