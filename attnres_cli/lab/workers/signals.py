"""Signals that end a command: raised as Ctrl-C is, wherever they meet Python."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a command to end."""


def interrupt(number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt with the signal's number; Ctrl-C names none."""
    raise KeyboardInterrupt(number)


@contextmanager
def handled(handlers: dict[signal.Signals, Callable[[int, Any], Any]]) -> Iterator[None]:
    """Handle these signals, but those that this process was told to ignore, as under nohup."""
    heeded = [n for n in handlers if signal.getsignal(n) is not signal.SIG_IGN]
    before = {n: signal.signal(n, handlers[n]) for n in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def none_lost() -> Iterator[None]:
    """Send a signal once more that Python met in a finalizer or a weak reference's callback: what
    is raised there it ignores with a message, and the command would go on.
    """
    usual = sys.unraisablehook

    def heed(lost: UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            number = lost.exc_value.args[0] if lost.exc_value.args else signal.SIGINT
            _thread.start_new_thread(_send, (number,))  # threading's would wait for locks here
        else:
            usual(lost)

    sys.unraisablehook = heed
    try:
        yield
    finally:
        sys.unraisablehook = usual


def _send(number: int) -> None:
    time.sleep(0.1)  # until the finalizer has ended
    os.kill(os.getpid(), number)
