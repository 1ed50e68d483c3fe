"""The reference study: what docs/results/reference.md says is what its shipped reports hold."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest
from commands import Attnres
from studies import fill

from attnres_cli.config.shipped import paper, plan_text, report_texts
from attnres_cli.verdict.numbers import interval

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = RESULTS / "reference.md"
SIZES = {"depth": ["8", "16", "32", "64"], "sizes": ["0.13M", "0.33M", "0.65M", "1.16M"]}
"""What the page calls the sizes of a part."""
WORDS = {"non-inferior": "no worse", "equivalent": "equal"}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The study as it is published, without weights."""
    path = tmp_path_factory.mktemp("reference") / "reference.db"
    path.write_bytes(lzma.decompress((RESULTS / "reference.db.xz").read_bytes()))
    return str(path)


@pytest.fixture
def attnres(capsys: pytest.CaptureFixture[str]) -> Attnres:
    return Attnres(capsys)


def tables(part: str = "") -> list[dict[str, Any]]:
    """Of every part, or of one: text, pointers, depth, sizes."""
    found = [json.loads(text) for text in report_texts("reference")]
    found = [table for first in found for table in (first, *first["more"])]
    return [table for table in found if part in ("", part_of(table))]


def part_of(table: dict[str, Any]) -> str:
    if table["recipe"] == "quick":
        return "pointers" if table["data"]["source"] == "pointers" else "text"
    return str(table["recipe"])


def arms(part: str, match: str, *, is_tuned: bool) -> dict[str, dict[str, Any]]:
    terms = [(each["terms"]["match"], each["terms"]["is_tuned"]) for each in tables(part)]
    return {arm["variant"]: arm for arm in tables(part)[terms.index((match, is_tuned))]["arms"]}


def rows(part: str, first: str = r"`(\S+)`") -> dict[str, list[str]]:
    """The cells of the page's table of a part, by what stands first."""
    page = PAGE.read_text(encoding="utf-8").split(f"## What was found: {part}\n")[1]
    found = re.findall(rf"^\| {first} \| (.+) \|$", page.split("\n## ")[0], re.MULTILINE)
    return {name: [each.strip() for each in row.split("|")] for name, row in found}


def cell(arm: dict[str, Any]) -> str:
    if arm["verdict"] == "blocked":
        return "blocked"
    if arm["verdict"] == "baseline":
        return f"{arm['mean']:.4f} ± {arm['sd']:.4f}"
    low, high = arm["look"]["low"], arm["look"]["high"]
    said = WORDS.get(arm["verdict"], "" if arm["verdict"] == "inconclusive" else arm["verdict"])
    word = f"**{said}**" if said in ("better", "worse") else said
    return f"{arm['difference']['mean']:+.4f} [{low:+.4f}, {high:+.4f}] {word}".rstrip()


@pytest.mark.parametrize("part", ["text", "pointers"])
def test_every_row_on_text_and_on_pointers_is_that_of_the_tables(part: str):
    tuned, shared = (arms(part, "tokens", is_tuned=is_tuned) for is_tuned in (True, False))
    equal = arms("text", "flops", is_tuned=False)
    printed = paper()["table4"]

    assert list(rows(part)) == [name for name in tuned if name != "standard"]
    for name, cells in rows(part).items():
        expected = [cell(tuned[name]), f"{tuned[name]['own']['lr']:g}", cell(shared[name])]
        if part == "text":
            gap = f"{printed[name] - printed['standard']:+.3f}" if name in printed else ""
            expected += [cell(equal[name]), gap]
        assert cells == expected


def in_order(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Its arms, `standard` first, then by name: a table has them by their losses."""
    return sorted(table["arms"], key=lambda arm: (arm["variant"] != "standard", arm["variant"]))


@pytest.mark.parametrize("part", SIZES)
def test_every_row_of_a_ladder_is_that_of_the_tables(part: str, study: str, attnres: Attnres):
    """A row for each size, then for their trend."""
    told = attnres.json("report", "--study", study, "--recipe", part, "--scaling")
    expected = {}
    for name, is_tuned in (("own rates", True), ("one rate", False)):
        of_sizes = [one for one in tables(part) if one["terms"]["is_tuned"] == is_tuned]
        for size, one in zip(SIZES[part], of_sizes, strict=True):
            expected[f"{size}, {name}"] = [
                cell(arm) + (f" ({arm['own']['lr']:g})" if arm["own"] else "")
                for arm in in_order(one)
            ]
        (ladder,) = [one for one in (told, *told["more"]) if one["terms"]["is_tuned"] == is_tuned]
        trends = [arm["trend"] for arm in in_order(ladder)]
        if any(trends):  # from three sizes on
            expected[f"per doubling, {name}"] = [
                interval(trend["mean"], trend["ci95"], "+.4f") if trend else "" for trend in trends
            ]

    assert rows(part, r"(\S+(?: doubling)?, o\w+ rates?)") == expected


@pytest.mark.parametrize(
    "part",
    [
        "pointers",
        pytest.param("text", marks=pytest.mark.slow),
        *(pytest.param(part, marks=pytest.mark.nightly) for part in SIZES),
    ],
)
def test_the_published_study_gives_the_shipped_tables(part: str, study: str, attnres: Attnres):
    for table in map(json.loads, report_texts("reference")):
        if part_of(table) == part:
            digest = table["recipe_digest"]
            assert attnres.json("report", "--study", study, "--recipe", digest) == table


def test_the_sentence_on_lower_rates_is_that_of_their_table():
    shared = json.loads((RESULTS / "2026-11-25-sizes-lower-rates.json").read_text(encoding="utf-8"))
    (tuned,) = shared["more"]
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = page.split("**Lower rates were sought afterwards**")[1].split("([report]")[0]

    assert (tuned["registered"], tuned["margin"]) == (shared["registered"], 0.02)
    assert shared["registered"].startswith("exploratory")
    for arm in tuned["arms"]:
        assert not arm["own"]["is_on_edge"]
        assert f"`{arm['variant']}` ({arm['own']['lr']:g})" in said
        if arm["variant"] != tuned["baseline"]:
            after = said.split(f"`{arm['variant']}` (")[1].split(")")[1]
            assert re.search(r"0\.\d+", after)[0] == f"{-arm['difference']['mean']:.3f}"
    verdicts = {arm["variant"]: arm["verdict"] for arm in tuned["arms"]}
    assert verdicts.pop("mhc") == "better"
    assert verdicts.pop("standard") == "baseline"
    assert set(verdicts.values()) == {"equivalent"}


def test_every_table_is_of_the_plan_and_complete():
    for table in tables():
        assert re.fullmatch(r"preregistered [0-9a-f]{12}", table["registered"])
        assert {len(arm["losses"]) for arm in table["arms"]} == {table["planned_seeds"]}
        for arm in table["arms"]:
            assert arm["variant"] in plan_text("reference")


def test_your_study_stands_beside_the_nearest_table(tmp_path, monkeypatch, tiny_recipe, attnres):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "attnres.db", tiny_recipe, {"standard": [1.5] * 5, "attnres": [1.4] * 5})

    found = attnres.json("report", "--against", "reference")

    theirs = {arm["variant"]: arm for arm in found["arms"]}["attnres"]
    assert theirs["their_seeds"] == 12
    assert theirs["their_low"] == arms("text", "tokens", is_tuned=False)["attnres"]["look"]["low"]
