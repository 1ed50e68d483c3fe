"""`attnres runs`: what a study holds, run by run, as a user types it."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import studies
import typer
from studies import FACTS
from typer.testing import CliRunner, Result

from attnres_cli.cli import runs as cli_runs
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import AttnresError, StudyError, UsageError
from attnres_cli.records.run import Point, Probe, RunSpec, Status
from attnres_cli.store.store import Store

CURVE = (Point(0, None, 5.5), *(Point(i, 5.5 - i / 20, None) for i in range(1, 50)))
THIRD = (0.25, 0.5, 0.75)
PROBES = tuple(Probe(step, *[THIRD] * 8, mixing=(THIRD,) * 3) for step in (0, 50))
RESULT = replace(
    studies.RESULT,
    val_loss=2.375,
    initial_loss=5.5,
    steps=50,
    step_s=0.0125,
    train_s=75.0,
    curve=(*CURVE, Point(50, 3.0, 2.375)),
    probes=PROBES,
)
CLAIM_AND_WAIT = """
import sys
from attnres_cli.store.store import Store
store = Store.open("attnres.db", create=True)
store.beat(store.claim([4]).id, 3)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_recipe: Recipe) -> Store:
    """Runs 1 to 6: complete, failed, diverged, and three that wait; some files of the first two."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    specs = [
        RunSpec(tiny_recipe, variant, seed, FACTS.fingerprint)
        for seed in range(3)
        for variant in ("standard", "attnres:block_size=2")
    ]
    store = Store.open("attnres.db", create=True)
    ids = [record.id for record in store.plan(specs, FACTS)]
    first = store.claim(ids)
    assert first is not None
    store.finish(replace(first, status=Status.COMPLETE, result=RESULT, versions={"torch": "2.9"}))
    store.claim(ids)
    store.fail(2, "Traceback ...\nValueError: not today", {"torch": "2.9"}, step=4)
    third = store.claim(ids)
    assert third is not None
    nan = replace(RESULT, status=Status.DIVERGED, val_loss=float("nan"), steps=4, probes=())
    store.finish(replace(third, status=Status.DIVERGED, result=nan))
    for record in store.runs(ids=[1, 2]):
        folder = store.folder_of(record)
        folder.mkdir(parents=True)
        (folder / "000000001.json").write_text("{}")
    return store


def runs(*arguments: str) -> Result:
    """What the command prints. What is refused is raised."""
    app = typer.Typer()
    app.add_typer(cli_runs.app, name="runs")

    @app.command()
    def other() -> None:
        """Two commands make a group."""

    result = CliRunner().invoke(app, ["runs", *arguments])
    if isinstance(result.exception, AttnresError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def listed(*arguments: str) -> list[dict]:
    return json.loads(runs(*arguments, "--format", "json").stdout)


def test_all_runs_are_listed_with_status_progress_and_outcome():
    lines = runs().stdout.splitlines()

    rows = {line.split()[0]: line for line in lines if line[:5].strip().isdigit()}
    assert set(rows) == {"1", "2", "3", "4", "5", "6"}
    assert "complete" in rows["1"]
    assert "50/6" in rows["1"]
    assert "2.3750" in rows["1"]
    assert "4/6" in rows["2"]
    assert "ValueError: not today" in rows["2"]
    assert "diverged" in rows["3"]
    assert "0/6" in rows["4"]
    assert lines[-1] == "6 runs: 3 pending, 1 complete, 1 diverged, 1 failed"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--status", "failed"], [2]),
        (["--status", "running"], []),
        (["--variant", "standard"], [1, 3, 5]),
        (["--variant", "standard", "--status", "pending"], [5]),
        (["--recipe", "tiny"], [1, 2, 3, 4, 5, 6]),
        (["list", "--status", "complete"], [1]),
    ],
)
def test_filters_leave_the_runs_that_all_of_them_let_through(
    arguments: list[str], expected: list[int]
):
    assert [run["run"] for run in listed(*arguments)] == expected


def test_a_recipe_can_be_named_by_the_start_of_its_digest(tiny_recipe: Recipe):
    assert len(listed("--recipe", tiny_recipe.digest[:5])) == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--status", "done"], "unknown status 'done'"),
        (["--status", "fialed"], "did you mean 'failed'?"),
        (["--variant", "standrad"], "did you mean 'standard'?"),
        (["--recipe", "tinny"], "did you mean 'tiny'?"),
        (["--format", "latex"], "format latex"),
        (["show", "17"], "no run 17 in study attnres.db, it holds 1 to 6"),
        (["rm", "17"], "no run 17 in study attnres.db, it holds 1 to 6"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_there_is(arguments: list[str], words: str):
    with pytest.raises(UsageError) as caught:
        runs(*arguments)

    assert words in str(caught.value)


def test_no_study_is_not_made_by_looking_or_removing(tmp_path: Path):
    for command in (["list"], ["show", "1"], ["rm", "1"]):
        with pytest.raises(StudyError, match="no study at other"):
            runs(*command, "--study", "other.db")

    assert not (tmp_path / "other.db").exists()


def test_one_run_is_shown_with_all_about_it_and_a_small_curve():
    shown = runs("show", "1").stdout

    for words in ("2.3750, at first 5.5000", "1 min 15 s, 12.5 ms per step", "Some CPU", "torch"):
        assert words in shown
    curve = shown.split("curve")[1].partition("inside")[0]
    points = [line.split() for line in curve.splitlines()]
    points = [point for point in points if len(point) == 3 and point[0].isdigit()]
    assert points[0] == ["0", "-", "5.5000"]
    assert points[-1] == ["50", "3.0000", "2.3750"]
    assert len(points) < 16


def test_a_failed_run_is_shown_with_its_traceback_and_last_step():
    shown = runs("show", "2").stdout

    assert "Traceback ...\nValueError: not today" in shown
    assert "4/6" in shown


def test_shown_as_json_a_run_has_its_whole_curve_and_null_for_no_loss():
    complete = json.loads(runs("show", "1", "--format", "json").stdout)
    diverged = json.loads(runs("show", "3", "--format", "json").stdout)

    assert len(complete["result"]["curve"]) == 51
    assert complete["result"]["settings"]["device_name"] == "Some CPU"
    assert complete["versions"] == {"torch": "2.9"}
    assert (diverged["val_loss"], diverged["result"]["val_loss"]) == (None, None)


def test_what_was_measured_inside_the_model_is_shown_and_told_in_whole_as_json():
    shown = runs("show", "1").stdout
    told = json.loads(runs("show", "1", "--format", "json").stdout)

    assert "inside the model after step 50" in shown
    assert "mean depth mixing M: `attnres report --figures DIR` draws it" in shown
    assert [probe["step"] for probe in told["result"]["probes"]] == [0, 50]
    assert told["result"]["probes"][1]["mixing"] == [list(THIRD)] * 3
    assert "inside the model" not in runs("show", "3").stdout


def test_removed_runs_are_gone_with_curves_and_files_and_others_stay(store: Store):
    runs("rm", "1", "3")

    assert [run["run"] for run in listed()] == [2, 4, 5, 6]
    connection = sqlite3.connect("attnres.db")
    assert connection.execute("SELECT COUNT(*) FROM attnres_curve").fetchone() == (0,)
    connection.close()
    assert [folder.name[:2] for folder in store.folder.iterdir()] == ["2-"]


def test_what_is_removed_is_named_with_its_reason_where_a_run_of_its_recipe_has_ended(
    store: Store,
):
    without = runs("rm", "1").stderr
    given = runs("rm", "2", "--reason", "a kernel of another driver").stderr

    assert "reports go on to name standard seed 0: missing, until they are trained" in without
    assert "excluded for that reason" in given
    assert [gone.reason for gone in store.removed()] == [None, "a kernel of another driver"]
    with pytest.raises(UsageError, match="--reason takes words"):
        runs("rm", "3", "--reason", " ")


def test_where_one_number_is_unknown_nothing_is_removed():
    with pytest.raises(UsageError):
        runs("rm", "1", "99")

    assert len(listed()) == 6


def test_a_run_of_a_living_process_is_listed_as_its_and_not_removed(store: Store):
    command = [sys.executable, "-c", CLAIM_AND_WAIT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()

        (run,) = listed("--status", "running")
        table = runs("--status", "running").stdout
        with pytest.raises(StudyError, match=f"run 4 is running \\(process {process.pid} on"):
            runs("rm", "5", "4")
        process.communicate()

    assert (run["run"], run["step"], run["is_alive"]) == (4, 3, True)
    assert f"process {process.pid} on" in table
    assert "(gone)" in runs("--status", "running").stdout
    assert len(listed()) == 6
    runs("rm", "4")
    assert len(listed()) == 5


def test_a_note_is_shown_wherever_its_run_is_and_taken_away_by_an_empty_one():
    runs("note", "2", "the GPU was hot")

    assert [run["note"] for run in listed()] == ["", "the GPU was hot", "", "", "", ""]
    assert "the GPU was hot" in runs().stdout
    assert "the GPU was hot" in runs("show", "2").stdout
    assert [run["run"] for run in listed("--note", "GPU")] == [2]
    runs("note", "2", "")
    assert not listed("--note", "GPU")
    assert "note" not in runs().stdout


def test_tags_are_given_to_many_runs_found_by_and_taken_away():
    said = runs("tag", "1", "2", "3", "keep").stdout
    runs("tag", "3", "long-run")
    again = runs("tag", "3", "4", "keep").stdout

    assert (said, again) == ("3 runs tagged keep\n", "1 run tagged keep\n")
    assert [run["run"] for run in listed("--tag", "keep")] == [1, 2, 3, 4]
    assert [run["tags"] for run in listed("--tag", "long-run")] == ["keep long-run"]
    assert "keep long-run" in runs("show", "3").stdout
    runs("tag", "1", "2", "keep", "--remove")
    assert [run["run"] for run in listed("--tag", "keep")] == [3, 4]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["note", "1", "a\x1b[31mred"], "one line of at most 500 characters that can be printed"),
        (["note", "1", "two\nlines"], r"'two\nlines'"),
        (["note", "1", "x" * 501], "got 501 characters"),
        (["note", "17", "x"], "no run 17 in study"),
        (["tag", "1", "2", "3"], "expected a tag after the numbers"),
        (["tag", "1", "a\x1b[31m"], r"got 'a\x1b[31m': attnres runs tag 1 baseline"),
        (["tag", "1", "../../x"], "expected a tag"),
        (["--tag", "keeep"], "unknown tag in this study 'keeep': did you mean 'keep'?"),
        (["rm", "--tag", "kept"], "unknown tag in this study 'kept'"),
        (["rm"], "runs rm takes the numbers of runs, or filters as --status failed, not both"),
        (["rm", "1", "--status", "failed"], "not both"),
        (["rm", "--status", "running", "--yes"], "these filters leave no run"),
    ],
)
def test_what_no_note_tag_or_choice_can_be_is_refused_in_a_line(arguments: list[str], words: str):
    runs("tag", "1", "keep")

    with pytest.raises(UsageError) as caught:
        runs(*arguments)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [(run["note"], run["tags"]) for run in listed()] == [("", "keep")] + [("", "")] * 5


def test_a_note_is_not_lost_by_a_run_that_ends_or_is_removed_by_another(store: Store):
    runs("note", "4", "to be watched")
    runs("tag", "4", "keep")
    record = store.claim([4])
    assert record is not None
    store.finish(replace(record, status=Status.COMPLETE, result=RESULT))

    (run,) = listed("--tag", "keep")

    assert (run["status"], run["note"]) == ("complete", "to be watched")


def test_runs_are_removed_by_filters_only_after_a_question_or_with_yes():
    with pytest.raises(UsageError) as caught:
        runs("rm", "--status", "pending", "--variant", "standard", "--reason", "a typo")
    assert str(caught.value) == (
        "this removes 1 run (1 pending): to go ahead, attnres runs rm --status pending "
        "--variant standard --reason 'a typo' --yes"
    )
    assert len(listed()) == 6

    runs("rm", "--variant", "standard", "--yes")

    assert [run["run"] for run in listed()] == [2, 4, 6]


@pytest.mark.parametrize(("answer", "left"), [("y\n", [1, 3, 4, 5, 6]), ("\n", [1, 2, 3, 4, 5, 6])])
def test_a_terminal_is_asked_with_the_count(answer: str, left: list[int]):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "attnres_cli", "runs", "rm", "--status", "failed"]
    with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, text=True) as process:
        os.write(ours, answer.encode())
        _, said = process.communicate()

    assert process.returncode == 0
    assert "remove 1 run (1 failed)? [y/N]:" in said
    assert ("no run was removed" in said) == (len(left) == 6)
    assert [run["run"] for run in listed()] == left
