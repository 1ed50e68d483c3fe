"""The shipped suites and the paper's numbers: every spec is a design, every row is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Attnres

from attnres_cli.config import complete, recipe, shipped
from attnres_cli.errors import RecipeError
from attnres_cli.lab.grid import resolve
from attnres_cli.nn import variant
from attnres_cli.nn.residual import registry


def canonical(specs: list[str]) -> set[str]:
    return {str(variant.parse(spec)) for spec in specs}


def test_every_arm_of_a_suite_is_a_design_and_the_baseline_is_first():
    assert "quick" in complete.suites()
    for name in complete.suites():
        specs = shipped.suite(name)
        assert specs[0] == "standard"
        assert len(canonical(specs)) == len(specs) > 1
        assert shipped.about_suite(name)["description"]
    assert shipped.suite("all") == list(registry())  # every design with its defaults


def test_the_papers_tables_and_suites_hold_the_same_rows():
    paper = shipped.paper()
    rows = canonical(shipped.suite("table4")) | canonical(shipped.suite("fig6"))

    assert canonical(list(paper["table4"])) == rows
    assert len(shipped.suite("table4")) == 12
    for row in paper["table2"].values():
        assert canonical(list(row)) == canonical(shipped.suite("table2"))
    assert {len(series) for series in paper["scaling"].values()} == {len(paper["table2"])}


def test_the_papers_figures_hold_every_value_that_is_printed():
    paper = shipped.paper()
    assert {len(series) for series in paper["figure5"].values()} == {27}
    cells = paper["figure7"]
    gains = [
        theirs - ours
        for row, other in zip(cells["standard"], cells["attnres"], strict=True)
        for theirs, ours in zip(row, other, strict=True)
    ]
    assert len(gains) == len(cells["width_per_layer"]) * len(cells["heads_per_layer"])
    assert (min(gains), max(gains)) == pytest.approx((0.019, 0.063))
    for site, own in (("attention", 0), ("mlp", 1)):  # rows weigh all earlier sources
        rows = paper["figure8"][f"full_{site}"]
        assert [len(row) for row in rows] == [1 + 2 * layer + own for layer in range(16)]
        assert all(sum(row) == pytest.approx(1, abs=0.05) for row in rows)  # two digits of each


def test_every_arm_of_every_suite_fits_the_default_recipe():
    specs = {spec for name in complete.suites() for spec in shipped.suite(name)}
    assert resolve(sorted(specs), recipe.load("quick"), 256)


def test_a_recipe_may_name_its_arms_without_changing_its_runs(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text(recipe.text_of("smoke") + "\nvariants: [standard, attnres]\n")

    loaded = recipe.load(str(path))

    assert loaded.variants == ("standard", "attnres")
    assert loaded.digest == recipe.load("smoke").digest
    with pytest.raises(RecipeError, match="variants"):
        recipe.load("smoke", ["variants=3"])


@pytest.mark.slow
def test_every_design_learns_more_than_how_often_bytes_occur(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    typed = ("ablate", "--suite", "all", "--recipe", "smoke", "--seeds", "1")
    found = Attnres(capsys).json(*typed, "--study", str(tmp_path / "study.db"))
    losses = {arm["variant"]: arm["mean"] for arm in found["arms"]}
    assert losses.keys() == registry().keys()
    unigram = found["reference"]["unigram_loss"]
    assert {name: loss for name, loss in losses.items() if not loss < unigram - 0.2} == {}
