"""What the budget has: every shape holds it, every variant has the same ones."""

from __future__ import annotations

import pytest
import torch

from attnres_cli import variant
from attnres_cli.errors import UsageError
from attnres_cli.model import Transformer, train_flops_per_token
from attnres_cli.recipe import Recipe, load
from attnres_cli.search import budget, points, space
from attnres_cli.search.points import Point

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


@pytest.mark.parametrize("asked", ["params=1000", "params=20000", "params=2M,flops=1e6"])
def test_a_budget_that_nothing_has_is_refused_with_the_nearest_that_something_has(asked: str):
    with pytest.raises(UsageError, match="the nearest that has one is --budget ") as refused:
        grid(asked)

    nearest = str(refused.value).rpartition("--budget ")[2]
    typed = [variant.parse(spec) for spec in BOTH]
    found = points.grid(
        typed, space.parse("", typed), budget.parse([nearest], 1), load("quick"), VOCAB
    )
    assert all(found.values())


def test_a_space_that_contradicts_itself_is_refused():
    with pytest.raises(UsageError, match="contradicts itself"):
        grid("params=2M", "n_heads=3,d_head=16,d_model=64")


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


@pytest.mark.parametrize(
    ("asked", "says"),
    [
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
