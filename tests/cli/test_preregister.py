"""`report --preregister FILE`: fixed before the first run, and what is labelled afterwards."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.errors import StudyError
from attnres_cli.records import preregister
from attnres_cli.stats.looks import LEAST_SEEDS
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "plan.yaml").write_text(FILE)
    return tmp_path


@pytest.fixture
def recipe() -> Recipe:
    return load("smoke", ["train.tokens=4k"])


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return attnres(capsys, "report", *arguments)


def block(recipe: Recipe) -> str:
    """The canonical name of two blocks."""
    return f"attnres:block_size={recipe.model.n_layers}"


def titles(capsys: pytest.CaptureFixture[str]) -> list[str]:
    document = json.loads(report(capsys, "--format", "json")[1])
    return [each["registered"] for each in (document, *document["more"])]


def test_what_is_fixed_is_kept_with_its_digest(capsys, recipe: Recipe):
    code, out, _ = report(capsys, "--preregister", "plan.yaml")

    assert code == 0
    (kept,) = Store.open("attnres.db", create=False).registrations()
    assert kept.digest in out
    assert kept.recipe_digest == recipe.digest
    assert kept.arms == ("standard", "attnres", block(recipe))
    assert (kept.baseline, kept.seeds, kept.metric) == ("standard", (0, 1, 2, 3, 4), "val_loss")


def test_the_same_again_changes_nothing_and_another_is_refused(folder: Path, capsys):
    report(capsys, "--preregister", "plan.yaml")
    same, _, _ = report(capsys, "--preregister", "plan.yaml")
    (folder / "other.yaml").write_text(FILE.replace("[0, 1, 2, 3, 4]", "[0, 1, 2, 3, 4, 5]"))

    code, _, err = report(capsys, "--preregister", "other.yaml")

    assert (same, code) == (0, 2)
    assert "preregistered already" in err


def test_it_is_refused_once_runs_of_the_recipe_are_there(folder: Path, capsys, recipe: Recipe):
    fill(folder / "attnres.db", recipe, {"standard": [1.5]})

    code, out, err = report(capsys, "--preregister", "plan.yaml")

    assert (code, out) == (2, "")
    assert "holds runs of recipe smoke" in err
    assert Store.open("attnres.db", create=False).registrations() == []


def test_just_what_was_registered_is_no_exploration(folder: Path, capsys, recipe: Recipe):
    report(capsys, "--preregister", "plan.yaml")
    losses = {"standard": BASE[:5], "attnres": LESS[:5]}
    fill(folder / "attnres.db", recipe, losses)
    before = titles(capsys)

    fill(folder / "attnres.db", recipe, losses | {block(recipe): BASE[:5]})
    after = titles(capsys)

    (kept,) = Store.open("attnres.db", create=False).registrations()
    assert before == [
        f"exploratory until all runs of preregistration {kept.digest} have ended: 10 of 15"
    ]
    assert after == [f"preregistered {kept.digest}"]


def test_more_seeds_and_arms_are_exploratory_and_leave_the_registered_as_it_was(
    folder: Path, capsys, recipe: Recipe
):
    report(capsys, "--preregister", "plan.yaml")
    losses = {"standard": BASE[:5], "attnres": LESS[:5], block(recipe): BASE[4::-1]}
    fill(folder / "attnres.db", recipe, losses)
    alone = json.loads(report(capsys, "--format", "json")[1])

    more = {name: [*values, 1.49] for name, values in losses.items()} | {"mhc": LESS}
    fill(folder / "attnres.db", recipe, more)
    both = json.loads(report(capsys, "--format", "json")[1])

    (exploratory,) = both.pop("more")
    assert exploratory["registered"].startswith("exploratory: not as preregistered")
    assert len(exploratory["arms"]) == 4
    assert both == {key: value for key, value in alone.items() if key != "more"}


def test_every_format_has_the_label(folder: Path, capsys, recipe: Recipe):
    report(capsys, "--preregister", "plan.yaml")
    fill(folder / "attnres.db", recipe, {"standard": BASE, "attnres": LESS, block(recipe): BASE})

    for arguments in ([], ["--format", "markdown"], ["--format", "json"]):
        for against in ([], ["--against", "paper"]):
            _, text, _ = report(capsys, *arguments, *against)
            assert "[preregistered" in text
            assert "[exploratory: not as preregistered" in text
    for against in ([], ["--against", "paper"]):
        _, lines, _ = report(capsys, "--format", "csv", *against)
        labels = [row["registered"].split()[0] for row in csv.DictReader(io.StringIO(lines))]
        assert labels == ["preregistered"] * 3 + ["exploratory:"] * 3


def test_another_recipe_and_another_baseline_are_exploratory(
    folder: Path, capsys, recipe: Recipe, tiny_recipe: Recipe
):
    report(capsys, "--preregister", "plan.yaml")
    fill(folder / "attnres.db", recipe, {"standard": BASE[:5], "attnres": LESS[:5]})
    fill(folder / "attnres.db", tiny_recipe, {"standard": BASE, "attnres": LESS})

    _, other, _ = report(capsys, "--recipe", "tiny", "--format", "json")
    _, turned, _ = report(capsys, "--recipe", "smoke", "--baseline", "attnres", "--format", "json")

    assert json.loads(other)["registered"] == "exploratory: this recipe is not preregistered"
    document = json.loads(turned)
    assert [each["baseline"] for each in (document, *document["more"])] == ["standard", "attnres"]
    assert document["more"][0]["registered"].startswith("exploratory: not as preregistered")


def test_a_study_without_preregistration_has_no_labels(folder: Path, capsys, recipe: Recipe):
    fill(folder / "attnres.db", recipe, {"standard": BASE, "attnres": LESS})

    assert titles(capsys) == [""]
    assert "exploratory" not in report(capsys)[1]


def test_what_was_changed_since_is_refused(folder: Path, capsys):
    report(capsys, "--preregister", "plan.yaml")
    connection = sqlite3.connect("attnres.db")
    with connection:
        connection.execute(
            "UPDATE attnres_registrations SET document = replace(document, '3, 4]', '3]')"
        )
    connection.close()

    with pytest.raises(StudyError, match="not what was written"):
        Store.open("attnres.db", create=False).registrations()


BAD = {
    "no file": (None, "cannot be read"),
    "unknown key": (FILE + "sedes: 3\n", "unknown key 'sedes': did you mean 'seeds'?"),
    "no metric": (FILE.replace("metric: val_loss", ""), "metric is missing"),
    "test": (FILE.replace("paired-t", "z-test"), "test: input should be 'paired-t' or"),
    "one seed": (
        FILE.replace("[0, 1, 2, 3, 4]", "[0]"),
        "seeds: value should have at least 5 items",
    ),
    "a seed twice": (
        FILE.replace("[0, 1, 2, 3, 4]", "[0, 1, 2, 3, 3]"),
        "different ones are needed",
    ),
    "recipe": (FILE.replace("smoke", "smok"), "did you mean 'smoke'?"),
    "arm": (FILE.replace("[attnres,", "[atnres,"), "did you mean 'attnres'?"),
    "only the baseline": (
        FILE.replace('[attnres, "attnres:n_blocks=2"]', "[standard]"),
        "one beside the baseline standard",
    ),
    "a list": ("- a\n", "expected keys arms, baseline"),
}


@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_what_cannot_be_meant_is_one_line_and_nothing_is_written(
    text: str | None, words: str, folder: Path, capsys
):
    path = "none.yaml" if text is None else "bad.yaml"
    if text is not None:
        (folder / path).write_text(text)

    code, out, err = report(capsys, "--preregister", path)

    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (folder / "attnres.db").exists()


def test_a_registered_margin_gives_its_words_and_a_digest_of_its_own(
    folder: Path, capsys, recipe: Recipe
):
    (folder / "wide.yaml").write_text(FILE + "margin: 0.2\n")
    _, alone, _ = report(capsys, "--preregister", "plan.yaml", "--study", "alone.db")
    _, wide, _ = report(capsys, "--preregister", "wide.yaml")
    fill(folder / "attnres.db", recipe, {"standard": BASE, "attnres": LESS})

    document = json.loads(report(capsys, "--format", "json")[1])

    assert alone.split()[1] != wide.split()[1]
    words = {arm["variant"]: arm["verdict"] for arm in document["arms"]}
    assert (document["margin"], words["attnres"]) == (0.2, "equal within the margin")


def test_a_first_look_takes_as_many_seeds_as_a_preregistration():
    assert preregister.LEAST_SEEDS == LEAST_SEEDS
