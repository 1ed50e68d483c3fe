"""`attnres plan`: seeds a gap takes, from a study; as a user types it."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import attnres
from studies import RESULT, SETTINGS, fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.records import machine
from attnres_cli.stats.looks import LEAST_SEEDS, first_rate
from attnres_cli.stats.power import detectable, multiplier, noise, seeds_needed
from attnres_cli.verdict.family import BASELINE_FIRST

LOSSES = [1.50, 1.52, 1.47, 1.51, 1.53]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "attnres.db"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return attnres(capsys, "plan", *arguments)


@pytest.fixture
def quick() -> Recipe:
    return load("quick").at_rate(6e-3)


def flat(out: str) -> str:
    return " ".join(out.split())


def row(out: str, name: str) -> list[str]:
    line = next(line for line in out.splitlines() if line.strip().startswith(name))
    return re.split(r" {2,}| (?=\[)", line.strip())


def test_the_baseline_alone_gives_the_noise_floor_and_assumed_seeds(
    folder: Path, tiny_recipe: Recipe, capsys
):
    fill(folder, tiny_recipe, {"standard": LOSSES})

    code, out, _ = planned(capsys, "--gap", "0.02", "--arms", "4", "--workers", "1")

    assert code == 0
    floor, rate = noise(LOSSES), BASELINE_FIRST * first_rate(4)
    needed = seeds_needed(0.02, floor.sd, rate)
    assert f"sd {floor.sd:.4f} [{floor.ci95[0]:.4f}, {floor.ci95[1]:.4f}]" in out
    cells = row(out, "0.50 assumed")
    assert cells[1:3] == [f"{floor.sd:.4f}", str(needed)]
    assert cells[4:6] == [str(5 * needed), str(5 * needed - 5)]  # five of the baseline are held
    assert cells[6] == f"{(5 * needed - 5) // 60} h {(5 * needed - 5) % 60} min"  # a minute each
    assert "nothing measured" in out
    assert "half of the rate of a new study" in flat(out)
    assert f"{detectable(6, floor.sd, rate):.3f}" in out


def test_arms_of_the_study_give_the_correlation(folder: Path, tiny_recipe: Recipe, capsys):
    near = [loss - 0.01 + step for loss, step in zip(LOSSES, [0, 1e-3, 0, -1e-3, 0], strict=True)]
    fill(folder, tiny_recipe, {"standard": LOSSES, "attnres": near, "denseformer": near[:3]})

    code, out, _ = planned(capsys)

    assert code == 0
    assert "1.00 measured" in out
    assert "2 arms beside the baseline" in out
    assert "measured over 2 arms" in out
    assert int(row(out, "1.00 measured")[2]) == LEAST_SEEDS  # fewer have no verdict


def test_as_json_all_numbers_are_there(folder: Path, tiny_recipe: Recipe, capsys):
    fill(folder, tiny_recipe, {"standard": LOSSES, "attnres": LOSSES[::-1]})

    code, out, _ = planned(
        capsys, "--gap", "0.02", "--arms", "4", "--workers", "1", "--format", "json"
    )

    assert code == 0
    document, floor = json.loads(out), noise(LOSSES)
    assert document["noise"] == {
        "runs": 5,
        "mean": floor.mean,
        "sd": floor.sd,
        "sd_ci95": list(floor.ci95),
    }
    assert (document["gap"], document["arms"], document["alpha"]) == (0.02, 4, first_rate(4))
    first, *assumed = document["pairings"]
    assert first["is_measured"]
    assert first["correlation"] == pytest.approx(np.corrcoef(LOSSES, LOSSES[::-1])[0, 1])
    assert [(row["is_measured"], row["correlation"]) for row in assumed] == [
        (False, 0.0),
        (False, 0.5),
        (False, 0.8),
    ]
    half = assumed[1]
    assert half["seeds"] == seeds_needed(0.02, floor.sd, first_rate(4))
    assert half["to_train"] == half["runs"] - 10 == 5 * half["seeds"] - 10
    assert half["seconds"] == 60 * half["to_train"]
    assert half["detectable"]["6"] == detectable(6, floor.sd, first_rate(4))


def test_seeds_that_no_study_has_are_null(folder: Path, tiny_recipe: Recipe, capsys):
    fill(folder, tiny_recipe, {"standard": [1.5, 2.5]})

    _, out, _ = planned(capsys, "--gap", "0.0001", "--format", "json")

    (row, *_) = json.loads(out)["pairings"]
    assert (row["seeds"], row["runs"], row["seconds"]) == (None, None, None)


def test_csv_has_a_row_for_each_correlation(folder: Path, tiny_recipe: Recipe, capsys):
    fill(folder, tiny_recipe, {"standard": LOSSES})

    rows = list(csv.DictReader(planned(capsys, "--format", "csv")[1].splitlines()))

    assert [row["correlation"] for row in rows] == ["0.0", "0.5", "0.8"]
    assert float(rows[1]["noise_sd"]) == float(rows[1]["sd"]) == noise(LOSSES).sd


def test_without_a_slope_it_says_what_to_type(folder: Path, quick: Recipe, capsys):
    fill(folder, quick, {"standard": LOSSES})

    _, out, _ = planned(capsys)

    half = 214 * 1024
    sets = f"--set optim.lr=0.006 --set train.tokens={half}"
    command = f"`attnres ablate standard --recipe quick {sets} --seeds 2`"
    assert f"No resolution without the slope of standard's loss over tokens: {command}" in flat(out)
    assert "resolution: the same" not in out


def test_two_budgets_of_tokens_give_the_slope_and_with_it_the_resolution(
    folder: Path, quick: Recipe, capsys
):
    """From 219,136 to 878,592 tokens the loss falls by 0.6; the recipe states another slope."""
    fill(folder, quick.at(880_000), {"standard": [1.2, 1.4]}, tokens=878_592)
    fill(folder, quick.at(219_136), {"standard": [1.8, 2.0]}, tokens=219_136)
    stated = quick.model_copy(update={"slope": 9.0})
    fill(folder, stated, {"standard": LOSSES, "attnres": LOSSES[::-1]}, tokens=439_296)

    code, out, _ = planned(capsys, "--workers", "2")
    document = json.loads(planned(capsys, "--workers", "2", "--format", "json")[1])

    assert code == 0
    slope = 0.6 / np.log(878_592 / 219_136)
    assert document["alpha"] == first_rate(1)
    assert document["slope"]["value"] == pytest.approx(slope)
    assert "219,136 tokens (2 runs) and 878,592 tokens (2 runs)" in flat(out)
    first = document["pairings"][0]
    sees = first["detectable"]["7"]
    assert first["resolution"]["7"] == pytest.approx(multiplier(sees, slope))
    resolutions = out.split("resolution: the same as a multiple of the compute of standard")[1]
    assert (
        f"{multiplier(sees, slope):.2f}x"
        in row(resolutions, f"{first['correlation']:.2f} measured")[3]
    )
    assert first["in_minutes"] == {  # a run takes a minute
        "seeds": 5,
        "detectable": pytest.approx(first["detectable"]["5"]),
        "resolution": pytest.approx(first["resolution"]["5"]),
    }


def test_a_recipe_may_state_its_slope(folder: Path, quick: Recipe, capsys):
    fill(folder, quick.model_copy(update={"slope": 0.43}), {"standard": LOSSES})

    _, out, _ = planned(capsys)

    assert "gains 0.430 nats per e-fold of tokens, as the recipe states" in flat(out)


def test_no_line_is_wider_than_a_terminal(folder: Path, tiny_recipe: Recipe, capsys):
    fill(folder, tiny_recipe, {"standard": [1.5, 2.5], "attnres": [1.0, 2.8]})

    _, out, _ = planned(capsys, "--gap", "0.001", "--arms", "12")

    assert max(map(len, out.splitlines())) <= 80
    assert "over 10,000" in " ".join(out.split())


def test_runs_that_diverged_or_were_computed_otherwise_are_left_out(
    folder: Path, tiny_recipe: Recipe, capsys
):
    elsewhere = replace(SETTINGS, device="cuda", precision="bf16")
    fill(folder, tiny_recipe, {"standard": [9.0]}, settings=elsewhere)
    fill(folder, tiny_recipe, {"standard": [9.0, float("nan"), *LOSSES]})

    _, out, _ = planned(capsys)

    assert f"{len(LOSSES)} runs of standard" in out
    assert "left out: 2 runs" in out
    assert RESULT.settings.numerics in flat(out)


@pytest.mark.parametrize(
    ("losses", "arguments", "words"),
    [
        ({"attnres": [1.5, 1.6]}, [], "no runs of standard"),
        ({"standard": [1.5]}, [], "1 run of standard"),
        ({"standard": [1.5, 1.6]}, ["--recipe", "smoke"], "--recipe smoke --seeds 5"),
        ({"standard": [1.5, 1.6]}, ["--gap", "0"], "above 0, as 0.01"),
        ({"standard": [1.5, 1.6]}, ["--format", "jsn"], "did you mean 'json'"),
        ({"standard": [1.5, 1.6]}, ["--gap", "nan"], "above 0, as 0.01"),
        ({"standard": [1.5, 1.6]}, ["--recipe", "qick"], "unknown recipe in this study"),
    ],
)
def test_what_is_missing_is_one_line_with_what_to_type(
    losses, arguments, words, folder: Path, tiny_recipe: Recipe, capsys
):
    fill(folder, tiny_recipe, losses)

    code, out, err = planned(capsys, *arguments)

    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    if "runs of" in words or "1 run" in words:
        assert "`attnres ablate 'standard' --recipe" in err


def test_no_torch_is_needed(folder: Path, tiny_recipe: Recipe):
    fill(folder, tiny_recipe, {"standard": LOSSES, "attnres": LOSSES[::-1]})
    command = (
        "import sys; sys.argv = ['attnres', 'plan']\nfrom attnres_cli.cli import app as cli\n"
        "try:\n    cli.main()\nfinally:\n    assert 'torch' not in sys.modules"
    )

    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "noise floor" in done.stdout


def test_cores_are_those_that_a_container_may_use(
    folder: Path, tiny_recipe: Recipe, capsys, monkeypatch: pytest.MonkeyPatch
):
    """With a quota of three cores and runs of one thread, three workers fit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "_quota", lambda: 3)
    fill(folder, tiny_recipe, {"standard": LOSSES})

    _, out, _ = planned(capsys)

    assert "3 workers" in out
