"""The points of a budget: every shape keeps to it, and every design gets the same shapes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from attnres_cli.config.recipe import load
from attnres_cli.errors import UsageError, VariantError
from attnres_cli.lab.search import budget, points, space, trunk_grid
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.trunk_grid import Trunk, shapes
from attnres_cli.nn import variant
from attnres_cli.nn.model import Transformer, train_flops_per_token
from attnres_cli.nn.shape import Shape

VOCAB = 256
BOTH = ("standard", "attnres:block_size=4")


def grid(
    asked: str, text: str = "", specs: tuple[str, ...] = BOTH, changes: tuple[str, ...] = ()
) -> dict[str, list[Point]]:
    typed, recipe = [variant.parse(spec) for spec in specs], load("quick", list(changes))
    found = points.grid(typed, space.parse(text, typed), budget.parse([asked], 1), recipe, VOCAB)
    return {str(spec): of_spec for spec, of_spec in found.items()}


def one(asked: str, text: str, spec: str = "standard") -> list[Point]:
    return grid(asked, text, (spec,))[spec]


def built(point: Point) -> Transformer:
    shape = point.recipe.model.shape(VOCAB)
    with torch.device("meta"):
        design = variant.parse(point.variant).build(shape.d_model, shape.n_sublayers)
        return Transformer(shape, design)


def slowly(spec: str, n_params: int, text: str) -> dict[tuple, int]:
    """The MLP width of every point of one design, found one by one: each choice of options is built
    anew, its parameters are counted in its module, and each width is tried.
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
            extra = sum(p.numel() for p in design.parameters())
            missed = {  # relative, by d_ff
                d_ff: abs((made_of(base, trunk, d_ff).n_params() + extra) / trunk.params - 1)
                for d_ff in range(-(-trunk.d_ff // 2), trunk.d_ff + 8)
            }
            near = min(missed, key=missed.__getitem__)
            if name not in names and missed[near] <= budget.TOLERANCE:
                found[trunk, name, values] = near
            names.add(name)
    return found


def made_of(base: Shape, trunk: Trunk, d_ff: int) -> Shape:
    sizes = {"n_layers": trunk.n_layers, "d_model": trunk.d_model, "n_heads": trunk.n_heads}
    sizes |= {"n_kv_heads": trunk.n_heads, "d_head": trunk.d_model // trunk.n_heads}
    return replace(base, **sizes, d_ff=d_ff)


def test_the_points_are_those_found_one_by_one():
    for spec, n_params, text in (
        ("attnres", 300_000, "n_layers=1..6,n_heads=2,n_blocks=1..5,heads=1|2|3"),
        ("hc", 200_000, "n_layers=2..4,n_heads=1|2"),
    ):
        expected = slowly(spec, n_params, text)
        found = one(f"params={n_params}", text, spec)
        widths = {(p.trunk, p.variant, tuple(v for _, v in p.options)): p.d_ff for p in found}
        assert len(found) == len(widths) > 5
        assert set(widths) == set(expected)
        for point, d_ff in widths.items():  # one that GPUs like may stand for the nearest
            assert d_ff == expected[point] or (d_ff % 8 == 0 and abs(d_ff - expected[point]) < 8)


def assert_parameters(found: list[Point], n_params: int) -> None:
    assert len(found) > 3
    for point in found:
        assert sum(p.numel() for p in built(point).parameters()) == point.n_params
        assert abs(point.n_params / n_params - 1) <= 0.005


@pytest.mark.parametrize("asked", [700_000, pytest.param(2_000_000, marks=pytest.mark.slow)])
def test_every_point_has_the_budgets_parameters(asked: int):
    for found in grid(f"params={asked}", "", (*BOTH, "hc", "attnres:query=input")).values():
        assert_parameters(found, asked)


def test_with_flops_the_steps_follow_and_training_costs_the_budget():
    for found in grid("params=2M,flops=4e12").values():
        assert_parameters(found, 2_000_000)
        for point in found:
            model = built(point)
            tokens = point.recipe.steps * point.recipe.tokens_per_step
            assert point.flops == tokens * train_flops_per_token(model.shape, model.residual)
            assert abs(point.flops / 4e12 - 1) <= 0.005


def test_a_budget_of_flops_tries_sizes_around_the_compute_optimal_one():
    found = one("flops=1e15", "aspect=15..75")
    sizes = {point.trunk.params for point in found}
    optimal = (1e15 / 120) ** 0.5
    assert [round(size / optimal, 1) for size in sorted(sizes)] == [0.3, 0.5, 1, 2, 4]
    assert {abs(point.flops / 1e15 - 1) <= 0.005 for point in found} == {True}
    found = one("flops=1e13", "params=200k|400k")
    assert {point.trunk.params for point in found} == {200_000, 400_000}


def test_designs_have_the_same_shapes_and_differ_in_the_width_of_their_mlps():
    text = "n_layers=3..8,n_heads=1..4,d_head=16..128"
    standard, attnres = grid("params=2M", text).values()

    sizes = [(p.trunk.n_layers, p.trunk.d_model, p.trunk.n_heads) for p in standard]
    assert sizes == [(p.trunk.n_layers, p.trunk.d_model, p.trunk.n_heads) for p in attnres]
    assert len(set(sizes)) == len(sizes)
    assert all(a.d_ff >= b.d_ff for a, b in zip(standard, attnres, strict=True))
    for point in standard:  # in the space, and such that it can be trained
        model, d_head = point.recipe.model, point.recipe.model.shape(VOCAB).d_head
        assert (model.n_layers in range(3, 9), model.n_heads in range(1, 5)) == (True, True)
        assert d_head in range(16, 129, 2)
        assert model.n_heads * d_head == model.d_model


def test_each_listed_ratio_gets_the_nearest_shape_of_the_budget():
    found = one("params=100M", "aspect=15|45|75,heads_per_layer=0.3|0.7")
    ratios = [(p.trunk.aspect, p.trunk.heads_per_layer) for p in found]
    assert len(ratios) == 6
    for aspect, heads in itertools.product((15, 45, 75), (0.3, 0.7)):
        near = [a for a, h in ratios if abs(h / heads - 1) < 0.12 and abs(a / aspect - 1) < 0.1]
        assert len(near) == 1


def test_designs_that_are_the_same_at_a_depth_are_tried_once():
    found = one("params=700k", "n_layers=3,n_heads=2,n_blocks=1..9", "attnres")
    blocks = [f"attnres:block_size={size}" for size in (6, 3, 2)]
    assert [p.variant for p in found] == [*blocks, "attnres"]
    assert [dict(p.options)["n_blocks"] for p in found] == [1, 2, 3, 6]


def test_the_recipes_rate_is_carried_over_to_other_widths_also_where_rates_are_searched():
    recipe = load("quick")
    (scaled,) = one("params=700k", "n_layers=4,n_heads=2")
    searched = one("params=700k", "n_layers=4,n_heads=2,lr=1e-3|2e-3")
    assert scaled.recipe.optim.lr == recipe.optim.lr
    for point in (scaled, *searched):
        optim = point.recipe.optim
        assert optim.base is not None
        assert (optim.transfer, optim.base.d_model) == ("mup", recipe.model.d_model)
    assert [p.recipe.optim.lr for p in searched] == [1e-3, 2e-3]


def test_trunks_that_no_transfer_is_defined_for_have_rates_by_their_width():
    recipe = load("quick")
    found = grid("params=700k", "n_layers=4,n_heads=2", BOTH[:1], ("model.tie_embeddings=on",))
    (scaled,) = found["standard"]
    expected = recipe.optim.lr * recipe.model.d_model / scaled.trunk.d_model
    assert scaled.recipe.optim.lr == pytest.approx(expected, rel=0.005)
    assert scaled.recipe.optim.base is None


def test_a_point_with_the_recipes_sizes_is_the_recipes_run():
    quick = load("quick")
    asked = f"params={quick.model.shape(VOCAB).n_params()}"
    assert one(asked, "n_layers=6,n_heads=4,d_head=16")[0].recipe.digest == quick.digest


def test_a_range_beyond_the_deepest_shape_is_tried_up_to_it():
    def tried(option: str) -> list[tuple[int, str]]:
        found = one("params=700k", "n_layers=2|4,n_heads=2," + option, "attnres")
        return [(point.trunk.n_layers, point.variant) for point in found]

    assert tried("n_blocks=8..200") == [(2, "attnres"), (4, "attnres")]
    assert tried("n_blocks=100..200") == tried("n_blocks=8..200")
    assert tried("n_blocks=1..200") == tried("n_blocks=1..8")
    assert {name for _, name in tried("heads=16|32")} == {"attnres:heads=16", "attnres:heads=32"}


NO_SHAPE = "no shape of the space has --budget .*: widen a range, or take "
SMALL = "n_layers=4,n_heads=2,"


def test_a_budget_without_a_shape_or_typed_wrong_is_refused(monkeypatch):
    for asked, text, words in (
        ("params=20000", "", f"{NO_SHAPE}another budget, as params=2M"),
        ("params=2M", "n_heads=3,d_head=16,d_model=64", f"{NO_SHAPE}another budget"),
        ("flops=1e10", "", f"{NO_SHAPE}more FLOPs, since a run has whole steps"),
        ("params=2M", "params=1M..4M", "as --budget flops=1e15"),
        ("params=2M", f"{SMALL}n_blocks=0..4", "0 fits no shape .*: attnres:n_blocks=0: "),
        ("params=2M", f"{SMALL}heads=1|7", "7 fits no shape"),
        ("params=100M", "n_layers=1..1000,n_heads=1..1000", "more than 500 shapes of 100,000,000"),
        ("", "", "--budget is empty: leave it out"),
        ("param=2M", "", "did you mean 'params'"),
        ("params=2M,params=3M", "", "given twice"),
        ("params=1.5", "", "whole number of parameters"),
        ("flops=-1", "", "a number, as 1e17"),
        ("flops=nan", "", "a number, as 1e17"),
    ):
        monkeypatch.setattr(trunk_grid, "MOST_SHAPES", 500)
        with pytest.raises(UsageError, match=words):
            grid(asked, text, ("standard", "attnres"))
