"""`report --against FILE.json`: the user's verdicts beside those of a report that somebody kept."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from commands import attnres, ended
from studies import SETTINGS, fill

from attnres_cli.config import complete
from attnres_cli.config import shipped as shipped_files
from attnres_cli.config.recipe import load
from attnres_cli.records.code import Code

BASE = [1.50, 1.70, 1.60, 1.55, 1.65]
STEADY = [0.001, -0.001, 0.0005, -0.0005, 0.0]
NOISE = [0.1, -0.1, 0.05, -0.05, 0.0]
RECIPE = ["model.n_layers=2", "train.tokens=4k"]


def shifted(gap: float, noise: list[float] = STEADY) -> list[float]:
    return [loss + gap + step for loss, step in zip(BASE, noise, strict=True)]


ARMS: dict[str, tuple[list[float], list[float], str]] = {
    # their losses, mine, and what is said of an arm
    "standard": (BASE, BASE, "baseline"),
    "attnres": (shifted(-0.03), shifted(-0.02), "same sign"),
    "mhc": (shifted(-0.02), shifted(+0.02), "opposite sign"),
    "delta": (shifted(-0.02, NOISE), shifted(-0.02), "within noise there"),
    "unet": (shifted(0.0, NOISE), shifted(0.01, NOISE), "within noise in both"),
    "denseformer": (shifted(0.01), shifted(0.01, NOISE), "within noise here"),
    "x0": ([1.5], shifted(0.01), "no verdict there"),
    "laurel": ([], shifted(0.01), "not there"),
    "hc": (shifted(0.01), [1.5], "no verdict here"),
}
THEIRS = {name: theirs for name, (theirs, _, _) in ARMS.items()}
MINE = {name: mine for name, (_, mine, _) in ARMS.items()}
SAID = {name: said for name, (_, _, said) in ARMS.items()}


def keep(study: Path, report: Path) -> None:
    typed = ("--study", str(study), "--format", "json", "--output", str(report))
    assert ended("report", *typed) == 0


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study, and the report of another of the same recipe, kept."""
    folder = tmp_path_factory.mktemp("kept")
    fill(folder / "theirs.db", load("smoke", RECIPE), THEIRS)
    fill(folder / "attnres.db", load("smoke", RECIPE), MINE)
    keep(folder / "theirs.db", folder / "theirs.json")
    return folder


@pytest.fixture(autouse=True)
def folder(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to work in."""
    shutil.copytree(kept, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    return tmp_path


def against(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str, str]:
    return attnres(capsys, "report", "--against", *typed)


def test_every_arm_has_a_word_and_every_format_both_sides(capsys):
    document = json.loads(against(capsys, "theirs.json", "--format", "json")[1])
    _, table, _ = against(capsys, "theirs.json")
    _, page, _ = against(capsys, "theirs.json", "--format", "html")
    rows = list(csv.DictReader(io.StringIO(against(capsys, "theirs.json", "--format", "csv")[1])))

    for arms in (document["arms"], rows):
        assert {arm["variant"]: arm["beside"] for arm in arms} == SAID
    arm = next(each for each in document["arms"] if each["variant"] == "attnres")
    assert (round(arm["their_difference"], 4), round(arm["difference"], 4)) == (-0.03, -0.02)
    assert arm["their_low"] < -0.03 < arm["their_high"] < 0
    assert arm["their_seeds"] == 5
    for text in (table, page):
        assert "the same recipe and data as yours: values can be compared" in text
        assert "opposite sign" in text
        assert "-0.0300 [" in text


def test_only_signs_are_compared_with_another_recipe(folder: Path, capsys):
    few = {"standard": BASE, "attnres": MINE["attnres"]}
    fill(folder / "mine.db", load("smoke", [*RECIPE, "optim.lr=1"]), few)

    _, text, _ = against(capsys, "theirs.json", "--study", "mine.db")

    assert "another recipe than yours: signs and orders can be compared" in text


def test_the_table_of_the_same_recipe_is_taken_or_else_that_with_most_of_ones_arms(
    folder: Path, capsys
):
    first = json.loads((folder / "theirs.json").read_text())
    another = first | {"recipe_digest": "0" * 12, "title": "another", "arms": [], "more": [first]}
    as_near = first | {"recipe_digest": "0" * 12}
    fewer = as_near | {"arms": first["arms"][:2], "title": "fewer", "more": [as_near]}

    for report in (another, fewer):
        (folder / "both.json").write_text(json.dumps(report))

        assert "theirs: both.json, recipe smoke" in against(capsys, "both.json")[1]


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


def test_runs_that_both_trained_are_compared_bit_for_bit(folder: Path, capsys, subtests):
    attnres, other_code = MINE["attnres"], Code("d", "t", "e", "l", "a")
    for losses, how, n, equal, words in (
        (
            {"mhc": [*MINE["mhc"], 1.5]}, {}, 41, 41,
            ["41 runs that both trained (one recipe, design, seed and data): all ended with"],
        ),
        (
            {"attnres": [attnres[0] + 1e-3, attnres[1] - 3e-3]},
            {"settings": replace(SETTINGS, device_name="Another CPU (AVX512)")}, 38, 36,
            ["38 runs that both trained (one recipe, design, seed and data): 36 ended with",
             "others are apart by 0.002 in the median, 0.003 at most; computed with: ",
             "Another CPU (AVX512), depth mixing by eager; yours cpu"],
        ),
        (
            {"mhc": [math.nan] * 5}, {"code_of": lambda _: other_code}, 41, 36,
            ["36 ended with the same loss, bit for bit; 5 diverged on one side alone",
             "by other code: 9 designs"],
        ),
    ):  # fmt: skip
        with subtests.test(words[0]):
            (folder / "theirs.db").unlink()
            fill(folder / "theirs.db", load("smoke", RECIPE), MINE | losses, **how)
            keep(folder / "theirs.db", folder / "theirs.json")

            _, text, _ = against(capsys, "theirs.json", "--format", "markdown")
            document = json.loads(against(capsys, "theirs.json", "--format", "json")[1])

            assert [each for each in words if each not in text] == []
            assert "code_of" in how or "trained by" not in text
            again = document["again"]
            assert (again["runs"], again["equal"]) == (n, equal)


def test_what_is_no_report_and_a_baseline_that_they_lack_are_one_line(folder: Path, capsys):
    (folder / "words.json").write_text("[1, 2]")

    for typed, words in (
        (["none.json"], "cannot be read"),
        (["words.json"], "holds no verdicts: `attnres report --format json"),
        (["papr"], "did you mean 'paper'?"),
        (["theirs.json", "--baseline", "attnres"], "unknown baseline there 'attnres'"),
    ):
        code, out, err = against(capsys, *typed)

        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
