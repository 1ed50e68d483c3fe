"""The paper's numbers beside the user's: gaps, ranks, and whether their signs agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnres_cli.errors import UsageError, unknown
from attnres_cli.verdict.comparison import ArmResult, Comparison

_DIGITS = 4  # of differences of numbers that are printed with three decimals

Said = Literal[
    "same sign", "opposite sign", "within noise", "no gap in the paper", "not in the paper",
    "no verdict", "baseline",
]  # fmt: skip

RULE = (
    "within noise: the 95 % interval of your difference, paired by seed and not corrected for the "
    "number of arms, holds 0; else the signs of both differences are compared"
)


@dataclass(frozen=True)
class Beside:
    """One arm in both. Gaps are differences from the same baseline, nats per token.

    `paper_loss` is as printed, None where the paper has no such arm. The ranks are among the arms
    that both have, least loss first, equal ones sharing a rank; None where either has no gap.
    `reason`: why there is no verdict.
    """

    arm: ArmResult
    paper_loss: float | None
    paper_gap: float | None
    paper_rank: int | None
    rank: int | None
    said: Said
    reason: str = ""


def losses(paper: Mapping[str, Any]) -> dict[str, float]:
    """The paper's losses by spec of one model: Table 4 with Fig. 6, and Table 2 at its size."""
    size, same = paper["against"]["size"], paper["against"]["same"]
    of_size = {spec: loss for spec, loss in paper["table2"][size].items() if spec not in same}
    return {**of_size, **paper["table4"]}


def beside(comparison: Comparison, paper: Mapping[str, Any]) -> list[Beside]:
    """Every arm beside the paper's of that name. Raises UsageError where it lacks the baseline."""
    theirs, baseline = losses(paper), comparison.baseline
    if baseline not in theirs:
        raise UsageError(f"--against paper: {unknown('baseline in the paper', baseline, theirs)}")
    gaps = {spec: round(loss - theirs[baseline], _DIGITS) for spec, loss in theirs.items()}
    ours = {arm.variant: _gap(arm) for arm in comparison.arms}
    known = {name: gap for name, gap in ours.items() if gap is not None and name in gaps}
    ranks, paper_ranks = _ranks(known), _ranks({name: gaps[name] for name in known})
    found = []
    for arm in comparison.arms:
        gap = gaps.get(arm.variant)
        said, reason = _said(arm, gap)
        found.append(
            Beside(
                arm=arm,
                paper_loss=theirs.get(arm.variant),
                paper_gap=gap,
                paper_rank=paper_ranks.get(arm.variant),
                rank=ranks.get(arm.variant),
                said=said,
                reason=reason,
            )
        )
    return found


def is_known(comparison: Comparison, paper: Mapping[str, Any]) -> bool:
    """Whether the paper has the baseline and some other arm of a comparison."""
    arms = {arm.variant for arm in comparison.arms} | {comparison.baseline}
    known = arms & losses(paper).keys()
    return comparison.baseline in known and len(known) > 1


def _gap(arm: ArmResult) -> float | None:
    """The paired difference, 0 of the baseline itself; None where the arm is blocked."""
    if arm.verdict == "baseline":
        return 0.0
    return None if arm.difference is None else arm.difference.mean


def _ranks(gaps: Mapping[str, float]) -> dict[str, int]:
    return {name: 1 + sum(other < gap for other in gaps.values()) for name, gap in gaps.items()}


def _said(arm: ArmResult, gap: float | None) -> tuple[Said, str]:
    """The word for an arm, and why there is none."""
    if arm.verdict == "baseline":
        return "baseline", arm.reason
    if gap is None:
        return "not in the paper", ""
    if arm.difference is None:
        return "no verdict", arm.reason
    low, high = arm.difference.ci95
    if low <= 0 <= high:
        return "within noise", ""
    if gap == 0:
        return "no gap in the paper", ""
    return ("same sign" if (gap < 0) == (arm.difference.mean < 0) else "opposite sign"), ""
