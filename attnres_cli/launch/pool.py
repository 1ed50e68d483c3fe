"""Worker processes on this machine: start them, listen to them, replace the ones that die."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from attnres_cli.errors import AwayError, StudyError
from attnres_cli.launch.worker import AWAY, NO_STUDY, Job, checkpoint_s, work
from attnres_cli.run import Event, RunRecord, Status
from attnres_cli.store import Store
from attnres_cli.train import clear

OnEvent = Callable[[Event | None], None]
"""Called with every event, and with None now and then so that a display can move on."""

_TICK_S = 0.5
_LOOK_S = 5.0  # between looks at the study while workers train
_LAST_WORDS_S = 20.0  # for checkpoints, when all is to end


@dataclass
class _Worker:
    process: SpawnProcess
    events: Connection
    has_claimed: bool = False
    step: int = 0  # of the run it has


def run_all(store: Store, jobs: Sequence[Job], on_event: OnEvent) -> list[RunRecord]:
    """Train all runs of the jobs, one worker process per job; the runs as they ended.

    A worker that dies is replaced and its run goes on. Runs that a process of another command is
    training are waited for, and taken over if it is gone. All jobs name the same study and runs.

    Raises:
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; the workers write their runs down and end,
            the runs wait again.
        RuntimeError: a worker died before it could claim a run.
        StudyError: a worker could not use the study, as on a full disk; no run is to blame.
            `AwayError`: its server stayed away.
        UsageError: the environment says no number of seconds between checkpoints.

    """
    ids = jobs[0].run_ids
    checkpoint_s()
    workers: dict[int, _Worker] = {}
    before, patience_s = _on_signals(_interrupt), store.patience_s
    try:
        while (unfinished := _unfinished(store, ids)) or workers:  # last words may be on the way
            waiting = sum(status is Status.PENDING for status in unfinished)
            for number in [n for n in range(len(jobs)) if n not in workers][:waiting]:
                workers[number] = _start(number, jobs[number])
            _listen(workers, on_event)
            _bury(workers, store, ids)
            store.release(ids)  # of processes of another command that have died meanwhile
        return store.runs(ids=ids)
    finally:
        store.patience_s = 0.0  # nobody waits for a server in order to end
        _end(workers)
        for number, handler in before.items():
            signal.signal(number, handler)
        with suppress(AwayError):  # the next command finds that our workers are gone
            store.release(ids)
            _sweep(store, ids)
        store.patience_s = patience_s


def _on_signals(handler: Callable[[int, object], None]) -> dict[int, Any]:
    """Let SIGTERM and SIGHUP call it, unless they are ignored, as under nohup; what they did."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    heeded = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in heeded}


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _unfinished(store: Store, ids: Sequence[int]) -> list[Status]:
    found = store.statuses(ids).values()
    return [status for status in found if status in (Status.PENDING, Status.RUNNING)]


def _start(number: int, job: Job) -> _Worker:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    events, report = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(number, job, report), daemon=True)
    process.start()
    report.close()  # ours; the worker's end alone keeps the pipe open
    return _Worker(process, events)


def _listen(workers: dict[int, _Worker], on_event: OnEvent) -> None:
    """Pass on events until a worker has ended, or it is time to look at the study again."""
    if not workers:
        time.sleep(_TICK_S)  # another command's process has our runs
        on_event(None)
    look_at = time.monotonic() + _LOOK_S
    while workers and time.monotonic() < look_at:
        ready = wait([worker.events for worker in workers.values()], timeout=_TICK_S)
        on_event(None)
        for worker in workers.values():
            if worker.events not in ready:
                continue
            try:
                event = worker.events.recv()
            except (EOFError, OSError):
                worker.process.join()
                return
            worker.has_claimed, worker.step = True, event.step
            on_event(event)


def _bury(workers: dict[int, _Worker], store: Store, ids: Sequence[int]) -> None:
    """Forget workers that have ended; let the runs of those that died wait again."""
    for number, worker in list(workers.items()):
        code = worker.process.exitcode
        if code is None:
            continue
        worker.events.close()
        del workers[number]
        if code == NO_STUDY:
            raise StudyError("a worker could not use the study (above); the same command goes on")
        if code == AWAY:
            store.release(ids)
            continue
        cause = f"the worker process ended with {_how(code)}"
        if code == -signal.SIGKILL:
            cause += ": out of memory? Lower train.batch_size or --workers"
        freed = store.release(ids, cause=cause)
        if code != 0 and not freed and not worker.has_claimed:
            raise RuntimeError(f"a worker process ended with {_how(code)} before it could start")


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _end(workers: dict[int, _Worker]) -> None:
    """Let workers that have come somewhere write that down, for as long as they may; end all."""
    try:
        for worker in workers.values():
            if worker.step:
                worker.process.terminate()
            else:
                worker.process.kill()
        deadline = time.monotonic() + _LAST_WORDS_S
        for worker in workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
    except KeyboardInterrupt:  # asked twice
        pass
    for worker in workers.values():
        worker.process.kill()
    for worker in workers.values():
        worker.process.join()


def _sweep(store: Store, ids: Sequence[int]) -> None:
    """Remove what runs that are over have left, where a process was killed before it could."""
    for record in store.runs(ids=ids) if store.folder.exists() else ():
        if record.result is not None:
            clear(store.folder_of(record))
