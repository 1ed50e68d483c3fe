"""`report --against FILE.json`: the user's verdicts beside those of a report that somebody kept."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from commands import attnres
from studies import SETTINGS, fill

from attnres_cli.config import complete
from attnres_cli.config import shipped as shipped_files
from attnres_cli.config.recipe import Recipe
from attnres_cli.records.code import Code

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


def test_of_tables_equally_near_that_with_most_runs_of_ones_arms_is_taken(folder: Path, capsys):
    first = json.loads((folder / "theirs.json").read_text()) | {"recipe_digest": "0" * 12}
    fewer = first | {"arms": first["arms"][:2], "title": "fewer", "more": []}
    (folder / "both.json").write_text(json.dumps(fewer | {"more": [first]}))

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


def kept_of(
    folder: Path, capsys, losses: dict[str, list[float]], recipe: Recipe, *more, **how
) -> None:
    """The report of a study with these losses, as theirs.json."""
    (folder / "theirs.db").unlink()
    fill(folder / "theirs.db", recipe, losses, *more, **how)
    typed = ("--study", "theirs.db", "--format", "json", "--output", "theirs.json")
    assert attnres(capsys, "report", *typed)[0] == 0


def test_runs_that_both_trained_are_compared_bit_for_bit(folder: Path, capsys, tiny_recipe: Recipe):
    kept_of(folder, capsys, {**MINE, "mhc": [*MINE["mhc"], 1.5]}, tiny_recipe)

    _, text, _ = against(capsys, "theirs.json")
    document = json.loads(against(capsys, "theirs.json", "--format", "json")[1])

    assert "41 runs that both trained (one recipe, design, seed and data): all ended with" in text
    assert document["again"] == {"runs": 41, "equal": 41}


def test_runs_that_ended_apart_say_by_how_much_and_what_differs(
    folder: Path, capsys, tiny_recipe: Recipe
):
    settings = replace(SETTINGS, device_name="Another CPU (AVX512)")
    apart = {**MINE, "attnres": [MINE["attnres"][0] + 1e-3, MINE["attnres"][1] - 3e-3]}
    kept_of(folder, capsys, apart, tiny_recipe, settings=settings)

    _, text, _ = against(capsys, "theirs.json", "--format", "markdown")

    assert "38 runs that both trained (one recipe, design, seed and data): 36 ended with" in text
    assert "others are apart by 0.002 in the median, 0.003 at most; computed with: " in text
    assert "Another CPU (AVX512), depth mixing by eager; yours cpu" in text
    assert "trained by" not in text


def test_a_run_that_diverged_on_one_side_alone_is_not_equal(
    folder: Path, capsys, tiny_recipe: Recipe
):
    kept_of(folder, capsys, {**MINE, "mhc": [math.nan] * 5}, tiny_recipe)

    _, text, _ = against(capsys, "theirs.json")

    assert "36 ended with the same loss, bit for bit; 5 diverged on one side alone" in text


def test_runs_of_other_code_say_so(folder: Path, capsys, tiny_recipe: Recipe):
    losses = {**MINE, "unet": [1.4, *MINE["unet"][1:]]}
    kept_of(folder, capsys, losses, tiny_recipe, lambda _: Code("d", "t", "e", "l", "a"))

    _, text, _ = against(capsys, "theirs.json")

    assert "by other code: 9 designs" in text


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
