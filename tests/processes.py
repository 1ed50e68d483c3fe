"""Functions run in several processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any


def _say(said: Queue[object], function: Callable[..., object], *arguments: object) -> None:
    try:
        said.put(function(*arguments))
    except Exception as error:
        said.put(repr(error))


def in_processes(n: int, function: Callable[..., object], *arguments: object) -> list[Any]:
    """What a function returns in each of n processes, which go on together at the barrier that is
    its last argument.
    """
    context = multiprocessing.get_context("spawn")
    ready, said = context.Barrier(n), context.Queue()
    call = (said, function, *arguments, ready)
    processes = [context.Process(target=_say, args=call, daemon=True) for _ in range(n)]
    for process in processes:
        process.start()
    answers = [said.get(timeout=800) for _ in processes]
    for process in processes:
        process.join()
    return answers
