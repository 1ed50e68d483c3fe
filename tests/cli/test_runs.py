"""`attnres runs`: what a study holds, run by run, as a user types it."""

from __future__ import annotations

import os
import pty
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import studies
from commands import Attnres
from studies import FACTS

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import Point, Probe, RunSpec, Status
from attnres_cli.report.runs import named
from attnres_cli.store.store import Store

THIRD = (0.25, 0.5, 0.75)
CURVE = (Point(0, None, 5.5), *(Point(i, 5.5 - i / 20, None) for i in range(1, 50)))
RESULT = replace(
    replace(studies.RESULT, val_loss=2.375, initial_loss=5.5, steps=50, step_s=0.0125, train_s=75),
    curve=(*CURVE, Point(50, 3.0, 2.375)),
    probes=tuple(Probe(step, *[THIRD] * 8, mixing=(THIRD,) * 3) for step in (0, 50)),
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
def store(folder: Path, tiny_recipe: Recipe) -> Store:
    """Runs 1 to 6: complete, failed, diverged, and three that wait; some files of the first two."""
    specs = [
        RunSpec(tiny_recipe, variant, seed, FACTS.fingerprint)
        for seed in range(3)
        for variant in ("standard", "attnres:block_size=2")
    ]
    store = Store.open("attnres.db", create=True)
    ids = [record.id for record in store.plan(specs, FACTS)]
    first, _, third = (store.claim(ids) for _ in range(3))
    assert first
    assert third
    store.finish(replace(first, status=Status.COMPLETE, result=RESULT, versions={"torch": "2.9"}))
    store.fail(2, "Traceback ...\nValueError: not today", {"torch": "2.9"}, step=4)
    nan = replace(RESULT, status=Status.DIVERGED, val_loss=float("nan"), steps=4, probes=())
    store.finish(replace(third, status=Status.DIVERGED, result=nan))
    for record in store.runs(ids=[1, 2]):
        folder = store.folder_of(record)
        folder.mkdir(parents=True)
        (folder / "000000001.json").write_text("{}")
    return store


def numbers(attnres: Attnres, *filters: str) -> list[int]:
    """The runs that filters let through."""
    return [run["run"] for run in attnres.json("runs", *filters)]


def test_all_runs_are_listed_with_status_progress_and_outcome(attnres: Attnres):
    *lines, counts = attnres.prints("runs").splitlines()

    rows = [line for line in lines if line[:5].strip().isdigit()]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    expected = ("complete 50/6 2.3750", "4/6 ValueError: not today", "diverged", "0/6")
    for row, words in zip(rows, expected, strict=False):
        assert all(word in row for word in words.split())
    assert counts == "6 runs: 3 pending, 1 complete, 1 diverged, 1 failed"


def test_filters_leave_the_runs_that_all_of_them_let_through(attnres: Attnres, tiny_recipe: Recipe):
    for filters, expected in (
        ("--status failed", [2]),
        ("--status running", []),
        ("--variant standard", [1, 3, 5]),
        ("--variant standard --status pending", [5]),
        ("--recipe tiny", [1, 2, 3, 4, 5, 6]),
        (f"--recipe {tiny_recipe.digest[:5]}", [1, 2, 3, 4, 5, 6]),
        ("list --status complete", [1]),
    ):
        assert numbers(attnres, *filters.split()) == expected


REFUSED = {
    "--status done": "unknown status 'done'",
    "--status fialed": "did you mean 'failed'?",
    "--variant standrad": "did you mean 'standard'?",
    "--recipe tinny": "did you mean 'tiny'?",
    "--format latex": "format latex",
    "show 17": "no run 17 in study attnres.db, it holds 1 to 6",
    "rm 17": "no run 17 in study attnres.db, it holds 1 to 6",
    "rm 1 99": "no run 99 in study attnres.db, it holds 1 to 6",
    "rm 3 --reason ' '": "--reason takes words",
    "rm --tag kept": "unknown tag in this study 'kept'",
    "rm": "runs rm takes the numbers of runs, or filters as --status failed, not both",
    "rm 1 --status failed": "not both",
    "rm --status running --yes": "these filters leave no run",
    "list --study other.db": "no study at other",
    "show 1 --study other.db": "no study at other",
    "rm 1 --study other.db": "no study at other",
    "note 1 'a\x1b[31mred'": "one line of at most 500 characters that can be printed",
    "note 1 'two\nlines'": r"'two\nlines'",
    f"note 1 {'x' * 501}": "got 501 characters",
    "note 17 x": "no run 17 in study",
    "tag 1 2 3": "expected a tag after the numbers",
    "tag 1 'a\x1b[31m'": r"got 'a\x1b[31m': attnres runs tag 1 baseline",
    "tag 1 ../../x": "expected a tag",
    "--tag keeep": "unknown tag in this study 'keeep': did you mean 'keep'?",
}


def test_what_cannot_be_meant_is_refused_with_what_there_is(attnres: Attnres):
    attnres.prints("runs", "tag", "1", "keep")
    for typed, words in REFUSED.items():
        assert words in attnres.refuses("runs", *shlex.split(typed))
    assert not Path("other.db").exists()
    held = [(run["run"], run["note"], run["tags"]) for run in attnres.json("runs")]
    assert held == [(1, "", "keep"), *((number, "", "") for number in range(2, 7))]


def test_a_run_is_shown_with_its_curve_what_was_measured_and_its_traceback(attnres: Attnres):
    shown = attnres.prints("runs", "show", "1")

    for words in ("2.3750, at first 5.5000", "1 min 15 s, 12.5 ms per step", "Some CPU", "torch"):
        assert words in shown
    curve = shown.split("curve")[1].partition("inside")[0]
    points = [line.split() for line in curve.splitlines()]
    points = [point for point in points if len(point) == 3 and point[0].isdigit()]
    assert points[0] == ["0", "-", "5.5000"]
    assert points[-1] == ["50", "3.0000", "2.3750"]
    assert len(points) < 16
    assert "inside the model after step 50" in shown
    assert "mean depth mixing M: `attnres report --figures DIR` draws it" in shown
    assert "inside the model" not in attnres.prints("runs", "show", "3")
    failed = attnres.prints("runs", "show", "2")
    assert "Traceback ...\nValueError: not today" in failed
    assert "4/6" in failed


def test_json_has_the_whole_of_a_run_and_null_for_no_loss(attnres: Attnres):
    complete = attnres.json("runs", "show", "1")
    diverged = attnres.json("runs", "show", "3")

    assert len(complete["result"]["curve"]) == 51
    assert complete["result"]["settings"]["device_name"] == "Some CPU"
    assert complete["versions"] == {"torch": "2.9"}
    assert [probe["step"] for probe in complete["result"]["probes"]] == [0, 50]
    assert complete["result"]["probes"][1]["mixing"] == [list(THIRD)] * 3
    assert (diverged["val_loss"], diverged["result"]["val_loss"]) == (None, None)


def test_removed_runs_are_gone_with_curves_and_files_and_their_removal_is_named_with_its_reason(
    attnres: Attnres, store: Store
):
    _, _, without = attnres("runs", "rm", "1", "3")

    assert numbers(attnres) == [2, 4, 5, 6]
    with closing(sqlite3.connect("attnres.db")) as connection:
        assert connection.execute("SELECT COUNT(*) FROM attnres_curve").fetchone() == (0,)
    assert [folder.name[:2] for folder in store.folder.iterdir()] == ["2-"]
    _, _, given = attnres("runs", "rm", "2", "--reason", "a kernel of another driver")
    named = "2 runs of standard (seeds 0 to 1) as missing until they are trained again"
    assert f"reports name {named}\n" in without
    assert "as excluded for that reason" in given
    reasons = [None, None, "a kernel of another driver"]
    assert [gone.reason for gone in store.removed()] == reasons


def test_removed_runs_are_named_by_design_and_tuning_seeds_only_counted():
    seeds = {"gpas": [0, 1, 4, *range(10**6, 10**6 + 4)] * 2, "dca": [3], "mudd": [10**6]}
    gone = [SimpleNamespace(variant=name, seed=n) for name, each in seeds.items() for n in each]
    assert named(gone) == (
        "14 runs of gpas (seeds 0 to 1, 4, and 8 for tuning), 1 run of dca (seed 3), "
        "1 run of mudd (1 for tuning)"
    )


def test_a_run_of_a_living_process_is_listed_as_its_and_not_removed(attnres: Attnres):
    command = [sys.executable, "-c", CLAIM_AND_WAIT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()

        (run,) = attnres.json("runs", "--status", "running")
        table = attnres.prints("runs", "--status", "running")
        told = attnres.refuses("runs", "rm", "5", "4")
        process.communicate()

    assert (run["run"], run["step"], run["is_alive"]) == (4, 3, True)
    assert f"process {process.pid} on" in table
    assert f"run 4 is running (process {process.pid} on" in told
    assert "(gone)" in attnres.prints("runs", "--status", "running")
    assert len(numbers(attnres)) == 6
    attnres.prints("runs", "rm", "4")
    assert len(numbers(attnres)) == 5


def test_a_note_is_shown_wherever_its_run_is_and_taken_away_by_an_empty_one(attnres: Attnres):
    attnres.prints("runs", "note", "2", "the GPU was hot")

    notes = [run["note"] for run in attnres.json("runs")]
    assert notes == ["", "the GPU was hot", "", "", "", ""]
    for shown in ("runs", "runs show 2"):
        assert "the GPU was hot" in attnres.prints(*shown.split())
    assert numbers(attnres, "--note", "GPU") == [2]
    attnres.prints("runs", "note", "2", "")
    assert numbers(attnres, "--note", "GPU") == []
    assert "note" not in attnres.prints("runs")


def test_tags_are_set_found_removed_and_kept_when_a_run_ends(attnres: Attnres, store: Store):
    said = attnres.prints("runs", "tag", "1", "2", "3", "keep")
    attnres.prints("runs", "tag", "3", "long-run")
    again = attnres.prints("runs", "tag", "3", "4", "keep")

    assert (said, again) == ("3 runs tagged keep\n", "1 run tagged keep\n")
    assert numbers(attnres, "--tag", "keep") == [1, 2, 3, 4]
    (run,) = attnres.json("runs", "--tag", "long-run")
    assert run["tags"] == "keep long-run"
    assert "keep long-run" in attnres.prints("runs", "show", "3")
    attnres.prints("runs", "tag", "1", "2", "3", "keep", "--remove")
    attnres.prints("runs", "note", "4", "to be watched")
    record = store.claim([4])
    assert record is not None
    store.finish(replace(record, status=Status.COMPLETE, result=RESULT))
    (run,) = attnres.json("runs", "--tag", "keep")
    assert (run["run"], run["status"], run["note"]) == (4, "complete", "to be watched")


def test_filters_remove_runs_only_after_a_question_or_with_yes(attnres: Attnres):
    typed = ("runs", "rm", "--status", "pending", "--variant", "standard", "--reason", "a typo")
    assert attnres.refuses(*typed) == (
        "attnres: this removes 1 run (1 pending): to go ahead, attnres runs rm --status pending "
        "--variant standard --reason 'a typo' --yes\n"
    )
    assert numbers(attnres) == [1, 2, 3, 4, 5, 6]

    attnres.prints("runs", "rm", "--variant", "standard", "--yes")

    assert numbers(attnres) == [2, 4, 6]


def test_a_run_that_ends_while_the_terminal_is_asked_is_not_removed(attnres, store, monkeypatch):
    def confirm(*_: object, **_options: object) -> bool:
        record = store.claim([5])
        store.finish(replace(record, status=Status.COMPLETE, result=RESULT))
        return True

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("typer.confirm", confirm)
    told = attnres.refuses("runs", "rm", "--variant", "standard")
    assert "runs have changed meanwhile, and none was removed: type it again" in told
    assert numbers(attnres) == [1, 2, 3, 4, 5, 6]


def test_a_terminal_is_asked_with_the_count(attnres: Attnres, monkeypatch: pytest.MonkeyPatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        for answer, left in (("\n", [1, 2, 3, 4, 5, 6]), ("y\n", [1, 3, 4, 5, 6])):
            os.write(ours, answer.encode())
            code, _, said = attnres("runs", "rm", "--status", "failed")

            assert code == 0
            assert "remove 1 run (1 failed)? [y/N]:" in said
            assert ("no run was removed" in said) == (len(left) == 6)
            assert numbers(attnres) == left
    os.close(ours)
