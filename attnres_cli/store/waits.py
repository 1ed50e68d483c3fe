"""What a person hears of a database that lets us wait; workers tell it to their launcher."""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Engine, event

from attnres_cli.console import say

_SILENT_S = 8.0  # without an answer, then it is said
_LEAST_S = 60.0  # of silence, before a connection is cut
_LOOK_S = 0.5
_AGAIN_S = 60.0  # before the same words are said once more

_said: dict[str, float] = {}
_hears: list[Callable[[str], None]] = []


def hear(listener: Callable[[str], None]) -> None:
    """Hand what is told in this process to a listener, in place of stderr."""
    _hears[:] = [listener]


def tell(words: str) -> None:
    """Say why nothing goes on, unless that was said just now. Of several processes of one command
    the first says it: workers hand their words to it.
    """
    if _hears:
        _hears[0](words)
        return
    now = time.monotonic()
    if multiprocessing.parent_process() is None and now >= _said.get(words, -_AGAIN_S) + _AGAIN_S:
        _said[words] = now
        say(words)


class Stalls:
    """Notices a server that takes what an engine asks and does not answer."""

    def __init__(self, engine: Engine, study: str) -> None:
        self._study, self._asked_at = study, math.inf
        self._connections: weakref.WeakSet[Any] = weakref.WeakSet()
        for name in ("connect", "checkout"):
            event.listen(engine, name, lambda made, *_: self._connections.add(made))
        for name in ("before_cursor_execute", "commit"):
            event.listen(engine, name, self.ask)
        for name in ("after_cursor_execute", "handle_error", "checkin"):
            event.listen(engine, name, self._hear)

    def ask(self, *_: object) -> None:
        """Begin to count: the server is about to be asked."""
        self._asked_at = time.monotonic()

    def _hear(self, *_: object) -> None:
        self._asked_at = math.inf

    @contextmanager
    def watched(self, patience_s: float) -> Iterator[None]:
        """Inside, tell where the server is silent for seconds; after `patience_s` of silence, not
        less than a minute, connections are cut, which the query that waits sees as an outage.
        """
        over, patience_s = threading.Event(), max(_LEAST_S, patience_s)
        thread = threading.Thread(target=self._watch, args=(over, patience_s), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            self._hear()

    def _watch(self, over: threading.Event, patience_s: float) -> None:
        told = math.inf
        while not over.wait(_LOOK_S):
            asked_at = self._asked_at
            silent_s = time.monotonic() - asked_at
            if silent_s > _SILENT_S and told != asked_at:
                told, since = asked_at, datetime.now() - timedelta(seconds=silent_s)
                until = since + timedelta(seconds=patience_s)
                tell(
                    f"study {self._study}: the server has not answered since {since:%H:%M:%S}; "
                    f"waiting until {until:%H:%M:%S}"
                )
            if silent_s > patience_s:
                self._cut()

    def _cut(self) -> None:
        for connection in list(self._connections):
            with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)  # fails where it was closed meanwhile
