"""What is done while a database server is away: try again for a while, then say so."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import tenacity

from attnres_cli.errors import AwayError, UsageError
from attnres_cli.store import waits

RETRY_S = "ATTNRES_RETRY_S"  # environment variable: seconds for which to try again

_FOR_S = 300.0
_PAUSES = tenacity.wait_random_exponential(multiplier=0.4, max=10)  # random: not all at once

_P = ParamSpec("_P")
_R = TypeVar("_R")


def retry_s() -> float:
    """For how many seconds. Raises UsageError where the environment says no such number."""
    return seconds_of(RETRY_S, _FOR_S)


def seconds_of(variable: str, usual: float) -> float:
    """The seconds that an environment variable says. Raises UsageError where it says none."""
    text = os.environ.get(variable, str(usual))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise UsageError(f"{variable} must be a number of seconds from 0 up, got '{text}'")
    return seconds


def patiently(work: Callable[[], _R], patience_s: float, *, only_up: bool = False) -> _R:
    """What `work` returns, tried again for patience_s seconds while the server is away. `work` must
    do all or nothing. With `only_up` a server that cannot be reached at all, as under a wrong
    address, is not tried again. Raises AwayError.
    """

    def is_away(error: BaseException) -> bool:
        return isinstance(error, AwayError) and (error.is_up or not only_up)

    def tell(tried: tenacity.RetryCallState) -> None:
        if tried.attempt_number == 1:
            away = tried.outcome.exception() if tried.outcome else None
            waits.tell(f"{away}; trying again for {patience_s:g} s")

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_away),
        stop=tenacity.stop_after_delay(patience_s),
        wait=_PAUSES,
        before_sleep=tell,
        reraise=True,
    )(work)


def patient(
    method: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[Any, _P], _R]:
    """The method of a store, tried again for its `patience_s`: each is one transaction."""

    @wraps(method)
    def tried(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return patiently(lambda: method(self, *args, **kwargs), self.patience_s)

    return tried
