"""Fewer tests than all combinations of parameters, and still each value beside each other one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


def pairwise(values: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Combinations, always the same, in which each value meets all values of other parameters."""
    places = list(itertools.combinations(range(len(values)), 2))
    every = list(itertools.product(*(range(len(each)) for each in values)))
    missing = {(i, j, row[i], row[j]) for row in every for i, j in places}
    chosen = []
    while missing:
        best = max(
            every, key=lambda row: len(missing & {(i, j, row[i], row[j]) for i, j in places})
        )
        missing -= {(i, j, best[i], best[j]) for i, j in places}
        chosen.append(tuple(each[at] for each, at in zip(values, best, strict=True)))
    return chosen


def in_pairs(parameters: Mapping[str, Sequence[Any]]) -> pytest.MarkDecorator:
    """`parametrize` over pairwise combinations; a key `a,b` has tuples of two as values."""
    rows = []
    for row in pairwise(list(parameters.values())):
        cells = zip(parameters, row, strict=True)
        rows.append([x for key, cell in cells for x in (cell if "," in key else [cell])])
    return pytest.mark.parametrize(",".join(parameters), rows)
