"""Optuna's storage in the study's own database, beside our tables: each has its version table."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from attnres_cli import address
from attnres_cli.errors import StudyError
from attnres_cli.store import engine, postgres, sqlite

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

_WAIT_S = 60.0  # for a lock


def optuna_storage(study: str) -> RDBStorage:
    """Optuna's storage in the database of a study, which is made if it is not there.

    In a file, every transaction of Optuna takes the write lock when it begins: Optuna reads before
    it writes, and where two processes do so at once both would get one waiting trial.

    Raises:
        StudyError: the study cannot be opened, or its searches are another Optuna's.

    """
    from optuna.storages import RDBStorage

    ours = engine.connect(study, create=True)
    if not address.is_url(study):
        path = address.file_of(study).resolve()
        waits: dict[str, Any] = {"poolclass": NullPool, "connect_args": {"timeout": _WAIT_S}}
        with _alone_in(path.parent), _of_this_version(str(path)):
            found = RDBStorage(f"sqlite:///{path}", waits)
        sqlite.set_up(found.engine, begin="BEGIN IMMEDIATE")
        return found
    url, arguments = postgres.connection_of(study, readonly=False)
    shown, _ = address.parted(study)
    try:
        with ours.begin() as connection, _of_this_version(shown):
            postgres.alone(connection)
            return RDBStorage(url.render_as_string(hide_password=False), arguments)
    except DBAPIError as error:
        raise postgres.refusal(shown, error, opened=True) from error


def to_read(study: str) -> tuple[str, dict[str, Any]]:
    """The URL of a study's database, and what else `create_engine` is told, to read alone. The URL
    may hold a password.
    """
    if address.is_url(study):
        url, arguments = postgres.connection_of(study, readonly=True)
        return url.render_as_string(hide_password=False), arguments
    path = address.file_of(study).resolve()
    return "sqlite://", {"creator": partial(sqlite.connection_to_read, path)}


@contextmanager
def _of_this_version(study: str) -> Iterator[None]:
    """What Optuna says of tables that another version has made, as a StudyError."""
    try:
        yield
    except RuntimeError as error:
        if "table schema" not in str(error):
            raise
        raise StudyError(
            f"study {study}: its searches were written by another version of Optuna: {error}"
        ) from error


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for others who make Optuna's tables in a file there, who would get in each other's way.

    The folder is locked, since to close the file would lose SQLite's own locks.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
