"""Killed anywhere and continued, a study is the undisturbed one, bit for bit. Real SIGKILLs."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

PATIENCE_S = 900  # for machines that do much else; on a quiet one all of this takes minutes
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE_S)]

GRID = ["standard", "attnres:block_size=2", "--seeds", "2", "--recipe", "smoke", "--workers", "2"]
GRID += ["--set", "train.tokens=120k"]  # 234 steps
KILLS = 30
IN_WRITING = 8  # of them, at least, while a checkpoint is half written
OFTEN = {"ATTNRES_CHECKPOINT_S": "0"}  # where a run spends much of its time writing them


class Grid:
    """The command, running in a folder in a session of its own, its errors in a file."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.errors = folder.parent / f"{folder.name}.err"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnres_cli", "ablate", *GRID],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=os.environ | environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """To all of its processes, as a terminal or a dying machine sends it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def succeed(self) -> None:
        assert self.end() == 0, self.errors.read_text()

    def die(self) -> None:
        self.signal(signal.SIGKILL)
        self.end()


@contextmanager
def grid(folder: Path, **environment: str) -> Iterator[Grid]:
    started = Grid(folder, environment)
    try:
        yield started
    finally:
        started.die()


def wait_for(holds: Callable[[], object], of: Grid) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        assert of.process.poll() is None, of.errors.read_text()
        time.sleep(0.02)


def query(folder: Path, sql: str) -> list[tuple]:
    if not (folder / "attnres.db").exists():
        return []
    connection = sqlite3.connect(folder / "attnres.db", timeout=60)
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError:  # the tables are not there yet
        return []
    finally:
        connection.close()


def numbers(folder: Path) -> list[tuple]:
    """Every number that training decides: losses of the runs, their curves and probes."""
    runs = "SELECT id, variant, seed, status, steps, val_loss, initial_loss FROM attnres_runs"
    curve = "SELECT run_id, step, train_loss, val_loss FROM attnres_curve"
    probes = "SELECT run_id, step, name, data FROM attnres_probes ORDER BY run_id, step, name"
    found = query(folder, f"{runs} ORDER BY id") + query(folder, f"{curve} ORDER BY run_id, step")
    found += query(folder, probes)
    assert len(found) > 300
    assert query(folder, "PRAGMA integrity_check") == [("ok",)]
    return found


def files(folder: Path) -> dict[str, str]:
    """Digests of all that lies beside the study."""
    found = sorted(path for path in (folder / "attnres.runs").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def study(folder: Path) -> tuple[list[tuple], dict[str, str]]:
    """Numbers and final weights; nothing else is left beside the study."""
    weights = files(folder)
    assert [Path(name).name for name in weights] == ["weights.safetensors"] * 4
    return numbers(folder), weights


def running(folder: Path) -> list[tuple[int, int, int]]:
    """(process id, attempts, run) of the runs that are being trained."""
    sql = "SELECT owner, attempts, id FROM attnres_runs WHERE status = 'running'"
    return [(int(owner.split("|")[2]), *rest) for owner, *rest in query(folder, sql)]


def has_begun(folder: Path, run: int) -> bool:
    return any((folder / "attnres.runs").glob(f"{run}-*/0*.json"))


def some_have_begun(folder: Path) -> bool:
    return any(has_begun(folder, run) for _, _, run in running(folder))


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


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple], dict[str, str]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    with grid(folder) as calm:
        calm.succeed()
    return study(folder)


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


def kill_on(folder: Path, chance: random.Random, kills: list[str]) -> None:
    """Kill processes of a study until there were enough kills, or all its runs have ended."""
    with ExitStack() as commands:
        command = commands.enter_context(grid(folder, **OFTEN))
        while len(kills) < KILLS or kills.count("in writing") < IN_WRITING:
            if command.process.poll() is not None:
                break
            time.sleep(chance.uniform(0.0, 0.1))
            # one that has come no further since it was killed is left alone: a second death there
            # would count as its own fault, and a grid that never comes further never ends
            now = [(pid, run) for pid, attempts, run in running(folder) if attempts == 1]
            now = [pid for pid, run in now if has_begun(folder, run)]
            if len(now) == 2 and chance.random() < 0.2:  # the whole machine goes
                command.die()
                kills += ["launcher", "worker", "worker"]
                command = commands.enter_context(grid(folder, **OFTEN))
            elif (how := kill_one(folder, chance, now)) is not None:
                kills.append(how)
        command.succeed()


def test_thirty_kills_at_random_moments_change_no_bit(tmp_path: Path, undisturbed):
    chance, kills = random.Random(5), []
    for number in itertools.count():  # one is enough, but where it ends before thirty kills
        folder = tmp_path / str(number)
        folder.mkdir()
        before = len(kills)
        kill_on(folder, chance, kills)
        assert len(kills) > before
        assert study(folder) == undisturbed
        if len(kills) >= KILLS and kills.count("in writing") >= IN_WRITING:
            break
    print({how: kills.count(how) for how in kills})  # noqa: T201 - shown by pytest -s


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
store.release([1])
recipe = store.recipe(store.runs()[0].recipe_digest)
ours.send((1,))  # the run that it will ask for
work(0, Job(sys.argv[1], "cpu", settings, recipe), theirs)
"""


def test_a_worker_killed_as_it_records_its_run_records_it_whole_or_not_at_all(
    tmp_path: Path, undisturbed
):
    with grid(tmp_path) as killed:
        wait_for(lambda: running(tmp_path), killed)
    for where in ("before the curve", "before the probes", "before the commit", "after the commit"):
        command = [sys.executable, "-c", WORK_AND_DIE, str(tmp_path / "attnres.db"), where]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
        is_there = where == "after the commit"
        ((status,),) = query(tmp_path, "SELECT status FROM attnres_runs WHERE id = 1")
        points = query(tmp_path, "SELECT COUNT(*) FROM attnres_curve WHERE run_id = 1")
        assert (status == "complete", points[0][0] > 0) == (is_there, is_there), where
    with grid(tmp_path) as again:
        again.succeed()

    assert study(tmp_path) == undisturbed


def test_what_is_interrupted_goes_on_where_it_was(tmp_path: Path, undisturbed):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with grid(tmp_path, ATTNRES_CHECKPOINT_S="0.5") as begun:
            wait_for(lambda: some_have_begun(tmp_path), begun)
            begun.signal(number)

            assert begun.end() == 130, begun.errors.read_text()
        said = begun.errors.read_text()
        assert "interrupted; what is done is in the study, the same command goes on" in said
        assert "Traceback" not in said
        assert running(tmp_path) == []
        assert list((tmp_path / "attnres.runs").glob("*/0*.json"))
    with grid(tmp_path) as again:
        again.succeed()

    assert study(tmp_path) == undisturbed


def stand_still(group: int) -> bool:
    """Whether every thread of a process group has been stopped, or has ended."""
    states = set()
    for file in Path("/proc").glob("[0-9]*/task/[0-9]*/stat"):
        with suppress(OSError):
            state, _, its_group, *_ = file.read_text().rpartition(")")[2].split()
            states |= {state} if int(its_group) == group else set()
    return states <= set("TZX")


def halt(command: Grid, folder: Path) -> None:
    """Stop all its processes, at a moment when none of them holds the study's lock."""
    while True:
        command.signal(signal.SIGSTOP)
        wait_for(lambda: stand_still(command.process.pid), command)  # else one may yet take it
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


def test_runs_of_a_silent_command_are_left_to_it_and_those_of_a_dead_one_taken_at_once(
    tmp_path: Path, undisturbed
):
    with grid(tmp_path, **OFTEN) as first:
        wait_for(lambda: len(running(tmp_path)) == 2 and some_have_begun(tmp_path), first)
        halt(first, tmp_path)  # it lives, and its heart does not beat
        theirs = {run: pid for pid, _, run in running(tmp_path)}
        with grid(tmp_path) as second:
            mine = "SELECT COUNT(*) FROM attnres_runs WHERE status = 'complete'"
            wait_for(lambda: query(tmp_path, mine) == [(2,)], second)  # the other two seeds
            time.sleep(12)  # two looks of the second command, and more than a heartbeat
            assert {run: pid for pid, _, run in running(tmp_path)} == theirs
            first.die()
            died = time.monotonic()
            wait_for(
                lambda: {pid for pid, _, _ in running(tmp_path)}.isdisjoint(theirs.values()), second
            )
            assert time.monotonic() - died < 60
            second.succeed()

    assert study(tmp_path) == undisturbed


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of three megabytes: room for the study, three checkpoints of half a
    megabyte, and the one that is to stay free.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3000k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_runs_go_on_without_checkpoints(small_disk: Path, undisturbed):
    with grid(small_disk, **OFTEN) as cramped:
        cramped.succeed()

    said = cramped.errors.read_text()
    assert 1 <= said.count("no checkpoint could be written") <= 4  # once for a run
    assert "No space left on device" in said
    losses, weights = undisturbed
    assert numbers(small_disk) == losses
    assert files(small_disk).items() <= weights.items()
    missing = len(weights) - len(files(small_disk))
    assert said.count("its final weights could not be written") == missing


def test_a_full_disk_ends_the_command_in_one_line_and_the_study_goes_on(
    small_disk: Path, undisturbed
):
    with grid(small_disk) as cramped:
        wait_for(lambda: len(running(small_disk)) == 2, cramped)
        with suppress(OSError), (small_disk / "fill").open("wb", buffering=0) as fill:
            while True:
                fill.write(bytes(4096))

        assert cramped.end() == 2
    said = cramped.errors.read_text()
    assert f"the disk ({small_disk}) is full: free some space" in said
    assert "Traceback" not in said
    (small_disk / "fill").unlink()
    with grid(small_disk) as again:
        again.succeed()

    assert study(small_disk) == undisturbed


@pytest.mark.parametrize("text", ["often", "-1", "nan"])
def test_a_number_of_seconds_that_is_none_is_refused(tmp_path: Path, text: str):
    with grid(tmp_path, ATTNRES_CHECKPOINT_S=text) as refused:
        assert refused.end() == 2

    wanted = f"ATTNRES_CHECKPOINT_S must be a number of seconds from 0 up, got '{text}'"
    assert wanted in refused.errors.read_text()
