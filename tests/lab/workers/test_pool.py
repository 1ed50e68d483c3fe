"""Workers that last, die, are asked to end and go on: each run ends as an undisturbed one does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path

import pytest
from grids import forked_by, lives, small_disk
from studies import SETTINGS

import attnres_cli
from attnres_cli.config.recipe import Recipe, load
from attnres_cli.data import sources
from attnres_cli.errors import DataError, WorkersError
from attnres_cli.lab import grid as ablate
from attnres_cli.lab.workers import pool
from attnres_cli.lab.workers.pool import run_all
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.lab.workers.worker import work_here
from attnres_cli.nn import variant
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import WEIGHTS, Event, Point, RunSpec, Status
from attnres_cli.store.store import Store
from attnres_cli.train.loop import train

LONG = ["train.tokens=64k"]  # 125 steps, so that no order comes too late


class Grid:
    """A study with a run per seed, and what its launcher hears."""

    def __init__(self, folder: Path, n_seeds: int, recipe: Recipe) -> None:
        self.path = str(folder / "attnres.db")
        self.store = Store.open(self.path, create=True)
        self.tokens = sources.load(recipe)
        spec = str(variant.parse("attnres:block_size=2"))
        fingerprint = self.tokens.fingerprint
        self.specs = [RunSpec(recipe, spec, seed, fingerprint) for seed in range(n_seeds)]
        self.ids = [record.id for record in self.store.plan(self.specs, self.tokens.description)]
        self.plan = Plan(recipe, (), (0,), ("cpu",), SETTINGS, fingerprint)
        self.events: list[Event] = []
        self.owners: dict[int, str] = {}
        self.on_step: Callable[[Event], None] = lambda _event: None

    def run(self, wanted: Callable[[int], list[int]] | None = None) -> None:
        jobs = ablate.jobs(self.plan, self.path)
        run_all(self.store, jobs, wanted or (lambda _n: self.ids), self.hear)

    def hear(self, event: Event | None) -> None:
        if event is not None:
            self.events.append(event)
            self.owners |= self.store.owners([event.run_id])
            self.on_step(event)

    def pid(self, run_id: int) -> int:
        return int(self.owners[run_id].split("|")[2])

    def ended(self) -> list[int]:
        statuses = self.store.statuses(self.ids)
        return [n for n in self.ids if statuses.get(n) is Status.COMPLETE]

    def checkpoints(self) -> list[Path]:
        return list(self.store.folder.glob("*/0*.json"))

    def curves(self) -> list[tuple[Point, ...]]:
        """As the study has them."""
        return [record.result.curve for record in self.store.runs(ids=self.ids) if record.result]

    def undisturbed(self) -> list[tuple[Point, ...]]:
        """As they are where nothing stands between a run and its end: trained in this process."""
        return [
            train(spec, self.tokens, SETTINGS, "cpu", lambda _step, _loss: None).curve
            for spec in self.specs
        ]


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path, 3, load("smoke"))


@pytest.fixture
def own_stderr() -> Iterator[None]:
    """Workers that write where this test does, not where the first test had them begin."""
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step."""
    monkeypatch.setenv("ATTNRES_CHECKPOINT_S", "0")


def test_a_run_that_was_planned_with_other_code_fails_alone_and_stays_of_that_code(grid: Grid):
    ours = code_of("attnres:block_size=2")
    other = replace(ours, design="0123456789ab", loop="0123456789ab")
    specs = [replace(grid.specs[0], code=code) for code in (other, ours)]
    grid.ids = [record.id for record in grid.store.plan(specs, grid.tokens.description)]

    grid.run()

    failed, trained = grid.store.runs(ids=grid.ids)
    assert failed.status is Status.FAILED
    assert failed.error is not None
    assert "\n" not in failed.error
    assert "the code (design, loop) changed while the study ran" in failed.error
    assert "the same command again plans and trains a run of this code" in failed.error
    assert (failed.identity, trained.identity) == tuple(spec.identity for spec in specs)
    assert trained.status is Status.COMPLETE


def test_what_is_wanted_may_follow_from_what_has_ended_and_one_process_trains_it_all(grid: Grid):
    def wanted(n_free: int) -> list[int]:
        assert n_free in (0, 1)
        return grid.ids[: len(grid.ended()) + 1]

    grid.run(wanted)

    assert grid.ended() == grid.ids
    assert [event.run_id for event in grid.events if event.done] == grid.ids
    assert len(set(grid.owners.values())) == 1
    assert grid.curves() == grid.undisturbed()
    assert [path.match(WEIGHTS) for path in grid.store.folder.glob("*/*")] == [True] * 3


def test_a_run_whose_worker_is_killed_goes_on_in_another_bit_for_bit(tmp_path: Path, often: None):
    grid, killed = Grid(tmp_path, 1, load("smoke", LONG)), []

    def kill_once(event: Event) -> None:
        if event.step >= 10 and not killed and grid.checkpoints():
            killed.append(grid.pid(event.run_id))
            os.kill(killed[0], signal.SIGKILL)

    grid.on_step = kill_once
    grid.run()

    (pid,) = killed
    steps = [event.step for event in grid.events]
    assert grid.pid(grid.ids[0]) != pid
    assert steps.count(0) == 2  # claimed twice
    assert steps[steps.index(0, 1) + 1] >= 10  # and not begun again
    assert grid.curves() == grid.undisturbed()
    assert grid.store.standings()[grid.ids[0]].attempts == 1  # it came further between deaths


def kill_workers(_n_free: int = 0) -> None:
    """All that have been forked, however far they are."""
    for server in forked_by(os.getpid(), deep=False):
        for pid in forked_by(server):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_worker_killed_before_its_first_run_is_replaced(grid: Grid, capfd):
    asked = []

    def wanted(n_free: int) -> list[int]:
        asked.append(n_free)
        if len(asked) in (2, 4):  # it has asked which run to take, and so has the next
            kill_workers()
        return grid.ids

    grid.run(wanted)

    assert grid.ended() == grid.ids
    assert [record.attempts for record in grid.store.standings(grid.ids).values()] == [1, 1, 1]
    said = capfd.readouterr().err
    assert said.count("attnres: a worker process ended with SIGKILL") == 2


def test_workers_that_never_last_end_the_command_in_one_line(grid: Grid):
    def wanted(_n_free: int) -> list[int]:
        kill_workers()
        return grid.ids

    with pytest.raises(WorkersError, match=r"3 in a row died before they had a run: 3 runs left"):
        grid.run(wanted)

    assert WorkersError.exit_code == 3
    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids, Status.PENDING)


def test_the_process_that_workers_are_copied_from_may_be_killed(grid: Grid, own_stderr: None):
    killed = []

    def wanted(_n_free: int) -> list[int]:
        if not killed:  # it is started after this: killed while it imports
            threading.Timer(0.5, kill_server).start()
        killed.append(True)
        return grid.ids

    def kill_server() -> None:
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)

    grid.run(wanted)

    assert grid.ended() == grid.ids


@pytest.mark.parametrize(
    ("code", "for_memory", "said"),
    [
        (1, None, "ended with exit code 1"),
        (-11, True, "ended with SIGSEGV"),
        (-9, None, "ended with SIGKILL, out of memory?: lower train.batch_size or --workers"),
        (-9, True, "ended with SIGKILL, from the machine's memory killer: lower train.batch_size "
                   "or --workers"),
        (-9, False, "ended with SIGKILL, not from the machine's memory killer"),
    ],
)  # fmt: skip
def test_how_a_worker_died_tells_the_memory_killer_from_others(
    code: int, for_memory: bool | None, said: str
):
    assert pool._how(code, for_memory) == said


def test_a_run_that_two_workers_died_of_fails_and_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("ATTNRES_CHECKPOINT_S", "1000")
    grid = Grid(tmp_path, 1, load("smoke", LONG))
    grid.on_step = lambda event: os.kill(grid.pid(event.run_id), signal.SIGKILL)

    grid.run()

    (record,) = grid.store.runs(ids=grid.ids)
    assert record.status is Status.FAILED
    assert record.error is not None
    assert "SIGKILL" in record.error
    assert record.error.endswith("2 times without a new checkpoint in between")


def test_in_one_process_all_is_trained_in_order_with_the_same_numbers(grid: Grid):
    (job,) = ablate.jobs(grid.plan, grid.path)

    work_here(grid.store, job, lambda _n: grid.ids, grid.hear)

    assert {grid.pid(run_id) for run_id in grid.ids} == {os.getpid()}
    assert [event.run_id for event in grid.events if event.done] == grid.ids
    assert grid.curves() == grid.undisturbed()


def test_whoever_leaves_a_debugger_goes_on_from_the_last_checkpoint(grid: Grid, often: None):
    (job,) = ablate.jobs(grid.plan, grid.path)

    def leave(event: Event) -> None:
        if event.step >= 10:
            raise BdbQuit  # what `q` does at the prompt of pdb

    grid.on_step = leave
    with pytest.raises(KeyboardInterrupt):
        work_here(grid.store, job, lambda _n: grid.ids, grid.hear)
    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids, Status.PENDING)
    grid.on_step, grid.events = lambda _event: None, []
    work_here(grid.store, job, lambda _n: grid.ids, grid.hear)

    assert [event.step for event in grid.events][1] >= 9
    assert grid.curves() == grid.undisturbed()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_is_written_down_and_goes_on_bit_for_bit(
    tmp_path: Path, number: signal.Signals
):
    grid = Grid(tmp_path, 2, load("smoke", LONG))

    def interrupt(event: Event) -> None:
        if event.step >= 10:
            signal.raise_signal(number)

    grid.on_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        grid.run()
    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids, Status.PENDING)
    assert not lives(grid.pid(grid.ids[0]))
    if number == signal.SIGTERM:  # at Ctrl-C somebody waits, and a busy machine may be too slow
        assert len(grid.checkpoints()) == 1  # although none was due
    grid.on_step, grid.events = lambda _event: None, []
    grid.run()

    steps = [event.step for event in grid.events if event.run_id == grid.ids[0]]
    assert number == signal.SIGINT or min(filter(None, steps)) >= 10
    assert grid.curves() == grid.undisturbed()


def test_ctrl_c_does_not_wait_for_a_step_that_does_not_end(tmp_path: Path, often: None):
    grid, asked_at = Grid(tmp_path, 1, load("smoke", LONG)), []

    def interrupt(event: Event) -> None:
        if event.step >= 10 and grid.checkpoints():
            os.kill(grid.pid(event.run_id), signal.SIGSTOP)
            asked_at.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

    grid.on_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        grid.run()

    assert time.monotonic() - asked_at[0] < 10  # 1.5 s, on a machine that does nothing else
    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids, Status.PENDING)
    grid.on_step = lambda _event: None
    grid.run()
    assert grid.curves() == grid.undisturbed()


def test_ctrl_c_does_not_wait_for_the_imports_of_workers(grid: Grid, own_stderr: None):
    halted_at = []

    def wanted(_n_free: int) -> list[int]:
        threading.Timer(0.3, halt).start()
        return grid.ids

    def halt() -> None:
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGSTOP)
        halted_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        grid.run(wanted)

    assert time.monotonic() - halted_at[0] < 10
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGCONT)


def test_a_worker_tells_the_study_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ATTNRES_CHECKPOINT_S", "0.2")  # whatever is saved is told at once
    grid, told = Grid(tmp_path, 1, load("smoke", LONG)), []
    grid.on_step = lambda event: told.append(grid.store.standings()[event.run_id].step)

    grid.run()

    assert [step for step in told if step], "no heartbeat came"


WHERE = """
import multiprocessing
from attnres_cli.lab.workers import pool

def say():
    import sys, attnres_cli
    imported = {"torch._dynamo", "attnres_variants.mhc"} <= sys.modules.keys()
    print(attnres_cli.__file__, imported, flush=True)

if __name__ == "__main__":
    pool.prepare()
    process = multiprocessing.get_context("forkserver").Process(target=say)
    process.start()
    process.join()
"""


def test_workers_are_copies_with_all_imports_made_by_their_launcher_code_whatever_lies_here(
    tmp_path: Path,
):
    theirs, here = tmp_path / "theirs", tmp_path / "here"
    theirs.mkdir()
    here.mkdir()
    (theirs / "attnres_cli").symlink_to(Path(attnres_cli.__file__).parent)
    (theirs / "script.py").write_text(WHERE)
    (here / "random.py").write_text("raise SystemExit('imported by mistake')")

    command = [sys.executable, str(theirs / "script.py")]
    said = subprocess.check_output(command, cwd=here, text=True)

    assert said.split() == [str(theirs / "attnres_cli" / "__init__.py"), "True"]


def test_where_the_data_are_gone_the_command_ends_and_no_run_is_to_blame(
    tmp_path: Path,
):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)
    grid = Grid(tmp_path, 2, load("smoke", ["data.source=text", f"data.path={text}"]))
    text.unlink()

    with pytest.raises(DataError, match=r"text\.txt does not exist"):
        grid.run()

    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids, Status.PENDING)
    assert grid.events == []


def test_a_run_that_another_command_removes_meanwhile_is_no_trouble(grid: Grid):
    def wanted(_n_free: int) -> list[int]:
        if grid.ended() and len(grid.store.statuses(grid.ids)) == 3:
            grid.store.remove(grid.ids[2:])
        return grid.ids

    grid.run(wanted)

    assert grid.store.statuses(grid.ids) == dict.fromkeys(grid.ids[:2], Status.COMPLETE)


def test_runs_of_another_living_process_are_waited_for_and_those_of_a_dead_one_taken(grid: Grid):
    other, taken = grid.store.claim(grid.ids[:1]), []
    assert other is not None  # by this process, which lives

    def waits(event: Event) -> None:
        taken.append(event.run_id)
        if event.done and event.run_id == grid.ids[2]:
            with grid.store._write() as connection:  # now it is one of a process that is gone
                connection.exec_driver_sql("UPDATE attnres_runs SET owner = 'nobody' WHERE id = 1")

    grid.on_step = waits
    grid.run()

    assert taken.index(grid.ids[0]) > taken.index(grid.ids[2])
    assert grid.ended() == grid.ids


def test_on_a_full_disk_runs_go_on_without_checkpoints(
    tmp_path: Path, often: None, own_stderr: None, capfd
):
    with small_disk(tmp_path / "disk", "1800k") as folder:
        grid = Grid(folder, 2, load("smoke"))
        grid.run()
        said, curves, ended = capfd.readouterr().err, grid.curves(), grid.ended()
        grid.store._writing.dispose()

    assert ended == grid.ids
    assert 1 <= said.count("no checkpoint could be written") <= 2  # once for a run
    assert "No space left on device" in said
    assert curves == grid.undisturbed()
