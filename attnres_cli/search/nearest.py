"""The nearest budget that has a shape, where the one that was asked for has none."""

from __future__ import annotations

import math
from collections.abc import Callable

from attnres_cli.search.budget import Budget

LARGEST = 10**9
"""Parameters up to which budgets are tried, or a thousand times those that were asked for."""

_STEP, _THOUSAND, _MOST_STEPS = 1.1, 73, 400  # 1.1^73 is a thousand


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
