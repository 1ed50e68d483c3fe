"""The heartbeat of a worker: a thread, since a step may take longer than beats may stay out."""

from __future__ import annotations

import threading

from attnres_cli.errors import StudyError
from attnres_cli.store import waits
from attnres_cli.store.owner import BEAT_S
from attnres_cli.store.store import Store
from attnres_cli.train.keeper import Keeper


class Heartbeat:
    """Beats for one run while entered; training is asked to stop where the run is another's. That
    is over with the run: whoever asked for nothing else goes on with the next.
    """

    def __init__(self, store: Store, run_id: int, keeper: Keeper) -> None:
        self._store, self._run_id, self._keeper = store, run_id, keeper
        self._is_lost = False  # and nobody else has asked training to stop
        self._wake, self._is_over, self._is_further = threading.Event(), False, False
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._wake.set()
        self._thread.join()
        if self._is_lost:
            self._keeper.stop.wanted = False

    def further(self, _step: int) -> None:
        """Beat at once: the run would go on from a later step now."""
        self._is_further = True
        self._wake.set()

    def _beat(self) -> None:
        while True:
            self._wake.wait(BEAT_S)
            self._wake.clear()
            further, self._is_further = self._is_further, False
            if self._is_over and not further:
                return
            try:
                is_ours = self._store.beat(self._run_id, self._keeper.step, further=further)
            except StudyError as error:  # locked, or a full disk: the next may get through
                waits.tell(f"{error}; training goes on, and so do tries to record it")
                if self._is_over:
                    return
                self._is_further |= further
                continue
            if not is_ours:
                self._is_lost = not self._keeper.stop.wanted
                self._keeper.stop.wanted = True
            if not is_ours or (self._is_over and not self._is_further):
                return
