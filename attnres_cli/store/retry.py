"""What is done while a database server is away: try again for a while, then say so."""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from attnres_cli.console import say
from attnres_cli.errors import AwayError, UsageError

RETRY_S = "ATTNRES_RETRY_S"
"""Environment variable: seconds for which to try again."""

_FOR_S = 300.0
_FIRST_S, _LAST_S = 0.2, 10.0  # between two tries

_P = ParamSpec("_P")
_R = TypeVar("_R")


def retry_s() -> float:
    """For how many seconds. Raises UsageError where the environment says no such number."""
    text = os.environ.get(RETRY_S, str(_FOR_S))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{RETRY_S} must be a number of seconds from 0 up, got '{text}'")
    return seconds


def patiently(work: Callable[[], _R], patience_s: float, *, only_up: bool = False) -> _R:
    """What `work` returns, tried again and again while the server is away.

    Args:
        work: does all or nothing.
        patience_s: for how many seconds.
        only_up: not where the server cannot be reached at all, as under a wrong address.

    Raises:
        AwayError: it stayed away.

    """
    started, pause = time.monotonic(), _FIRST_S
    while True:
        try:
            return work()
        except AwayError as away:
            left = patience_s - (time.monotonic() - started)
            if left <= 0 or (only_up and not away.is_up):
                raise
            if pause == _FIRST_S and multiprocessing.parent_process() is None:  # one says it
                say(f"{away}; trying again for {patience_s:g} s")
            time.sleep(min(pause * random.uniform(0.5, 1.0), left))  # noqa: S311  # not all at once
            pause = min(2 * pause, _LAST_S)


def patient(
    method: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[Any, _P], _R]:
    """The method of a store, tried again for its `patience_s`: each is one transaction."""

    def tried(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return patiently(lambda: method(self, *args, **kwargs), self.patience_s)

    functools.update_wrapper(tried, method)
    return tried
