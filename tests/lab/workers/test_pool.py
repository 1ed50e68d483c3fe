"""Workers that last, die, are interrupted and continue: every run ends as an undisturbed one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe, forkserver, get_context
from pathlib import Path
from threading import Timer

import pytest
import torch
from grids import forked_by, lives, wait_until
from sqlalchemy import Engine
from sqlalchemy.event import listen
from studies import SETTINGS

import attnres_cli
from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.errors import DataError, WorkersError
from attnres_cli.lab.grid import jobs
from attnres_cli.lab.workers import heartbeat, pool
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.lab.workers.worker import Job, work, work_here
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import WEIGHTS, Event, Point, RunRecord, RunSpec, Status
from attnres_cli.store.store import Store
from attnres_cli.train.loop import train
from attnres_cli.train.ranks import WAYS
from attnres_cli.train.trainer import Trainer

DESIGN, LESS = "attnres:block_size=2", "lower train.batch_size or --workers"
_UNDISTURBED: dict[str, tuple[Point, ...]] = {}  # curves by identity of the run


class Grid:
    """A study with a run per seed, its launcher, and the events that this receives."""

    def __init__(self, folder: Path, n_seeds: int, *changes: str) -> None:
        recipe = load("smoke", ["train.eval_tokens=512", *changes])
        path, self.tokens = str(folder / "attnres.db"), sources.load(recipe)
        self.store = Store.open(path, create=True)
        fingerprint = self.tokens.fingerprint
        self.plan([RunSpec(recipe, DESIGN, seed, fingerprint) for seed in range(n_seeds)])
        (self.job,) = jobs(Plan(recipe, (), (0,), ("cpu",), SETTINGS, fingerprint), path)
        self.events: list[Event] = []
        self.owners: dict[int, str] = {}
        self.on_event: Callable[[Event], object] = lambda _event: None
        self.wanted: Callable[[int], list[int]] = lambda _n_free: self.ids

    def plan(self, specs: list[RunSpec]) -> None:
        self.specs = specs
        self.ids = [record.id for record in self.store.plan(specs, self.tokens.description)]

    def run(self) -> None:
        pool.run_all(self.store, [self.job], self.wanted, self.hear)

    def run_here(self) -> None:
        work_here(self.store, self.job, self.wanted, self.hear)

    def hear(self, event: Event | None) -> None:
        if event is not None:
            self.events.append(event)
            self.owners |= self.store.owners([event.run_id])
            self.on_event(event)

    def when_begun(self, act: Callable[[Event], object]) -> None:
        """Call that at events of a run that has trained ten steps."""
        self.on_event = lambda event: event.step >= 10 and act(event)

    def pid(self, run_id: int = 1) -> int:
        return int(self.owners[run_id].split("|")[2])

    def ended(self) -> list[int]:
        statuses = self.store.statuses(self.ids)
        return [n for n in self.ids if statuses.get(n) is Status.COMPLETE]

    def has_checkpoint(self) -> bool:
        return any(self.store.folder.glob("*/0*.json"))

    def assert_waiting(self) -> None:
        assert self.store.statuses(self.ids) == dict.fromkeys(self.ids, Status.PENDING)

    def assert_continues(self, run: Callable[[], None]) -> None:
        """What was interrupted ends as if it had not been, if nothing more happens to it."""
        self.assert_waiting()
        self.on_event, self.events = lambda _event: None, []
        run()
        self.assert_undisturbed()

    def assert_undisturbed(self) -> None:
        """Curves are those of runs trained in this process, and only final weights are left."""
        assert self.ended() == self.ids
        for spec, record in zip(self.specs, self.store.runs(ids=self.ids), strict=True):
            if spec.identity not in _UNDISTURBED:
                torch.set_num_threads(SETTINGS.threads)
                calm = train(spec, self.tokens, SETTINGS, "cpu", lambda _step, _loss: None)
                _UNDISTURBED[spec.identity] = calm.curve
            assert record.result is not None
            assert record.result.curve == _UNDISTURBED[spec.identity]
        left = self.store.folder.glob("*/*")
        assert [path.match(WEIGHTS) for path in left] == [True] * len(self.ids)


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(tmp_path, 2)


@pytest.fixture
def long(tmp_path: Path) -> Grid:
    """One run of 125 steps: long enough to be interrupted in the middle."""
    return Grid(tmp_path, 1, "train.tokens=64k")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNRES_CHECKPOINT_S", "0")


def test_a_run_planned_with_other_code_fails_and_ends_no_other_run(grid: Grid):
    ours = code_of(DESIGN)
    other = replace(ours, design="0123456789ab", loop="0123456789ab")
    grid.plan([replace(grid.specs[0], code=code) for code in (other, ours)])
    grid.run()
    failed, trained = grid.store.runs(ids=grid.ids)
    assert (failed.status, trained.status) == (Status.FAILED, Status.COMPLETE)
    words = r"the code \(design, loop\) changed while the study ran.* the same command again plans"
    assert re.fullmatch(f".*{words} and trains a run of this code.*", str(failed.error))
    assert [failed.identity, trained.identity] == [spec.identity for spec in grid.specs]


@pytest.mark.parametrize("has_workers", [True, False])
def test_one_worker_or_this_process_trains_every_run_even_if_the_next_depends_on_the_last(
    grid: Grid, has_workers: bool
):
    def wanted(n_free: int) -> list[int]:
        assert n_free in (0, 1)
        return grid.ids[: len(grid.ended()) + 1]

    grid.wanted = wanted
    (grid.run if has_workers else grid.run_here)()

    assert [event.run_id for event in grid.events if event.done] == grid.ids
    assert len(set(grid.owners.values())) == 1
    assert (grid.pid() == os.getpid()) is not has_workers
    grid.assert_undisturbed()


def test_a_run_whose_worker_is_killed_continues_in_another_with_the_same_bits(long: Grid, often):
    killed = []

    def kill_once(_event: Event) -> None:
        if not killed and long.has_checkpoint():
            killed.append(long.pid())
            os.kill(killed[0], signal.SIGKILL)

    long.when_begun(kill_once)
    long.run()

    steps = [event.step for event in long.events]
    assert [long.pid()] != killed
    assert steps.count(0) == 2  # claimed twice
    assert steps[steps.index(0, 1) + 1] >= 10  # and not started over
    assert long.store.standings()[1].attempts == 1  # its checkpoints reset the count
    assert max(event.save_s for event in long.events) > 0
    long.assert_undisturbed()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_an_interrupted_run_is_saved_and_continues_with_the_same_bits(long: Grid, number):
    long.when_begun(lambda _event: signal.raise_signal(number))
    with pytest.raises(KeyboardInterrupt):
        long.run()
    assert not lives(long.pid())
    assert long.has_checkpoint()  # although none was due
    long.assert_continues(long.run)
    assert min(event.step for event in long.events if event.step) >= 10


@pytest.mark.slow
def test_a_run_left_from_a_debugger_continues_from_its_last_checkpoint(long: Grid, often: None):
    def leave(_event: Event) -> None:
        raise BdbQuit  # what `q` does at the prompt of pdb

    long.when_begun(leave)
    with pytest.raises(KeyboardInterrupt):
        long.run_here()

    long.assert_continues(long.run_here)
    assert long.events[1].step >= 9


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_a_step_that_hangs(long: Grid, often: None, capfd):
    asked_at = []
    again = Timer(2, lambda: os.kill(os.getpid(), signal.SIGINT))

    def interrupt(_event: Event) -> None:
        if long.has_checkpoint():
            os.kill(long.pid(), signal.SIGSTOP)
            asked_at.append(time.monotonic())
            again.start()
            signal.raise_signal(signal.SIGINT)

    long.when_begun(interrupt)
    with pytest.raises(KeyboardInterrupt):
        long.run()

    assert time.monotonic() - asked_at[0] < 15  # 2 s on an idle machine
    assert "attnres: saving; Ctrl-C again ends at once" in capfd.readouterr().err
    long.assert_continues(long.run)


def save_slowly(ready: Path, saved: Path) -> None:
    """Write on SIGTERM what takes two seconds to write."""

    def save(*_: object) -> None:
        time.sleep(2)
        saved.touch()
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # held up, as in any worker
    ready.touch()
    time.sleep(60)


@pytest.mark.parametrize("last_words_s", [None, 0.1])
def test_ctrl_c_waits_for_checkpoints_as_long_as_the_last_ones_took(
    last_words_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
):
    """By default at least 20 seconds."""
    if last_words_s is not None:
        monkeypatch.setattr(pool, "_LAST_WORDS_S", last_words_s)
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    pool.prepare()
    process = get_context("forkserver").Process(target=save_slowly, args=(ready, saved))
    process.start()
    wait_until(ready.exists)
    worker = pool._Worker(0, process, Pipe()[0], 1, step=5, save_s=5.0 if last_words_s else 0.0)
    pool._end({0: worker}, by_hand=True)
    assert saved.exists()
    assert "attnres: saving; Ctrl-C again ends at once" in capfd.readouterr().err


@pytest.fixture
def new_server() -> Iterator[Callable[[], int]]:
    """The id of the process that workers are copied from, once the first of them starts it."""
    server = forkserver._forkserver
    server._stop()
    yield lambda: wait_until(lambda: server._forkserver_pid) or server._forkserver_pid
    server._stop()


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_the_imports_of_workers(grid: Grid, new_server):
    halted_at = []

    def halt() -> None:
        os.kill(new_server(), signal.SIGSTOP)
        halted_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    grid.wanted = lambda _n_free: Timer(0.3, halt).start() or grid.ids
    with pytest.raises(KeyboardInterrupt):
        grid.run()

    assert time.monotonic() - halted_at[0] < 10
    os.kill(new_server(), signal.SIGCONT)


@pytest.mark.slow
def test_the_process_that_workers_are_copied_from_may_be_killed(grid: Grid, new_server):
    kill = Timer(0.5, lambda: os.kill(new_server(), signal.SIGKILL))

    def wanted(_n_free: int) -> list[int]:
        if kill.ident is None:  # it has not begun: the server starts next, and dies in its imports
            kill.start()
        return grid.ids

    grid.wanted = wanted
    grid.run()

    assert grid.ended() == grid.ids


def kill_workers() -> None:
    for server in forked_by(os.getpid(), deep=False):
        for pid in forked_by(server):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_killed_before_its_first_run_is_replaced(grid: Grid, capfd):
    asked = []

    def wanted(n_free: int) -> list[int]:
        asked.append(n_free)
        if len(asked) in (2, 4):  # it has asked which run to take, and so has the next
            kill_workers()
        return grid.ids

    grid.wanted = wanted
    grid.run()

    assert grid.ended() == grid.ids
    assert [record.attempts for record in grid.store.standings(grid.ids).values()] == [1, 1]
    said = capfd.readouterr().err
    assert said.count("attnres: a worker process ended with SIGKILL") == 2


def test_workers_that_never_last_end_the_command_in_one_line(grid: Grid):
    grid.wanted = lambda _n_free: kill_workers() or grid.ids
    with pytest.raises(WorkersError, match=r"3 in a row died before they had a run: 2 runs left"):
        grid.run()
    assert WorkersError.exit_code == 3
    grid.assert_waiting()


def test_a_run_that_two_workers_die_of_fails_with_the_reason(long: Grid):
    told = []

    def kill(event: Event) -> None:
        told.append(event)
        if not event.done:
            os.kill(long.pid(), signal.SIGKILL)

    long.on_event = kill
    long.run()
    assert [event.done for event in told] == [False, False, True]
    (record,) = long.store.runs(ids=long.ids)
    assert record.status is Status.FAILED
    assert re.search("SIGKILL.* 2 times without a new checkpoint in between$", str(record.error))


def test_a_design_that_crashes_three_processes_is_given_up_and_every_death_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    grid = Grid(tmp_path, 5, "train.tokens=2k")
    grid.on_event = lambda event: event.done or os.kill(grid.pid(event.run_id), signal.SIGSEGV)
    grid.run()

    errors = [str(record.error) for record in grid.store.runs(ids=grid.ids)]
    assert {record.status for record in grid.store.runs(ids=grid.ids)} == {Status.FAILED}
    assert "2 times without a new checkpoint" in errors[0]
    why = f"given up: {DESIGN} has ended 3 worker processes with SIGSEGV"
    assert errors[1:] == [why] * 4
    said = capfd.readouterr().err
    for line in ("seed 0: its", "seed 0: its", "seed 1: its"):
        assert f"attnres: {DESIGN} {line} worker process ended with SIGSEGV (try " in said
    assert said.count("worker process ended with SIGSEGV") == 3
    assert f"attnres: {why}; 4 waiting runs of it failed" in said


def test_a_death_by_the_memory_killer_is_told_from_others():
    for code, for_memory, said in (
        (1, None, "exit code 1"),
        (-11, True, "SIGSEGV"),
        (-9, None, f"SIGKILL, out of memory?: {LESS}"),
        (-9, True, f"SIGKILL, from the machine's memory killer: {LESS}"),
        (-9, False, "SIGKILL, not from the machine's memory killer"),
    ):
        assert pool._how(code, for_memory) == f"ended with {said}"


def work_and_die(job: Job, moment: str) -> None:
    """Train run 1 in this process, which is killed at some moment of recording it."""
    finish = Store.finish

    def die(*_arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def finish_and_die(store: Store, record: RunRecord) -> None:
        if moment == "commit":
            listen(Engine, "commit", die)
        else:
            listen(Engine, "before_cursor_execute", lambda *a: moment in a[2] and die())
        finish(store, record)
        die()

    Store.finish = finish_and_die
    ours, theirs = Pipe()
    Store.open(job.study, create=True).release([1])
    ours.send((1,))  # the run that it will ask for
    work(0, job, theirs)


@pytest.mark.slow
def test_a_worker_killed_while_it_records_a_run_records_all_of_it_or_nothing(grid: Grid):
    pool.prepare()
    for moment in ("curve", "probes", "commit", "after the commit"):
        killed = get_context("forkserver").Process(target=work_and_die, args=(grid.job, moment))
        killed.start()
        killed.join()
        assert killed.exitcode == -signal.SIGKILL
        with grid.store._read() as connection:
            points = connection.exec_driver_sql("SELECT COUNT(*) FROM attnres_curve").scalar()
        is_there = moment == "after the commit"
        assert (grid.ended() == [1], points > 0) == (is_there, is_there), moment

    grid.run()

    grid.assert_undisturbed()


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


@pytest.mark.slow
def test_workers_start_with_all_imports_of_the_launchers_code(tmp_path: Path):
    (theirs := tmp_path / "theirs").mkdir()
    (theirs / "attnres_cli").symlink_to(Path(attnres_cli.__file__).parent)
    (theirs / "script.py").write_text(WHERE)
    (tmp_path / "random.py").write_text("raise SystemExit('imported by mistake')")
    command = [sys.executable, str(theirs / "script.py")]
    said = subprocess.check_output(command, cwd=tmp_path, text=True)
    assert said.split() == [str(theirs / "attnres_cli" / "__init__.py"), "True"]


def test_missing_data_end_the_command_and_fail_no_run(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)
    grid = Grid(tmp_path, 2, "data.source=text", f"data.path={text}")
    text.unlink()
    with pytest.raises(DataError, match=r"text\.txt does not exist"):
        grid.run()
    grid.assert_waiting()
    assert grid.events == []


@pytest.mark.slow
def test_ranks_whose_run_another_command_takes_go_on_with_the_next(
    grid: Grid, often: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    monkeypatch.setitem(WAYS, "ddp", Trainer)  # of one rank, which needs no group
    settings = replace(grid.job.settings, way="ddp on 1 ranks")
    grid.job, taken = replace(grid.job, settings=settings), list[int]()

    def take(event: Event) -> None:
        if not taken:
            taken.append(event.run_id)
            grid.store.let_go(event.run_id)
            time.sleep(0.5)  # several beats

    grid.when_begun(take)
    grid.run_here()

    assert taken == [1]
    assert grid.ended() == grid.ids


def test_a_run_that_another_command_removes_meanwhile_is_skipped(grid: Grid):
    grid.on_event = lambda event: event.done and grid.store.remove([2])
    grid.run()
    assert grid.store.statuses(grid.ids) == {1: Status.COMPLETE}


def test_a_run_of_another_process_is_left_to_it_while_it_lives_and_then_taken_over(grid: Grid):
    assert grid.store.claim([1]) is not None  # by this process, which lives

    def lose(event: Event) -> None:
        if event.done and event.run_id == 2:
            with grid.store._write() as connection:  # now its owner is gone
                connection.exec_driver_sql("UPDATE attnres_runs SET owner = 'nobody' WHERE id = 1")

    grid.on_event = lose
    grid.run()

    assert list(dict.fromkeys(event.run_id for event in grid.events)) == [2, 1]
    assert grid.ended() == grid.ids
