"""`ablate --plan FILE`: comparisons fixed before their first run, trained by one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Attnres, ended

from attnres_cli.config.complete import plans
from attnres_cli.lab.grid import canonical
from attnres_cli.records.preregister import read
from attnres_cli.store.store import Store

RECIPE = """
model: {n_layers: 1, d_model: 16, n_heads: 2, seq_len: 16}
optim: {lr: 1e-2}
train: {tokens: 128, batch_size: 4, eval_tokens: 64, n_evals: 2}
data: {source: text, path: text.txt}
"""
LADDER = "ladder: [{model.d_model: 16}, {model.d_model: 32, train.tokens: 192}]\n"
FIXED = "baseline: standard\nseeds: [0, 1, 2, 3, 4]\nmetric: val_loss\ntest: paired-t\n"
PLAN = f"""
recipe: grown.yaml
arms: [attnres]
margin: 0.02
{FIXED}
---
recipe: other.yaml
arms: [attnres]
tune_lr: true
match: [params]
{FIXED}
"""
TRAIN = ("ablate", "--plan", "plan.yaml", "--in-process")
DRY_RUN = ("ablate", "--plan", "plan.yaml", "--dry-run")


def write(folder: Path) -> None:
    """A plan of two documents: of a recipe with two sizes, and of a recipe with one."""
    (folder / "grown.yaml").write_text(RECIPE + LADDER)
    (folder / "other.yaml").write_text(RECIPE.replace("tokens: 128", "tokens: 192"))
    (folder / "text.txt").write_text("a short text, which takes no time to describe\n" * 500)
    (folder / "plan.yaml").write_text(PLAN)


@pytest.fixture
def planned(folder: Path) -> Path:
    """A folder with a plan that has not begun."""
    write(folder)
    return folder


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert ended(*TRAIN, "-q") == 0
    return folder


@pytest.fixture
def trained(trained_once: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a plan of which all is trained. Nothing changes it."""
    monkeypatch.chdir(trained_once)
    return trained_once


def test_a_plan_fixes_every_size_of_a_ladder_and_every_document(planned: Path):
    (planned / "last.yaml").write_text(PLAN.split("---")[1])  # in a file of its own
    found = read("plan.yaml", canonical)
    assert [recipe.model.d_model for _, recipe in found] == [16, 32, 16]
    terms = [(None, None), (None, None), (True, ("params",))]
    assert [(each.tune_lr, each.match) for each, _ in found] == terms
    assert read("last.yaml", canonical) == found[2:]


def test_what_is_typed_beside_a_plan_and_two_comparisons_under_one_recipe_are_refused(
    planned: Path, attnres: Attnres
):
    for typed in ("attnres", "--seeds 5", "--match time", "--set train.tokens=2k"):
        told = attnres.refuses(*TRAIN, *typed.split())
        assert "--plan says what is compared" in told
    (planned / "plan.yaml").write_text(PLAN.replace("grown.yaml", "other.yaml"))
    assert "two of its comparisons have the same recipe" in attnres.refuses(*TRAIN)
    assert not (planned / "attnres.db").exists()


def test_two_texts_of_one_recipe_stand_in_one_plan_and_are_called_by_their_names(
    folder: Path, attnres: Attnres
):
    write(folder)
    (folder / "prose.txt").write_text("another text, which has other words\n" * 500)
    of = [f"recipe: other.yaml\nset: [data.path={name}.txt]\n" for name in ("text", "prose")]
    rest = f"arms: [attnres]\n{FIXED}"
    plan = folder / "plan.yaml"
    plan.write_text(rest.replace("4]", "4, 5]").join([of[0], "---\n"]) + of[1] + rest)
    assert "need the same arms, seeds and words" in attnres.refuses(*TRAIN)

    plan.write_text(f"{of[0]}{rest}---\n{of[1]}{rest}")
    tables = [first := attnres.json(*TRAIN), *first["more"]]
    found = [table for table in tables if "registered" in table]
    assert len({table["registered"] for table in found}) == 1 < len(found)
    assert first["registered"].startswith("preregistered")
    named = [f"{table['recipe_digest']}@{table['data']['fingerprint']}" for table in found]
    again = attnres.json("report", "--recipe", named[0], "--recipe", named[1])
    for table in (tables[-1], again):
        assert [text["name"] for text in table["texts"]] == ["text.txt", "prose.txt"]
    for fingerprint in (table["data"]["fingerprint"] for table in found):  # each on its own text
        runs = Store.open("attnres.db", create=False).runs()
        run = next(run for run in runs if run.fingerprint == fingerprint)
        assert attnres.json("verify", str(run.id))["equal"]


N_RUNS = [10, 10, 94, 5]
COMMON, MORE = 20, 24
"""Runs of the third part that are both at a tuned rate and at others; and beyond the grids."""


def test_a_dry_run_sums_what_all_parts_train_and_fixes_nothing(planned: Path, attnres: Attnres):
    code, out, err = attnres(*DRY_RUN, "--format", "json")

    total = json.loads(out)["more"][-1]
    assert code == 0
    assert "part 4 of 4" in err
    assert [each["to_train"] for each in total["plans"]] == N_RUNS
    assert total["to_train"] == sum(N_RUNS)
    assert total["seconds"] == pytest.approx(sum(each["seconds"] for each in total["plans"]))
    assert not (planned / "attnres.db").exists()


@pytest.mark.usefixtures("trained")
def test_a_dry_run_of_a_plan_that_is_trained_has_nothing_left(attnres: Attnres):
    total, table = attnres.json(*DRY_RUN)["more"][-1], attnres.prints(*DRY_RUN)
    assert (total["to_train"], total["seconds"]) == (0, 0)
    assert "all plans, one after the other" in table
    n_runs = len(Store.open("attnres.db", create=False).runs())
    assert sum(N_RUNS) - COMMON <= n_runs <= sum(N_RUNS) + MORE


@pytest.mark.usefixtures("trained")
def test_a_plan_is_fixed_then_trained_and_its_tables_say_so(attnres: Attnres):
    document = attnres.json(*TRAIN)  # what is trained is read

    tables = [document, *document["more"]]
    kept = {each.digest for each in Store.open("attnres.db", create=False).registrations()}
    assert len(kept) == 3
    assert {each["registered"].removeprefix("preregistered ") for each in tables} == kept
    terms = [(each["terms"]["match"], each["terms"]["is_tuned"]) for each in tables]
    assert terms == [("tokens", False)] * 2 + [("tokens", True), ("params", False)]


@pytest.mark.slow
def test_a_report_over_sizes_has_a_table_for_each_kind_of_terms(planned: Path, attnres: Attnres):
    tuned = f"recipe: grown.yaml\narms: [attnres]\ntune_lr: true\n{FIXED}"
    (planned / "plan.yaml").write_text(tuned)
    attnres.prints(*TRAIN)

    shared = attnres.json("report", "--scaling")

    (own,) = shared["more"]
    assert [each["terms"]["is_tuned"] for each in (shared, own)] == [False, True]
    assert [len(each["rungs"]) for each in (shared, own)] == [2, 2]
    means = [[rung["arms"]["attnres"]["mean"] for rung in each["rungs"]] for each in (shared, own)]
    assert means[0] != means[1]
    assert any(line.startswith("settings tuned here") for line in own["notes"])


def test_plans_that_come_with_the_tool_can_be_read():
    assert all(read(name, canonical) for name in plans(""))
