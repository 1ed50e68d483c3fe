"""What the budget has: every shape holds it, every variant has the same ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.lab.search import budget, points, space
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.trunk_grid import Trunk, shapes
from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer, train_flops_per_token
from attnres_cli.nn.shape import Shape

VOCAB = 256
BOTH = ("standard", "attnres:block_size=4")


def grid(
    asked: str, text: str = "", specs: tuple[str, ...] = BOTH, recipe: Recipe | None = None
) -> dict[str, list[Point]]:
    typed = [variant.parse(spec) for spec in specs]
    recipe = recipe or load("quick")
    found = points.grid(typed, space.parse(text, typed), budget.parse([asked], 1), recipe, VOCAB)
    return {str(spec): of_spec for spec, of_spec in found.items()}


def built(point: Point) -> Transformer:
    shape = point.recipe.model.shape(VOCAB)
    with torch.device("meta"):
        design = variant.parse(point.variant).build(shape.d_model, shape.n_sublayers)
        return Transformer(shape, design)


def slowly(spec: str, n_params: int, text: str) -> dict[tuple, int]:
    """Of every point of one variant the width of its MLPs, found one by one: each choice of options
    built anew, its parameters counted in its module, and each width tried.
    """
    typed, base = variant.parse(spec), load("quick").model.shape(VOCAB)
    wanted = space.parse(text, [typed])
    searched = {name: each.values for name, each in wanted.of(typed).items()}
    found: dict[tuple, int] = {}
    for trunk in shapes(wanted, (n_params,), base):
        names: set[str] = set()
        for values in itertools.product(*searched.values()):
            options = {**dict(typed.options), **dict(zip(searched, values, strict=True))}
            made = variant.Variant(typed.name, tuple(sorted(options.items())))
            try:
                design = made.build(trunk.d_model, 2 * trunk.n_layers)
            except VariantError:
                continue
            name = str(made.at_depth(2 * trunk.n_layers))
            missed = by_width(trunk, base, sum(p.numel() for p in design.parameters()))
            near = min(missed, key=missed.__getitem__)
            if name not in names and missed[near] <= budget.TOLERANCE:
                found[trunk, name, values] = near
            names.add(name)
    return found


def by_width(trunk: Trunk, base: Shape, extra: int) -> dict[int, float]:
    """By d_ff the share by which a model with so many parameters more misses its size."""
    sizes = {"n_layers": trunk.n_layers, "d_model": trunk.d_model, "n_heads": trunk.n_heads}
    sizes |= {"n_kv_heads": trunk.n_heads, "d_head": trunk.d_model // trunk.n_heads}
    return {
        d_ff: abs((replace(base, **sizes, d_ff=d_ff).n_params() + extra) / trunk.params - 1)
        for d_ff in range(-(-trunk.d_ff // 2), trunk.d_ff + 8)
    }


@pytest.mark.parametrize(
    ("spec", "n_params", "text"),
    [
        ("standard", 300_000, "n_layers=1..8,n_heads=1..4"),
        ("attnres", 300_000, "n_layers=1..6,n_heads=2,n_blocks=1..5,heads=1|2|3"),
        ("hc", 200_000, "n_layers=2..6,n_heads=1|2"),
    ],
)
def test_the_points_are_those_that_are_found_one_by_one(spec: str, n_params: int, text: str):
    expected = slowly(spec, n_params, text)

    (found,) = grid(f"params={n_params}", text, (spec,)).values()

    widths = {(p.trunk, p.variant, tuple(v for _, v in p.options)): p.d_ff for p in found}
    assert len(found) == len(widths) > 5
    assert set(widths) == set(expected)
    for point, d_ff in widths.items():  # one that GPUs like may stand for the nearest
        assert d_ff == expected[point] or (d_ff % 8 == 0 and abs(d_ff - expected[point]) < 8)


@pytest.mark.parametrize("asked", [2_000_000, 700_000])
def test_every_point_has_the_budgets_parameters_counted_in_the_model(asked: int):
    specs = (*BOTH, "hc", "attnres:query=input")

    for found in grid(f"params={asked}", "", specs).values():
        assert len(found) > 3
        for point in found:
            counted = sum(p.numel() for p in built(point).parameters())
            assert counted == point.n_params
            assert abs(counted / asked - 1) <= 0.005


def test_with_flops_the_steps_follow_and_training_costs_the_budget():
    for found in grid("params=2M,flops=4e12").values():
        for point in found:
            model = built(point)
            tokens = point.recipe.steps * point.recipe.tokens_per_step
            flops = tokens * train_flops_per_token(model.shape, model.residual)
            assert flops == point.flops
            assert abs(flops / 4e12 - 1) <= 0.005
            assert abs(point.n_params / 2e6 - 1) <= 0.005


def test_flops_alone_try_sizes_around_the_compute_optimal_one():
    (found,) = grid("flops=1e15", "aspect=15..75", ("standard",)).values()

    sizes = {point.trunk.params for point in found}
    optimal = (1e15 / 120) ** 0.5
    assert [round(size / optimal, 1) for size in sorted(sizes)] == [0.3, 0.5, 1, 2, 4]
    assert {abs(point.flops / 1e15 - 1) <= 0.005 for point in found} == {True}


def test_variants_have_the_same_shapes_and_differ_in_the_width_of_their_mlps():
    standard, attnres = grid("params=2M").values()

    sizes = [(p.trunk.n_layers, p.trunk.d_model, p.trunk.n_heads) for p in standard]
    assert sizes == [(p.trunk.n_layers, p.trunk.d_model, p.trunk.n_heads) for p in attnres]
    assert len(set(sizes)) == len(sizes)
    assert all(a.d_ff >= b.d_ff for a, b in zip(standard, attnres, strict=True))


def test_every_shape_is_in_the_space_and_could_be_trained():
    for point in grid("params=2M", "n_layers=3..8,n_heads=1..4,d_head=16..128")["standard"]:
        model = point.recipe.model
        assert 3 <= model.n_layers <= 8
        assert 1 <= model.n_heads <= 4
        assert 16 <= model.shape(VOCAB).d_head <= 128
        assert model.shape(VOCAB).d_head % 2 == 0
        assert model.n_heads * model.shape(VOCAB).d_head == model.d_model


def test_a_listed_ratio_gets_one_shape_each_the_nearest_that_the_budget_has():
    found = grid("params=100M", "aspect=15|45|75,heads_per_layer=0.3|0.7", ("standard",))

    ratios = [(p.trunk.aspect, p.trunk.heads_per_layer) for p in found["standard"]]
    assert len(ratios) == 6
    for aspect in (15, 45, 75):
        for heads in (0.3, 0.7):
            near = [a for a, h in ratios if abs(h / heads - 1) < 0.12 and abs(a / aspect - 1) < 0.1]
            assert len(near) == 1


def test_designs_that_are_the_same_at_a_depth_are_tried_once():
    found = grid("params=700k", "n_layers=3,n_heads=2,n_blocks=1..9", ("attnres",))["attnres"]

    assert [p.variant for p in found] == [
        "attnres:block_size=6",
        "attnres:block_size=3",
        "attnres:block_size=2",
        "attnres",
    ]
    assert [dict(p.options)["n_blocks"] for p in found] == [1, 2, 3, 6]


def test_the_learning_rate_goes_down_as_the_width_goes_up_unless_it_is_searched():
    recipe = load("quick")
    (scaled,) = grid("params=700k", "n_layers=4,n_heads=2", ("standard",)).values()
    (searched,) = grid("params=700k", "n_layers=4,n_heads=2,lr=1e-3|2e-3", ("standard",)).values()

    (point,) = scaled
    assert point.recipe.optim.lr == pytest.approx(
        recipe.optim.lr * recipe.model.d_model / point.trunk.d_model, rel=0.005
    )
    assert [p.recipe.optim.lr for p in searched] == [1e-3, 2e-3]


def test_a_point_of_the_recipes_own_sizes_is_the_recipes_own_run():
    recipe = load("quick")
    own = recipe.model.shape(VOCAB)
    asked = f"params={own.n_params()}"

    (found,) = grid(asked, "n_layers=6,n_heads=4,d_head=16", ("standard",)).values()

    assert [point.recipe.digest for point in found] == [recipe.digest]


@pytest.mark.parametrize(
    ("asked", "text", "says"),
    [
        ("params=20000", "", "widen a range, or take another budget, as params=2M"),
        ("params=2M", "n_heads=3,d_head=16,d_model=64", "widen a range, or take another budget"),
        ("flops=1e10", "", "widen a range, or take more FLOPs, since a run has whole steps"),
        ("params=2M,flops=1e6", "", "widen a range, or take more FLOPs"),
    ],
)
def test_a_budget_that_nothing_has_is_refused(asked: str, text: str, says: str):
    with pytest.raises(UsageError, match=rf"no shape of the space has --budget .*: {says}"):
        grid(asked, text)


def test_parameters_are_searched_under_flops_alone_and_that_is_said():
    with pytest.raises(UsageError, match="as --budget flops=1e15"):
        grid("params=2M", "params=1M..4M")

    (found,) = grid("flops=1e13", "params=200k|400k", ("standard",)).values()
    assert {point.trunk.params for point in found} == {200_000, 400_000}


def test_a_space_too_large_to_list_is_refused():
    with pytest.raises(
        UsageError, match="more than 5,000 shapes of 100,000,000 parameters: narrow"
    ):
        grid("params=100M", "n_layers=1..1000,n_heads=1..1000")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n_blocks=0..4", "0 fits no shape of the budget: attnres:n_blocks=0: "),
        ("heads=1|7", "7 fits no shape"),
    ],
)
def test_a_value_of_an_option_that_fits_nowhere_is_refused_with_the_designs_reason(
    text: str, says: str
):
    with pytest.raises(UsageError) as refused:
        grid("params=2M", "n_layers=4,n_heads=2," + text, ("standard", "attnres"))

    assert says in str(refused.value)


def test_a_range_that_the_deepest_shape_reaches_is_tried_without_the_rest_of_it():
    text = "n_layers=2|4,n_heads=2,"

    def tried(option: str) -> list[tuple[int, str]]:
        found = grid("params=700k", text + option, ("attnres",))["attnres"]
        return [(point.trunk.n_layers, point.variant) for point in found]

    assert tried("n_blocks=8..200") == [(2, "attnres"), (4, "attnres")]
    assert tried("n_blocks=100..200") == tried("n_blocks=8..200")
    assert tried("n_blocks=1..200") == tried("n_blocks=1..8")
    assert {name for _, name in tried("heads=16|32")} == {"attnres:heads=16", "attnres:heads=32"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([""], "--budget is empty: leave it out"),
        (["params=2M", " "], "--budget is empty: leave it out"),
        (["param=2M"], "did you mean 'params'"),
        (["params=2M", "params=3M"], "given twice"),
        (["params=lots"], "whole number of parameters"),
        (["params=1.5"], "whole number of parameters"),
        (["flops=-1"], "a number, as 1e17"),
        (["flops="], "a number, as 1e17"),
        (["flops=nan"], "a number, as 1e17"),
    ],
)
def test_a_budget_that_cannot_be_meant_is_refused(asked: list[str], says: str):
    with pytest.raises(UsageError) as refused:
        budget.parse(asked, 1)

    assert says in str(refused.value)
