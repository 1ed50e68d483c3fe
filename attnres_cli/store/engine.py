"""Opening a study: find what is wrong with it first, then connect, then migrate.

Here is what files take; what a server takes is in postgres.py.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    column,
    create_engine,
    event,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from attnres_cli import address
from attnres_cli.errors import StudyError
from attnres_cli.store import backup, postgres
from attnres_cli.store.migrations import SCHEMAS
from attnres_cli.store.tables import PREFIX, VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

_HEADER = b"SQLite format 3\0"
_OPTUNA = {"studies", "trials", "version_info", "alembic_version"}
_BUSY_MS = 60_000
_LITTLE_BYTES = 2**17  # free, where a write of a few pages may fail


def connect(study: str, *, create: bool, keeps: bool = False) -> Engine:
    """An engine on the study, its schema up to date.

    Args:
        study: a path, sqlite:///path, or the URL of a database on PostgreSQL.
        create: make what is not there, and upgrade it; without it nothing is written.
        keeps: on a server, keep a connection, until `pool.dispose`.

    Raises:
        StudyError: what is wrong with it and what to do.

    """
    if address.is_url(study):
        return _connect_server(study, create, keeps)
    path = _path_of(study)
    _check_file(path, create)
    engine = _engine(path, readonly=not create)
    try:
        with engine.connect() as connection:
            _check_pages(connection, path)
            _check_content(connection, str(path))
            if create:
                connection.commit()
                _use_wal(connection, path)
                begin = connection.execution_options(attnres_begin="BEGIN IMMEDIATE")
                _upgrade(begin)
            else:
                _check_schema(connection, str(path))
    except DBAPIError as error:
        raise refusal(str(path), error, path.resolve().parent) from error
    return engine


def _connect_server(study: str, create: bool, keeps: bool) -> Engine:
    """The same, on a server: of commands that start at once one makes the tables."""
    engine = postgres.engine_of(study, readonly=not create, keeps=keeps)
    shown, _ = address.parted(study)
    try:
        with engine.connect() as connection:
            if create:
                postgres.alone(connection)
            _check_content(connection, shown)
            if create:
                _upgrade(connection)
            else:
                _check_schema(connection, shown)
    except (DBAPIError, StudyError) as error:
        engine.pool.dispose()
        if isinstance(error, StudyError):
            raise
        raise postgres.refusal(shown, error, opened=False) from error
    return engine


def exists(study: str) -> bool:
    """Whether there is a study at that place; that one could be made there is checked too.

    Raises:
        StudyError: none could.

    """
    if not address.is_url(study):
        path = _path_of(study)
        _check_file(path, create=True)
        return path.exists() and path.stat().st_size > 0
    try:
        with postgres.engine_of(study, readonly=True).connect() as connection:
            _check_content(connection, address.parted(study)[0])
            return _schema_of(connection) is not None
    except DBAPIError as error:
        raise postgres.refusal(address.parted(study)[0], error, opened=False) from error


def runs_folder(study: str) -> Path:
    """Where runs of a study keep files on this machine: `attnres.runs` beside `attnres.db`; of a
    study on a server a folder in the user's data folder.
    """
    if address.is_url(study):
        return postgres.folder_of(study)
    path = _path_of(study).resolve()
    return path.with_name(path.name.removesuffix(".db") + ".runs")


def refusal(study: str, error: DBAPIError, folder: Path | None) -> StudyError:
    """What the database refused of an open study, in words that say what to do.

    Args:
        study: its name, as it may be shown.
        error: what it said.
        folder: where it lies, None on a server.

    """
    if folder is None:
        return postgres.refusal(study, error, opened=True)
    said = str(error.orig)
    cramped = "disk I/O" in said and shutil.disk_usage(folder).free < _LITTLE_BYTES
    if "disk is full" in said or cramped:
        return StudyError(
            f"study {study}: the disk ({folder}) is full: free some space, and the same command "
            "goes on; what is recorded stays"
        )
    return StudyError(f"study {study}: {said}")


def immediate(engine: Engine) -> Engine:
    """The same engine for writing: its transactions take the write lock when they begin, since
    SQLite fails at once, without waiting, where a transaction that has read starts to write.
    """
    return engine.execution_options(attnres_begin="BEGIN IMMEDIATE")


def _path_of(study: str) -> Path:
    path = address.file_of(study)
    if study.startswith("file:") or study == "" or study.endswith(("///", ":memory:")):
        raise StudyError(f"study '{study}': give --study the path of a file, or a URL")
    return path


def _check_file(path: Path, create: bool) -> None:
    folder = path.resolve().parent
    if not folder.is_dir():
        raise StudyError(f"study {path}: folder {folder} does not exist, make it first")
    if path.is_dir():
        raise StudyError(f"study {path} is a folder: name a file in it, as {path / 'attnres.db'}")
    if path.exists() and not path.is_file():
        raise StudyError(f"study {path} is no file: --study names another, or a new one")
    if not path.exists():
        if not create:
            raise StudyError(f"no study at {path}: `attnres ablate` makes one, --study names it")
        if not os.access(folder, os.W_OK):
            raise StudyError(f"study {path}: folder {folder} cannot be written to")
        return
    if create and not os.access(path, os.W_OK):
        raise StudyError(f"study {path} cannot be written to")
    _check_header(path)


def _check_header(path: Path) -> None:
    """Refuse what is no SQLite file, or shorter than its own header says."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise StudyError(f"study {path} cannot be read: {error.strerror}") from error
    if header and not header.startswith(_HEADER):
        raise StudyError(f"study {path} is not a SQLite file: --study names another, or a new one")
    if header and _is_cut(path, header):
        raise StudyError(f"study {path} is truncated: restore a copy of it")


def _is_cut(path: Path, header: bytes) -> bool:
    if len(header) < 100:
        return True
    if any(Path(f"{path}{end}").exists() for end in ("-wal", "-journal")):
        return False  # pages may lie there
    if header[24:28] != header[92:96]:
        return False  # written by a SQLite that kept no count of pages
    page_bytes, n_pages = (int.from_bytes(header[a:b], "big") for a, b in ((16, 18), (28, 32)))
    return path.stat().st_size < n_pages * (65536 if page_bytes == 1 else page_bytes)


def _engine(path: Path, *, readonly: bool) -> Engine:
    # mode=ro would leave -wal and -shm beside the file; query_only cleans up behind itself.
    query = {"mode": "rw" if readonly else "rwc", "uri": "true"}
    path = path.resolve()
    writable = all(os.access(p, os.W_OK, effective_ids=True) for p in (path, path.parent))
    if readonly and not writable and not Path(f"{path}-wal").exists():
        query |= {"mode": "ro", "immutable": "1"}  # SQLite cannot make the files it would lock by
    engine = create_engine(
        URL.create("sqlite", database=f"file:{quote(str(path))}", query=query),
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_MS / 1000},
    )
    set_up(engine, readonly=readonly)
    return engine


def set_up(engine: Engine, *, readonly: bool = False, begin: str = "BEGIN") -> None:
    """Let connections to a file wait for each other, and transactions begin as they are told to:
    by `begin`, or by the option attnres_begin.
    """

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # or sqlite3 commits before each DDL statement
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA {'query_only = ON' if readonly else 'synchronous = NORMAL'}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("attnres_begin", begin))


def _check_pages(connection: Connection, path: Path) -> None:
    findings = connection.execute(text("PRAGMA quick_check(1)")).scalars().all()
    if findings != ["ok"]:
        finding = findings[0].splitlines()[-1]
        raise StudyError(f"study {path} is damaged ({finding}): restore a copy of it")


def _check_content(connection: Connection, study: str) -> None:
    tables = set(inspect(connection).get_table_names())
    foreign = {name for name in tables if not name.startswith(PREFIX)}
    if VERSION_TABLE not in tables and foreign and not foreign >= _OPTUNA:
        raise StudyError(
            f"study {study} is a database of something else (table '{min(foreign)}'): "
            "--study names another, or a new one"
        )
    schema = _schema_of(connection)
    is_newest = schema == SCHEMAS[-1]
    lost = is_newest and not metadata.tables.keys() <= tables
    if lost or (schema is None and VERSION_TABLE in tables):
        raise StudyError(f"study {study} is damaged (tables are missing): restore a copy of it")
    if schema is not None and schema not in SCHEMAS:
        raise StudyError(
            f"study {study} was written by a newer attnres (schema {schema}): upgrade attnres"
        )


def _check_schema(connection: Connection, study: str) -> None:
    """Refuse to read a study whose tables are not those of this version."""
    schema = _schema_of(connection)
    if schema is None:
        raise StudyError(f"study {study} holds no runs yet: `attnres ablate --study {study}`")
    if schema != SCHEMAS[-1]:
        raise StudyError(
            f"study {study} is of an older attnres: `attnres ablate --study {study}` upgrades it"
        )


def _use_wal(connection: Connection, path: Path) -> None:
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


def _schema_of(connection: Connection) -> str | None:
    if VERSION_TABLE not in inspect(connection).get_table_names():
        return None
    return connection.execute(
        select(column("version_num")).select_from(table(VERSION_TABLE))
    ).scalar()


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(connection: Connection) -> None:
    """Bring the tables up to date, in one transaction, after a copy of what there was.

    On a server the transaction has begun, with the lock that lets one do this at a time.
    """
    schema = _schema_of(connection)
    if schema == SCHEMAS[-1]:
        connection.rollback()
        return
    from alembic import command  # takes a quarter of a second, which reading need not wait for

    if connection.dialect.name == "sqlite":
        connection.rollback()
        connection.begin()
        schema = _schema_of(connection)  # another process may have been first
    if schema is not None and schema != SCHEMAS[-1]:
        backup.keep(connection, schema)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
