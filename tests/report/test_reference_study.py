"""The reference study: what its page says is what its shipped reports hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Attnres
from studies import fill

from attnres_cli.config.shipped import plan_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def _rows_of(page: str, section: str) -> list[list[str]]:
    """The cells of the designs' rows in a section of a page."""
    text = (RESULTS / page).read_text(encoding="utf-8")
    told = text.split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line for line in told.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import reference

    return reference


def test_every_row_of_the_page_is_that_of_the_shipped_report(reference):
    assert list(reference.rows()) == _rows_of("reference.md", "Every design")
    assert len(_rows_of("reference.md", "Every design")) == 37


@pytest.mark.parametrize(
    ("recipe", "plan", "n_seeds"), [("quick", "two-texts", 12), ("english", "english", 8)]
)
def test_both_tables_are_the_registered_ones_and_complete(reference, recipe, plan, n_seeds):
    found = reference.of_text(recipe)
    assert found["registered"].startswith("preregistered ")
    assert {len(arm["losses"]) for arm in found["arms"]} == {n_seeds}
    assert found["margin"] == 0.02
    assert "margin: 0.02" in plan_text(plan)


@pytest.fixture
def study(reference) -> Iterator[str]:
    """The study as it is published, without weights."""
    with reference.unpacked(reference.STUDY) as path:
        yield str(path)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["quick", "english"])
def test_the_published_study_gives_the_shipped_report(reference, study: str, recipe, capsys):
    shipped = reference.of_text(recipe)
    asked = ("report", "--study", study, "--recipe", shipped["recipe_digest"])
    assert Attnres(capsys).json(*asked) == shipped


@pytest.mark.slow
def test_the_published_study_gives_the_table_over_texts(reference, study: str, capsys):
    asked = ("report", "--study", study, "--recipe", "quick", "--recipe", "english")
    assert Attnres(capsys).json(*asked) == reference.over_texts()


@pytest.mark.slow
def test_every_row_of_the_budgets_is_that_of_the_published_study(reference, study: str, capsys):
    told = Attnres(capsys).json("report", "--study", study, "--recipe", "budgets", "--scaling")
    assert list(reference.budget_rows(told)) == _rows_of("budgets.md", "One rate for all budgets")


@pytest.mark.slow
def test_every_row_at_rates_for_four_times_the_tokens_is_that_of_the_published_study(reference):
    with reference.unpacked(reference.LONG) as study:
        assert list(reference.long_rows(study)) == _rows_of(
            "budgets.md", "At rates for that length"
        )


def test_your_study_stands_beside_the_nearest_table(
    reference, tmp_path, monkeypatch, tiny_recipe, capsys
):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "attnres.db", tiny_recipe, {"standard": [1.5] * 5, "attnres": [1.4] * 5})

    found = Attnres(capsys).json("report", "--against", "reference")

    beside = {arm["variant"]: arm for arm in found["arms"]}["attnres"]
    theirs = {arm["variant"]: arm for arm in reference.of_text("quick")["arms"]}["attnres"]
    assert beside["their_seeds"] == 12
    assert beside["their_low"] == theirs["look"]["low"]
