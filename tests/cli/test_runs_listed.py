"""`attnres runs`: in what a run differs from its recipe; and `runs extend`, which trains it on."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Attnres
from studies import FACTS, fill

from attnres_cli import open_study
from attnres_cli.config.recipe import Recipe, load
from attnres_cli.lab import train_further
from attnres_cli.lab.experiment import Place
from attnres_cli.records.run import RunRecord, RunSpec
from attnres_cli.store.store import Store

SHOW = ("runs", "show", "1")
RATES = (0.005, 0.007, 0.01, 0.014, 0.02)
STUDY = Path("attnres.db")
LEVEL = ["--set", "optim.schedule=wsd", "--set", "train.compile=off"]


@pytest.fixture
def tuned() -> None:
    """One seed of one design at five learning rates; recipe smoke has the last of them."""
    for lr in RATES:
        fill(STUDY, load("smoke").at_rate(lr), {"standard": [1.5]})


@pytest.mark.usefixtures("tuned")
def test_five_tuned_rates_look_alike_in_no_format(attnres: Attnres):
    told = [f"optim.lr={lr}" for lr in RATES[:4]]

    for form in ("table", "markdown"):
        text = attnres.prints("runs", "--format", form)
        assert re.findall(r"optim\.lr=[0-9.]+", text) == told
        assert "differs: from recipe smoke as it is shipped" in text
    for rows in (attnres.json("runs"), attnres.csv("runs")):
        assert [run["differs"] for run in rows] == [*told, ""]
        assert [float(run["optim.lr"]) for run in rows] == list(RATES)
    assert "optim.lr=0.005 (from recipe smoke as it is shipped)" in attnres.prints(*SHOW)
    shown = attnres.json(*SHOW)
    assert (shown["differs"], shown["settings"]["optim.lr"]) == ("optim.lr=0.005", 0.005)


def test_every_changed_setting_is_named_and_nothing_that_follows_from_it(attnres: Attnres):
    matched = load("smoke", ["train.tokens=2k", "model.d_ff=87", "optim.optimizer=muon"])
    older = load("smoke", ["optim.beta2=0.9"])  # as if an older attnres had shipped that
    for recipe in (matched, load("smoke", ["model.d_model=64"]), older):
        fill(STUDY, recipe, {"standard": [1.5]})

    runs = attnres.json("runs")

    assert [run["differs"] for run in runs] == [
        "model.d_ff=87 optim.optimizer=muon train.tokens=2000",
        "model.d_model=64",
        "optim.beta2=0.9",
    ]
    assert [run["model.d_ff"] for run in runs[:2]] == [87, 176]


def test_a_rate_by_design_is_the_recipes_own_and_no_difference(attnres: Attnres):
    recipe = load("quick")
    for variant in ("standard", "attnres", "attnres:block_size=2"):
        fill(STUDY, recipe.of(variant), {variant: [1.5]})
    runs = attnres.json("runs")
    assert [run["differs"] for run in runs] == ["", "", ""]
    assert [run["optim.lr"] for run in runs] == [7.48e-3, 6.95e-3, 8e-3]


def test_a_recipe_of_your_own_is_that_of_its_first_run(tiny_recipe: Recipe, attnres: Attnres):
    for recipe in (tiny_recipe, tiny_recipe.at_rate(0.5)):
        fill(STUDY, recipe, {"standard": [1.5]})
    text = attnres.prints("runs")
    assert [run["differs"] for run in attnres.json("runs")] == ["", "optim.lr=0.5"]
    assert f"differs: from the first recipe {tiny_recipe.name} of this study" in text
    assert len(attnres.json("runs", "--recipe", f"mine/{tiny_recipe.name}.yaml")) == 2


def test_data_are_a_column_where_they_differ(tiny_recipe: Recipe, attnres: Attnres):
    store = Store.open("attnres.db", create=True)
    store.plan([RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)], FACTS)
    assert "data" not in attnres.prints("runs").split("\n")[1]
    other = replace(FACTS, fingerprint="f" * 16)
    store.plan([RunSpec(tiny_recipe, "standard", 0, other.fingerprint)], other)
    assert "f" * 16 in attnres.prints("runs")


@pytest.mark.usefixtures("tuned")
def test_csv_json_and_a_data_frame_are_one_table(attnres: Attnres):
    pytest.importorskip("pandas")
    frame, document = open_study("attnres.db").frame("runs"), attnres.json("runs")
    assert list(frame.columns) == list(attnres.csv("runs")[0]) == list(document[0])
    assert open_study("attnres.db").runs() == document
    assert frame.set_index("run")["optim.lr"].to_dict() == dict(enumerate(RATES, 1))


@pytest.mark.parametrize("command", [("runs", "list"), SHOW])
def test_help_offers_the_formats_that_work_and_no_other(command: tuple[str, ...], attnres: Attnres):
    fill(STUDY, load("smoke"), {"standard": [1.5]})
    told = " ".join(attnres.prints(*command[:2], "--help").split()).partition("--format")[2]
    forms = ("table", "json", "markdown", "csv", "latex", "html")
    offered = [form for form in forms if re.search(rf"\b{form}\b", told)]
    assert offered == [form for form in forms if attnres(*command, "--format", form)[0] == 0]


@pytest.mark.usefixtures("tuned")
def test_a_list_waits_for_no_package_that_it_does_not_need():
    code = (
        "import sys; from attnres_cli.cli.app import run; assert run() == 0; "
        "assert not {'numpy', 'scipy', 'torch', 'optuna'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, "runs"], check=True, stdout=subprocess.DEVNULL)


# runs extend


@pytest.mark.slow
def test_an_extended_run_is_verified_bit_for_bit_by_training_it_from_the_start(attnres: Attnres):
    attnres.prints("ablate", "standard", "--recipe", "smoke", "--seeds", "1", *LEVEL)

    assert "trained on" in attnres.prints("runs", "extend", "1", "--tokens", "30k")
    first, further = attnres.json("runs")
    assert (first["steps"], further["steps"], further["step"]) == (31, 58, 58)
    assert further["note"] == "trained on from run 1, step 25"

    told = attnres.prints("verify", "2")
    assert "equal, bit for bit" in told
    assert "weights" in told


def test_a_failed_extension_is_trained_again_if_you_ask(attnres: Attnres, monkeypatch):
    store, places = fill(STUDY, recipe := load("smoke"), {"standard": [1.5]}), []
    (failed,) = store.plan([RunSpec(recipe.at(30_000), "standard", 0, FACTS.fingerprint)], FACTS)
    store.note(failed.id, "trained on from run 1, step 25")
    store.claim([failed.id])
    store.fail(failed.id, "ValueError: not today", {})

    def extend(place: Place, *_: object) -> RunRecord:
        places.append(place)
        return store.runs(ids=[failed.id])[0]

    monkeypatch.setattr(train_further, "extend", extend)
    code, _, err = attnres("runs", "extend", "1", "--tokens", "30k")
    attnres("runs", "extend", "1", "--tokens", "30k", "--retry-failed")

    assert (code, [place.retry_failed for place in places]) == (3, [False, True])
    assert "run 2 failed: the same command with --retry-failed trains it again" in err
    again = "`attnres runs extend 1 --tokens 30000`, or `attnres ablate`, as it was typed trains it"
    assert f"{again}, with --retry-failed" in attnres.refuses("runs", "export", "2")


def test_a_run_that_cannot_go_on_is_refused_and_left_as_it_was(attnres: Attnres):
    fill(STUDY, load("smoke"), {"standard": [1.5]})

    for tokens, reason in (
        ("2M", "a cosine falls from the warm-up on"),
        ("many", "--tokens takes a number as 2M or 2000000, got 'many'"),
        ("1k", "more are needed, got 1,000"),
    ):
        assert reason in attnres.refuses("runs", "extend", "1", "--tokens", tokens)
    assert len(attnres.json("runs")) == 1
