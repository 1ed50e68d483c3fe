"""One of several tables that a study was asked for is called so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from another_user import as_nobody
from answers import answers
from comparisons import BASE, BETTER
from older import make_older
from studies import fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.lab.merging import merge
from attnres_cli.lab.notebook import open_study
from attnres_cli.store.store import Store

LOSSES = {"standard": BASE, "attnres": BETTER, "rezero": BASE[::-1]}
NOT_KEPT = "the study does not keep that this table was asked for"


@pytest.fixture
def recipe(here: Path) -> Recipe:
    return load("smoke")


@pytest.fixture
def study(recipe: Recipe) -> Path:
    fill(Path("attnres.db"), recipe, LOSSES)
    return Path("attnres.db")


def n_tables(told: list[str]) -> int:
    found = [line for line in told if line.startswith("one of ")]
    return int(found[0].split()[2]) if found else 1


def test_tables_baselines_and_margins_are_counted_once_each(study: Path, attnres):
    def shown(*words: str) -> int:
        return n_tables(attnres.json("report", *words)["qualified"])

    assert [shown(), shown(), shown("attnres")] == [1, 1, 1]
    assert [shown("--baseline", "attnres"), shown()] == [2, 2]
    assert [shown("--margin", "0.01"), shown("--margin", "0.010"), shown()] == [3, 3, 3]
    assert "! one of 3 tables: " in attnres.prints("report")
    kept = Store.open(str(study), create=False).asked() or []
    assert {(each.baseline, each.margin) for each in kept} == {
        ("standard", ""), ("attnres", ""), ("standard", "0.01")
    }  # fmt: skip


def test_a_recipe_without_a_difference_is_no_table(study: Path, attnres):
    fill(study, load("smoke", ["train.tokens=4k"]), {"standard": BASE})
    attnres.prints("report")
    assert Store.open(str(study), create=False).asked() == []
    attnres.prints("report", "--format", "html")
    assert len(Store.open(str(study), create=False).asked() or []) == 1


def test_a_preregistered_table_is_read_alone(recipe: Recipe, attnres):
    text = "{recipe: smoke, arms: [attnres], baseline: standard, seeds: [0, 1, 2, 3, 4], "
    Path("plan.yaml").write_text(text + "metric: val_loss, test: paired-t}")
    attnres.prints("report", "--preregister", "plan.yaml")
    fill(Path("attnres.db"), recipe, LOSSES)
    attnres.prints("report", "--baseline", "attnres")
    found = attnres.json("report")
    assert found["registered"].startswith("preregistered")
    assert n_tables(found["qualified"]) == 1
    assert n_tables(found["more"][0]["qualified"]) == 2


def test_a_notebook_the_sizes_and_the_tasks_are_counted_as_the_report_is(
    study: Path, recipe: Recipe, attnres
):
    def qualified(of: Iterable[dict[str, Any]]) -> set[int]:
        return {n_tables(one["qualified"].split("; ")) for one in of}

    larger = load("smoke", ["train.tokens=40k"])
    store = fill(study, larger, LOSSES, tokens=40_000)
    verdicts = open_study("attnres.db").verdicts
    assert qualified(verdicts(recipe=recipe.digest)) == {1}
    assert qualified(verdicts()) == {2}
    for run in store.runs():
        store.keep_items(answers(run, "cloze"))
    assert qualified(attnres.csv("report", "--downstream")) == {3}
    assert qualified(attnres.csv("report", "--downstream", "--recipe", larger.digest)) == {3}
    assert qualified(attnres.csv("report", "--scaling")) == {3}  # the two that were seen
    assert n_tables(attnres.json("report")["qualified"]) == 3
    assert qualified(attnres.csv("report", "--scaling", "--margin", "0.01")) == {5}
    kept = Store.open(str(study), create=False).asked() or []
    assert sorted(each.terms for each in kept) == [*["shared"] * 4, "shared, tasks"]


def test_sizes_that_nobody_has_seen_before_are_a_table_each(study: Path, attnres):
    fill(study, load("smoke", ["train.tokens=40k"]), LOSSES, tokens=40_000)
    assert n_tables(attnres.json("report", "--scaling")["qualified"]) == 2
    assert n_tables(attnres.json("report")["qualified"]) == 2


def test_merged_studies_keep_what_either_was_asked_for(study: Path, recipe: Recipe, attnres):
    other = fill(Path("b.db"), recipe, LOSSES)
    attnres.prints("report")
    attnres.prints("report", "--study", "b.db")
    attnres.prints("report", "--study", "b.db", "--baseline", "rezero")
    store = Store.open(str(study), create=True)
    merge([other], store)
    assert sorted(each.baseline for each in store.asked() or []) == ["rezero", "standard"]


def test_who_may_only_read_a_study_is_told_that_it_keeps_nothing(
    public: Path, recipe: Recipe, attnres
):
    path = public / "study.db"
    fill(path, recipe, LOSSES)
    store = fill(path, load("smoke", ["train.tokens=40k"]), LOSSES, tokens=40_000)
    for run in store.runs():
        store.keep_items(answers(run, "cloze"))
    path.chmod(0o444)
    with as_nobody():
        for more in ((), ("--scaling",), ("--downstream",)):
            told = attnres.prints("report", *more, "--notes", "--study", str(path))
            assert f"{NOT_KEPT}: study {path}" in " ".join(told.split())
        with pytest.warns(UserWarning, match=f"{NOT_KEPT}: study {path}"):
            open_study(str(path)).verdicts()


def test_a_study_of_before_keeps_nothing_when_read_says_so_and_does_once_written_to(
    study: Path, attnres
):
    make_older(study, "0010")
    before = study.read_bytes()
    told = attnres.prints("report", "--notes")
    assert f"{NOT_KEPT}: it is of an earlier attnres" in " ".join(told.split())
    assert study.read_bytes() == before
    Store.open(str(study), create=True)
    assert NOT_KEPT not in attnres.prints("report", "--notes")
    assert len(Store.open(str(study), create=False).asked() or []) == 1
