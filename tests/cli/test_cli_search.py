"""`attnres search` as a user types it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from commands import attnres

from attnres_cli.lab.search.studies import read
from attnres_cli.records.search_records import State

FREE = ["--recipe", "smoke", "--set", "train.tokens=2k", "--workers", "1"]
FREE += ["--space", "n_layers=2|4,n_heads=2"]
SMALL = [*FREE, "--budget", "params=40k"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def searched(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return attnres(capsys, "search", *arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("standard --space n_layer=2..4", "did you mean 'n_layers'"),
        ("standard --trials 0", "'--trials': Input should be greater than or equal to 1"),
        (
            "standard --budget params=1000",
            "no shape of the space has --budget params=1000 within",
        ),
        ("standard --budget=", "--budget is empty: leave it out for the recipe's own size"),
        ("standard --objective val_los", "did you mean 'val_loss'"),
        ("standard --objective params,val_loss", "val_loss, or val_loss and one more"),
        ("standard --objective val_loss,params,flops", "val_loss, or val_loss and one more"),
        ("standard --objective val_loss,params", "the recipe's params, fixes it"),
        ("standard --objective val_loss,params --budget params=2M", "take step_time, flops, or"),
        (
            "standard --objective val_loss,params --budget flops=1e13 --space params=1M",
            "fixes it for every shape, but for rounding; take step_time, or on a GPU memory",
        ),
        ("standard --pruner median", "No such option: --pruner"),
        ("standard --confirm 0 --seeds 5,6", "--confirm 0 confirms no shape: leave --seeds out"),
        ("standard --seeds 0,1", "seed 0 is the first look's"),
        ("standard --seeds none", "--seeds takes a number, a list as 0,3,7"),
        ("standard --suite fig7", "either variants or --suite"),
        ("standrad", "did you mean 'standard'"),
        ("standard --study no/such/folder.db --budget params=2M", "does not exist, make it first"),
        ("standard --format yaml", "unknown format 'yaml'"),
        ("standard --recipe quik", "did you mean 'quick'"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_leaves_nothing_behind(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str], folder: Path
):
    code, out, err = searched(capsys, *arguments.split())

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert list(folder.iterdir()) == []


def test_memory_is_no_goal_on_a_cpu_whose_peak_is_that_of_all_the_process_did(
    capsys: pytest.CaptureFixture[str], folder: Path
):
    goals = ["--objective", "val_loss,memory", "--device", "cpu"]

    code, out, err = searched(capsys, "standard", *SMALL, *goals)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--objective memory: on a CPU the peak is that of the whole process" in err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("budget", "goal"),
    [("params=40k", "flops"), ("flops=4e8", "params"), ("flops=4e8", "step_time")],
)
def test_a_goal_that_the_budget_leaves_free_is_searched(
    budget: str, goal: str, capsys: pytest.CaptureFixture[str]
):
    goals = ["--budget", budget, "--objective", f"val_loss,{goal}"]

    code, out, _ = searched(capsys, "standard", *FREE, *goals, "--dry-run")

    assert code == 0
    assert f"objective val_loss, {goal}; first look on seed 0; the 2 best" in out
    assert "best shapes of the front of each design" in out


def test_a_recipe_with_a_ladder_is_refused(capsys: pytest.CaptureFixture[str], folder: Path):
    from attnres_cli.config.recipe import text_of

    text = text_of("smoke") + "ladder:\n  - {model.n_layers: 2}\n  - {model.n_layers: 4}\n"
    (folder / "grown.yaml").write_text(text)

    code, _, err = searched(capsys, "standard", "--recipe", "grown.yaml")

    assert code == 2
    assert "has a ladder of sizes: a search has one budget" in err


def test_a_dry_run_says_what_would_be_tried_and_trains_nothing(
    capsys: pytest.CaptureFixture[str], folder: Path
):
    code, out, _ = searched(capsys, "standard", "attnres", *SMALL, "--dry-run")

    assert code == 0
    assert "2 shapes, the same for every design, each within 0.5% of the budget" in out
    assert "standard: 2 trials; grid: 2 points, no more than trials" in out
    assert "learning rate: 0.02 x 32 / d_model, the recipe's scaled with the width (muP)" in out
    assert "predicted time" in out
    assert "memory of a training step, shallowest and deepest shapes: " in out
    assert "split: whole files validate, by the hashes of their names" in out
    assert list(folder.iterdir()) == []


def test_a_search_trains_confirms_and_is_there_at_once_the_second_time(
    capsys: pytest.CaptureFixture[str], folder: Path
):
    command = ["standard", "attnres:block_size=2", *SMALL, "--confirm", "1", "--seeds", "5,6"]

    code, out, err = searched(capsys, *command, "--format", "json")
    again, same, silence = searched(capsys, *command, "--format", "json")

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
    connection = sqlite3.connect(folder / "attnres.db")
    n_runs, n_first = connection.execute(
        "SELECT count(*), sum(seed = 0) FROM attnres_runs WHERE status = 'complete'"
    ).fetchone()
    assert n_first == 4
    assert n_runs in (4 + 4, 4 + 8)  # one shape that is best for both, or two
    names = {row[0] for row in connection.execute("SELECT study_name FROM studies")}
    assert names == {f"attnres-{search.name}-{variant}" for variant in (command[0], command[1])}
    connection.close()


def reported(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    code, out, err = attnres(capsys, "report", *arguments)
    assert code == 0
    return out, err


@pytest.mark.slow
def test_a_study_of_a_search_alone_is_reported_as_that_and_a_recipe_trained_later_before_it(
    capsys: pytest.CaptureFixture[str], folder: Path
):
    sizes = ["n_layers=2", "n_heads=2", "d_model=32", "d_ff=80"]
    typed = ["standard", *SMALL[:4], *(f"--set=model.{size}" for size in sizes), "--seeds", "2"]
    code, printed, _ = searched(capsys, "standard", *SMALL, "--confirm", "0")
    assert code == 0
    (search,) = read("attnres.db")

    alone, _ = reported(capsys)
    written, _ = reported(capsys, "--format", "html", "--output", "search.html")
    _, _, ablated = attnres(capsys, "ablate", *typed)
    after, said = reported(capsys)
    named, _ = reported(capsys, "--recipe", search.name)
    reported(capsys, "--format", "html", "--output", "all.html", "--figures", "drawn/")

    assert alone == named == printed
    for option in (["--scaling"], ["--against", "paper"]):
        code, _, err = attnres(capsys, "report", "--recipe", search.name, *option)
        assert code == 2
        assert f"{option[0]} is of recipes, and {search.name} is a search" in err

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


@pytest.mark.slow
def test_what_ablate_has_trained_is_answered_from_the_study(
    capsys: pytest.CaptureFixture[str], folder: Path
):
    sizes = [f"--set=model.{key}" for key in ("n_layers=2", "n_heads=2", "d_model=32", "d_ff=80")]
    attnres(capsys, "ablate", "standard", *SMALL[:4], *sizes, "--seeds", "1")

    one = ["--space", "n_layers=2,n_heads=2", "--confirm", "0"]
    code, _, err = searched(capsys, "standard", *SMALL[:4], *SMALL[-2:], *one)

    assert code == 0, err
    assert "val loss" not in err  # nothing was trained
    (search,) = read("attnres.db")
    ((trial,),) = [family.trials for family in search.families]
    assert trial.state is State.COMPLETE
    connection = sqlite3.connect(folder / "attnres.db")
    ((loss,),) = connection.execute("SELECT val_loss FROM attnres_runs").fetchall()
    connection.close()
    assert trial.values == (loss,)


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
def test_failed_runs_are_named_and_with_retry_failed_trained_again(folder: Path):
    (folder / "flaky.py").write_text(FLAKY)
    (folder / "broken").touch()
    command = ["search", "standard", "flaky", *SMALL, "--plugin", "flaky.py", "--confirm", "2"]
    command += ["--seeds", "2", "--study", "f.db"]

    def typed(*more: str) -> tuple[int, str, str]:
        line = [sys.executable, "-m", "attnres_cli", *command, *more]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    code, out, err = typed()
    (folder / "broken").unlink()
    same, unchanged, silence = typed()
    again, mended, _ = typed("--retry-failed")

    assert (code, same, again) == (3, 3, 0)
    assert "failed runs: 3; `attnres runs --status failed --study f.db` lists them" in err
    assert "the same command with --retry-failed" in err
    for seed in range(3):
        assert f"seed {seed}: OSError: not today" in out
    assert out.count("failed: flaky at 4 x ") == 3
    assert unchanged == out
    assert "val loss" not in silence
    assert "failed: " not in mended
    assert "flaky: 2 of 40 trials complete; 2 different shapes; grid" in mended


@pytest.mark.slow
def test_a_smaller_total_is_told_as_what_is_there_and_who_proposed_it(
    capsys: pytest.CaptureFixture[str],
):
    arguments = ["standard", *SMALL, "--confirm", "0"]
    searched(capsys, *arguments)

    code, out, _ = searched(capsys, *arguments, "--trials", "1")

    assert code == 0
    assert "standard: 2 of 2 trials complete; 2 different shapes; grid: 2 points, no more" in out


def test_help_needs_neither_torch_nor_optuna():
    code = "import sys; from attnres_cli.cli import app as cli; "
    code += "sys.exit(sum(name in sys.modules for name in ('torch', 'optuna', 'sqlalchemy')))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_reading_searches_needs_no_torch_and_finds_none_where_there_are_none(tmp_path: Path):
    code = "import sys; from attnres_cli.lab.search.studies import read; print(read('no.db')); "
    code += "sys.exit('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (0, "[]\n")
