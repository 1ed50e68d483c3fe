"""`attnres report --downstream` on a study whose runs have answered tasks."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from answers import answers
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.items import Kind
from attnres_cli.store.store import Store

LOSSES = {"standard": [1.5, 1.6, 1.4, 1.55, 1.45], "attnres": [1.4, 1.52, 1.29, 1.46, 1.36]}
KINDS = {"cloze": Kind.CHOICE, "text": Kind.TEXT, "sums": Kind.GENERATION}


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe) -> Store:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return fill(tmp_path / "attnres.db", tiny_recipe, LOSSES)


def evaluate(study: Store) -> None:
    for run in study.runs():
        for task, kind in KINDS.items():
            gain = 0.5 if run.variant == "attnres" else 0.0
            study.keep_items(answers(run, task, kind=kind, gain=gain))


def report(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    return attnres(capsys, "report", "--downstream", *more)


def test_words_intervals_and_the_paper_in_every_format(study: Store, capsys):
    evaluate(study)

    table, page = report(capsys), report(capsys, "--format", "html", "--output", "page.html")
    held = json.loads(report(capsys, "--format", "json")[1])
    lines = list(csv.DictReader(io.StringIO(report(capsys, "--format", "csv")[1])))

    assert table[0] == page[0] == 0
    assert "Better than standard: attnres on cloze (bits per byte -" in table[1]
    assert "these weights alone" not in table[1]  # five seeds are there
    assert "the paper: Table 3" in table[1]
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


def test_rows_are_chosen_and_judged_with_all_others(study: Store, capsys):
    evaluate(study)

    _, whole, _ = report(capsys, "--format", "csv")
    _, chosen, _ = report(capsys, "attnres", "--format", "csv")

    assert chosen == whole


def test_a_study_whose_runs_have_answered_nothing_says_what_to_type(study: Store, capsys):
    code, out, err = report(capsys)

    assert (code, out) == (2, "")
    assert "no run of recipe tiny has answered a task yet: `attnres evaluate`" in err


def test_runs_that_are_not_evaluated_are_said(study: Store, capsys):
    evaluate(study)
    fill(Path("attnres.db"), study.recipe(study.runs()[0].recipe_digest), {"mhc": [1.5]})

    _, out, _ = report(capsys)

    assert "But: 10 of 11 ended runs have answered" in out


@pytest.mark.parametrize(
    "more", [["--scaling"], ["--against", "paper"], ["--margin", "0.1"], ["--figures", "f"]]
)
def test_what_is_of_losses_is_refused_beside_it(study: Store, capsys, more: list[str]):
    evaluate(study)

    code, _, err = report(capsys, *more)

    assert code == 2
    assert f"{more[0]} is of losses, --downstream of tasks" in err


@pytest.mark.slow
def test_a_trained_study_answers_the_local_tasks_and_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    monkeypatch.chdir(tmp_path)
    brief = ("--recipe", "smoke", "--seeds", "5", "--set", "train.tokens=2k", "--workers", "1")
    assert attnres(capsys, "ablate", "standard", "attnres", *brief)[0] == 0
    asked = ("--tasks", "local", "--limit", "25")
    assert attnres(capsys, "evaluate", *map(str, range(1, 11)), *asked)[0] == 0

    held = json.loads(report(capsys, "--format", "json")[1])

    assert [task["task"] for task in held["tasks"]] == ["cloze", "continuation", "recall"]
    for task in held["tasks"]:
        assert task["items"] == 25
        for measure in task["measures"]:
            base, arm = measure["arms"]
            assert (base["verdict"], arm["look"]["n"], len(arm["seeds"])) == ("baseline", 5, 5)
            assert arm["verdict"] in ("better", "worse", "not separable", "blocked")
            assert arm["interval"][0] <= arm["difference"] <= arm["interval"][1]
