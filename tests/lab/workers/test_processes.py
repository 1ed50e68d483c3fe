"""Real commands, real workers, real kills: what is done stays done, nothing is trained twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GRID = ["standard", "attnres", "--seeds", "3", "--recipe", "smoke", "--set", "train.tokens=32k"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "attnres_cli", *arguments]


def ablate(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("ablate", *arguments, "--format", "json"),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
    )


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("ablate", *arguments),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
        start_new_session=True,  # so that a signal to its group does not reach us
    )


def query(folder: Path, sql: str) -> list[tuple]:
    connection = sqlite3.connect(folder / "attnres.db", timeout=30)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def statuses(folder: Path) -> list[str]:
    if not (folder / "attnres.db").exists():
        return []
    try:
        return [row[0] for row in query(folder, "SELECT status FROM attnres_runs ORDER BY id")]
    except sqlite3.OperationalError:  # the tables are not there yet
        return []


def wait_until(folder: Path, *, complete: int) -> list[int]:
    """Process ids of the workers that run something, as soon as one does and so many have ended;
    none where nothing is left to run.
    """
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        pids, now = worker_pids(folder), statuses(folder)
        if now.count("complete") >= complete and (pids or {*now} == {"complete"}):
            return pids
        time.sleep(0.05)
    raise AssertionError(f"after ten minutes: {statuses(folder)}")


def worker_pids(folder: Path) -> list[int]:
    try:
        owners = query(folder, "SELECT owner FROM attnres_runs WHERE status = 'running'")
    except sqlite3.OperationalError:  # the tables are not there yet
        return []
    return [int(owner.split("|")[2]) for (owner,) in owners]


def workers_of(launcher: int) -> list[int]:
    """Process ids of the workers that it has started, which may still be at their imports."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in _cmdline(pid)]


def _cmdline(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def losses(output: str) -> dict[str, dict[str, float]]:
    return {arm["variant"]: arm["losses"] for arm in json.loads(output)["arms"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    done = ablate(tmp_path_factory.mktemp("undisturbed"), *GRID)
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def test_a_second_command_prints_the_same_and_trains_nothing(tmp_path: Path, undisturbed):
    first = ablate(tmp_path, *GRID)
    times = query(tmp_path, "SELECT id, started_at, finished_at, attempts FROM attnres_runs")
    second = ablate(tmp_path, *GRID)

    assert first.stdout == second.stdout
    assert losses(first.stdout) == undisturbed
    assert (
        query(tmp_path, "SELECT id, started_at, finished_at, attempts FROM attnres_runs") == times
    )


def test_a_killed_grid_goes_on_and_trains_nothing_twice(tmp_path: Path, undisturbed):
    grid = start(tmp_path, *GRID)
    wait_until(tmp_path, complete=1)
    os.killpg(grid.pid, signal.SIGKILL)
    grid.communicate()
    done = query(
        tmp_path, "SELECT id, finished_at, owner FROM attnres_runs WHERE status = 'complete'"
    )

    again = ablate(tmp_path, *GRID)

    assert again.returncode == 0, again.stderr
    assert losses(again.stdout) == undisturbed
    after = query(tmp_path, "SELECT id, finished_at, owner FROM attnres_runs")
    assert set(done) <= set(after)
    assert statuses(tmp_path) == ["complete"] * 6


def test_workers_end_when_only_their_launcher_is_killed(tmp_path: Path):
    grid = start(tmp_path, *GRID, "--set", "train.tokens=2M")
    pids = wait_until(tmp_path, complete=0)

    os.kill(grid.pid, signal.SIGKILL)
    grid.communicate()

    deadline = time.monotonic() + 120
    while any(_lives(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_that_is_killed_does_not_end_the_others(tmp_path: Path, undisturbed):
    grid = start(tmp_path, *GRID, "--format", "json")
    pids = wait_until(tmp_path, complete=1)

    os.kill(pids[0], signal.SIGKILL)
    out, err = grid.communicate(timeout=600)

    assert grid.returncode == 0, err
    assert losses(out) == undisturbed


def test_a_run_whose_worker_dies_twice_fails_and_the_others_are_done(tmp_path: Path):
    longer = ["--seeds", "1", "--set", "train.tokens=400k"]  # so that no kill comes too late
    grid = start(tmp_path, *GRID, *longer, "--workers", "1")
    for _ in range(2):
        pids = wait_until(tmp_path, complete=0)
        (first,) = query(tmp_path, "SELECT id FROM attnres_runs WHERE status = 'running'")
        assert first == (1,)
        os.kill(pids[0], signal.SIGKILL)
        while worker_pids(tmp_path) == pids:
            time.sleep(0.05)
    out, err = grid.communicate(timeout=300)

    assert grid.returncode == 3, err
    assert statuses(tmp_path) == ["failed", "complete"]
    assert "failed: standard seed 0: the worker process ended with signal SIGKILL" in out
    assert "out of memory? Lower train.batch_size" in out


def test_ctrl_c_ends_all_with_130_and_the_study_goes_on(tmp_path: Path, undisturbed):
    grid = start(tmp_path, *GRID)
    pids = wait_until(tmp_path, complete=1)

    os.killpg(grid.pid, signal.SIGINT)
    _, err = grid.communicate(timeout=60)

    assert grid.returncode == 130
    assert "the same command goes on" in err
    assert "Traceback" not in err
    assert not any(_lives(pid) for pid in pids)
    assert "running" not in statuses(tmp_path)
    assert losses(ablate(tmp_path, *GRID).stdout) == undisturbed


@pytest.mark.parametrize("after_s", [0.1, 1.0, 2.0])
def test_ctrl_c_while_workers_start_ends_all_with_a_line(tmp_path: Path, after_s: float):
    grid = start(tmp_path, *GRID)
    deadline = time.monotonic() + 600
    while not (pids := workers_of(grid.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(after_s)

    os.killpg(grid.pid, signal.SIGINT)
    _, err = grid.communicate(timeout=600)

    assert grid.returncode == 130
    assert not any(_lives(pid) for pid in pids)
    assert "Traceback" not in err
    assert "running" not in statuses(tmp_path)


def test_two_commands_at_once_share_the_runs(tmp_path: Path, undisturbed):
    grids = [start(tmp_path, *GRID, "--format", "json") for _ in range(2)]

    ended = [grid.communicate(timeout=300) for grid in grids]

    assert [grid.returncode for grid in grids] == [0, 0], [err for _, err in ended]
    assert [losses(out) for out, _ in ended] == [undisturbed, undisturbed]
    assert query(tmp_path, "SELECT DISTINCT attempts FROM attnres_runs") == [(1,)]


def plugin(folder: Path, body: str) -> str:
    """A package with a design `mine` that does this in training alone, where no check sees it;
    installed by entry point: the PYTHONPATH that has it.
    """
    package, info = folder / "theirs", folder / "theirs-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        "import torch\n"
        "from attnres_cli.nn.residual import register\n"
        "from attnres_variants.standard import Standard\n"
        "@register('mine')\n"
        "class Mine(Standard):\n"
        "    def write(self, state, l, y):\n"
        f"        if y.requires_grad:\n            {body}\n"
        "        return state + y\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[attnres.variants]\ntheirs = theirs\n")
    return str(folder)


def test_a_design_that_raises_fails_alone_and_is_listed(tmp_path: Path):
    where = plugin(tmp_path, "raise ValueError('not today')")
    arguments = ["standard", "mine", "--seeds", "2", "--recipe", "smoke"]

    done = ablate(tmp_path, *arguments, PYTHONPATH=where)

    assert done.returncode == 3
    assert [arm["variant"] for arm in json.loads(done.stdout)["arms"]] == ["standard"]
    failed = json.loads(done.stdout)["failed"]
    assert [(run["variant"], run["seed"]) for run in failed] == [("mine", 0), ("mine", 1)]
    assert failed[0]["error"] == "ValueError: not today"
    ((error,),) = query(tmp_path, "SELECT DISTINCT error FROM attnres_runs WHERE status = 'failed'")
    assert error.startswith("Traceback")


def test_failed_runs_are_trained_again_when_asked(tmp_path: Path):
    where = plugin(tmp_path, "raise ValueError('not today')")
    arguments = ["standard", "mine", "--seeds", "1", "--recipe", "smoke"]
    ablate(tmp_path, *arguments, PYTHONPATH=where)
    mended = (tmp_path / "theirs" / "mine.py").read_text().replace("raise", "return state + y #")
    (tmp_path / "theirs" / "mine.py").write_text(mended)

    left = ablate(tmp_path, *arguments, PYTHONPATH=where)
    again = ablate(tmp_path, *arguments, "--retry-failed", PYTHONPATH=where)

    assert left.returncode == 3
    assert again.returncode == 0
    assert losses(again.stdout)["mine"] == losses(again.stdout)["standard"]


def test_out_of_memory_is_a_failed_run_that_names_the_batch_size(tmp_path: Path):
    where = plugin(tmp_path, "return state + y + torch.empty(2**60)")
    arguments = ["standard", "mine", "--seeds", "1", "--recipe", "smoke"]

    done = ablate(tmp_path, *arguments, PYTHONPATH=where)

    assert done.returncode == 3
    (failed,) = json.loads(done.stdout)["failed"]
    assert "lower it, as in --set train.batch_size=8" in failed["error"]


def test_a_diverged_arm_is_a_result_that_blocks_its_verdict(tmp_path: Path):
    where = plugin(tmp_path, "return state + y * float('nan')")
    arguments = ["standard", "mine", "--seeds", "2", "--recipe", "smoke"]

    done = ablate(tmp_path, *arguments, PYTHONPATH=where)

    assert done.returncode == 0
    mine = json.loads(done.stdout)["arms"][1]
    assert (mine["verdict"], mine["mean"]) == ("blocked", None)
    assert "diverged" in mine["reason"]


def test_fewer_seeds_than_were_begun_are_judged_without_those_that_wait(tmp_path: Path):
    grid = start(tmp_path, *GRID)
    wait_until(tmp_path, complete=4)
    os.killpg(grid.pid, signal.SIGINT)
    grid.communicate(timeout=60)

    done = ablate(tmp_path, *GRID, "--seeds", "2")

    verdicts = [arm["verdict"] for arm in json.loads(done.stdout)["arms"]]
    assert "blocked" not in verdicts
