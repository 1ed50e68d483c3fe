"""Functions run in several processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any


def _say(
    said: Queue[object], over: Event, function: Callable[..., object], *arguments: object
) -> None:
    try:
        said.put(function(*arguments))
    except Exception as error:
        said.put(repr(error))
    over.wait()


def in_processes(n: int, function: Callable[..., object], *arguments: object) -> list[Any]:
    """What a function returns in each of n processes, whose last argument is a barrier for all.
    None ends before all have answered: what a dead process holds may be taken from it.
    """
    context = multiprocessing.get_context("spawn")
    ready, said, over = context.Barrier(n), context.Queue(), context.Event()
    call = (said, over, function, *arguments, ready)
    processes = [context.Process(target=_say, args=call, daemon=True) for _ in range(n)]
    for process in processes:
        process.start()
    answers = [said.get(timeout=800) for _ in processes]
    over.set()
    for process in processes:
        process.join()
    return answers
