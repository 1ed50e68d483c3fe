"""Counts of the paper's Table 1, and statistics of measured times."""

from __future__ import annotations

import pytest

from attnres_cli.nn.cost import ratio, spread
from attnres_cli.nn.variant import parse


@pytest.mark.parametrize(
    ("spec", "n_sublayers", "expected"),
    [
        ("standard", 12, ("standard", 3, None, 3)),
        ("attnres", 12, ("Full", 7, (3, 4), 24)),
        ("attnres", 128, ("Full", 23, (10, 13), 24)),  # fewer than with the paper's (16, 8)
        ("attnres:heads=4,key_norm=off", 4, ("Full", 4, (2, 2), 24)),
        ("attnres:block_size=4", 12, ("Block", 5.75, (4, 3), 5.5)),
        ("attnres:block_size=16", 128, ("Block", 5.5, (16, 8), 5.5)),  # the paper's own point
        ("attnres:block_size=5", 12, ("Block", 5.6, (5, 3), 5.5)),
        ("mhc", 12, ("mHC", 34, None, 34)),
        ("mhc:n_streams=2,residual=lite", 12, ("mHC", 18, None, 34)),
    ],
)
def test_counts_are_those_of_the_paper(spec: str, n_sublayers: int, expected: tuple):
    assert parse(spec).build(16, n_sublayers).table_one() == expected


@pytest.mark.parametrize(
    "spec",
    ["denseformer", "attnres:window=3", "attnres:score=static", "attnres:block_size=4,rank=2",
     "attnres:block_size=4,norm=sigmoid", "attnres:query=input", "attnres:agg=rmssum"],
)  # fmt: skip
def test_a_design_without_a_formula_in_the_paper_has_no_count(spec: str):
    assert parse(spec).build(16, 12).table_one() is None


def test_a_spread_is_the_median_and_the_quartiles():
    assert spread([5.0]) == (5, 5, 5)
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == (3, 2, 4)


def test_a_ratio_compares_the_times_of_each_round():
    found = ratio([1.1, 11.0, 1.1], [1.0, 10.0, 1.0])  # the machine was slow in the second

    assert found == pytest.approx((1.1, 1.1, 1.1))
