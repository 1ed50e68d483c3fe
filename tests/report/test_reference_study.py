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


def tables() -> list[dict[str, Any]]:
    first = [json.loads(text) for text in report_texts("reference")]
    return [table for each in first for table in (each, *each["more"])]


def arms(match: str, *, is_tuned: bool) -> dict[str, dict[str, Any]]:
    """Of the tables of text."""
    (found,) = (
        table
        for table in tables()
        if len(table["arms"]) == 28
        and (table["terms"]["match"], table["terms"]["is_tuned"]) == (match, is_tuned)
    )
    return {arm["variant"]: arm for arm in found["arms"]}


def cell(arm: dict[str, Any]) -> str:
    if arm["verdict"] == "blocked":
        return "blocked"
    low, high = arm["look"]["low"], arm["look"]["high"]
    said = WORDS.get(arm["verdict"], "" if arm["verdict"] == "not separable" else arm["verdict"])
    word = f"**{said}**" if said in ("better", "worse") else said
    return f"{arm['difference']['mean']:+.4f} [{low:+.4f}, {high:+.4f}] {word}".rstrip()


def test_every_row_of_the_page_is_that_of_the_tables():
    tuned, shared = arms("tokens", is_tuned=True), arms("tokens", is_tuned=False)
    equal, printed = arms("flops", is_tuned=False), paper()["table4"]

    rows = re.findall(r"^\| `(\S+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert [name for name, _ in rows] == [name for name in tuned if name != "standard"]
    for name, row in rows:
        gap = f"{printed[name] - printed['standard']:+.3f}" if name in printed else ""
        own = f"{tuned[name]['own']['lr']:g}"
        cells = [cell(tuned[name]), own, cell(shared[name]), cell(equal[name]), gap]
        assert [each.strip() for each in row.split("|")] == cells


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
    assert theirs["their_low"] == arms("tokens", is_tuned=False)["attnres"]["look"]["low"]
