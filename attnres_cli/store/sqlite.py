"""A study in a file: what is wrong with it, how to connect, and what SQLite's refusals mean."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from attnres_cli.config import address
from attnres_cli.errors import AwayError, NoStudyError, StudyError

T = TypeVar("T")

_HEADER = b"SQLite format 3\0"
_PACKED = {b"\xfd7zXZ\0": "xz -dk", b"\x1f\x8b": "gunzip -k", b"\x28\xb5\x2f\xfd": "unzstd"}
_BUSY_MS = 10_000  # then it is said who waits for whom, and tried again
_LITTLE_BYTES = 2**17  # free, where a write of a few pages may fail


def path_of(study: str) -> Path:
    """Where the file of a study is. Raises StudyError where this names none."""
    if study.startswith("file:") or study == "" or study.endswith(("///", ":memory:")):
        raise StudyError(f"study '{study}': give --study the path of a file, or a URL")
    return address.file_of(study)


def check_file(path: Path, create: bool) -> None:
    """Refuse what is no SQLite file, or could not be made there. Raises StudyError."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise StudyError(f"study {path}: folder {folder} does not exist, make it first")
    if path.is_dir():
        raise StudyError(f"study {path} is a folder: name a file in it, as {path / 'attnres.db'}")
    if path.exists() and not path.is_file():
        raise StudyError(f"study {path} is no file: --study names another, or a new one")
    if not path.exists():
        if not create:
            raise NoStudyError(f"no study at {path}: `attnres ablate` makes one, --study names it")
        if not os.access(folder, os.W_OK):
            raise StudyError(f"study {path}: folder {folder} cannot be written to")
        return
    if create and not os.access(path, os.W_OK):
        raise StudyError(f"study {path} cannot be written to")
    try:
        with path.open("rb") as file:
            header = file.read(len(_HEADER))
    except OSError as error:
        raise StudyError(f"study {path} cannot be read: {error.strerror}") from error
    if header and header != _HEADER:
        raise StudyError(f"study {path} {_instead(path, header)}")


def _instead(path: Path, header: bytes) -> str:
    """What a file that begins like this is, and what to type."""
    for start, command in _PACKED.items():
        if header.startswith(start):
            return f"is compressed: `{command} {path}`, then --study {path.with_suffix('')}"
    return "is not a SQLite file: --study names another, or a new one"


def engine_of(path: Path, *, readonly: bool) -> Engine:
    """An engine on the file; nothing is opened yet."""
    opens = partial(connection_to_read if readonly else _connection, path.resolve())
    engine = create_engine("sqlite://", creator=same_file(opens, path), poolclass=NullPool)
    set_up(engine, readonly=readonly)
    return engine


def same_file(opens: Callable[[], T], path: Path) -> Callable[[], T]:
    """Open the file that was opened first, or raise StudyError: it may have been removed, of which
    SQLite would make an empty one, or another put into its place, beside which its -wal may lie.
    """
    resolved, first = path.resolve(), list[tuple[int, int]]()

    def refuse_others(number: tuple[int, int] | None) -> None:
        if number is None:
            raise StudyError(
                f"study {path} was removed while this ran: nothing is written any more"
            )
        if number != first[0]:
            raise StudyError(
                f"study {path} was replaced by another file while this ran: nothing is written to "
                "it; the same command goes on with what lies there now"
            )

    def opened() -> T:
        if first:
            refuse_others(_number(resolved))
        found = opens()
        number = _number(resolved)
        if first or number is None:  # it may have been removed while it was opened
            refuse_others(number)
        else:
            first.append(number)
        return found

    return opened


def _number(path: Path) -> tuple[int, int] | None:
    """The device and number of a file; None where none is there."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_dev, state.st_ino


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Read a file, of which a user who may not write there locks nothing: others write meanwhile.
    Raises AwayError where they did, so that what was read may be of two moments.
    """
    before = _signature(path)
    try:
        yield
    finally:
        if _signature(path) != before:
            raise AwayError(f"study {path} was written to while it was read", is_up=True)


def _signature(path: Path) -> tuple[object, ...]:
    """What differs when the file has been written to; empty where reading locks it."""
    if not path.exists() or _may_be_written(path):
        return ()
    state = path.stat()
    return state.st_mtime_ns, state.st_size, Path(f"{path}-wal").exists()


def _may_be_written(path: Path) -> bool:
    return all(os.access(each, os.W_OK, effective_ids=True) for each in (path, path.parent))


def connection_to_read(path: Path) -> sqlite3.Connection:
    """A connection that can write nothing, on a disk that may not be written to either."""
    # mode=ro would leave -wal and -shm beside the file; query_only cleans up behind itself.
    mode = "rw"
    if not _may_be_written(path) and not Path(f"{path}-wal").exists():
        mode = "ro&immutable=1"  # SQLite cannot make the files it would lock by
    found = _connection(path, mode)
    try:
        found.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if not _is_cramped(str(error), path.parent):
            raise
        found.close()
        found = _connection(path, mode)  # alone it needs no -shm, for which a full disk has no room
        found.execute("PRAGMA locking_mode = EXCLUSIVE")
    found.execute("PRAGMA query_only = ON")
    return found


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> _Cursor:
        reads = sql.lstrip().upper().startswith(("SELECT", "PRAGMA", "BEGIN"))
        if not reads and not self.connection.in_transaction:
            super().execute("BEGIN IMMEDIATE")
        super().execute(sql, parameters)
        return self


class _Creating(sqlite3.Connection):
    def cursor(self, factory: Any = _Cursor, /) -> Any:
        return super().cursor(factory)


def connection_to_create(path: Path) -> sqlite3.Connection:
    """For a library that makes tables: each transaction begins before its first write."""
    found = _connection(path, factory=_Creating)
    found.isolation_level = None  # or sqlite3 commits before each DDL statement
    return found


def _connection(
    path: Path, mode: str = "rwc", factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=_BUSY_MS / 1000,
        check_same_thread=False,
        factory=factory,
    )


def set_up(engine: Engine, *, readonly: bool = False, begin: str = "BEGIN") -> None:
    """Let connections wait for each other, and begin with `begin` or the option attnres_begin."""

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # or sqlite3 commits before each DDL statement
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA foreign_keys = ON")
        if not readonly:
            connection.execute("PRAGMA synchronous = NORMAL")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("attnres_begin", begin))


def immediate(engine: Engine) -> Engine:
    """The same engine for writing: its transactions take the write lock when they begin, since
    SQLite fails at once, without waiting, where a transaction that has read starts to write.
    """
    return engine.execution_options(attnres_begin="BEGIN IMMEDIATE")


def use_wal(connection: Connection, path: Path) -> None:
    """Let readers and the writer not wait for each other. The file keeps it: only for our own."""
    driver: Any = connection.connection.driver_connection  # outside of any transaction
    deadline = time.monotonic() + _BUSY_MS / 1000
    while True:  # SQLite heeds no busy_timeout where two processes change the mode at once
        try:
            driver.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if time.monotonic() > deadline:
                raise StudyError(f"study {path}: {error}") from error
            time.sleep(0.01)


def refusal(study: str, error: DBAPIError, folder: Path) -> StudyError:
    """What SQLite refused, in one line that says what to do. `folder` is where the file lies."""
    said = str(error.orig)
    if _is_cramped(said, folder):
        return StudyError(
            f"study {study}: the disk ({folder}) is full: free some space, and the same command "
            "goes on; what is recorded stays"
        )
    if "malformed" in said or "not a database" in said:
        return StudyError(f"study {study} is damaged ({said}): restore a copy of it")
    if "is locked" in said:
        if not _can_lock(folder):
            return StudyError(
                f"study {study}: the disk ({folder}) cannot lock files, as some network disks "
                "cannot: put the study on a local disk or into PostgreSQL"
            )
        by = ", ".join(_holders(folder / Path(study).name)) or "another program"
        return AwayError(f"study {study} is locked by {by}", is_up=True)
    if "disk I/O" in said:
        return StudyError(
            f"study {study}: the disk ({folder}) could not be read or written ({said}): look at it "
            "(dmesg names faults); the same command goes on, what is recorded stays"
        )
    return StudyError(f"study {study}: {said}")


def _can_lock(folder: Path) -> bool:
    """Whether files there can be locked. SQLite says "locked" where the system knows no locks."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
    return True


def _holders(path: Path) -> list[str]:
    """`python3 (process 17)` for each process of this machine that may hold back a writer of this
    file; none where the system does not tell.
    """
    found: dict[str, None] = {}
    with suppress(OSError, ValueError):
        files = [each for each in (path, path.with_name(f"{path.name}-shm")) if each.exists()]
        numbers = {str(each.stat().st_ino) for each in files}
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            _, _, _, kind, pid, place, *_ = line.replace("-> ", "").split()
            if kind == "WRITE" and place.rpartition(":")[2] in numbers and int(pid) != os.getpid():
                name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
                found[f"{name} (process {pid})"] = None
    return list(found)


def _is_cramped(said: str, folder: Path) -> bool:
    """Whether SQLite's words are of a disk without room."""
    has_none = shutil.disk_usage(folder).free < _LITTLE_BYTES
    return "disk is full" in said or ("disk I/O" in said and has_none)
