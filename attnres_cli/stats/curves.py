"""Curves through few points."""

from __future__ import annotations

from collections.abc import Sequence


def parabola_vertex(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Where the parabola through three points with ascending x is least, None where it is nowhere.

    With the middle point not above the others it lies between the outer ones.
    """
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    bend = (right - left) / (x[2] - x[0])
    if not bend > 0:
        return None
    return (x[0] + x[1]) / 2 - left / (2 * bend)
