"""The nearest budget that has a shape, where the one that was asked for has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnres_cli.search.budget import TOLERANCE, Budget, write

if TYPE_CHECKING:
    from attnres_cli.search.points import Point

LARGEST = 10**9
"""Parameters up to which budgets are tried, or a thousand times those that were asked for."""

_STEP, _THOUSAND, _MOST_STEPS = 1.1, 73, 400  # 1.1^73 is a thousand


def impossible(
    budget: Budget,
    space: str,
    listed: Callable[[Budget], Mapping[Any, Sequence[Point]]],
    has_one: Callable[[Budget], bool],
) -> str:
    """Why there is no shape, with the nearest budget that has one.

    Args:
        budget: which has none.
        space: as it is typed.
        listed: the points of each variant at a budget.
        has_one: whether a budget has a shape.

    """
    start = f"no shape of the space has --budget {budget.text} within {TOLERANCE:.1%}"
    found = nearest(_scaling(budget, listed), has_one)
    if found is not None:
        return f"{start} ({space}); the nearest that has one is --budget {found.text}"
    return (
        f"{start}, nor has any other that was tried, up to {LARGEST:,} parameters: widen {space}, "
        "whose dimensions may contradict each other"
    )


def _scaling(
    budget: Budget, listed: Callable[[Budget], Mapping[Any, Sequence[Point]]]
) -> Callable[[float], Budget]:
    """Budgets around this one, by a factor: of FLOPs alone, from one step up, where there are
    shapes of its parameters.
    """
    params, flops = budget.params, budget.flops
    if params is None or flops is None:
        return budget.scaled
    found = listed(Budget(write(params, None), params, None)).values()
    steps = [p.flops_per_token * p.base.tokens_per_step for points in found for p in points]
    if not steps:
        return budget.scaled
    least = max(flops, float(min(steps)))

    def scaled(factor: float) -> Budget:
        times = float(f"{least * factor:.4g}")
        return Budget(write(params, times), params, times)

    return scaled


def nearest(scaled: Callable[[float], Budget], has_one: Callable[[Budget], bool]) -> Budget | None:
    """The nearest budget by ratio that has a shape, to 0.1 %; None where none was found.

    Args:
        scaled: a factor times the budget that has none, or times the least one worth trying.
        has_one: whether a budget has a shape.

    """
    if has_one(scaled(1.0)):
        return scaled(1.0)
    for k in range(1, _MOST_STEPS):
        steps = []
        if max(scaled(_STEP ** (1 - k)).sizes()) > 1:
            steps.append(1 / _STEP)
        if k <= _THOUSAND or max(scaled(_STEP**k).sizes()) < LARGEST:
            steps.append(_STEP)
        for step in steps:
            if has_one(scaled(step**k)):
                return _closer(step ** (k - 1), step**k, scaled, has_one)
    return None


def _closer(
    near: float, far: float, scaled: Callable[[float], Budget], has_one: Callable[[Budget], bool]
) -> Budget:
    """Between a factor that has none and one that has."""
    for _ in range(8):
        middle = math.sqrt(near * far)
        near, far = (near, middle) if has_one(scaled(middle)) else (middle, far)
    return scaled(far)
