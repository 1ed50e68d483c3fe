"""`attnres report --downstream` on a study whose runs have answered tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from answers import answers
from commands import Attnres
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.items import Kind
from attnres_cli.store.store import Store

LOSSES = {"standard": [1.5, 1.6, 1.4, 1.55, 1.45], "attnres": [1.4, 1.52, 1.29, 1.46, 1.36]}
KINDS = {"cloze": Kind.CHOICE, "text": Kind.TEXT, "sums": Kind.GENERATION}


TASKS = ("report", "--downstream")


@pytest.fixture
def study(tiny_recipe: Recipe) -> Store:
    return fill(Path("attnres.db"), tiny_recipe, LOSSES)


@pytest.fixture
def evaluated(study: Store) -> Store:
    """A study whose runs have answered tasks of every kind."""
    for run in study.runs():
        for task, kind in KINDS.items():
            gain = 0.5 if run.variant == "attnres" else 0.0
            study.keep_items(answers(run, task, kind=kind, gain=gain))
    return study


@pytest.mark.usefixtures("evaluated")
def test_words_intervals_and_the_paper_in_every_format(attnres: Attnres):
    table, held, lines = attnres.prints(*TASKS), attnres.json(*TASKS), attnres.csv(*TASKS)
    attnres.prints(*TASKS, "--format", "html", "--output", "page.html")

    assert "Better than standard: attnres on cloze (bits per byte -" in table
    assert "these weights alone" not in table  # five seeds are there
    assert "the paper: Table 3" in table
    assert Path("page.html").read_text(encoding="utf-8").count("<code>attnres</code>") == 7
    named = {(line["task"], line["measure"]) for line in lines}
    assert named == {
        ("cloze", "bits_per_byte"), ("cloze", "choice_nats"), ("cloze", "acc"),
        ("text", "bits_per_byte"), ("sums", "exact_match"),
    }  # fmt: skip
    tasks = {task["task"]: task for task in held["tasks"]}
    assert (tasks["cloze"]["items"], tasks["cloze"]["chance"]) == (200, 0.25)
    arm = tasks["cloze"]["measures"][0]["arms"][1]
    assert arm["interval"][1] < 0
    assert arm["verdict"] == "better"
    assert attnres.csv("report", "attnres", "--downstream") == lines  # judged with all others


def test_a_study_whose_runs_have_answered_nothing_says_what_to_type(study: Store, attnres: Attnres):
    told = attnres.refuses(*TASKS)

    assert "no run of recipe tiny has answered a task yet: `attnres evaluate`" in told


def test_runs_that_are_not_evaluated_are_said(evaluated: Store, attnres: Attnres):
    fill(Path("attnres.db"), evaluated.recipe(evaluated.runs()[0].recipe_digest), {"mhc": [1.5]})

    assert "But: 10 of 11 ended runs have answered" in attnres.prints(*TASKS)


@pytest.mark.usefixtures("evaluated")
def test_options_about_losses_are_refused_beside_it(attnres: Attnres):
    for more in ("--scaling", "--against paper", "--margin 0.1", "--figures f"):
        told = attnres.refuses(*TASKS, *more.split())
        assert f"{more.split()[0]} is of losses, --downstream of tasks" in told
