"""How long the points of a search are predicted to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from attnres_cli.data.tokens import Tokens
from attnres_cli.lab import grid
from attnres_cli.lab.search.points import Point
from attnres_cli.records.plan import Arm, Plan

TimeModel = Callable[[Point], float | None]
"""Seconds per step of a point, None where it cannot be timed."""


def predicted_s(
    trials: Sequence[tuple[int, Sequence[Point]]], step_s: TimeModel, n_workers: int
) -> float | None:
    """Seconds of these (number of trials, points) at n_workers; None where one cannot be timed. A
    trial is taken to need the mean time of its family's points.
    """
    total = 0.0
    for n_trials, points in trials:
        took = [(step_s(point), point.steps) for point in points]
        each = [per_step * steps for per_step, steps in took if per_step is not None]
        if len(each) < len(took):
            return None
        total += n_trials * sum(each) / len(each)
    return total / n_workers


def timed(families: Sequence[Sequence[Point]], plan: Plan, tokens: Tokens) -> TimeModel:
    """A model of seconds per FLOP that are linear in depth. It follows from a few timed steps of
    each variant's shallowest and deepest points of the fewest parameters.
    """
    slopes: dict[str, tuple[tuple[int, float | None], tuple[int, float | None]]] = {}
    for points in families:
        least = min(point.trunk.params for point in points)
        small = [point for point in points if point.trunk.params == least]
        by_depth = sorted(small, key=lambda point: point.trunk.n_layers)
        ends = (by_depth[0], by_depth[-1])
        arms = [Arm(p.variant, p.n_params, p.flops_per_token, None, p.recipe) for p in ends]
        found = grid.timed(replace(plan, arms=tuple(arms)), tokens).arms
        per_flop = [arm.step_s and arm.step_s / arm.flops_per_token for arm in found]
        shallow, deep = zip((p.trunk.n_layers for p in ends), per_flop, strict=True)
        slopes |= dict.fromkeys((point.variant for point in points), (shallow, deep))

    def step_s(point: Point) -> float | None:
        (shallow, fast), (deep, slow) = slopes[point.variant]
        if fast is None or slow is None:
            return None
        share = (point.trunk.n_layers - shallow) / max(1, deep - shallow)
        return (fast + share * (slow - fast)) * point.flops_per_token

    return step_s
