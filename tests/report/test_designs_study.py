"""The page of the untuned designs has what its study says."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from commands import ended

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.slow
def test_the_page_has_every_loss_difference_and_verdict_of_its_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study = tmp_path / "designs.db"
    study.write_bytes(lzma.decompress((RESULTS / "designs.db.xz").read_bytes()))
    page = (RESULTS / "designs.md").read_text(encoding="utf-8")

    assert ended("report", "--study", str(study), "--format", "markdown") == 0

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert len(rows) == 24
    for row in rows[1:]:
        assert " | ".join(row.split(" | ")[:4]) in page
