"""The shipped suites and the paper's numbers: every spec is a design, every row is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_cli.config import recipe, shipped
from attnres_cli.errors import RecipeError
from attnres_cli.lab.grid import resolve
from attnres_cli.nn import variant
from attnres_cli.nn.residual import registry

PAPER = shipped.paper()


def canonical(specs: list[str]) -> set[str]:
    return {str(variant.parse(spec)) for spec in specs}


@pytest.mark.parametrize("name", shipped.suite_names())
def test_every_arm_of_a_suite_is_a_design_and_the_baseline_is_first(name: str):
    specs = shipped.suite(name)

    assert specs[0] == "standard"
    assert len(canonical(specs)) == len(specs)
    assert shipped.about_suite(name)["description"]


def test_suite_all_holds_every_design_with_its_defaults():
    assert shipped.suite("all") == list(registry())


def test_table4_and_fig6_and_table2_hold_what_the_paper_prints():
    rows = canonical(shipped.suite("table4")) | canonical(shipped.suite("fig6"))

    assert canonical(list(PAPER["table4"])) == rows
    assert len(shipped.suite("table4")) == 12
    for row in PAPER["table2"].values():
        assert canonical(list(row)) == canonical(shipped.suite("table2"))


def test_every_series_of_the_paper_has_a_value_for_every_size():
    assert {len(series) for series in PAPER["scaling"].values()} == {len(PAPER["table2"])}
    assert {len(series) for series in PAPER["figure5"].values()} == {27}


def test_attnres_is_better_than_the_baseline_in_every_cell_of_figure_7():
    cells = PAPER["figure7"]
    gains = [
        theirs - ours
        for row, other in zip(cells["standard"], cells["attnres"], strict=True)
        for theirs, ours in zip(row, other, strict=True)
    ]

    assert len(gains) == len(cells["width_per_layer"]) * len(cells["heads_per_layer"])
    assert (min(gains), max(gains)) == pytest.approx((0.019, 0.063))


@pytest.mark.parametrize("site", ["attention", "mlp"])
def test_rows_of_figure_8_weigh_all_earlier_sources(site: str):
    rows = PAPER["figure8"][f"full_{site}"]

    assert [len(row) for row in rows] == [1 + 2 * layer + (site == "mlp") for layer in range(16)]
    assert all(sum(row) == pytest.approx(1, abs=0.05) for row in rows)  # two digits of each


def test_every_arm_of_every_suite_fits_the_default_recipe():
    for name in shipped.suite_names():
        assert resolve(shipped.suite(name), recipe.load("quick"), 256)


def test_a_recipe_may_name_its_arms_and_they_decide_no_run(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    text = (recipe.text_of("smoke")).replace("variants:", "ignored:")
    path.write_text(text + "\nvariants: [standard, attnres]\n")

    loaded = recipe.load(str(path))

    assert loaded.variants == ("standard", "attnres")
    assert loaded.digest == recipe.load("smoke").digest
    with pytest.raises(RecipeError, match="variants"):
        recipe.load("smoke", ["variants=3"])


@pytest.mark.slow
def test_every_design_learns_more_than_how_often_bytes_occur(tmp_path: Path):
    command = ["ablate", "--suite", "all", "--recipe", "smoke", "--seeds", "1", "--format", "json"]

    done = subprocess.run(
        [sys.executable, "-m", "attnres_cli", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    losses = {arm["variant"]: arm["mean"] for arm in found["arms"]}
    assert losses.keys() == registry().keys()
    unigram = found["reference"]["unigram_loss"]
    assert {name: loss for name, loss in losses.items() if not loss < unigram - 0.2} == {}
