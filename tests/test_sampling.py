"""The sample of parameters misses no pair of values."""

from __future__ import annotations

import itertools

import pytest
from sampling import in_pairs, pairwise


@pytest.mark.parametrize("sizes", [(2, 2), (5, 3, 5, 2), (3, 3, 3), (1, 4, 2), (4,) * 5])
def test_every_value_meets_every_other_and_few_rows_are_taken(sizes: tuple[int, ...]):
    values = [[f"{place}{number}" for number in range(size)] for place, size in enumerate(sizes)]
    rows = pairwise(values)
    met = {pair for row in rows for pair in itertools.combinations(row, 2)}
    for one, other in itertools.combinations(values, 2):
        assert set(itertools.product(one, other)) <= met
    assert len(rows) <= 2 * max(a * b for a, b in itertools.combinations(sizes, 2))
    assert rows == pairwise(values)


@in_pairs({"a,b": [(1, 2), (3, 6)], "c": ["x", (7, 8)]})
def test_values_of_two_parameters_stay_together(a: int, b: int, c: object):
    assert b == 2 * a
    assert c in ("x", (7, 8))
