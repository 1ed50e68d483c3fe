"""How many seeds would decide an arm that is inconclusive so far."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from attnres_cli.records.comparison_terms import BY_DESIGN, SHARED
from attnres_cli.stats.power import POWER, power
from attnres_cli.verdict.comparison import ArmResult, Comparison

_MOST_SEEDS = 1000  # that one command takes


@dataclass(frozen=True)
class Deciding:
    """The arm, the seeds that it and the baseline need in all, and how long those that are missing
    train one after the other; None where that is not known.
    """

    arm: ArmResult
    seeds: int
    n_more: int
    seconds: float | None


def deciding(comparison: Comparison) -> Deciding | None:
    """Of the inconclusive arms the one that fewest seeds decide with a probability of 80%, if its
    difference is what it seems; None where 1,000 seeds would not, or a command would not name the
    same runs.
    """
    if comparison.terms not in (SHARED, BY_DESIGN):
        return None
    needed = [(n, arm) for arm in comparison.arms if (n := _needed(arm, comparison)) is not None]
    if not needed:
        return None
    seeds, arm = min(needed, key=lambda each: each[0])
    held: dict[str, list[float]] = {comparison.baseline: [], arm.variant: []}
    for run in comparison.records:
        if run.result is not None and run.variant in held:
            held[run.variant].append(run.result.train_s)
    missing = [(max(0, seeds - len(times)), times) for times in held.values()]
    seconds = sum(n * median(times) for n, times in missing) if all(held.values()) else None
    return Deciding(arm, seeds, max(n for n, _ in missing), seconds)


def _needed(arm: ArmResult, comparison: Comparison) -> int | None:
    """Seeds of the first later look that finds a difference as large with enough power."""
    one, look = arm.difference, arm.look
    if arm.verdict != "inconclusive" or one is None or look is None or one.sd == 0:
        return None
    for size, alpha in comparison.family.looks(arm.variant):
        if size > _MOST_SEEDS:
            return None
        if size > look.n and power(size, abs(one.mean) / one.sd, alpha) >= POWER:
            return size
    return None
