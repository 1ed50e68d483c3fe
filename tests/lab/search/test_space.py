"""The search space as it is typed: its meaning and its refusals."""

from __future__ import annotations

import pytest

from attnres_cli.errors import UsageError
from attnres_cli.lab.search.space import Space, parse
from attnres_cli.nn import variant

STANDARD, ATTNRES = variant.parse("standard"), variant.parse("attnres")


def space(text: str, *specs: variant.Variant) -> Space:
    return parse(text, specs or (STANDARD, ATTNRES))


def test_a_default_range_holds_where_nothing_of_its_kind_is_typed():
    for text, whole in (
        ("", "aspect=15..75,heads_per_layer=0.3..0.7"),  # the ranges of the paper's figure
        ("n_layers=4..8", "heads_per_layer=0.3..0.7,n_layers=4..8"),
        ("d_head=32", "aspect=15..75,d_head=32"),
        ("n_layers=6,n_heads=4", "n_heads=4,n_layers=6"),
    ):
        assert sorted(space(text).text.split(",")) == whole.split(",")


def test_ranges_include_both_ends_a_step_makes_a_list_and_learning_rates_go_by_root_two():
    sizes = space("n_layers=4..8,n_heads=2|4|8").trunk
    assert [n for n in range(1, 20) if sizes["n_layers"].holds(n)] == [4, 5, 6, 7, 8]
    assert [n for n in range(1, 20) if sizes["n_heads"].holds(n)] == [2, 4, 8]
    sizes = space("n_layers=4..16..4,heads_per_layer=0.3..0.7..0.2,lr=1e-3..4e-3").trunk
    assert sizes["n_layers"].values == (4, 8, 12, 16)
    assert sizes["heads_per_layer"].values == (0.3, 0.5, 0.7)
    assert sizes["lr"].values == (1e-3, 1.41e-3, 2e-3, 2.83e-3, 4e-3)


def test_a_listed_ratio_stands_for_the_values_nearest_to_it_by_ratio():
    aspect = space("aspect=15|30|60").trunk["aspect"]
    nearest = {16: 15, 21: 15, 22: 30, 45: 60, 80: 60, 90: None}  # sqrt(15 * 30) = 21.2
    assert {value: aspect.nearest(value) for value in nearest} == nearest


def test_options_are_those_of_signatures_with_their_types():
    options = space("n_blocks=2..4,key_norm=on|off,norm=softmax|sigmoid,window=none|4").options
    values = {"n_blocks": (2, 3, 4), "key_norm": (True, False), "window": (None, 4)}
    values["norm"] = ("softmax", "sigmoid")
    assert {name: each.values for name, each in options.items()} == values


def test_an_option_is_searched_for_designs_that_have_it_and_leave_it_open():
    fixed = variant.parse("attnres:n_blocks=4")
    found = space("n_blocks=2..4", STANDARD, ATTNRES, fixed)
    assert [list(found.of(spec)) for spec in (STANDARD, ATTNRES, fixed)] == [[], ["n_blocks"], []]


def test_a_mistake_is_refused_with_what_to_type():
    for text, says in (
        ("n_layer=2..4", "did you mean 'n_layers'"),
        ("nblocks=2..4", "did you mean 'n_blocks'"),
        ("rank=2..4,n_layers=8..2", "smaller number first, n_layers=2..8"),
        ("n_layers=0..2000", "from 1 up to 1000"),
        ("n_layers=2.5", "whole number"),
        ("n_layers=2..", "or a range with both ends as 2..8, got '2..'"),
        ("lr=0..1e-2", "above 0"),
        ("aspect=wide", "expected a number"),
        ("aspect=", "takes dimension=values"),
        ("aspect=15,aspect=30", "given twice"),
        ("aspect=15..75..-1", "above 0"),
        ("heads=1..8..0", "step is above 0"),
        ("norm=softmax|softmin", "norm must be softmax or"),
        ("key_norm=0..1", "on or off"),
        ("hidden_streams=4", "unknown dimension"),
        ("iterations=1|2", "no variant of this search has it (standard, attnres); mhc would"),
        ("window=1..9999", "at most 1000"),
    ):
        with pytest.raises(UsageError, match=r"^--space") as refused:
            space(text)
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)


def test_an_option_that_every_variant_has_fixed_is_refused():
    with pytest.raises(UsageError, match="attnres:n_blocks=4 has it fixed"):
        space("n_blocks=2..4", STANDARD, variant.parse("attnres:n_blocks=4"))
