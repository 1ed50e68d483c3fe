"""Opening a study: find what is wrong with the file first, then connect, then migrate."""

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

from attnres_cli.errors import StudyError
from attnres_cli.store import backup
from attnres_cli.store.migrations import SCHEMAS
from attnres_cli.store.tables import PREFIX, VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

_HEADER = b"SQLite format 3\0"
_OPTUNA = {"studies", "trials", "version_info", "alembic_version"}
_BUSY_MS = 60_000
_LITTLE_BYTES = 2**17  # free, where a write of a few pages may fail


def connect(study: str, *, create: bool) -> Engine:
    """An engine on the study, its schema up to date.

    Args:
        study: a path, or sqlite:///path.
        create: make the file if there is none, and upgrade it; without it nothing is written.

    Raises:
        StudyError: what is wrong with it and what to do.

    """
    path = _path_of(study)
    _check_file(path, create)
    engine = _engine(path, readonly=not create)
    try:
        with engine.connect() as connection:
            _check_content(connection, path)
            if create:
                connection.commit()
                _use_wal(connection, path)
                _upgrade(connection)
            else:
                _check_schema(connection, path)
    except DBAPIError as error:
        raise refusal(f"study {path}", path.resolve().parent, error) from error
    return engine


def exists(study: str) -> bool:
    """Whether there is a study at that path; that one could be made there is checked too.

    Raises:
        StudyError: none could.

    """
    path = _path_of(study)
    _check_file(path, create=True)
    return path.exists() and path.stat().st_size > 0


def runs_folder(study: str) -> Path:
    """Where runs of a study keep files: `attnres.runs` beside `attnres.db`."""
    path = _path_of(study).resolve()
    return path.with_name(path.name.removesuffix(".db") + ".runs")


def refusal(study: str, folder: Path, error: DBAPIError) -> StudyError:
    """What the database refused of a study in that folder, in words that say what to do."""
    said = str(error.orig)
    cramped = "disk I/O" in said and shutil.disk_usage(folder).free < _LITTLE_BYTES
    if "disk is full" in said or cramped:
        return StudyError(
            f"{study}: the disk ({folder}) is full: free some space, and the same command goes on; "
            "what is recorded stays"
        )
    return StudyError(f"{study}: {said}")


def immediate(engine: Engine) -> Engine:
    """The same engine for writing: its transactions take the write lock when they begin, since
    SQLite fails at once, without waiting, where a transaction that has read starts to write.
    """
    return engine.execution_options(attnres_begin="BEGIN IMMEDIATE")


def _path_of(study: str) -> Path:
    if study.startswith("sqlite:///"):
        study = study.removeprefix("sqlite:///")
    if "://" in study or study.startswith("file:") or study in ("", ":memory:"):
        raise StudyError(
            f"study '{study.split('://')[0]}': this version keeps studies in SQLite files, "
            "give --study a path"
        )
    return Path(study).expanduser()


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

    @event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # or sqlite3 commits before each DDL statement
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA {'query_only = ON' if readonly else 'synchronous = NORMAL'}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("attnres_begin", "BEGIN"))

    return engine


def _check_content(connection: Connection, path: Path) -> None:
    findings = connection.execute(text("PRAGMA quick_check(1)")).scalars().all()
    if findings != ["ok"]:
        finding = findings[0].splitlines()[-1]
        raise StudyError(f"study {path} is damaged ({finding}): restore a copy of it")
    tables = set(inspect(connection).get_table_names())
    foreign = {name for name in tables if not name.startswith(PREFIX)}
    if VERSION_TABLE not in tables and foreign and not foreign >= _OPTUNA:
        raise StudyError(
            f"study {path} is a database of something else (table '{min(foreign)}'): "
            "--study names another, or a new one"
        )
    schema = _schema_of(connection)
    is_newest = schema == SCHEMAS[-1]
    lost = is_newest and not metadata.tables.keys() <= tables
    if lost or (schema is None and VERSION_TABLE in tables):
        raise StudyError(f"study {path} is damaged (tables are missing): restore a copy of it")
    if schema is not None and schema not in SCHEMAS:
        raise StudyError(
            f"study {path} was written by a newer attnres (schema {schema}): upgrade attnres"
        )


def _check_schema(connection: Connection, path: Path) -> None:
    """Refuse to read a study whose tables are not those of this version."""
    schema = _schema_of(connection)
    if schema is None:
        raise StudyError(f"study {path} holds no runs yet: `attnres ablate --study {path}`")
    if schema != SCHEMAS[-1]:
        raise StudyError(
            f"study {path} is of an older attnres: `attnres ablate --study {path}` upgrades it"
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
    if _schema_of(connection) == SCHEMAS[-1]:
        connection.rollback()
        return
    connection.rollback()
    from alembic import command  # takes a quarter of a second, which reading need not wait for

    connection.execution_options(attnres_begin="BEGIN IMMEDIATE").begin()
    schema = _schema_of(connection)  # another process may have been first
    if schema is not None and schema != SCHEMAS[-1]:
        backup.keep(connection, schema)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    connection.commit()
