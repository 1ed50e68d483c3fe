"""`report --against paper`: the paper's gaps and ranks beside those of a study."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.shipped import paper
from attnres_cli.verdict.paper import beside, losses

BASE = [1.50, 1.70, 1.60, 1.55, 1.65]
STEADY = [0.001, -0.001, 0.0005, -0.0005, 0.0]


def shifted(gap: float) -> list[float]:
    return [loss + gap + step for loss, step in zip(BASE, STEADY, strict=True)]


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

    rows = beside(judge(*(make_arm(name, *of) for name, (of, *_) in arms.items())))

    found = {row.arm.variant: row for row in rows}
    for name, (_, *expected) in arms.items():
        row = found[name]
        assert [row.paper_gap, row.paper_rank, row.rank, row.said] == expected, name
    assert found["denseformer"].reason.startswith("seed 1 is missing")


def test_another_baseline_has_other_gaps(make_arm, judge):
    arms = {
        "attnres:block_size=4": BASE,
        "attnres": shifted(-0.03),
        "attnres:block_size=2": shifted(-0.02),
    }
    runs = [make_arm(name, *of) for name, of in arms.items()]

    rows = beside(judge(*runs, baseline="attnres:block_size=4"))

    gaps = {row.arm.variant: (row.paper_gap, row.said) for row in rows}
    assert gaps["attnres"] == (-0.009, "same sign")
    assert gaps["attnres:block_size=2"] == (0.0, "no gap in the paper")


def test_table_2_and_table_4_agree_on_the_model_they_share():
    numbers = paper()

    shared = numbers["table2"]["436M"].keys() & numbers["table4"].keys()
    assert shared >= {"standard", "attnres"}
    assert all(numbers["table2"]["436M"][spec] == numbers["table4"][spec] for spec in shared)
    assert numbers["table2"]["436M"]["attnres:n_blocks=8"] == losses()["attnres:block_size=4"]


def test_arms_that_the_paper_lacks_are_a_page_that_says_so_or_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    fill(tmp_path / "attnres.db", tiny_recipe, {"standard": BASE, "laurel": shifted(0.1)})

    code, page, _ = attnres(capsys, "report", "--against", "paper", "--format", "html")

    assert code == 0
    assert "The paper has none of these arms besides <code>standard</code>" in page
    assert "<table" not in page
    for typed, words in (
        (["papr"], "did you mean 'paper'?"),
        (["paper", "--baseline", "laurel"], "unknown baseline in the paper 'laurel'"),
    ):
        code, out, err = attnres(capsys, "report", "--against", *typed)

        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1
