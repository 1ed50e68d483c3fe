"""`report --against`: the user's verdicts beside the paper's or those of a kept report."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path

import pytest
from commands import Attnres, ended
from studies import SETTINGS, fill

from attnres_cli.config import complete
from attnres_cli.config import shipped as shipped_files
from attnres_cli.config.recipe import load
from attnres_cli.config.shipped import paper
from attnres_cli.records.code import Code
from attnres_cli.verdict import paper as papers

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


@pytest.fixture
def against(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that returns what `report --against` prints."""
    return partial(Attnres(capsys).prints, "report", "--against")


# The paper


def test_gaps_ranks_and_signs_stand_beside_the_papers(make_arm, judge):
    arms = {
        # losses, the paper's gap and rank, our rank, and what is said
        "standard": (BASE, 0.0, 5, 3, "baseline"),
        "attnres": (shifted(-0.03), -0.029, 1, 1, "same sign"),  # 1.737 - 1.766
        "attnres:block_size=2": (shifted(-0.02), -0.020, 2, 2, "same sign"),
        "attnres:block_size=4": ([1.4, 1.9, 1.5, 1.6, 1.66], -0.020, 2, 4, "within noise"),
        "mhc": (shifted(+0.02), -0.019, 4, 5, "opposite sign"),
        "delta": (shifted(-0.01), None, None, None, "not in the paper"),
        "denseformer": ([1.6], +0.001, None, None, "no verdict"),
    }

    rows = papers.beside(judge(*(make_arm(name, *of) for name, (of, *_) in arms.items())))

    found = {row.arm.variant: row for row in rows}
    for name, (_, *expected) in arms.items():
        row = found[name]
        assert [row.paper_gap, row.paper_rank, row.rank, row.said] == expected, name
    assert found["denseformer"].reason.startswith("seed 1 is missing")

    others = {4: BASE, 2: shifted(-0.02)}
    runs = [make_arm(f"attnres:block_size={n}", *of) for n, of in others.items()]
    runs.append(make_arm("attnres", *shifted(-0.03)))
    rows = papers.beside(judge(*runs, baseline="attnres:block_size=4"))
    assert {row.arm.variant: (row.paper_gap, row.said) for row in rows[1:]} == {
        "attnres": (-0.009, "same sign"), "attnres:block_size=2": (0.0, "no gap in the paper")
    }  # fmt: skip


def test_table_2_and_table_4_agree_on_the_model_they_share():
    table2, table4 = paper()["table2"]["436M"], paper()["table4"]

    shared = table2.keys() & table4.keys()
    assert shared >= {"standard", "attnres"}
    assert all(table2[spec] == table4[spec] for spec in shared)
    assert table2["attnres:n_blocks=8"] == papers.losses()["attnres:block_size=4"]


def test_arms_that_the_paper_lacks_are_a_page_that_says_so(against):
    fill(Path("mine.db"), load("smoke", RECIPE), {"standard": BASE, "laurel": shifted(0.1)})

    page = against("paper", "--format", "html", "--study", "mine.db")

    assert "The paper has none of these arms besides <code>standard</code>" in page
    assert "not in the paper" in page


# A report that somebody kept


def test_every_arm_has_a_word_and_every_format_both_sides(against):
    document = json.loads(against("theirs.json", "--format", "json"))
    table = against("theirs.json")
    page = against("theirs.json", "--format", "html")
    rows = list(csv.DictReader(io.StringIO(against("theirs.json", "--format", "csv"))))

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


def test_the_same_recipe_is_taken_and_only_signs_compared_with_another(folder: Path, against):
    first = json.loads((folder / "theirs.json").read_text())
    another = first | {"recipe_digest": "0" * 12, "title": "another", "arms": [], "more": [first]}
    as_near = first | {"recipe_digest": "0" * 12}
    fewer = as_near | {"arms": first["arms"][:2], "title": "fewer", "more": [as_near]}

    for report in (another, fewer):
        (folder / "both.json").write_text(json.dumps(report))

        assert "theirs: both.json, recipe smoke" in against("both.json")
    few = {"standard": BASE, "attnres": MINE["attnres"]}
    fill(folder / "mine.db", load("smoke", [*RECIPE, "optim.lr=1"]), few)
    text = against("theirs.json", "--study", "mine.db")
    assert "another recipe than yours: signs and orders can be compared" in text


def test_a_shipped_report_is_asked_for_by_its_name(folder: Path, against, monkeypatch, capsys):
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

    document = json.loads(against("earlier", "--format", "json"))

    assert {arm["variant"]: arm["beside"] for arm in document["arms"]} == SAID
    assert document["arms"][0]["their_recipe_digest"] == "1" * 12  # of the same name
    assert "did you mean 'earlier'?" in Attnres(capsys).refuses("report", "--against", "erlier")


def test_runs_that_both_trained_are_compared_bit_for_bit(folder: Path, against, subtests):
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

            text = against("theirs.json", "--format", "markdown")
            document = json.loads(against("theirs.json", "--format", "json"))

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
        (["paper", "--baseline", "laurel"], "unknown baseline in the paper 'laurel'"),
    ):
        assert words in Attnres(capsys).refuses("report", "--against", *typed)
