"""`report --against paper`: the paper's gaps and ranks beside those of a study."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import attnres
from studies import fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.shipped import paper
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.paper import beside, losses

BASE = [1.50, 1.70, 1.60, 1.55, 1.65]
STEADY = [0.001, -0.001, 0.0005, -0.0005, 0.0]


def shifted(gap: float) -> list[float]:
    return [loss + gap + step for loss, step in zip(BASE, STEADY, strict=True)]


LOSSES = {
    "standard": BASE,
    "attnres": shifted(-0.03),
    "mhc": shifted(+0.02),
    "attnres:block_size=4": [1.4, 1.9, 1.5, 1.6, 1.66],
    "delta": shifted(-0.01),
    "denseformer": [1.6],
    "attnres:block_size=2": shifted(-0.02),
}


@pytest.fixture
def found(make_arm, facts):
    records = [run for name, values in LOSSES.items() for run in make_arm(name, *values)]
    return {row.arm.variant: row for row in beside(compare(records, facts, "standard"))}


def test_signs_are_compared_where_there_are_two(found):
    said = {name: row.said for name, row in found.items()}

    assert said == {
        "standard": "baseline",
        "attnres": "same sign",
        "mhc": "opposite sign",
        "attnres:block_size=4": "within noise",
        "delta": "not in the paper",
        "denseformer": "no verdict",
        "attnres:block_size=2": "same sign",
    }
    assert found["denseformer"].reason.startswith("seed 1 is missing")


def test_gaps_and_ranks_are_the_papers(found):
    assert found["attnres"].paper_gap == -0.029  # 1.737 - 1.766
    assert found["mhc"].paper_gap == -0.019
    assert found["delta"].paper_gap is None
    # Of the arms that both have: 1.737, twice 1.746, 1.747, 1.766; block_size=4 ended at +0.0125.
    ranked = {name: (row.paper_rank, row.rank) for name, row in found.items()}
    assert ranked["attnres"] == (1, 1)
    assert ranked["attnres:block_size=2"] == (2, 2)
    assert ranked["attnres:block_size=4"] == (2, 4)
    assert ranked["mhc"] == (4, 5)
    assert ranked["standard"] == (5, 3)
    assert ranked["delta"] == ranked["denseformer"] == (None, None)


def test_another_baseline_has_other_gaps(make_arm, facts):
    records = [*make_arm("attnres:block_size=4", *BASE), *make_arm("attnres", *shifted(-0.03))]
    records += make_arm("attnres:block_size=2", *shifted(-0.02))

    rows = beside(compare(records, facts, "attnres:block_size=4"))

    gaps = {row.arm.variant: (row.paper_gap, row.said) for row in rows}
    assert gaps["attnres"] == (-0.009, "same sign")
    assert gaps["attnres:block_size=2"] == (0.0, "no gap in the paper")


def test_table_2_and_table_4_agree_on_the_model_they_share():
    numbers = paper()

    shared = numbers["table2"]["436M"].keys() & numbers["table4"].keys()
    assert shared >= {"standard", "attnres"}
    assert all(numbers["table2"]["436M"][spec] == numbers["table4"][spec] for spec in shared)
    assert numbers["table2"]["436M"]["attnres:n_blocks=8"] == losses()["attnres:block_size=4"]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    fill(tmp_path / "attnres.db", tiny_recipe, LOSSES)
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return attnres(capsys, "report", "--against", *arguments)


def test_arms_that_the_paper_lacks_are_a_page_that_says_so(
    tmp_path, monkeypatch, tiny_recipe, capsys
):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "attnres.db", tiny_recipe, {"standard": BASE, "laurel": shifted(0.1)})

    code, page, _ = report(capsys, "paper", "--format", "html")

    assert code == 0
    assert "The paper has none of these arms besides <code>standard</code>" in page
    assert "<table" not in page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["papr"], "did you mean 'paper'?"),
        (["paper", "--baseline", "delta"], "unknown baseline in the paper 'delta'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments, words, study: Path, capsys):
    code, out, err = report(capsys, *arguments)

    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
