"""The reference study: what docs/results/reference.md says is what its shipped reports hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.shipped import paper, plan_text, report_texts

PAGE = Path(__file__).parents[2] / "docs" / "results" / "reference.md"
WORDS = {"no worse by the margin": "no worse", "equal within the margin": "equal"}


def tables(part: str = "") -> list[dict[str, Any]]:
    """Of every part, or of one: text, pointers, ..."""
    texts = report_texts("reference")
    found = [table for text in texts for table in [json.loads(text), *json.loads(text)["more"]]]
    sources = {"text": "stdlib", "pointers": "pointers"}
    return [
        table
        for table in found
        if table["data"]["source"] == sources.get(part, table["data"]["source"])
    ]


def arms(part: str, match: str, *, is_tuned: bool) -> dict[str, dict[str, Any]]:
    terms = [(each["terms"]["match"], each["terms"]["is_tuned"]) for each in tables(part)]
    return {arm["variant"]: arm for arm in tables(part)[terms.index((match, is_tuned))]["arms"]}


def rows(part: str) -> dict[str, list[str]]:
    """The cells of the page's table of a part."""
    text = (
        PAGE.read_text(encoding="utf-8").split(f"## What was found: {part}\n")[1].split("\n## ")[0]
    )
    found = re.findall(r"^\| `(\S+)` \| (.+) \|$", text, re.MULTILINE)
    return {name: [each.strip() for each in row.split("|")] for name, row in found}


def cell(arm: dict[str, Any]) -> str:
    if arm["verdict"] == "blocked":
        return "blocked"
    low, high = arm["look"]["low"], arm["look"]["high"]
    said = WORDS.get(arm["verdict"], "" if arm["verdict"] == "not separable" else arm["verdict"])
    word = f"**{said}**" if said in ("better", "worse") else said
    return f"{arm['difference']['mean']:+.4f} [{low:+.4f}, {high:+.4f}] {word}".rstrip()


def test_every_row_on_text_is_that_of_the_tables():
    tuned, shared = arms("text", "tokens", is_tuned=True), arms("text", "tokens", is_tuned=False)
    equal, printed = arms("text", "flops", is_tuned=False), paper()["table4"]

    assert list(rows("text")) == [name for name in tuned if name != "standard"]
    for name, cells in rows("text").items():
        gap = f"{printed[name] - printed['standard']:+.3f}" if name in printed else ""
        own = f"{tuned[name]['own']['lr']:g}"
        assert cells == [cell(tuned[name]), own, cell(shared[name]), cell(equal[name]), gap]


def test_every_row_on_pointers_is_that_of_the_tables():
    tuned = arms("pointers", "tokens", is_tuned=True)
    shared = arms("pointers", "tokens", is_tuned=False)

    assert list(rows("pointers")) == [name for name in tuned if name != "standard"]
    for name, cells in rows("pointers").items():
        assert cells == [cell(tuned[name]), f"{tuned[name]['own']['lr']:g}", cell(shared[name])]


def test_every_table_is_of_the_plan_and_complete():
    for table in tables():
        assert re.fullmatch(r"preregistered [0-9a-f]{12}", table["registered"])
        assert {len(arm["losses"]) for arm in table["arms"]} == {table["planned_seeds"]}
        for arm in table["arms"]:
            assert arm["variant"] in plan_text("reference")


def test_ones_own_study_stands_beside_the_nearest_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe, capsys
):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "attnres.db", tiny_recipe, {"standard": [1.5] * 5, "attnres": [1.4] * 5})

    code, out, _ = attnres(capsys, "report", "--against", "reference", "--format", "json")

    theirs = {arm["variant"]: arm for arm in json.loads(out)["arms"]}["attnres"]
    assert (code, theirs["their_seeds"]) == (0, 12)
    assert theirs["their_low"] == arms("text", "tokens", is_tuned=False)["attnres"]["look"]["low"]
