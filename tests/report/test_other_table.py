"""`report --against FILE.json`: the user's verdicts beside those of a report that somebody kept."""

from __future__ import annotations

import csv
import io
import json
from importlib.resources import files
from pathlib import Path

import pytest
from commands import attnres
from studies import fill

from attnres_cli.config import complete
from attnres_cli.config import shipped as shipped_files
from attnres_cli.config.recipe import Recipe

BASE = [1.50, 1.70, 1.60, 1.55, 1.65]
STEADY = [0.001, -0.001, 0.0005, -0.0005, 0.0]
NOISE = [0.1, -0.1, 0.05, -0.05, 0.0]


def shifted(gap: float, noise: list[float] = STEADY) -> list[float]:
    return [loss + gap + step for loss, step in zip(BASE, noise, strict=True)]


THEIRS = {
    "standard": BASE,
    "attnres": shifted(-0.03),
    "mhc": shifted(-0.02),
    "delta": shifted(-0.02, NOISE),
    "unet": shifted(0.0, NOISE),
    "denseformer": shifted(0.01),
    "x0": [1.5],
    "hc": shifted(0.01),
}
MINE = {
    "standard": BASE,
    "attnres": shifted(-0.02),
    "mhc": shifted(+0.02),
    "delta": shifted(-0.02),
    "unet": shifted(0.01, NOISE),
    "denseformer": shifted(0.01, NOISE),
    "x0": shifted(0.01),
    "laurel": shifted(0.01),
    "hc": [1.5],
}
SAID = {
    "standard": "baseline",
    "attnres": "same sign",
    "mhc": "opposite sign",
    "delta": "within noise there",
    "unet": "within noise in both",
    "denseformer": "within noise here",
    "x0": "no verdict there",
    "laurel": "not there",
    "hc": "no verdict here",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe, capsys) -> Path:
    """A study, and the report of another of the same recipe, kept."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    fill(tmp_path / "theirs.db", tiny_recipe, THEIRS)
    fill(tmp_path / "attnres.db", tiny_recipe, MINE)
    typed = ("--study", "theirs.db", "--format", "json", "--output", "theirs.json")
    assert attnres(capsys, "report", *typed)[0] == 0
    return tmp_path


def against(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str, str]:
    return attnres(capsys, "report", "--against", *typed)


def test_every_arm_has_a_word(capsys):
    document = json.loads(against(capsys, "theirs.json", "--format", "json")[1])

    assert {arm["variant"]: arm["beside"] for arm in document["arms"]} == SAID
    arm = next(each for each in document["arms"] if each["variant"] == "attnres")
    assert (round(arm["their_difference"], 4), round(arm["difference"], 4)) == (-0.03, -0.02)
    assert arm["their_low"] < -0.03 < arm["their_high"] < 0
    assert arm["their_seeds"] == 5


def test_every_format_has_both_sides(capsys):
    _, table, _ = against(capsys, "theirs.json")
    _, page, _ = against(capsys, "theirs.json", "--format", "html")
    rows = list(csv.DictReader(io.StringIO(against(capsys, "theirs.json", "--format", "csv")[1])))

    for text in (table, page):
        assert "the same recipe and data as yours: values can be compared" in text
        assert "opposite sign" in text
        assert "-0.0300 [" in text
    assert {row["variant"]: row["beside"] for row in rows} == SAID


def test_another_recipe_compares_signs_alone(folder: Path, capsys, tiny_recipe: Recipe):
    other = tiny_recipe.model_copy(update={"optim": tiny_recipe.optim.model_copy(update={"lr": 1})})
    fill(folder / "mine.db", other, MINE)

    _, text, _ = against(capsys, "theirs.json", "--study", "mine.db")

    assert "another recipe than yours: signs and orders can be compared" in text


def test_of_several_tables_that_of_the_same_recipe_is_taken(folder: Path, capsys):
    first = json.loads((folder / "theirs.json").read_text())
    other = first | {"recipe_digest": "0" * 12, "title": "another", "arms": [], "more": []}
    (folder / "both.json").write_text(json.dumps(other | {"more": [first]}))

    _, text, _ = against(capsys, "both.json")

    assert "theirs: both.json, recipe tiny" in text


def test_a_report_that_comes_with_the_tool_is_asked_for_by_its_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    first = json.loads((folder / "theirs.json").read_text())
    shipped = folder / "recipes" / "reports" / "earlier"
    shipped.mkdir(parents=True)
    for each in files("attnres_recipes").iterdir():
        if each.name != "reports":
            (folder / "recipes" / each.name).symlink_to(str(each))
    other = first | {"recipe": "other", "recipe_digest": "0" * 12}
    for name, table in (("1", other), ("2", first | {"recipe_digest": "1" * 12})):
        (shipped / f"{name}.json").write_text(json.dumps(table))
    for module in (complete, shipped_files):
        monkeypatch.setattr(module, "files", lambda _package: folder / "recipes")

    document = json.loads(against(capsys, "earlier", "--format", "json")[1])
    _, _, err = against(capsys, "erlier")

    assert {arm["variant"]: arm["beside"] for arm in document["arms"]} == SAID
    assert document["arms"][0]["their_recipe_digest"] == "1" * 12  # of the same name
    assert "did you mean 'earlier'?" in err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("none.json", None, "cannot be read"),
        ("words.json", "[1, 2]", "holds no verdicts: `attnres report --format json"),
        ("papr", None, "did you mean 'paper'?"),
    ],
)
def test_what_is_no_report_is_one_line(name: str, text: str | None, words: str, folder, capsys):
    if text is not None:
        (folder / name).write_text(text)

    code, out, err = against(capsys, name)

    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_baseline_that_they_have_not_is_refused(capsys):
    code, _, err = against(capsys, "theirs.json", "--baseline", "attnres")

    assert code == 2
    assert "unknown baseline there 'attnres'" in err
