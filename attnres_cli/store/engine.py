"""Open a study in a file (sqlite.py) or on a server (postgres.py): check it, make its tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, insert, inspect, select
from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound

from attnres_cli.config import address
from attnres_cli.errors import NoStudyError, StudyError
from attnres_cli.store import postgres, sqlite, upgrade
from attnres_cli.store.tables import PREFIX, SCHEMA, metadata, schema

_UNREADABLE = (
    ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError, RecursionError,
    NoResultFound, MultipleResultsFound,
)  # fmt: skip
"""What making records of rows raises where these hold something else: JSON, blobs, times, words."""

_MOST_TOLD = 200

_OPTUNA = {"studies", "trials", "version_info", "alembic_version"}


def connect(study: str, *, create: bool, keeps: bool = False) -> Engine:
    """An engine on the study at a path or URL, whose tables are there; with `create` they are made,
    without it nothing is written. Raises StudyError with what is wrong and what to do.
    """
    if address.is_url(study):
        return _connect_server(study, create, keeps)
    path = sqlite.path_of(study)
    sqlite.check_file(path, create)
    engine, resolved = sqlite.engine_of(path, readonly=not create), path.resolve()
    with refusals(str(path), resolved.parent), readable(str(path)), sqlite.unchanged(resolved):
        with engine.connect() as connection:
            held = _check(connection, str(path), create)
            if create:
                connection.rollback()
                sqlite.use_wal(connection, path)
        if create and held != SCHEMA:
            with sqlite.immediate(engine).begin() as connection:
                _make_tables(connection, str(path))
    return engine if create else engine.execution_options(**upgrade.reading(held))


def _connect_server(study: str, create: bool, keeps: bool) -> Engine:
    """The same, on a server: of commands that start at once one makes the tables."""
    engine = postgres.engine_of(study, readonly=not create, keeps=keeps)
    shown, _ = address.parted(study)
    looking = engine if create else postgres.snapshots(engine)  # another may be making the tables
    try:
        with refusals(shown, None, opened=False), looking.begin() as connection:
            if create:
                postgres.alone(connection)
                _make_tables(connection, shown)
                return engine
            held = _check(connection, shown, create)
    except StudyError:
        engine.pool.dispose()
        raise
    return engine.execution_options(**upgrade.reading(held))


def runs_folder(study: str) -> Path:
    """Where runs keep files: `attnres.runs` beside `attnres.db`; see also `postgres.folder_of`."""
    if address.is_url(study):
        return postgres.folder_of(study)
    path = sqlite.path_of(study).resolve()
    folder = path.with_name(path.name.removesuffix(".db") + ".runs")
    if folder.exists() and not folder.is_dir():
        raise StudyError(
            f"study {study}: {folder} is no folder, where its runs keep files: move it"
        )
    return folder


@contextmanager
def refusals(study: str, folder: Path | None, *, opened: bool = True) -> Iterator[None]:
    """Turn what the database refuses (disk full, locked for a minute, damaged) into a StudyError.
    `folder` is None on a server; one that was opened before and cannot be reached now is away.
    """
    try:
        yield
    except DBAPIError as error:
        if folder is None:
            raise postgres.refusal(study, error, opened=opened) from error
        raise sqlite.refusal(study, error, folder) from error


@contextmanager
def readable(study: str) -> Iterator[None]:
    """Turn what comes of values that we never wrote into a StudyError: no column is believed."""
    try:
        yield
    except _UNREADABLE as error:
        told = " ".join(str(error).split())[:_MOST_TOLD] or type(error).__name__
        raise StudyError(f"study {study} is damaged ({told}): restore a copy of it") from error


def _check(connection: Connection, study: str, create: bool) -> str:
    """The schema of our tables, empty where there are none; StudyError for what cannot be read, and
    for none without `create`.
    """
    tables = set(inspect(connection).get_table_names())
    if schema.name not in tables:
        foreign = {name for name in tables if not name.startswith(PREFIX)}
        if foreign and not foreign >= _OPTUNA:
            raise StudyError(
                f"study {study} is a database of something else (table '{min(foreign)}'): "
                "--study names another, or a new one"
            )
        if not create:
            raise NoStudyError(f"study {study} holds no runs yet: `attnres ablate --study {study}`")
        return ""
    found = connection.execute(select(schema.c.version_num)).scalar()
    theirs = found if isinstance(found, str) else None
    wanted = None if theirs is None else upgrade.tables_of(theirs)
    if theirs is None or (wanted is not None and not wanted <= tables):
        raise StudyError(f"study {study} is damaged (tables are missing): restore a copy of it")
    if theirs > SCHEMA:
        raise StudyError(
            f"study {study} was written by a newer attnres (schema {theirs}): upgrade attnres"
        )
    if wanted is None:
        raise StudyError(
            f"study {study} was written by an attnres before its first release (schema {theirs}), "
            "which this one cannot read: --study names another, or a new one"
        )
    return theirs


def _make_tables(connection: Connection, study: str) -> None:
    """All of them as they are now, in a transaction that nobody else writes in, unless another was
    first.
    """
    held = _check(connection, study, create=True)
    if held in upgrade.BEFORE:
        upgrade.upgrade(connection, held)
    elif held != SCHEMA:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(insert(schema).values(version_num=SCHEMA))
