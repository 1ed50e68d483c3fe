"""The pages of the newer designs have what their studies say."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from commands import ended

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_rows"), [("designs", 24), ("inputs", 12)])
def test_the_page_has_every_loss_difference_and_verdict_of_its_study(
    name: str, n_rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    study = tmp_path / f"{name}.db"
    study.write_bytes(lzma.decompress((RESULTS / f"{name}.db.xz").read_bytes()))
    page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")

    assert ended("report", "--study", str(study), "--format", "markdown") == 0

    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert len(rows) == n_rows
    for row in rows:
        if "baseline" not in row:
            assert " | ".join(row.split(" | ")[:4]) in page
