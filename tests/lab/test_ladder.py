"""`ladder:` in a recipe: sizes that belong together, each an ordinary recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres_cli.config.recipe import Recipe, load, rungs
from attnres_cli.errors import RecipeError
from attnres_cli.records.run import Status
from attnres_cli.store.store import Store

TEXT = """
model: {n_layers: 1, d_model: 16, n_heads: 2, seq_len: 16}
data: {source: text, path: text.txt}
optim: {lr: 1e-2}
train: {tokens: 640, batch_size: 4, eval_tokens: 256, n_evals: 2}
variants: [standard, attnres]
"""
LADDER = "ladder: [{model.n_layers: 1}, "
LADDER += "{model.n_layers: 2, model.d_model: 24, train.tokens: 1.28k}]"


@pytest.fixture(autouse=True)
def text(here: Path) -> None:
    (here / "text.txt").write_text("\n".join(map(str, range(5000))))


def write(ladder: str) -> str:
    Path("grown.yaml").write_text(f"{TEXT}{ladder}\n")
    return "grown.yaml"


def test_every_size_is_an_ordinary_recipe_of_the_same_name():
    whole = load(write(LADDER), ["optim.lr=2e-2"])
    sizes = rungs(whole)
    assert [each.name for each in sizes] == ["grown", "grown"]
    numbers = [(each.model.n_layers, each.model.d_model, each.train.tokens) for each in sizes]
    assert numbers == [(1, 16, 640), (2, 24, 1280)]
    assert {each.optim.lr for each in sizes} == {2e-2}
    assert [each.ladder for each in sizes] == [(), ()]
    small = load(write(""), ["optim.lr=2e-2"])
    assert sizes[0].digest == small.digest
    assert rungs(small) == [small]


def test_a_ladder_is_kept_as_json_and_can_be_a_key():
    whole = load(write(LADDER))
    assert Recipe.model_validate_json(whole.model_dump_json()) == whole
    assert Recipe.model_validate(whole.model_dump(mode="json")) == whole
    assert hash(whole) == hash(load(write(LADDER)))


def test_a_mistake_in_a_ladder_is_refused_in_one_line():
    for ladder, words in (
        ("ladder: [{model.n_layer: 2}]", "size 1: model: unknown key 'n_layer': did you mean"),
        ("ladder: [{model.n_layers: 0}]", "size 1: model.n_layers"),
        ("ladder: [{data.source: text}]", "expected keys of model, optim, train"),
        ("ladder: [{n_layers: 2}]", "as model.n_layers, got 'n_layers'"),
        ("ladder: [{optim.lr: 1e-3}, {optim.lr: 1e-3}]", "two sizes are the same"),
        (
            "arms: {attnres: {optim.lr: 3e-3}}\nladder: [{optim.lr: 1e-3}]",
            "1: what sets optim.lr sets every",
        ),
        ("ladder: [quick]", "each size is a mapping as {model.n_layers: 4}, got 'quick'"),
        ("ladder: [{model.n_layers: [1, 2]}]", "ladder"),
        ("ladder: 3", "ladder"),
    ):
        with pytest.raises(RecipeError) as caught:
            load(write(ladder))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_design_that_does_not_fit_every_size_is_refused_before_training(attnres):
    name = write("ladder: [{model.d_model: 16}, {model.d_model: 20}]")
    assert "heads" in attnres.refuses("ablate", "attnres:heads=8", "--recipe", name)
    assert not Path("attnres.db").exists()


def test_a_size_may_have_rates_by_design_and_a_typed_rate_is_for_all():
    own_rate = "{arms.attnres:block_size=1.optim.lr: 3e-3, arms.mhc.optim.design_lr_scale: 10}"
    name = write(f"ladder: [{own_rate}, {{model.n_layers: 2, optim.lr: 1e-3}}]")
    own, shared = rungs(load(name)), rungs(load(name, ["optim.lr=2e-2"]))
    block, mhc = (("optim.lr", 3e-3),), (("optim.design_lr_scale", 10.0),)
    arms = (("attnres:block_size=1", block), ("mhc", mhc))
    assert [each.arms for each in own] == [arms, ()]
    assert [each.arms for each in shared] == [(), ()]
    assert [each.optim.lr for each in shared] == [2e-2, 2e-2]


def test_what_is_typed_for_all_sizes_is_not_overruled_by_one():
    sizes = "{model.n_layers: 1, train.tokens: 1k}, {model.n_layers: 2, train.tokens: 2k}"
    name, told = write(f"ladder: [{sizes}]"), []
    assert {
        each.train.tokens for each in rungs(load(name, ["train.tokens=1280"], told.append))
    } == {1280}
    assert told == ["--set train.tokens is one value for every size of the ladder"]
    name = write("ladder: [{arms.attnres.optim.lr: 1e-3}, {model.n_layers: 2}]")
    own = rungs(load(name, ["arms.attnres.optim.lr=4e-3"]))
    assert [dict(each.arms)["attnres"] for each in own] == [(("optim.lr", 4e-3),)] * 2


def test_a_dry_run_plans_every_size(attnres):
    code, out, err = attnres("ablate", "--recipe", write(LADDER), "--dry-run")
    assert code == 0
    assert out.count("plan: recipe grown") == 2
    assert "size 2 of 2: model.n_layers=2, model.d_model=24, train.tokens=1.28k" in err


@pytest.mark.slow
def test_every_size_is_trained_and_the_report_fits_them(attnres):
    grid = ("ablate", "--recipe", write(LADDER), "--seeds", "2", "--in-process")
    rows = attnres.csv(*grid)
    assert attnres.csv(*grid) == rows
    assert len(rows) == 2 * 2  # two sizes of two arms
    fitted = attnres.prints("report", "--scaling", "--format", "markdown")
    records = Store.open("attnres.db", create=False).runs()
    assert len(records) == 8
    assert {run.status for run in records} == {Status.COMPLETE}
    assert all(each.digest in fitted for each in rungs(load("grown.yaml")))
