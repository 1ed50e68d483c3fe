"""The reference study, second edition: what its page says is what its shipped reports hold."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from commands import Attnres

from attnres_cli.config.shipped import plan_text

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "two-texts.md"


@pytest.fixture
def two_texts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import two_texts

    return two_texts


def test_every_row_of_the_page_is_that_of_the_shipped_report(two_texts):
    page, rows = PAGE.read_text(encoding="utf-8"), list(two_texts.rows())
    page = page.split("## Every design\n")[1].split("\n## ")[0]
    n_columns = len(two_texts.heads(rows))
    for cells in rows:
        assert f"\n| {' | '.join(cells[:n_columns])} |\n" in page
    assert page.count("\n| `") == len(rows) == 37


def test_the_first_table_is_the_registered_one_and_complete(two_texts):
    first = two_texts.of_text("quick")
    assert first["registered"].startswith("preregistered ")
    assert {len(arm["losses"]) for arm in first["arms"]} == {12}
    assert first["margin"] == 0.02
    assert "margin: 0.02" in plan_text("two-texts")


@pytest.mark.slow
def test_the_published_study_gives_the_shipped_report(two_texts, tmp_path: Path, capsys):
    study = tmp_path / "two-texts.db"
    packed = ROOT / "docs" / "results" / "two-texts.db.xz"
    study.write_bytes(lzma.decompress(packed.read_bytes()))
    first = two_texts.of_text("quick")
    asked = ("report", "--study", str(study), "--recipe", first["recipe_digest"])
    assert Attnres(capsys).json(*asked) == first
