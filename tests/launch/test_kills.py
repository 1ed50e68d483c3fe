"""Killed anywhere and continued, a study is the undisturbed one, bit for bit. Real SIGKILLs."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GRID = ["standard", "attnres:block_size=2", "--seeds", "2", "--recipe", "smoke", "--workers", "2"]
GRID += ["--set", "train.tokens=200k"]  # 390 steps
KILLS = 30
OFTEN = {"ATTNRES_CHECKPOINT_S": "0"}  # where a run spends much of its time writing them


def start(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "attnres_cli", "ablate", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )


def query(folder: Path, sql: str) -> list[tuple]:
    if not (folder / "attnres.db").exists():
        return []
    connection = sqlite3.connect(folder / "attnres.db", timeout=30)
    try:
        return connection.execute(sql).fetchall()
    except sqlite3.OperationalError:  # the tables are not there yet
        return []
    finally:
        connection.close()


def study(folder: Path) -> list[tuple]:
    """Every number that training decides: losses of the runs, their curves and probes."""
    runs = "SELECT id, variant, seed, status, steps, val_loss, initial_loss FROM attnres_runs"
    curve = "SELECT run_id, step, train_loss, val_loss FROM attnres_curve"
    probes = "SELECT run_id, step, name, data FROM attnres_probes ORDER BY run_id, step, name"
    found = query(folder, f"{runs} ORDER BY id") + query(folder, f"{curve} ORDER BY run_id, step")
    found += query(folder, probes)
    assert len(found) > 300
    return found


def running(folder: Path) -> list[tuple[int, int, int, int]]:
    """(process id, attempts, step, run) of the runs that are being trained."""
    sql = "SELECT owner, attempts, step, id FROM attnres_runs WHERE status = 'running'"
    found = [(owner.split("|"), *rest) for owner, *rest in query(folder, sql)]
    return [(int(parts[2]), attempts, step or 0, run) for parts, attempts, step, run in found]


def has_begun(folder: Path, run: int) -> bool:
    return any((folder / "attnres.runs").glob(f"{run}-*/*.json"))


def is_written(folder: Path, run: int) -> bool:
    """Whether a checkpoint of that run is half written."""
    return any((folder / "attnres.runs").glob(f"{run}-*/.0*"))


def wait_for_writing(folder: Path, run: int) -> None:
    deadline = time.monotonic() + 1
    while not is_written(folder, run) and time.monotonic() < deadline:
        time.sleep(0.0005)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    folder = tmp_path_factory.mktemp("undisturbed")
    grid = start(folder, *GRID)
    _, err = grid.communicate(timeout=300)
    assert grid.returncode == 0, err
    assert not (folder / "attnres.runs").exists()
    return study(folder)


def test_thirty_kills_at_random_moments_change_no_number(tmp_path: Path, undisturbed: list[tuple]):
    chance, kills, half_written = random.Random(5), 0, 0
    grid = start(tmp_path, *GRID, **OFTEN)
    deadline = time.monotonic() + 240
    while kills < KILLS:
        assert time.monotonic() < deadline, f"only {kills} kills"
        assert grid.poll() is None, f"ended after {kills} kills: {grid.communicate()[1]}"
        time.sleep(chance.uniform(0.0, 0.1))
        now = [found for found in running(tmp_path) if has_begun(tmp_path, found[3])]
        if not now:
            continue
        pid, attempts, run = chance.choice([(pid, tries, run) for pid, tries, _, run in now])
        if attempts > 1:  # a second death before it came further would count as its own fault
            if chance.random() < 0.2:  # the whole machine goes
                os.killpg(grid.pid, signal.SIGKILL)
                grid.communicate()
                kills += len(now)
                grid = start(tmp_path, *GRID, **OFTEN)
            continue
        if kills % 3 == 0:
            wait_for_writing(tmp_path, run)
        os.kill(pid, signal.SIGKILL)
        kills += 1
        half_written += is_written(tmp_path, run)
    _, err = grid.communicate(timeout=300)

    assert grid.returncode == 0, err
    assert study(tmp_path) == undisturbed
    assert query(tmp_path, "PRAGMA integrity_check") == [("ok",)]
    assert not (tmp_path / "attnres.runs").exists()
    assert half_written > 0


WORK_AND_DIE = """
import os, signal, sys
from multiprocessing import Pipe
from sqlalchemy import Engine, event
from attnres_cli.launch.worker import Job, work
from attnres_cli.run import Settings
from attnres_cli.store import Store
from attnres_cli.train import checkpoint

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
receiver, sender = Pipe(duplex=False)
store = Store.open(sys.argv[1], create=False)
recipe = store.recipe(store.runs()[0].recipe_digest)
work(0, Job(sys.argv[1], (1,), "cpu", settings, recipe), sender)
"""


@pytest.mark.parametrize(
    "where", ["before the curve", "before the probes", "before the commit", "after the commit"]
)
def test_a_worker_killed_as_it_records_its_run_records_it_whole_or_not_at_all(
    tmp_path: Path, undisturbed: list[tuple], where: str
):
    grid = start(tmp_path, *GRID)
    while not running(tmp_path):
        time.sleep(0.05)
    os.killpg(grid.pid, signal.SIGKILL)
    grid.communicate()
    free = "UPDATE attnres_runs SET status = 'pending', owner = NULL"
    connection = sqlite3.connect(tmp_path / "attnres.db")
    with connection:
        connection.execute(free)
    connection.close()

    command = [sys.executable, "-c", WORK_AND_DIE, str(tmp_path / "attnres.db"), where]
    killed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    is_there = where == "after the commit"
    ((status,),) = query(tmp_path, "SELECT status FROM attnres_runs WHERE id = 1")
    points = query(tmp_path, "SELECT COUNT(*) FROM attnres_curve WHERE run_id = 1")
    assert (status == "complete", points[0][0] > 0) == (is_there, is_there)
    again = start(tmp_path, *GRID)
    _, err = again.communicate(timeout=300)

    assert again.returncode == 0, err
    assert study(tmp_path) == undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_interrupted_goes_on_where_it_was(
    tmp_path: Path, undisturbed: list[tuple], number: signal.Signals
):
    grid = start(tmp_path, *GRID, ATTNRES_CHECKPOINT_S="0.5")
    while not any(has_begun(tmp_path, run) for _, _, _, run in running(tmp_path)):
        assert grid.poll() is None
        time.sleep(0.05)
    os.killpg(grid.pid, number)
    _, err = grid.communicate(timeout=60)

    assert grid.returncode == 130, err
    assert "Traceback" not in err
    assert running(tmp_path) == []
    assert list((tmp_path / "attnres.runs").glob("*/*.json"))
    again = start(tmp_path, *GRID)
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert study(tmp_path) == undisturbed


@pytest.fixture
def small_disk(tmp_path: Path):
    """A folder on a disk of one megabyte: room for the study, and for one checkpoint."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_on_a_full_disk_runs_go_on_without_checkpoints(small_disk: Path, undisturbed: list[tuple]):
    grid = start(small_disk, *GRID, **OFTEN)
    _, err = grid.communicate(timeout=120)

    assert grid.returncode == 0, err
    assert 1 <= err.count("no checkpoint could be written") <= 4  # once for a run
    assert "No space left on device" in err
    assert study(small_disk) == undisturbed
    assert query(small_disk, "PRAGMA integrity_check") == [("ok",)]


def test_a_number_of_seconds_that_is_none_is_refused(tmp_path: Path):
    grid = start(tmp_path, *GRID, ATTNRES_CHECKPOINT_S="often")
    _, err = grid.communicate(timeout=60)

    assert grid.returncode == 2
    assert "ATTNRES_CHECKPOINT_S must be a number of seconds from 0 up, got 'often'" in err
