"""Worker processes on this machine: start them, listen to them, replace the ones that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from attnres_cli.console import detail, say
from attnres_cli.errors import AttnresError, AwayError, WorkersError
from attnres_cli.lab.workers.signals import ENDING, handled, interrupt
from attnres_cli.lab.workers.worker import Job, checkpoint_s, work
from attnres_cli.records.machine import memory_kills
from attnres_cli.records.run import WAITS, Event, Status
from attnres_cli.store import waits
from attnres_cli.store.store import MAX_ATTEMPTS, Store
from attnres_cli.train.checkpoint import clear
from attnres_cli.verdict.numbers import plural

OnEvent = Callable[[Event | None], None]
"""Called with every event, and with None now and then so that a display can move on."""

Wanted = Callable[[int], Sequence[int]]
"""Called with how many workers are free, before each of their runs; returns the runs to train, the
first ones first. Ended runs may be among them: all is done when no others are.
"""

_TICK_S = 0.5
_LOOK_S = 5.0  # between looks at the study while workers train
_LAST_WORDS_S = 20.0  # for checkpoints, when all is to end; a batch system waits for longer
_MOST_LAST_WORDS_S = 300.0  # where the last one took long
_QUIET_S = 1.0  # in which nobody wonders what a command does that was asked to end
_PRELOADED = "attnres_cli.lab.workers.preload"
_KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**25)}
"""For glibc: it gives the system back what a step frees, and pays 4 % of the next step to have it
again; so much is the most that it takes.
"""
_MOST_DEATHS = 3  # in a row in one worker's place, none in a run; of one kind in runs of a design
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
"""Signals by which a process ends for what it computes, not for what somebody wants."""


@dataclass
class _Worker:
    number: int  # of its job
    process: BaseProcess
    line: Connection
    run_id: int | None = None  # of the run it has now
    step: int = 0  # of that run
    save_s: float = 0.0  # that its last checkpoint took


def run_all(store: Store, jobs: Sequence[Job], wanted: Wanted, on_event: OnEvent) -> None:
    """Train all wanted runs, one worker process per job, each for as long as there is a run for it.

    A worker that dies is replaced and its run goes on; where three in a row died before they had a
    run, the others go on without a fourth. Runs that a process of another command is training are
    waited for, and taken over if it is gone.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; workers save their runs, if they can in
            the time that there is and before a second Ctrl-C, and these wait again.
        WorkersError: one after the other died before it could claim a run.
        StudyError: a worker could not use the study (`AwayError`: its server stayed away).
        DataError: a worker could not load the data.
    """
    checkpoint_s()
    pool, patience_s = _Pool(store, jobs, wanted, on_event), store.patience_s
    by_hand = False
    with handled(dict.fromkeys(ENDING[1:], interrupt)):
        try:
            pool.work()
        except KeyboardInterrupt as asked:
            by_hand = not asked.args
            raise
        finally:
            store.patience_s = 0.0  # nobody waits for a server in order to end
            _end(pool.workers, by_hand=by_hand)
            with suppress(AwayError):  # the next command finds that our workers are gone
                store.release(list(pool.seen))
                sweep(store)
            store.patience_s = patience_s


class _Pool:
    """The workers of one call, by the number of their job; the runs that were ever wanted."""

    def __init__(
        self, store: Store, jobs: Sequence[Job], wanted: Wanted, on_event: OnEvent
    ) -> None:
        self.workers: dict[int, _Worker] = {}
        self.seen: dict[int, None] = {}  # in their order
        self._deaths: Counter[int] = Counter()  # since a worker in this place has begun a run
        self._crashes: Counter[tuple[str, int]] = Counter()  # by design and signal
        self._kills = memory_kills()
        self._store, self._jobs, self._wanted, self._on_event = store, jobs, wanted, on_event

    def work(self) -> None:
        """Until no run is left and all workers have ended: last words may be on the way."""
        while True:
            places = [n for n in range(len(self._jobs)) if self._deaths[n] < _MOST_DEATHS]
            free = [number for number in places if number not in self.workers]
            unfinished = self._unfinished(len(free))
            if not unfinished and not self.workers:
                return
            waiting = sum(status is Status.PENDING for status in unfinished.values())
            idle = sum(worker.run_id is None for worker in self.workers.values())  # they will ask
            if waiting and not places and not self.workers:
                raise WorkersError(
                    f"no worker process lasts, {_MOST_DEATHS} in a row died before they had a run: "
                    f"{plural(waiting, 'run')} left, the same command goes on"
                )
            for number in free[: max(0, waiting - idle)]:
                self._start(number)
            self._listen()
            self._reap()
            self._store.release(list(self.seen))  # of another command's processes that have died

    def _start(self, number: int) -> None:
        try:
            self.workers[number] = _start(number, self._jobs[number])
            detail(f"worker {number} is process {self.workers[number].process.pid}")
        except (EOFError, OSError) as error:  # the process that it is copied from was killed
            self._deaths[number] += 1
            say(f"a worker process could not be started{f': {error}' if str(error) else ''}")

    def _unfinished(self, n_free: int) -> dict[int, Status]:
        """Wanted runs that have not ended, by id, in their order."""
        ids = self._wanted(n_free)
        self.seen |= dict.fromkeys(ids)
        found = self._store.statuses(ids)
        return {run_id: found[run_id] for run_id in ids if found.get(run_id) in WAITS}

    def _listen(self) -> None:
        """Answer workers until one has ended, or it is time to look at the study again."""
        if not self.workers:
            time.sleep(_TICK_S)  # another command's process has our runs
            self._on_event(None)
        look_at = time.monotonic() + _LOOK_S
        while self.workers and time.monotonic() < look_at:
            ready = wait([worker.line for worker in self.workers.values()], timeout=_TICK_S)
            self._on_event(None)
            for worker in [each for each in self.workers.values() if each.line in ready]:
                try:
                    event = worker.line.recv()
                except (EOFError, OSError):
                    worker.process.join()
                    return
                self._answer(worker, event)

    def _answer(self, worker: _Worker, event: Event | AttnresError | str | None) -> None:
        if isinstance(event, AttnresError):
            raise event
        if isinstance(event, str):  # why it waits
            waits.tell(event)
            return
        if event is not None:
            worker.run_id, self._deaths[worker.number] = event.run_id, 0
            worker.step = 0 if event.done else event.step  # what there is to write down
            worker.save_s = event.save_s
            self._on_event(event)
            return
        worker.run_id, worker.step = None, 0
        unfinished = self._unfinished(1).items()
        with suppress(OSError):  # it has died: that is seen where it is listened to
            worker.line.send([n for n, status in unfinished if status is Status.PENDING])

    def _reap(self) -> None:
        """Forget workers that have ended; let the runs of those that died wait again."""
        kills, before = memory_kills(), self._kills
        self._kills = kills
        for number, worker in list(self.workers.items()):
            code = worker.process.exitcode
            if code is None:
                continue
            worker.line.close()
            del self.workers[number]
            if code == 0:
                continue
            how = _how(code, None if kills is None or before is None else kills > before)
            if worker.run_id is None:
                self._deaths[number] += 1
                say(f"a worker process {how}")
                continue
            self._tell_of_death(worker.run_id, how)
            times = f"{MAX_ATTEMPTS} times without a new checkpoint in between"
            self._store.release(list(self.seen), cause=f"its worker process {how}; {times}")
            if self._store.statuses([worker.run_id]).get(worker.run_id) is Status.FAILED:
                self._on_event(Event(worker.number, worker.run_id, done=True))
            if -code in _CRASHES:
                self._count_crash(worker.run_id, -code)

    def _tell_of_death(self, run_id: int, how: str) -> None:
        """Say which run a worker died in, and how many tries it has."""
        found = self._store.runs(ids=[run_id], curves=False)
        tries = self._store.standings([run_id])
        for record in found:  # none where it was removed meanwhile
            of = f"try {tries[run_id].attempts} of {MAX_ATTEMPTS}"
            say(f"{record.variant} seed {record.seed}: its worker process {how} ({of})")

    def _count_crash(self, run_id: int, number: int) -> None:
        """Give a design up whose runs have crashed several processes in one way: its other runs
        would do that too.
        """
        every = {run.id: run for run in self._store.runs(ids=list(self.seen), curves=False)}
        if run_id not in every:
            return
        variant, name = every[run_id].variant, signal.Signals(number).name
        self._crashes[variant, number] += 1
        if self._crashes[variant, number] != _MOST_DEATHS:
            return
        waiting = [run for run in every.values() if run.variant == variant]
        waiting = [run for run in waiting if run.status is Status.PENDING]
        why = f"given up: {variant} has ended {_MOST_DEATHS} worker processes with {name}"
        for run in waiting:
            if self._store.claim([run.id]) is not None:
                self._store.fail(run.id, why, run.versions)
        say(f"{why}; {plural(len(waiting), 'waiting run')} of it failed")


def _start(number: int, job: Job) -> _Worker:
    """A worker process. On a CPU it is a fork of one with torch; CUDA does not survive forks."""
    context = multiprocessing.get_context("forkserver" if job.device == "cpu" else "spawn")
    line, theirs = context.Pipe()
    arguments = (dict(os.environ), number, job, theirs)
    process = context.Process(target=_work, args=arguments, daemon=True)  # type: ignore[attr-defined]
    if job.device == "cpu":
        prepare()
        process.start()  # waits for imports, not to be held up: the copy ends where we are gone
    else:
        with _held_up():
            process.start()
    theirs.close()  # the worker's own alone keeps the pipe open
    return _Worker(number, process, line)


def prepare() -> None:
    """Start the process that CPU workers are copied from, unless it runs: its imports take two
    seconds, for which nobody waits yet. It lives as long as this one, and never heeds a signal that
    is to end it.
    """
    forkserver.set_forkserver_preload([_PRELOADED])
    before = dict(os.environ)
    os.environ.update(_KEEPS_MEMORY | before)
    os.environ["PYTHONPATH"] = os.pathsep.join(each or str(Path.cwd()) for each in sys.path)
    os.environ["PYTHONSAFEPATH"] = "1"  # it imports what we do, no `random.py` of this folder
    try:
        with _held_up():
            forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _held_up() -> Iterator[None]:
    """Start processes that find the signals to all of ours blocked, until they know what to do."""
    resource_tracker.ensure_running()  # which a start would do, and let Ctrl-C through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(environment: dict[str, str], number: int, job: Job, line: Connection) -> None:
    """Run in the worker, where the environment may be that of the process it is a copy of."""
    os.environ.clear()
    os.environ.update(environment)
    work(number, job, line)


def _how(code: int, for_memory: bool | None) -> str:
    """`ended with exit code 1`; `for_memory`: whether the memory killer was at work."""
    text = "ended with " + (f"exit code {code}" if code > 0 else signal.Signals(-code).name)
    if code != -signal.SIGKILL:
        return text
    if for_memory is False:
        return f"{text}, not from the machine's memory killer"
    who = "from the machine's memory killer" if for_memory else "out of memory?"
    return f"{text}, {who}: lower train.batch_size or --workers"


def _end(workers: dict[int, _Worker], *, by_hand: bool) -> None:
    """Let workers that have come somewhere write that down, unless that takes too long or Ctrl-C
    comes again; end all. Where it takes a while, who typed Ctrl-C is told.
    """
    slowest = max((worker.save_s for worker in workers.values()), default=0.0)
    last_words_s = min(max(_LAST_WORDS_S, 2 * slowest), _MOST_LAST_WORDS_S)
    started = time.monotonic()
    try:
        for worker in workers.values():
            if worker.step:
                worker.process.terminate()
            else:
                worker.process.kill()
        if by_hand and not _ended(workers, started + _QUIET_S):
            say("saving; Ctrl-C again ends at once")
        _ended(workers, started + last_words_s)
    except KeyboardInterrupt:  # asked twice
        pass
    for worker in workers.values():
        worker.process.kill()
    for worker in workers.values():
        worker.process.join()


def _ended(workers: dict[int, _Worker], deadline: float) -> bool:
    """Whether all have, by then."""
    for worker in workers.values():
        worker.process.join(max(0.0, deadline - time.monotonic()))
    return all(worker.process.exitcode is not None for worker in workers.values())


def sweep(store: Store) -> None:
    """Remove what runs that are over have left on this machine, whose process, or which itself,
    died before it could: another one has ended them since.
    """
    left = {folder.name for folder in store.folder.iterdir()} if store.folder.is_dir() else set()
    for record in store.runs(curves=False) if left else ():
        if record.result is not None and store.folder_of(record).name in left:
            with suppress(OSError):  # of another user
                clear(store.folder_of(record), store.weights_of(record).name)
