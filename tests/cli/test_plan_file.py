"""`ablate --plan FILE`: comparisons fixed before their first run, trained by one command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import attnres

from attnres_cli.config.complete import plans
from attnres_cli.lab.grid import canonical
from attnres_cli.records.preregister import read
from attnres_cli.store.store import Store

RECIPE = """
model: {n_layers: 1, d_model: 16, n_heads: 2, seq_len: 16}
optim: {lr: 1e-2}
train: {tokens: 320, batch_size: 4, eval_tokens: 256, n_evals: 2}
"""
FIXED = "baseline: standard\nseeds: [0, 1, 2, 3, 4]\nmetric: val_loss\ntest: paired-t\n"
PLAN = f"""
recipe: grown.yaml
arms: [attnres]
{FIXED}
---
recipe: other.yaml
arms: [attnres]
tune_lr: true
match: [params]
{FIXED}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ladder = "ladder: [{model.d_model: 16}, {model.d_model: 32, train.tokens: 640}]\n"
    (tmp_path / "grown.yaml").write_text(RECIPE + ladder)
    (tmp_path / "other.yaml").write_text(RECIPE.replace("1e-2", "2e-2"))
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path


def test_a_plan_fixes_every_size_of_a_ladder_and_every_document():
    found = read("plan.yaml", canonical)

    assert [recipe.model.d_model for _, recipe in found] == [16, 32, 16]
    assert [(each.tune_lr, each.match) for each, _ in found] == [
        (None, None), (None, None), (True, ("params",))
    ]  # fmt: skip


def test_a_document_in_a_file_of_its_own_fixes_the_same(folder: Path):
    (folder / "last.yaml").write_text(PLAN.split("---")[1])

    assert read("last.yaml", canonical) == read("plan.yaml", canonical)[2:]


def test_a_plan_says_all_and_what_is_typed_beside_it_is_refused(folder: Path, capsys):
    for typed in (["attnres"], ["--seeds", "5"], ["--tune-lr"], ["--set", "train.tokens=2k"]):
        code, out, err = attnres(capsys, "ablate", *typed, "--plan", "plan.yaml")

        assert (code, out) == (2, "")
        assert "--plan says what is compared" in err
    assert not (folder / "attnres.db").exists()


def test_two_comparisons_under_one_recipe_are_refused(folder: Path, capsys):
    (folder / "twice.yaml").write_text(PLAN.replace("grown.yaml", "other.yaml"))

    code, _, err = attnres(capsys, "ablate", "--plan", "twice.yaml")

    assert code == 2
    assert "two of its comparisons have the same recipe" in err


def test_a_dry_run_plans_all_and_fixes_nothing(folder: Path, capsys):
    code, out, err = attnres(capsys, "ablate", "--plan", "plan.yaml", "--dry-run")

    assert code == 0
    assert out.count("predicted time") >= 4
    assert "all plans, one after the other" in out
    assert "part 4 of 4" in err
    assert not (folder / "attnres.db").exists()


def test_a_dry_run_sums_what_all_parts_train_and_take(capsys):
    attnres(capsys, "ablate", "--plan", "plan.yaml", "--in-process", "--format", "json")
    typed = ("ablate", "--plan", "plan.yaml", "--dry-run", "--format", "json")
    none_left = json.loads(attnres(capsys, *typed)[1])["more"][-1]
    all_left = json.loads(attnres(capsys, *typed, "--study", "new.db")[1])["more"][-1]
    trained = len(Store.open("attnres.db", create=False).runs())

    assert (none_left["to_train"], none_left["seconds"]) == (0, 0)
    assert all_left["to_train"] == trained  # none is counted in two parts
    assert [each["to_train"] for each in all_left["plans"]] == [10, 10, 40, 5]
    assert all_left["seconds"] == pytest.approx(sum(x["seconds"] for x in all_left["plans"]))


def test_a_plan_is_fixed_then_trained_and_its_tables_say_so(capsys):
    typed = ("ablate", "--plan", "plan.yaml", "--in-process", "--format", "json")
    attnres(capsys, *typed)
    code, out, _ = attnres(capsys, *typed)  # what is trained is read

    document = json.loads(out)
    tables = [document, *document["more"]]
    kept = {each.digest for each in Store.open("attnres.db", create=False).registrations()}
    assert code == 0
    assert len(kept) == 3
    assert {each["registered"].removeprefix("preregistered ") for each in tables} == kept
    terms = [(each["terms"]["match"], each["terms"]["is_tuned"]) for each in tables]
    assert terms == [("tokens", False)] * 3 + [("tokens", True), ("params", False)]


def test_sizes_are_told_on_each_of_the_terms_that_they_have(folder: Path, capsys):
    tuned = f"recipe: grown.yaml\narms: [attnres]\ntune_lr: true\n{FIXED}"
    (folder / "tuned.yaml").write_text(tuned)
    attnres(capsys, "ablate", "--plan", "tuned.yaml", "--in-process", "--format", "json")

    code, out, _ = attnres(capsys, "report", "--scaling", "--format", "json")

    shared = json.loads(out)
    (own,) = shared["more"]
    assert code == 0
    assert [each["terms"]["is_tuned"] for each in (shared, own)] == [False, True]
    assert [len(each["rungs"]) for each in (shared, own)] == [2, 2]
    means = [[rung["arms"]["attnres"]["mean"] for rung in each["rungs"]] for each in (shared, own)]
    assert means[0] != means[1]
    assert any(line.startswith("learning rates tuned here") for line in own["notes"])


@pytest.mark.parametrize("name", plans(""))
def test_plans_that_come_with_the_tool_can_be_read(name: str):
    assert read(name, canonical)
