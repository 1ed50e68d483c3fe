"""`report --preregister FILE`: fixed before the first run, and what is labelled afterwards."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Attnres
from studies import FACTS, fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.errors import StudyError
from attnres_cli.records.code import Code
from attnres_cli.records.preregister import Registration
from attnres_cli.stats.sequential import LEAST_SEEDS
from attnres_cli.store.store import Store

FILE = """
hypothesis: Full beats standard at this depth
recipe: smoke
set: [train.tokens=4k]
arms: [attnres, "attnres:n_blocks=2"]
baseline: standard
seeds: [0, 1, 2, 3, 4]
metric: val_loss
test: paired-t
"""
BASE = [1.50, 1.52, 1.47, 1.49, 1.48, 1.51]
LESS = [1.45, 1.48, 1.43, 1.45, 1.44, 1.47]
BLOCKS = "attnres:block_size=2"  # the canonical name of two blocks of four sublayers
STUDY = Path("attnres.db")
REGISTER = ("report", "--preregister", "plan.yaml")


@pytest.fixture(autouse=True)
def plan(folder: Path) -> None:
    (folder / "plan.yaml").write_text(FILE)


@pytest.fixture
def recipe() -> Recipe:
    return load("smoke", ["train.tokens=4k"])


def kept() -> list[Registration]:
    return Store.open("attnres.db", create=False).registrations()


def test_what_is_fixed_is_kept_with_its_digest_and_another_is_refused(
    folder: Path, attnres: Attnres, recipe: Recipe
):
    out = attnres.prints(*REGISTER)

    (found,) = kept()
    assert found.digest in out
    assert found.recipe_digest == recipe.digest
    assert found.arms == ("standard", "attnres", BLOCKS)
    assert (found.baseline, found.seeds, found.metric) == ("standard", (0, 1, 2, 3, 4), "val_loss")
    attnres.prints(*REGISTER)
    (folder / "plan.yaml").write_text(FILE.replace("[0, 1, 2, 3, 4]", "[0, 1, 2, 3, 4, 5]"))
    assert "preregistered already" in attnres.refuses(*REGISTER)
    assert kept() == [found]


@pytest.mark.parametrize(
    "more", [("attnres",), ("--format", "json"), ("--baseline", "attnres"), ("--output", "a.txt")]
)
def test_it_refuses_what_asks_for_a_report_instead_of_forgetting_it(
    more: tuple[str, ...], attnres: Attnres
):
    assert "--preregister only fixes a plan: leave" in attnres.refuses(*REGISTER, *more)


def test_it_is_refused_once_runs_of_the_recipe_are_there(attnres: Attnres, recipe: Recipe):
    fill(STUDY, recipe, {"standard": [1.5]})
    assert "holds runs of recipe smoke" in attnres.refuses(*REGISTER)
    assert kept() == []


def test_it_is_refused_once_runs_of_the_same_are_there_that_was_typed_otherwise(attnres: Attnres):
    fill(STUDY, load("smoke", ["train.tokens=4001", "train.precision=fp32"]), {"standard": [1.5]})
    assert "holds runs of recipe smoke" in attnres.refuses(*REGISTER)


def test_a_table_counts_as_registered_once_all_its_runs_have_ended_and_more_are_exploratory(
    attnres: Attnres, recipe: Recipe
):
    attnres.prints(*REGISTER)
    (found,) = kept()
    losses = {"standard": BASE[:5], "attnres": LESS[:5]}
    fill(STUDY, recipe, losses)
    before = attnres.json("report")
    fill(STUDY, recipe, losses | {BLOCKS: BASE[4::-1]})
    after = attnres.json("report")
    more = {name: [*values, 1.49] for name, values in losses.items()} | {"mhc": LESS}
    fill(STUDY, recipe, more | {BLOCKS: [*BASE[4::-1], 1.49]})
    both = attnres.json("report")

    waiting = f"exploratory until all runs of preregistration {found.digest} have ended: 10 of 15"
    assert (before["registered"], before["more"]) == (waiting, [])
    assert (after["registered"], after.pop("more")) == (f"preregistered {found.digest}", [])
    (exploratory,) = both.pop("more")
    assert exploratory["registered"].startswith("exploratory: not as preregistered")
    assert len(exploratory["arms"]) == 4
    assert both == after


def test_every_format_has_the_label(attnres: Attnres, recipe: Recipe):
    attnres.prints(*REGISTER)
    fill(STUDY, recipe, {"standard": BASE, "attnres": LESS, BLOCKS: BASE})

    for against in ((), ("--against", "paper")):
        for form in ("table", "markdown", "json"):
            text = attnres.prints("report", "--format", form, *against)
            assert "[preregistered" in text
            assert "[exploratory: not as preregistered" in text
        labels = [row["registered"].split()[0] for row in attnres.csv("report", *against)]
        assert labels == ["preregistered"] * 3 + ["exploratory:"] * 3


def test_another_recipe_and_another_baseline_are_exploratory(
    attnres: Attnres, recipe: Recipe, tiny_recipe: Recipe
):
    attnres.prints(*REGISTER)
    fill(STUDY, recipe, {"standard": BASE[:5], "attnres": LESS[:5]})
    fill(STUDY, tiny_recipe, {"standard": BASE, "attnres": LESS})

    other = attnres.json("report", "--recipe", "tiny")
    turned = attnres.json("report", "--recipe", "smoke", "--baseline", "attnres")

    assert other["registered"] == "exploratory: this recipe is not preregistered"
    assert [each["baseline"] for each in (turned, *turned["more"])] == ["standard", "attnres"]
    assert turned["more"][0]["registered"].startswith("exploratory: not as preregistered")


def test_a_study_without_preregistration_has_no_labels(attnres: Attnres, recipe: Recipe):
    fill(STUDY, recipe, {"standard": BASE, "attnres": LESS})
    document = attnres.json("report")
    assert (document["registered"], document["more"]) == ("", [])
    assert "exploratory" not in attnres.prints("report")


def test_what_was_changed_since_is_refused(attnres: Attnres):
    attnres.prints(*REGISTER)
    with closing(sqlite3.connect("attnres.db")) as connection, connection:
        connection.execute(
            "UPDATE attnres_registrations SET document = replace(document, '3, 4]', '3]')"
        )

    with pytest.raises(StudyError, match="not what was written"):
        kept()


BAD = [
    (FILE + "sedes: 3\n", "unknown key 'sedes': did you mean 'seeds'?"),
    (FILE.replace("metric: val_loss", ""), "metric is missing"),
    (FILE.replace("paired-t", "z-test"), "test: input should be 'paired-t' or"),
    (FILE.replace("0, 1, 2, 3, 4", "0, 1, 2, 3"), f"at least {LEAST_SEEDS} items"),
    (FILE.replace("3, 4]", "3, 3]"), "different ones are needed"),
    (FILE.replace("smoke", "smok"), "did you mean 'smoke'?"),
    (FILE.replace("[attnres,", "[atnres,"), "did you mean 'attnres'?"),
    (
        FILE.replace('[attnres, "attnres:n_blocks=2"]', "[standard]"),
        "one beside the baseline standard",
    ),
    ("- a\n", "expected keys arms, baseline"),
]


def test_a_bad_file_is_refused_and_nothing_is_written(folder: Path, attnres: Attnres):
    for text, words in BAD:
        (folder / "plan.yaml").write_text(text)
        assert words in attnres.refuses(*REGISTER)
    assert not STUDY.exists()


def test_a_registered_margin_gives_its_words_and_a_digest_of_its_own(
    folder: Path, attnres: Attnres, recipe: Recipe
):
    alone = attnres.prints(*REGISTER, "--study", "alone.db")
    (folder / "plan.yaml").write_text(FILE + "margin: 0.2\n")
    wide = attnres.prints(*REGISTER)
    fill(STUDY, recipe, {"standard": BASE, "attnres": LESS})

    document = attnres.json("report")

    assert alone.split()[1] != wide.split()[1]
    words = {arm["variant"]: arm["verdict"] for arm in document["arms"]}
    assert (document["margin"], words["attnres"]) == (0.2, "equivalent")


def registered(attnres: Attnres) -> tuple[str, str]:
    """The label of the first table, and the verdict of attnres there."""
    found = attnres.json("report")
    return found["registered"], next(a for a in found["arms"] if a["variant"] == "attnres")[
        "verdict"
    ]


def test_what_is_beside_a_plan_changes_neither_its_words_nor_its_label(attnres: Attnres, recipe):
    attnres.prints(*REGISTER)
    plan = {"standard": BASE[:5], "attnres": LESS[:5], BLOCKS: BASE[4::-1]}
    fill(STUDY, recipe, plan)
    before = registered(attnres)
    assert before[0].startswith("preregistered")
    store = fill(STUDY, recipe, {"mhc": LESS})
    store.remove([max(run.id for run in store.runs())])  # its seed is one that no arm of it has
    assert registered(attnres) == before


def test_a_margin_that_was_typed_makes_a_plan_exploratory(attnres: Attnres, recipe: Recipe):
    attnres.prints(*REGISTER)
    fill(STUDY, recipe, {"standard": BASE[:5], "attnres": LESS[:5], BLOCKS: BASE[4::-1]})
    found = attnres.json("report", "--margin", "0.2")
    assert found["registered"].startswith("exploratory: the margin is not that of")


def test_nothing_is_fixed_once_runs_were_removed(attnres: Attnres, recipe: Recipe):
    store = fill(STUDY, recipe, {"standard": [1.5]})
    store.remove([1])
    assert "held runs of recipe smoke" in attnres.refuses(*REGISTER)


def test_another_text_after_removed_runs_is_exploratory(
    attnres: Attnres, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
):
    attnres.prints(*REGISTER)
    store = fill(STUDY, recipe, {"standard": BASE[:5], "attnres": BASE[:5], BLOCKS: BASE[:5]})
    store.remove([run.id for run in store.runs()])
    monkeypatch.setattr("studies.FACTS", replace(FACTS, fingerprint="f" * 16))
    fill(STUDY, recipe, {"standard": BASE[:5], "attnres": LESS[:5], BLOCKS: BASE[:5]})
    assert registered(attnres)[0].startswith("exploratory: other data than")


def test_a_design_that_was_edited_after_its_runs_ended_makes_a_plan_exploratory(
    attnres: Attnres, recipe: Recipe
):
    attnres.prints(*REGISTER)
    losses = {"standard": BASE[:5], "attnres": BASE[4::-1], BLOCKS: BASE[4::-1]}
    fill(STUDY, recipe, losses, lambda name: Code(name, "trunk", "engine", "loop", "data"))
    edited = lambda name: Code(f"{name} edited", "trunk", "engine", "loop", "data")  # noqa: E731
    fill(STUDY, recipe, {"attnres": LESS[:5]}, edited)
    assert registered(attnres)[0].startswith("exploratory: what is compared was changed")


def test_a_plan_that_grows_counts_once_its_last_look_was_at_every_open_arm(
    folder: Path, attnres: Attnres, recipe: Recipe
):
    seven = FILE.replace("[0, 1, 2, 3, 4]", "[0, 1, 2, 3, 4, 5, 6]") + "until: decided\n"
    (folder / "plan.yaml").write_text(seven.replace(', "attnres:n_blocks=2"', ", mhc"))
    attnres.prints(*REGISTER)
    base, noisy = [*BASE, 1.5], [1.6, 1.4, 1.5, 1.45, 1.55, 1.4, 1.6]
    fill(STUDY, recipe, {"standard": base, "attnres": LESS[:5], "mhc": noisy})
    assert registered(attnres)[0].startswith("preregistered")
