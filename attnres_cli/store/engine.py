"""Opening a study: find what is wrong with it first, then connect, then migrate.

What a file takes is in sqlite.py, what a server takes in postgres.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, column, inspect, select, table
from sqlalchemy.exc import DBAPIError

from attnres_cli.config import address
from attnres_cli.errors import StudyError
from attnres_cli.store import backup, postgres, sqlite
from attnres_cli.store.migrations import SCHEMAS
from attnres_cli.store.tables import PREFIX, VERSION_TABLE, metadata

if TYPE_CHECKING:
    from alembic.config import Config

_OPTUNA = {"studies", "trials", "version_info", "alembic_version"}


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
    path = sqlite.path_of(study)
    sqlite.check_file(path, create)
    engine = sqlite.engine_of(path, readonly=not create)
    try:
        with sqlite.unchanged(path.resolve()), engine.connect() as connection:
            sqlite.check_pages(connection, path)
            _check_content(connection, str(path))
            if create:
                connection.commit()
                sqlite.use_wal(connection, path)
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
    looking = engine if create else postgres.snapshots(engine)  # another may be making the tables
    try:
        with looking.connect() as connection:
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
        return _is_in_file(sqlite.path_of(study))
    try:
        looking = postgres.snapshots(postgres.engine_of(study, readonly=True))
        with looking.connect() as connection:
            _check_content(connection, address.parted(study)[0])
            return _schema_of(connection) is not None
    except DBAPIError as error:
        raise postgres.refusal(address.parted(study)[0], error, opened=False) from error


def _is_in_file(path: Path) -> bool:
    sqlite.check_file(path, create=True)
    if not path.exists():
        return False
    try:
        with sqlite.engine_of(path, readonly=True).connect() as connection:
            _check_content(connection, str(path))
            return _schema_of(connection) is not None
    except DBAPIError:  # `connect` says what is wrong with the file
        return True


def runs_folder(study: str) -> Path:
    """Where runs of a study keep files on this machine: `attnres.runs` beside `attnres.db`; of a
    study on a server a folder in the user's data folder.
    """
    if address.is_url(study):
        return postgres.folder_of(study)
    path = sqlite.path_of(study).resolve()
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
    return sqlite.refusal(study, error, folder)


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
