"""Transactions on an open study, and what the database refuses in them, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from attnres_cli.config import address
from attnres_cli.store import owner, postgres, sqlite
from attnres_cli.store.engine import refusal


class Transactions:
    """Short ones, each of which is done whole or not at all.

    Args:
        engine: on the study.
        name: of the study, as it may be shown.
        folder: where its file lies; nothing looks there where it is on a server.

    Attributes:
        watch: of the heartbeats that were seen.

    """

    def __init__(self, engine: Engine, name: str, folder: Path) -> None:
        is_file = engine.dialect.name == "sqlite"
        self._name, self._folder = name, folder if is_file else None
        self._file = address.file_of(name).resolve() if is_file else None
        self._reading = engine if is_file else postgres.snapshots(engine)
        self._writing = sqlite.immediate(engine) if is_file else engine
        self.watch = owner.Watch()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """See the study at one moment. Raises StudyError."""
        unchanged = sqlite.unchanged(self._file) if self._file else nullcontext()
        with self._explained(), unchanged, self._reading.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Change rows of the study. Raises StudyError."""
        with self._explained(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def alone(self) -> Iterator[Connection]:
        """Write what others may be about to write too. SQLite has one writer at a time anyway."""
        with self.write() as connection:
            if connection.dialect.name == "postgresql":
                postgres.alone(connection)
            yield connection

    def hang_up(self) -> None:
        """Keep no connection to a server until the next transaction."""
        self._writing.pool.dispose()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the database refuses (disk full, locked for a minute, damaged), as a StudyError."""
        try:
            yield
        except DBAPIError as error:
            self.watch = owner.Watch()  # no heartbeat could be seen: nobody is gone for that
            raise refusal(self._name, error, self._folder) from error
