"""`attnres plan`: seeds that a gap takes, from a study; and what hops of a pipeline send."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import Attnres
from studies import RESULT, SETTINGS, fill

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.records import machine
from attnres_cli.stats.power import detectable, multiplier, noise, seeds_needed
from attnres_cli.stats.sequential import LEAST_SEEDS, first_rate
from attnres_cli.verdict.family import BASELINE_FIRST

LOSSES = [1.50, 1.52, 1.47, 1.51, 1.53]
STUDY = Path("attnres.db")
FOUR_ARMS = ("plan", "--gap", "0.02", "--arms", "4", "--workers", "1")


@pytest.fixture(autouse=True)
def _terminal_of_the_usual_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def quick() -> Recipe:
    return load("quick").at_rate(6e-3)


def flat(out: str) -> str:
    return " ".join(out.split())


def row(out: str, name: str) -> list[str]:
    line = next(line for line in out.splitlines() if line.strip().startswith(name))
    return re.split(r" {2,}| (?=\[)", line.strip())


def test_the_baseline_alone_gives_the_noise_floor_and_assumed_seeds(
    tiny_recipe: Recipe, attnres: Attnres
):
    fill(STUDY, tiny_recipe, {"standard": LOSSES})

    out, rows = attnres.prints(*FOUR_ARMS), attnres.csv("plan")

    floor, rate = noise(LOSSES), BASELINE_FIRST * first_rate(4)
    runs = 5 * seeds_needed(0.02, floor.sd, rate)
    assert f"sd {floor.sd:.4f} [{floor.ci95[0]:.4f}, {floor.ci95[1]:.4f}]" in out
    cells = row(out, "0.50 assumed")
    assert cells[1:3] == [f"{floor.sd:.4f}", str(runs // 5)]
    assert cells[4:6] == [str(runs), str(runs - 5)]  # five of the baseline are held
    assert cells[6] == f"{(runs - 5) // 60} h {(runs - 5) % 60} min"  # a minute each
    assert "nothing measured" in out
    assert "half of the rate of a new study" in flat(out)
    assert f"{detectable(6, floor.sd, rate):.3f}" in out
    assert [row["correlation"] for row in rows] == ["0.0", "0.5", "0.8"]
    assert float(rows[1]["noise_sd"]) == float(rows[1]["sd"]) == floor.sd


def test_arms_of_the_study_give_the_correlation(tiny_recipe: Recipe, attnres: Attnres):
    near = [loss - 0.01 + step for loss, step in zip(LOSSES, [0, 1e-3, 0, -1e-3, 0], strict=True)]
    fill(STUDY, tiny_recipe, {"standard": LOSSES, "attnres": near, "denseformer": near[:3]})

    out = attnres.prints("plan")

    assert "2 arms beside the baseline" in out
    assert "an arm's own spread: over 5 seeds at most" in out
    assert int(row(out, "1.00 attnres")[2]) == LEAST_SEEDS  # fewer have no verdict


def test_as_json_all_numbers_are_there(tiny_recipe: Recipe, attnres: Attnres):
    fill(STUDY, tiny_recipe, {"standard": LOSSES, "attnres": LOSSES[::-1]})

    document = attnres.json(*FOUR_ARMS)

    floor, alpha = noise(LOSSES), first_rate(4)
    about = {"runs": 5, "mean": floor.mean, "sd": floor.sd, "sd_ci95": list(floor.ci95)}
    assert document["noise"] == about
    assert (document["gap"], document["arms"], document["alpha"]) == (0.02, 4, alpha)
    first, *assumed = document["pairings"]
    assert first["is_measured"]
    assert first["correlation"] == pytest.approx(np.corrcoef(LOSSES, LOSSES[::-1])[0, 1])
    expected = [(False, 0.0), (False, 0.5), (False, 0.8)]
    assert [(row["is_measured"], row["correlation"]) for row in assumed] == expected
    half = assumed[1]
    assert half["seeds"] == seeds_needed(0.02, floor.sd, alpha)
    assert half["to_train"] == half["runs"] - 10 == 5 * half["seeds"] - 10
    assert half["seconds"] == 60 * half["to_train"]
    assert half["detectable"]["6"] == detectable(6, floor.sd, alpha)


def test_a_gap_that_takes_too_many_seeds_has_no_number(tiny_recipe: Recipe, attnres: Attnres):
    """No line is wider than a terminal."""
    fill(STUDY, tiny_recipe, {"standard": [1.5, 2.5], "attnres": [1.0, 2.8]})

    (row, *_) = attnres.json("plan", "--gap", "0.0001")["pairings"]
    out = attnres.prints("plan", "--gap", "0.001", "--arms", "12")

    assert (row["seeds"], row["runs"], row["seconds"]) == (None, None, None)
    assert max(map(len, out.splitlines())) <= 80
    assert "over 10,000" in flat(out)


def test_a_recipe_may_state_its_slope_or_learns_what_to_type(quick: Recipe, attnres: Attnres):
    fill(STUDY, quick, {"standard": LOSSES})
    fill(Path("other.db"), quick.model_copy(update={"slope": 0.43}), {"standard": LOSSES})

    out, stated = attnres.prints("plan"), attnres.prints("plan", "--study", "other.db")

    half, double = (
        "`attnres ablate standard --recipe quick --set optim.lr=0.006 --set "
        f"train.tokens={steps * 1024} --seeds 7`"
        for steps in (214, 858)
    )
    without = "No resolution without the slope of standard's loss over tokens"
    assert f"{without}: {half} and {double}" in flat(out)
    assert "resolution: the same" not in out
    assert "gains 0.430 nats per e-fold of tokens, as the recipe states" in flat(stated)


def test_two_budgets_of_tokens_give_the_slope_and_the_resolution(quick: Recipe, attnres: Attnres):
    """From 219,136 to 878,592 tokens the loss falls by 0.6; the recipe states another slope."""
    fill(STUDY, quick.at(880_000), {"standard": [1.2, 1.4]}, tokens=878_592)
    fill(STUDY, quick.at(219_136), {"standard": [1.8, 2.0]}, tokens=219_136)
    stated = quick.model_copy(update={"slope": 9.0})
    fill(STUDY, stated, {"standard": LOSSES, "attnres": LOSSES[::-1]}, tokens=439_296)

    out = attnres.prints("plan", "--workers", "2")
    document = attnres.json("plan", "--workers", "2")

    slope = 0.6 / np.log(878_592 / 219_136)
    assert document["alpha"] == first_rate(1)
    assert document["slope"]["value"] == pytest.approx(slope)
    at = "measured at 219,136 tokens (2 runs), 439,296 tokens (5 runs) and 878,592 tokens (2 runs)"
    assert at in flat(out)
    first = document["pairings"][0]
    resolution = multiplier(first["detectable"]["7"], slope)
    assert first["resolution"]["7"] == pytest.approx(resolution)
    resolutions = out.split("resolution: the same as a multiple of the compute of standard")[1]
    cells = row(resolutions, f"{first['correlation']:.2f} attnres")
    assert f"{resolution:.2f}x" in cells[3]
    assert first["in_minutes"] == {  # a run takes a minute
        "seeds": 5,
        "detectable": pytest.approx(first["detectable"]["5"]),
        "resolution": pytest.approx(first["resolution"]["5"]),
    }


def test_runs_that_diverged_or_were_computed_otherwise_are_left_out(
    tiny_recipe: Recipe, attnres: Attnres
):
    elsewhere = replace(SETTINGS, device="cuda", precision="bf16")
    fill(STUDY, tiny_recipe, {"standard": [9.0]}, settings=elsewhere)
    fill(STUDY, tiny_recipe, {"standard": [9.0, float("nan"), *LOSSES]})

    out = attnres.prints("plan")

    assert f"{len(LOSSES)} runs of standard" in out
    assert "left out: 2 runs" in out
    assert RESULT.settings.numerics in flat(out)


def test_what_is_missing_is_one_line_with_what_to_type(tiny_recipe: Recipe, attnres: Attnres):
    ablate = "`attnres ablate standard --recipe"
    fill(Path("none.db"), tiny_recipe, {"attnres": [1.5, 1.6]})
    fill(Path("one.db"), tiny_recipe, {"standard": [1.5]})
    fill(STUDY, tiny_recipe, {"standard": [1.5, 1.6]})
    for options, *words in (
        ("--study none.db", "no runs of standard", ablate),
        ("--study one.db", "1 run of standard", ablate),
        ("--recipe smoke", "--recipe smoke --seeds 5"),
        ("--gap 0", "above 0, as 0.01"),
        ("--format jsn", "did you mean 'json'"),
        ("--recipe qick", "unknown recipe in this study"),
    ):
        told = attnres.refuses("plan", *options.split())
        assert [each for each in words if each not in told] == [], told


def test_cores_are_those_that_a_container_may_use(
    tiny_recipe: Recipe, attnres: Attnres, monkeypatch: pytest.MonkeyPatch
):
    """With a quota of three cores and runs of one thread, three workers fit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(machine, "_quota", lambda: 3)
    fill(STUDY, tiny_recipe, {"standard": LOSSES})
    assert "3 workers" in attnres.prints("plan")


# --pipeline


def test_hops_and_sums_stand_beside_the_papers(attnres: Attnres):
    out = attnres.prints("plan", "--pipeline", "4,2", "attnres:block_size=2", "standard")

    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "3 to 0 8 5 3" in lines
    assert "whole 35 143,360 8 0 28 28" in lines
    assert "cached 21 86,016 4 5 18 22" in lines
    assert "cached 7 28,672 1 0 7 -" in lines
    assert "counts blocks that the receiver made itself" in flat(out)


def test_plain_values_have_bytes_too(attnres: Attnres):
    typed = ("plan", "--pipeline", "2,2", "attnres:block_size=4", "mhc", "--shape", "d_model=64")

    paper, mhc = attnres.json(*typed)["designs"]

    assert [hop["cached_bytes"] for hop in paper["hops"]] == [512, 256, 256]
    assert mhc["sums"]["whole"]["total"] == 12
    assert (mhc["n_blocks"], mhc["sums"]["whole"]["paper"]) == (None, None)
    wholes = [row["whole"] for row in attnres.csv(*typed)]
    assert wholes == ["2.0", "3.0", "4.0", "4.0", "4.0", "4.0"]


PAIR = """
from attnres_cli.nn.residual import register
from attnres_variants.standard import Standard

@register("pair")
class Pair(Standard):
    def start(self, x):
        return x, x

    def read(self, state, l):
        return state[0], state

    def write(self, state, l, y):
        return state[0] + y, state[1]

    def finish(self, state):
        return state[0]
"""


def test_a_design_of_which_no_part_says_how_it_is_sent_is_refused(plugins: Path, attnres: Attnres):
    (plugins / "pair.py").write_text(PAIR)
    told = attnres.refuses("plan", "--pipeline", "2,2", "pair", "--plugin", "pair.py")
    assert "Pair cannot be cut between" in told
