"""What `attnres runs` tells of a run: by name, all in which it differs from its recipe."""

from __future__ import annotations

import csv
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from commands import ended
from studies import FACTS, fill

from attnres_cli import open_study
from attnres_cli.config.recipe import Recipe, load
from attnres_cli.records.run import RunSpec
from attnres_cli.store.store import Store

RATES = (0.005, 0.007, 0.01, 0.014, 0.02)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def out(*words: str) -> str:
    with redirect_stdout(io.StringIO()) as told, redirect_stderr(io.StringIO()) as error:
        code = ended(*words)
    assert code == 0, error.getvalue()
    return told.getvalue()


def listed(form: str) -> list[dict]:
    text = out("runs", "--format", form)
    return json.loads(text) if form == "json" else list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def tuned() -> None:
    """One seed of one design at five learning rates; recipe smoke has the last of them."""
    for lr in RATES:
        fill(Path("attnres.db"), load("smoke").at_rate(lr), {"standard": [1.5]})


@pytest.mark.usefixtures("tuned")
def test_five_tuned_rates_look_alike_in_no_format():
    told = [f"optim.lr={lr}" for lr in RATES[:4]]

    for form in ("table", "markdown"):
        text = out("runs", "--format", form)
        assert re.findall(r"optim\.lr=[0-9.]+", text) == told
        assert "differs: from recipe smoke as it is shipped" in text
    for form in ("json", "csv"):
        assert [run["differs"] for run in listed(form)] == [*told, ""]
        assert [float(run["optim.lr"]) for run in listed(form)] == list(RATES)
    assert "optim.lr=0.005 (from recipe smoke as it is shipped)" in out("runs", "show", "1")
    shown = json.loads(out("runs", "show", "1", "--format", "json"))
    assert (shown["differs"], shown["settings"]["optim.lr"]) == ("optim.lr=0.005", 0.005)


def test_every_setting_and_what_was_matched_are_named_and_nothing_that_follows_from_them():
    matched = load("smoke", ["train.tokens=2k", "model.d_ff=87", "optim.optimizer=muon"])
    wider = load("smoke", ["model.d_model=64"])
    fill(Path("attnres.db"), matched, {"standard": [1.5]})
    fill(Path("attnres.db"), wider, {"standard": [1.5]})

    runs = listed("json")

    assert runs[0]["differs"] == "model.d_ff=87 optim.optimizer=muon train.tokens=2000"
    assert runs[1]["differs"] == "model.d_model=64"
    assert [run["model.d_ff"] for run in runs] == [87, 176]


def test_a_rate_by_design_is_the_recipes_own_and_no_difference():
    recipe = load("quick")
    for variant in ("standard", "attnres", "rezero"):
        fill(Path("attnres.db"), recipe.of(variant), {variant: [1.5]})

    runs = listed("json")

    assert [run["differs"] for run in runs] == ["", "", ""]
    assert [run["optim.lr"] for run in runs] == [6.63e-3, 4.49e-3, 6e-3]


def test_a_recipe_that_is_not_shipped_is_that_of_its_first_run_here(tiny_recipe: Recipe):
    other = tiny_recipe.at_rate(0.5)
    fill(Path("attnres.db"), tiny_recipe, {"standard": [1.5]})
    fill(Path("attnres.db"), other, {"standard": [1.5]})

    text = out("runs")

    assert [run["differs"] for run in listed("json")] == ["", "optim.lr=0.5"]
    assert f"differs: from the first recipe {tiny_recipe.name} of this study" in text


def test_a_run_of_a_recipe_that_ships_otherwise_by_now_says_what_has_changed():
    before = load("smoke", ["optim.beta2=0.9"])  # as if an older attnres had shipped that
    fill(Path("attnres.db"), before, {"standard": [1.5]})

    assert [run["differs"] for run in listed("json")] == ["optim.beta2=0.9"]


def test_places_of_data_are_no_setting_but_data_are_a_column_where_they_differ(tiny_recipe: Recipe):
    store = Store.open("attnres.db", create=True)
    store.plan([RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)], FACTS)
    assert "data" not in out("runs").split("\n")[1]
    other = FACTS.__class__(**{**vars(FACTS), "fingerprint": "f" * 16})
    store.plan([RunSpec(tiny_recipe, "standard", 0, other.fingerprint)], other)

    assert "f" * 16 in out("runs")


@pytest.mark.usefixtures("tuned")
def test_csv_json_and_a_data_frame_are_one_table():
    pytest.importorskip("pandas")
    frame = open_study("attnres.db").frame("runs")

    assert list(frame.columns) == list(listed("csv")[0]) == list(listed("json")[0])
    assert open_study("attnres.db").runs() == listed("json")
    assert frame.set_index("run")["optim.lr"].to_dict() == dict(enumerate(RATES, 1))


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("command", [["runs", "list"], ["runs", "show", "1"]])
def test_help_offers_the_formats_that_work_and_no_other(command: list[str]):
    told = " ".join(out(*command[:2], "--help").split())
    offered = [form for form in ("table", "json", "markdown", "csv", "latex", "html")
               if re.search(rf"\b{form}\b", told.partition("--format")[2])]  # fmt: skip

    works = [f for f in ("table", "json", "markdown", "csv", "latex", "html")
             if ended(*command, "--format", f) == 0]  # fmt: skip

    assert offered == works
