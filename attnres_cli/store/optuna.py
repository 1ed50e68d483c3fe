"""Optuna's storage in the study's own database, beside our tables: each has its version table."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from attnres_cli.config import address
from attnres_cli.errors import StudyError
from attnres_cli.store import engine, postgres, sqlite
from attnres_cli.store.queries import has_searches
from attnres_cli.store.retry import patiently, retry_s
from attnres_cli.store.waits import Stalls

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

T = TypeVar("T")
Turn = Callable[[], AbstractContextManager[None]]


@contextmanager
def optuna_storage(study: str) -> Iterator[RDBStorage]:
    """Optuna's storage in the database of a study, which is made if it is not there. On a server it
    keeps one connection until the end: it asks a hundred things to find what to try next.

    In a file, every transaction of Optuna takes the write lock when it begins: Optuna reads before
    it writes, and where two processes do so at once both would get one waiting trial.
    """
    storage = patiently(partial(_storage, study), retry_s())
    stalls = Stalls(storage.engine, address.parted(study)[0])
    try:
        with stalls.watched(retry_s()) if address.is_url(study) else nullcontext():
            yield storage
    finally:
        _close(storage)


def make_tables(study: str) -> None:
    """Make Optuna's tables in a study without searches, for its dashboard to show an empty list.
    Optuna itself makes them, in 0.6 s of a CPU.
    """
    with optuna_storage(study):
        pass


@contextmanager
def turns(study: str) -> Iterator[Turn]:
    """Yields a Turn: inside it one command alone changes a study's searches, and others wait."""
    if not address.is_url(study):
        yield partial(_alone_in, address.file_of(study).resolve().parent)
        return
    lock = postgres.engine_of(study, readonly=False, keeps=True)

    @contextmanager
    def alone() -> Iterator[None]:
        with lock.begin() as connection:
            postgres.alone(connection)
            yield

    try:
        yield alone
    finally:
        lock.dispose()


def _storage(study: str) -> RDBStorage:
    from optuna.storages import RDBStorage

    engine.connect(study, create=True)
    if not address.is_url(study):
        path = address.file_of(study).resolve()
        opens = sqlite.same_file(partial(sqlite.connection_to_create, path), path)
        with _alone_in(path.parent), explained(study):
            found = RDBStorage(f"sqlite:///{path}", {"poolclass": NullPool, "creator": opens})
        sqlite.set_up(found.engine, begin="BEGIN IMMEDIATE")
        return found
    url, arguments = postgres.connection_of(study, readonly=False)
    text = url.render_as_string(hide_password=False)
    _, keeping = postgres.connection_of(study, readonly=False, keeps=True)
    with explained(study):
        with turns(study) as alone, alone():
            RDBStorage(text, arguments)  # makes the tables, or refuses those of another Optuna
        return RDBStorage(text, keeping, skip_compatibility_check=True, skip_table_creation=True)


@contextmanager
def explained(study: str) -> Iterator[None]:
    """Turn what Optuna or its database refuses into a StudyError, without a password."""
    from optuna.exceptions import StorageInternalError

    shown, _ = address.parted(study)
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        refused = _refused(error)
        if refused is not None and address.is_url(study):
            raise postgres.refusal(shown, refused, opened=True) from error
        cause = error if refused is None else refused.orig
        raise StudyError(f"the searches of study {shown}: {_line(cause)}") from error
    except RuntimeError as error:
        if "schema" not in str(error):
            raise
        raise StudyError(
            f"study {shown}: its searches were written by another version of Optuna: {_line(error)}"
        ) from error


def _refused(error: BaseException | None) -> DBAPIError | None:
    """The database's own error, however deep: Optuna retries some queries on a lost connection."""
    while error is not None and not isinstance(error, DBAPIError):
        error = error.__cause__ or error.__context__
    return error


def _line(error: object) -> str:
    return " ".join(str(error).split())


def asking(study: str, work: Callable[[], T]) -> T:
    """What `work` returns, which asks Optuna; tried again while the server is away."""
    return patiently(explained(study)(work), retry_s())


@contextmanager
def searches_to_read(study: str) -> Iterator[RDBStorage | None]:
    """Optuna's storage of a study, which is not changed; None where there is no search yet."""
    from optuna.storages import RDBStorage

    kept: AbstractContextManager[None] = nullcontext()
    if address.is_url(study):
        found, arguments = postgres.connection_of(study, readonly=True)
        url = found.render_as_string(hide_password=False)
    elif (path := address.file_of(study).resolve()).exists():
        url, arguments = "sqlite://", {"creator": partial(sqlite.connection_to_read, path)}
        kept = sqlite.unchanged(path)
    else:
        yield None
        return
    with kept, explained(study), ExitStack() as end:
        opened = create_engine(url, **arguments)
        end.callback(opened.dispose)
        with opened.connect() as connection:
            if not has_searches(connection):  # nor may all of Optuna's tables be there yet
                yield None
                return
        storage = RDBStorage(url, engine_kwargs=arguments, skip_table_creation=True)
        end.callback(_close, storage)
        yield storage


def _close(storage: RDBStorage) -> None:
    storage.remove_session()
    storage.engine.dispose()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for others who change searches there. SQLite's own locks would go with a closed file."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
