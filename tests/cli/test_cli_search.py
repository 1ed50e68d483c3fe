"""`attnres search` as a user types it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from commands import Attnres

from attnres_cli.config.recipe import text_of
from attnres_cli.lab.search.studies import read
from attnres_cli.records.search_records import State

BRIEF = ["--recipe", "smoke", "--set", "train.tokens=1k", "--workers", "1"]
FREE = [*BRIEF, "--space", "n_layers=2|4,n_heads=2"]
SMALL = [*FREE, "--budget", "params=40k"]
SIZES = [f"--set=model.{key}" for key in ("n_layers=2", "n_heads=2", "d_model=32", "d_ff=80")]


@pytest.mark.parametrize(
    ("budget", "goal"),
    [("params=40k", "flops"), ("flops=4e8", "params"), ("flops=4e8", "step_time")],
)
def test_a_goal_that_the_budget_leaves_free_is_searched(budget: str, goal: str, attnres: Attnres):
    goals = ["--budget", budget, "--objective", f"val_loss,{goal}"]
    out = attnres.prints("search", "standard", *FREE, *goals, "--dry-run")
    assert f"objective val_loss, {goal}; first look on seed 0; the 2 best" in out
    assert "best shapes of the front of each design" in out


def test_a_recipe_with_a_ladder_is_refused(attnres: Attnres, folder: Path):
    text = text_of("smoke") + "ladder:\n  - {model.n_layers: 2}\n  - {model.n_layers: 4}\n"
    (folder / "grown.yaml").write_text(text)
    told = attnres.refuses("search", "standard", "--recipe", "grown.yaml")
    assert "has a ladder of sizes: a search has one budget" in told


def test_a_dry_run_says_what_would_be_tried_and_trains_nothing(attnres: Attnres, folder: Path):
    out = attnres.prints("search", "standard", "attnres", *SMALL, "--dry-run")

    assert "2 shapes, the same for every design, each within 0.5% of the budget" in out
    assert "standard: 2 trials; grid: 2 points, no more than trials" in out
    assert "learning rate: 0.02 at width 32, carried over to other widths by mup" in out
    assert "predicted time" in out
    assert "memory of a training step, shallowest and deepest shapes: " in out
    assert "split: whole files validate, by the hashes of their names" in out
    assert list(folder.iterdir()) == []


def test_a_rate_that_is_transferred_serves_every_shape(attnres: Attnres, folder: Path):
    base = ["--set", "optim.transfer=completep", "--set", "optim.base={d_model: 32, n_layers: 2}"]
    out = attnres.prints("search", "standard", *SMALL, *base, "--dry-run")
    assert "0.02 at width 32 and 2 layers, carried over to each shape by completep" in out
    told = attnres.refuses("search", "sandwich", *SMALL, *base)
    assert "no size to scale with the depth: --set optim.transfer=mup" in told


def test_a_search_trains_confirms_and_is_there_at_once_the_second_time(attnres: Attnres):
    arms = ["standard", "attnres:block_size=2"]
    command = ["search", *arms, *SMALL, "--confirm", "1", "--seeds", "5,6", "--format", "json"]

    code, out, err = attnres(*command)
    again, same, silence = attnres(*command)

    assert (code, again, silence) == (0, 0, "")
    assert same == out
    assert "confirming" in err
    assert json.loads(out)
    (search,) = read("attnres.db")
    assert (search.n_trials, search.confirm_seeds, search.first_seed) == (40, (5, 6), 0)
    assert search.budget == "params=40000"
    for family in search.families:
        assert [trial.state for trial in family.trials] == [State.COMPLETE] * 2
        assert {trial.dimensions["n_layers"] for trial in family.trials} == {2, 4}
    with closing(sqlite3.connect("attnres.db")) as study:
        counted = "SELECT count(*), sum(seed = 0) FROM attnres_runs WHERE status = 'complete'"
        ((n_runs, n_first),) = study.execute(counted)
        names = {name for (name,) in study.execute("SELECT study_name FROM studies")}
    assert n_first == 4
    assert n_runs in (4 + 4, 4 + 8)  # one shape that is best for both, or two
    assert names == {f"attnres-{search.name}-{variant}" for variant in arms}


@pytest.mark.slow
def test_a_study_reports_its_search_after_a_recipe_trained_later(attnres: Attnres, folder: Path):
    printed = attnres.prints("search", "standard", *SMALL, "--confirm", "0", "-v")
    (search,) = read("attnres.db")

    alone = attnres.prints("report", "-v")
    written = attnres.prints("report", "--format", "html", "--output", "search.html")
    _, _, ablated = attnres("ablate", "standard", *BRIEF, *SIZES, "--seeds", "2", "-v")
    _, after, said = attnres("report")
    named = attnres.prints("report", "--recipe", search.name, "--notes")
    attnres.prints("report", "--format", "html", "--output", "all.html", "--figures", "drawn/")

    assert alone == named == printed
    for option in (["--scaling"], ["--against", "paper"]):
        told = attnres.refuses("report", "--recipe", search.name, *option)
        assert f"{option[0]} is of recipes, and {search.name} is a search" in told
    assert "bytes" in written
    assert f"earch {search.name}" in (folder / "search.html").read_text()
    assert "seed 1: val loss" in ablated
    assert "seed 0: val loss" not in ablated
    assert after.startswith("Recipe smoke, the same for every arm")  # its own name again
    assert f"also in the study: --recipe {search.name} (a search)" in said
    page = (folder / "all.html").read_text()
    assert page.count(f">Search {search.name}: recipe smoke") == 2  # its answer and its part
    assert "Recipe smoke" in page
    drawn = {path.name for path in (folder / "drawn").iterdir()}
    assert {"curves.svg", "search-shapes.svg"} <= drawn
    smaller = attnres.prints("search", "standard", *SMALL, "--confirm", "0", "--trials", "1", "-v")
    assert "standard: 2 of 2 trials complete; 2 different shapes; grid: 2 points, no m" in smaller


FLAKY = """
from pathlib import Path
from attnres_cli.nn.residual import register
from attnres_variants.standard import Standard

@register("flaky")
class Flaky(Standard):
    def __init__(self, d_model, n_sublayers):
        super().__init__(d_model, n_sublayers)
        self.breaks = n_sublayers == 8

    def write(self, state, l, y):
        if self.breaks and y.requires_grad and Path("broken").exists():
            raise OSError("not today")
        return super().write(state, l, y)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("plugins")
def test_failed_runs_are_named_and_with_retry_failed_trained_again(attnres: Attnres, folder: Path):
    (folder / "flaky.py").write_text(FLAKY)
    (folder / "broken").touch()
    command = ["search", "standard", "flaky", *SMALL, "--plugin", "flaky.py", "--confirm", "2"]
    command += ["--seeds", "2", "--study", "f.db"]

    code, out, err = attnres(*command)
    (folder / "broken").unlink()
    same, unchanged, silence = attnres(*command)
    mended = attnres.prints(*command, "--retry-failed", "-v")

    assert (code, same) == (3, 3)
    assert "failed runs: 3; `attnres runs --status failed --study f.db` lists them" in err
    assert "the same command with --retry-failed" in err
    for seed in range(3):
        assert f"seed {seed}: OSError: not today" in out
    assert out.count("failed: flaky at 4 x ") == 3
    assert unchanged == out
    assert "val loss" not in silence
    assert "failed: " not in mended
    assert "flaky: 2 of 2 trials complete; 2 different shapes; grid" in mended
