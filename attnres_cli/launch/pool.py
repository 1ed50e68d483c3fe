"""Worker processes on this machine: start them, listen to them, replace the ones that die."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from attnres_cli.launch.worker import Job, work
from attnres_cli.run import Event, RunRecord, Status
from attnres_cli.store import Store

OnEvent = Callable[[Event | None], None]
"""Called with every event, and with None now and then so that a display can move on."""

_TICK_S = 0.5


@dataclass
class _Worker:
    process: SpawnProcess
    events: Connection
    has_claimed: bool = False


def run_all(store: Store, jobs: Sequence[Job], on_event: OnEvent) -> list[RunRecord]:
    """Train all runs of the jobs, one worker process per job; the runs as they ended.

    A worker that dies is replaced and its run tried once more. Runs that a process of another
    command is training are waited for. All jobs name the same study and runs.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; the workers are ended, their runs wait again.
        RuntimeError: a worker died before it could claim a run.

    """
    ids = jobs[0].run_ids
    workers: dict[int, _Worker] = {}
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        while (unfinished := _unfinished(store, ids)) or workers:  # last words may be on the way
            waiting = sum(record.status is Status.PENDING for record in unfinished)
            for number in [n for n in range(len(jobs)) if n not in workers][:waiting]:
                workers[number] = _start(number, jobs[number])
            _listen(workers, on_event)
            _bury(workers, store, ids)
            if not workers:
                store.release(ids)  # of another command that has died meanwhile
        return store.runs(ids=ids)
    finally:
        _end(workers)
        store.release(ids)
        signal.signal(signal.SIGTERM, before)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _unfinished(store: Store, ids: Sequence[int]) -> list[RunRecord]:
    return [r for r in store.runs(ids=ids) if r.status in (Status.PENDING, Status.RUNNING)]


def _start(number: int, job: Job) -> _Worker:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    events, report = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(number, job, report), daemon=True)
    process.start()
    report.close()  # ours; the worker's end alone keeps the pipe open
    return _Worker(process, events)


def _listen(workers: dict[int, _Worker], on_event: OnEvent) -> None:
    """Pass on events until a worker has ended; without workers, let some time pass."""
    if not workers:
        time.sleep(_TICK_S)  # another command's process has our runs
        on_event(None)
    while workers:
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
            worker.has_claimed = True
            on_event(event)


def _bury(workers: dict[int, _Worker], store: Store, ids: Sequence[int]) -> None:
    """Forget workers that have ended; let the runs of those that died wait again."""
    for number, worker in list(workers.items()):
        code = worker.process.exitcode
        if code is None:
            continue
        worker.events.close()
        del workers[number]
        cause = f"the worker process ended with {_how(code)}"
        if code == -signal.SIGKILL:
            cause += ": out of memory? Lower train.batch_size or --workers"
        freed = store.release(ids, cause=cause)
        if code != 0 and not freed and not worker.has_claimed:
            raise RuntimeError(f"a worker process ended with {_how(code)} before it could start")


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _end(workers: dict[int, _Worker]) -> None:
    for worker in workers.values():
        worker.process.kill()
    for worker in workers.values():
        worker.process.join()
