"""Settings that are tuned at one size of a ladder serve the others; the largest checks them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from inputs import changed
from studies import SETTINGS

from attnres_cli.config.recipe import Recipe, load, rungs
from attnres_cli.errors import UsageError
from attnres_cli.lab.carried import base_of, carried, checking, told
from attnres_cli.lab.grid import canonical
from attnres_cli.lab.protocol import SEEDS
from attnres_cli.records.comparison_terms import ArmRecipe, Terms, Tuned
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.store.store import Store

TEXT = """
model: {n_layers: 1, d_model: 16, n_heads: 2, d_head: 8, seq_len: 16}
data: {source: text, path: text.txt}
optim: {lr: 6e-3, transfer: completep, base: {d_model: 16, n_layers: 1}}
train: {tokens: 640, batch_size: 4, eval_tokens: 256, n_evals: 2}
ladder:
  - {model.n_layers: 2, model.d_model: 32}
  - {model.n_layers: 1, model.d_model: 16}
  - {model.n_layers: 4, model.d_model: 32}
"""
HOW = Tuned(0.01, (0.01,), (2.0,), SEEDS, 0.02, False, "parabola", (), (), "")


@pytest.fixture
def sizes(tmp_path: Path) -> list[Recipe]:
    (tmp_path / "grown.yaml").write_text(TEXT)
    return rungs(load(str(tmp_path / "grown.yaml")))


@pytest.fixture
def plan(sizes: list[Recipe]) -> Plan:
    arms = (Arm("standard", 99, 600), Arm("attnres", 99, 600))
    return Plan(sizes[2], arms, (0, 1), ("cpu",), SETTINGS, "0123456789abcdef")


def found(sizes: list[Recipe], variant: str, how: Tuned, **terms: object) -> ArmRecipe:
    of = sizes[1].digest, "0123456789abcdef", Terms(is_tuned=True, **terms)
    return ArmRecipe(*of, variant, "1" * 12, how)


def test_the_size_that_is_the_base_is_tuned_for_all(sizes: list[Recipe]):
    assert base_of(sizes) == 1
    assert base_of(sizes[1:2]) is None
    plain = [changed(size, optim={"transfer": "none", "base": None}) for size in sizes]
    assert base_of(plain) is None
    with pytest.raises(UsageError, match="width 16 and 1 layers, which is no size of the ladder"):
        base_of([sizes[0], sizes[2]])


def test_of_widths_alone_any_depth_is_the_base(sizes: list[Recipe]):
    wide = [changed(size, optim={"transfer": "mup"}) for size in sizes]
    deep = [changed(size, model={"n_layers": 8}) for size in wide]
    assert base_of(deep) == 1


def test_an_arm_has_the_rate_and_the_second_number_of_the_base(sizes, plan: Plan):
    how = replace(HOW, changes=(("optim.design_lr_scale", 10.0),))
    rate = found(sizes, "attnres", replace(how, lr=0.5), rate_only=True)

    on, without = carried(
        plan, [rate, found(sizes, "attnres", how)], sizes[1], ["standard", "attnres"]
    )

    (arm,) = on.arms
    assert without == ["standard"]
    assert on.terms.is_tuned
    assert (arm.recipe.optim.lr, arm.recipe.optim.design_lr_scale) == (0.02, 10)
    assert arm.recipe.model == plan.recipe.model
    assert arm.how.fit == "parabola; tuned at width 16, 1 layers, carried over by completep"
    assert arm.how.rate_digest == plan.recipe.at_rate(0.02).digest


def test_an_arm_is_found_by_its_spec_where_its_name_is_another_at_each_depth(sizes, plan: Plan):
    spec = "attnres:n_blocks=2"
    here, name = (canonical(spec, size) for size in (plan.recipe, sizes[1]))
    assert (here, name) == ("attnres:block_size=4", "attnres")  # of 8 sublayers, of 2
    own = replace(plan, arms=(Arm(here, 99, 600),))

    on, without = carried(own, [found(sizes, name, HOW)], sizes[1], [spec])
    assert (len(on.arms), without) == (1, [])


def test_the_check_trains_the_rate_and_its_neighbours_and_tells_of_a_better_one(sizes, plan: Plan):
    every = [found(sizes, name, HOW) for name in ("standard", "attnres")]
    on, _ = carried(plan, every, sizes[1], ["standard", "attnres"])
    part = checking(on)
    assert part.seeds == SEEDS
    assert sorted({part.recipe_of(arm).optim.lr for arm in part.arms}) == [0.0141, 0.02, 0.0283]

    def losses(best: dict[str, float]) -> dict:
        return {
            spec.identity: 2 + math.log(spec.recipe.optim.lr / best[spec.variant]) ** 2
            for spec in part.specs
        }

    assert told(on, losses({"standard": 0.02, "attnres": 0.02})) == []
    (line,) = told(on, losses({"standard": 0.02, "attnres": 0.03}))
    assert line.startswith("attnres: the rate carried over, 0.02, is not the best of three")
    assert "0.0283 ends 0.16" in line
    diverged = losses({"standard": 0.02, "attnres": 0.03})
    first = next(k for k in diverged if k[0] == on.arms[1].recipe.digest and k[1] == "attnres")
    (line,) = told(on, diverged | {first: math.nan})
    assert "0.0283 ends well, it diverged" in line
    some = {
        k: v for k, v in losses({"standard": 0.02, "attnres": 0.03}).items() if k[2] != SEEDS[0]
    }
    assert told(on, some) == []


@pytest.mark.slow
def test_a_ladder_is_tuned_at_its_base_alone(attnres, here: Path):
    (here / "grown.yaml").write_text(TEXT)
    (here / "text.txt").write_text("\n".join(map(str, range(5000))))

    out = attnres.json(
        "ablate", "standard", "--seeds", "2", "--in-process", "--recipe", "grown.yaml", "--tune-lr"
    )

    tuned = [one for one in (out, *out["more"]) if one["terms"]["is_tuned"]]
    rates = [one["arms"][0]["own"]["lr"] for one in tuned]
    assert len(rates) == 3
    assert len(set(rates)) == 1
    sizes, runs = rungs(load("grown.yaml")), Store.open("attnres.db", create=False).runs()
    tuning = [run for run in runs if run.seed in SEEDS]
    store = Store.open("attnres.db", create=False)
    layers = [store.recipe(run.recipe_digest).model.n_layers for run in tuning]
    assert layers.count(sizes[0].model.n_layers) == 0
    assert layers.count(sizes[1].model.n_layers) >= 32
    assert layers.count(sizes[2].model.n_layers) == 12
