"""Real commands, killed anywhere and continued: the study is the undisturbed one, bit for bit."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from grids import (
    KIMI,
    OFTEN,
    Command,
    done,
    files,
    forked_by,
    has_begun,
    lives,
    numbers,
    query,
    running,
    small_disk,
    some_have_begun,
    started,
    statuses,
    study,
)

GRID = ["ablate", "standard", "attnres:block_size=2", "--seeds", "2", "--recipe", "smoke"]
GRID += ["--workers", "2", "--set", "train.tokens=120k"]  # 234 steps
ON_KIMI = ["ablate", "standard", "attnres", *GRID[3:], *KIMI]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple], dict[str, str]]:
    return calm(tmp_path_factory.mktemp("undisturbed"), GRID)


def calm(folder: Path, typed: list[str]) -> tuple[list[tuple], dict[str, str]]:
    with started(folder, *typed) as command:
        command.succeed()
    return study(folder)


def is_writing(folder: Path, pid: int) -> bool:
    """Whether that process has half written a file beside the study."""
    return any((folder / "attnres.runs").glob(f"*/.*.{pid}"))


def stop_in_writing(folder: Path, pid: int) -> bool:
    """Halt that process while it writes a checkpoint; False if it ends before it does."""
    with suppress(ProcessLookupError):
        while True:
            deadline = time.monotonic() + 0.2
            while not is_writing(folder, pid) and time.monotonic() < deadline:
                time.sleep(0.0002)
            os.kill(pid, signal.SIGSTOP)  # what it has half written now, it has for good
            if is_writing(folder, pid):
                return True
            os.kill(pid, signal.SIGCONT)
            if all(found != pid for found, _, _ in running(folder)):
                return False
    return False


def kill_one(folder: Path, chance: random.Random, pids: list[int]) -> str | None:
    """Kill one of these processes, half of the time as it writes; which it was, None if none."""
    if not pids:
        return None
    pid = chance.choice(pids)
    how = "anywhere"
    if chance.random() < 0.5 and stop_in_writing(folder, pid):
        how = "in writing"
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # its last run has just ended
        return None
    return how


def are_enough(kills: list[str], wanted: int) -> bool:
    """So many, a quarter of them while a checkpoint was half written."""
    return len(kills) >= wanted and 4 * kills.count("in writing") >= wanted


def kill_on(
    folder: Path, typed: list[str], chance: random.Random, kills: list[str], wanted: int
) -> None:
    """Kill processes of a study until there were enough kills, or all its runs have ended."""
    with ExitStack() as commands:
        command = commands.enter_context(started(folder, *typed, **OFTEN))
        while not are_enough(kills, wanted):
            if command.process.poll() is not None:
                break
            time.sleep(chance.uniform(0.0, 0.1))
            # one that has come no further since it was killed is left alone: a second death there
            # would count as its own fault, and a grid that never comes further never ends; nor does
            # one whose command is killed again for workers that have died with the last one
            now = [(pid, run) for pid, attempts, run in running(folder) if attempts == 1]
            now = [pid for pid, run in now if lives(pid) and has_begun(folder, run)]
            if len(now) == 2 and chance.random() < 0.5:  # the whole machine goes
                command.die()
                kills += ["launcher", "worker", "worker"]
                command = commands.enter_context(started(folder, *typed, **OFTEN))
            elif (how := kill_one(folder, chance, now)) is not None:
                kills.append(how)
        command.succeed()


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "wanted"), [(GRID, 30), (ON_KIMI, 8)], ids=["dense", "kimi"])
def test_kills_at_random_moments_change_no_bit(typed: list[str], wanted: int, tmp_path: Path):
    expected = calm(tmp_path, typed)
    chance, kills = random.Random(5), []
    for number in itertools.count():  # one is enough, but where it ends before thirty kills
        folder = tmp_path / str(number)
        folder.mkdir()
        before = len(kills)
        kill_on(folder, typed, chance, kills, wanted)
        assert len(kills) > before
        assert study(folder) == expected
        if are_enough(kills, wanted):
            break


WORK_AND_DIE = """
import os, signal, sys
from multiprocessing import Pipe
from sqlalchemy import Engine, event
from attnres_cli.lab.workers.worker import Job, work
from attnres_cli.records.run import Settings
from attnres_cli.store.store import Store

def die(*_arguments):
    os.kill(os.getpid(), signal.SIGKILL)

where = sys.argv[2]
finish = Store.finish

def finish_and_die(self, record):
    if where == "before the commit":
        event.listen(Engine, "commit", die)
    elif where in ("before the curve", "before the probes"):
        table = where.split()[-1]
        event.listen(Engine, "before_cursor_execute", lambda *a: table in a[2] and die())
    finish(self, record)
    die()

Store.finish = finish_and_die
settings = Settings("cpu", "A CPU", "fp32", False, 1, "eager")
ours, theirs = Pipe()
store = Store.open(sys.argv[1], create=True)
number = int(sys.argv[3])
store.release([number])
recipe = store.recipe(store.runs()[0].recipe_digest)
ours.send((number,))  # the run that it will ask for
work(0, Job(sys.argv[1], "cpu", settings, recipe), theirs)
"""
MOMENTS = ("before the curve", "before the probes", "before the commit", "after the commit")


@pytest.mark.slow
def test_a_worker_killed_as_it_records_its_run_records_it_whole_or_not_at_all(
    tmp_path: Path, undisturbed
):
    with started(tmp_path, *GRID) as killed:
        killed.wait_for(lambda: running(tmp_path))
    number = 1 + next(i for i, each in enumerate(statuses(tmp_path)) if each != "complete")
    for where in MOMENTS:
        command = [sys.executable, "-c", WORK_AND_DIE, str(tmp_path / "attnres.db"), where]
        command.append(str(number))
        died = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
        assert died.returncode == -9, died.stderr
        is_there = where == "after the commit"
        points = query(tmp_path, f"SELECT COUNT(*) FROM attnres_curve WHERE run_id = {number}")
        held = (statuses(tmp_path)[number - 1] == "complete", points[0][0] > 0)
        assert held == (is_there, is_there), where
    with started(tmp_path, *GRID) as again:
        again.succeed()

    assert study(tmp_path) == undisturbed


def test_ctrl_c_ends_a_command_with_a_line_and_the_same_command_goes_on(tmp_path: Path):
    typed = ["ablate", "standard", "--seeds", "1", "--recipe", "smoke", "--workers", "1"]
    typed += ["--set", "train.tokens=400k"]
    with started(tmp_path, *typed, ATTNRES_CHECKPOINT_S="0.1") as begun:
        begun.wait_for(lambda: some_have_begun(tmp_path))
        pids = [pid for pid, _, _ in running(tmp_path)]
        begun.signal(signal.SIGINT)

        assert begun.end() == 130, begun.err

    assert "interrupted; what is done is in the study, the same command goes on" in begun.err
    assert "Traceback" not in begun.err
    assert statuses(tmp_path) == ["pending"]
    assert not any(map(lives, pids))
    assert list((tmp_path / "attnres.runs").glob("*/0*.json"))


@pytest.mark.slow
def test_what_is_interrupted_goes_on_where_it_was(tmp_path: Path, undisturbed):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with started(tmp_path, *GRID, ATTNRES_CHECKPOINT_S="0.5") as begun:
            begun.wait_for(lambda: some_have_begun(tmp_path))
            begun.signal(number)

            assert begun.end() == 130, begun.err
        assert "interrupted; what is done is in the study" in begun.err
        assert "Traceback" not in begun.err
        assert running(tmp_path) == []
        assert list((tmp_path / "attnres.runs").glob("*/0*.json"))
    with started(tmp_path, *GRID) as again:
        again.succeed()

    assert study(tmp_path) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.1, 1.0, 2.0])
def test_ctrl_c_while_workers_start_ends_all_with_a_line(tmp_path: Path, after_s: float):
    with started(tmp_path, *GRID) as grid:
        grid.wait_for(lambda: statuses(tmp_path) and forked_by(grid.process.pid))
        time.sleep(after_s)
        pids = forked_by(grid.process.pid)
        grid.signal(signal.SIGINT)

        assert grid.end() == 130, grid.err
    deadline = time.monotonic() + 60
    while any(map(lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(lives, pids))
    assert "Traceback" not in grid.err
    assert running(tmp_path) == []


def test_workers_end_when_only_their_launcher_is_killed(tmp_path: Path):
    typed = ["ablate", "standard", "--seeds", "2", "--recipe", "smoke", "--workers", "2"]
    with started(tmp_path, *typed, "--set", "train.tokens=2M") as grid:
        grid.wait_for(lambda: running(tmp_path))
        pids = forked_by(grid.process.pid)
        os.kill(grid.process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 120
        while any(map(lives, pids)) and time.monotonic() < deadline:
            time.sleep(0.1)

    assert len(pids) >= 2
    assert not any(map(lives, pids))


@pytest.mark.slow
def test_two_commands_at_once_share_the_runs_and_a_third_trains_none(tmp_path: Path, undisturbed):
    with started(tmp_path, *GRID) as one, started(tmp_path, *GRID) as other:
        one.succeed()
        other.succeed()
    assert study(tmp_path) == undisturbed
    times = "SELECT id, started_at, finished_at, attempts FROM attnres_runs"
    before = query(tmp_path, times)

    first, second = done(tmp_path, *GRID), done(tmp_path, *GRID)

    assert first == second
    assert query(tmp_path, times) == before
    assert {attempts for *_, attempts in before} == {1}


def stand_still(group: int) -> bool:
    """Whether every thread of a process group has been stopped, or has ended."""
    states = set()
    for file in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group, *_ = file.read_text().rpartition(")")[2].split()
            states |= {state} if int(its_group) == group else set()
    return states <= set("TZX")


def halt(command: Command, folder: Path) -> None:
    """Stop all its processes, at a moment when none of them holds the study's lock."""
    while True:
        command.signal(signal.SIGSTOP)
        command.wait_for(lambda: stand_still(command.process.pid))  # else one may yet take it
        connection = sqlite3.connect(folder / "attnres.db", timeout=1, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            return
        except sqlite3.OperationalError:
            command.signal(signal.SIGCONT)
            time.sleep(0.05)
        finally:
            connection.close()


@pytest.mark.slow
def test_runs_of_a_silent_command_are_left_to_it_and_those_of_a_dead_one_taken_at_once(
    tmp_path: Path, undisturbed
):
    with started(tmp_path, *GRID, **OFTEN) as first:
        first.wait_for(lambda: len(running(tmp_path)) == 2 and some_have_begun(tmp_path))
        halt(first, tmp_path)  # it lives, and its heart does not beat
        theirs = {run: pid for pid, _, run in running(tmp_path)}
        with started(tmp_path, *GRID) as second:
            second.wait_for(lambda: statuses(tmp_path).count("complete") == 2)  # the other seeds
            time.sleep(12)  # two looks of the second command, and more than a heartbeat
            assert {run: pid for pid, _, run in running(tmp_path)} == theirs
            first.die()
            died = time.monotonic()
            second.wait_for(
                lambda: {pid for pid, _, _ in running(tmp_path)}.isdisjoint(theirs.values())
            )
            assert time.monotonic() - died < 60
            second.succeed()

    assert study(tmp_path) == undisturbed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk with room for the study, three checkpoints of half a megabyte, and the
    one that is to stay free.
    """
    with small_disk(tmp_path / "disk", "3000k") as folder:
        yield folder


@pytest.mark.slow
def test_on_a_full_disk_runs_go_on_without_checkpoints(disk: Path, undisturbed):
    with started(disk, *GRID, **OFTEN) as cramped:
        cramped.succeed()

    assert 1 <= cramped.err.count("no checkpoint could be written") <= 4  # once for a run
    assert "No space left on device" in cramped.err
    losses, weights = undisturbed
    assert numbers(disk) == losses
    assert files(disk).items() <= weights.items()
    missing = len(weights) - len(files(disk))
    assert cramped.err.count("its final weights could not be written") == missing


@pytest.mark.slow
def test_a_full_disk_ends_the_command_in_one_line_and_the_study_goes_on(disk: Path, undisturbed):
    with started(disk, *GRID) as cramped:
        cramped.wait_for(lambda: len(running(disk)) == 2)
        with suppress(OSError), (disk / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(4096))

        assert cramped.end() == 2
    assert f"the disk ({disk}) is full: free some space" in cramped.err
    assert "Traceback" not in cramped.err
    (disk / "fill").unlink()
    with started(disk, *GRID) as again:
        again.succeed()

    assert study(disk) == undisturbed


DESIGNS = {
    "raises": "raise ValueError('not today')",
    "half": "raise ImportError('/tmp/a/b.main.so: file too short')",
    "hungry": "return state + y + torch.empty(2**60)",
    "wild": "return state + y * float('nan')",
}


def plugin(folder: Path) -> str:
    """A package with designs that do this in training alone, where no check sees it; installed by
    entry point: the PYTHONPATH that has it.
    """
    package, info = folder / "theirs", folder / "theirs-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    for name, body in DESIGNS.items():
        (package / f"{name}.py").write_text(
            "import torch\n"
            "from attnres_cli.nn.residual import register\n"
            "from attnres_variants.standard import Standard\n"
            f"@register('{name}')\n"
            f"class {name.title()}(Standard):\n"
            "    def write(self, state, l, y):\n"
            f"        if y.requires_grad:\n            {body}\n"
            "        return state + y\n"
        )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[attnres.variants]\ntheirs = theirs\n")
    return str(folder)


def test_a_run_that_fails_or_diverges_ends_alone_is_listed_and_is_trained_again_when_asked(
    tmp_path: Path,
):
    where = plugin(tmp_path)
    typed = ["ablate", "standard", *DESIGNS, "--seeds", "1", "--recipe", "smoke", "--workers", "1"]

    found = done(tmp_path, *typed, code=3, PYTHONPATH=where)
    (error,) = query(tmp_path, "SELECT error FROM attnres_runs WHERE variant = 'raises'")[0]
    (tmp_path / "theirs" / "raises.py").write_text(
        (tmp_path / "theirs" / "raises.py").read_text().replace("raise Val", "return state + y #")
    )
    typed = [word for word in typed if word not in ("half", "hungry", "wild")]
    again = done(tmp_path, *typed, "--retry-failed", PYTHONPATH=where)

    wild = next(arm for arm in found["arms"] if arm["variant"] == "wild")
    assert (wild["verdict"], wild["mean"]) == ("blocked", None)
    assert "diverged" in wild["reason"]
    failed = {run["variant"]: run["error"] for run in found["failed"]}
    assert failed.keys() == {"raises", "half", "hungry"}
    assert failed["half"].endswith(
        "/tmp/a/b.main.so was left half compiled by a killed command: delete it"
    )
    assert failed["raises"] == "ValueError: not today"
    assert error.startswith("Traceback")
    assert "lower it, as in --set train.batch_size=8" in failed["hungry"]
    losses = {arm["variant"]: arm["losses"] for arm in again["arms"]}
    assert losses["raises"] == losses["standard"]
    assert json.dumps(losses["standard"]) == json.dumps(
        next(arm["losses"] for arm in found["arms"] if arm["variant"] == "standard")
    )


def test_a_number_of_seconds_that_is_none_is_refused(tmp_path: Path):
    with started(tmp_path, *GRID, ATTNRES_CHECKPOINT_S="often") as refused:
        assert refused.end() == 2

    wanted = "ATTNRES_CHECKPOINT_S must be a number of seconds from 0 up, got 'often'"
    assert wanted in refused.err
