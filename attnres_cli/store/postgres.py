"""A study on PostgreSQL: its URL, how to connect, and what the server's refusals mean."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, func, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from attnres_cli.config import address
from attnres_cli.errors import AwayError, StudyError, installing, unknown

_SCHEME = "postgresql+psycopg"
_KEY = 0x6174746E726573  # "attnres": whose transactions wait for each other
_WAIT_S = 60  # for a lock, as on SQLite
_CONNECT_S = 8
_SETTINGS = {"lock_timeout": _WAIT_S, "idle_in_transaction_session_timeout": _WAIT_S}
"""Seconds. The second ends the transaction of a machine that vanished, with its locks."""

_REFUSED = (
    "password authentication failed", "no password supplied", "authentication failed",
    "no pg_hba.conf entry", "is not permitted to log in",
)  # fmt: skip
_BUSY = (
    "terminating connection", "too many clients", "connection slots", "starting up",
    "shutting down", "in recovery mode", "not yet accepting connections", "too many connections",
)  # fmt: skip
_GONE = re.compile("08|57P0|53300|40001|40P01|55P03")
"""SQLSTATEs of what may go well when tried again: a lost connection, a transaction in the way."""
_FULL = "53100"


def url_of(study: str) -> URL:
    """The URL of a study on a server, with its password; StudyError where it cannot be one."""
    shown, password = address.parted(study)
    scheme = shown.split("://")[0]
    if scheme not in (_SCHEME, "postgresql"):
        found = unknown("kind of study", scheme, [_SCHEME, "sqlite"])
        raise StudyError(f"{found}; as {_SCHEME}://user@host/database, or the path of a file")
    try:
        url = make_url(shown).set(drivername=_SCHEME, password=password)
    except (ArgumentError, ValueError) as error:  # as of a port that is no number
        raise StudyError(f"study {shown}: expected {_SCHEME}://user@host:port/database") from error
    if repeated := [name for name, value in url.query.items() if not isinstance(value, str)]:
        raise StudyError(f"study {shown}: {repeated[0]} is given twice")
    if not url.database and "service" not in url.query:
        raise StudyError(f"study {shown}: name a database, as {_SCHEME}://user@host/attnres")
    return url


def engine_of(study: str, *, readonly: bool, keeps: bool = False) -> Engine:
    """An engine on the server, not connected yet. Raises StudyError where the driver is missing."""
    url, arguments = connection_of(study, readonly=readonly, keeps=keeps)
    try:
        engine = create_engine(url, **arguments)
        engine.dialect.create_connect_args(url)
        (url.host or "").encode("idna")
        return engine
    except (ArgumentError, UnicodeError) as error:
        raise StudyError(f"study {address.parted(study)[0]}: {error}") from error
    except ImportError as error:
        raise StudyError(
            f"a study on PostgreSQL needs psycopg: {installing('postgres')}"
        ) from error


def connection_of(study: str, *, readonly: bool, keeps: bool = False) -> tuple[URL, dict[str, Any]]:
    """The URL, and options of `create_engine`. With `keeps` one connection serves for all."""
    url = url_of(study)
    settings = {name: f"{seconds}s" for name, seconds in _SETTINGS.items()}
    settings["default_transaction_read_only"] = "on" if readonly else "off"
    typed = url.query.get("options", "")
    options = [f"-c {name}={value}" for name, value in settings.items()]
    options += [str(typed)]
    arguments = {
        "connect_timeout": _CONNECT_S, "application_name": "attnres", "client_encoding": "utf8",
        "tcp_user_timeout": 1000 * _WAIT_S,
    }  # fmt: skip
    given: dict[str, Any] = {k: value for k, value in arguments.items() if k not in url.query}
    given["options"] = " ".join(options).strip()
    kept = {"poolclass": QueuePool, "pool_size": 1, "max_overflow": -1, "pool_pre_ping": True}
    pool: dict[str, Any] = kept if keeps else {"poolclass": NullPool}
    return url.difference_update_query(["options"]), {**pool, "connect_args": given}


def alone(connection: Connection) -> None:
    """Let the transaction wait until no other that asks for the same is under way."""
    connection.execute(select(func.pg_advisory_xact_lock(_KEY)))


def snapshots(engine: Engine) -> Engine:
    """The same engine for reading: all queries of a transaction see the study at one moment."""
    return engine.execution_options(isolation_level="REPEATABLE READ")


def folder_of(study: str) -> Path:
    """Where this machine keeps files of runs; the digest is of host, port and database."""
    url = url_of(study)
    query = {name: str(url.query.get(name, "")) for name in ("host", "port", "service")}
    host, port = url.host or query["host"], url.port or query["port"] or 5432
    place = f"{query['service']}|{host}|{port}|{url.database}"
    name = re.sub(r"[^\w.-]", "_", url.database or query["service"])
    digest = hashlib.sha256(place.encode()).hexdigest()
    import platformdirs

    return platformdirs.user_data_path("attnres") / f"{name}-{digest[:8]}.runs"


def refusal(study: str, error: DBAPIError, *, opened: bool) -> StudyError:
    """What the server refused, in one line that says what to do."""
    said = _said(error)
    state = getattr(error.orig, "sqlstate", None)
    if state is None or error.connection_invalidated:
        found = _of_connection(study, said)
        return AwayError(str(found)) if opened and not isinstance(found, AwayError) else found
    if _GONE.match(state):
        return AwayError(f"study {study}: {said}", is_up=True)
    if state == _FULL:
        return AwayError(
            f"study {study}: the server's disk is full ({said}): free some space there; what is "
            "recorded stays", is_up=True,
        )  # fmt: skip
    if state == "25006":
        return StudyError(
            f"study {study}: {said}: the server can only be read, as a standby: name its primary"
        )
    if state == "42501":
        return StudyError(
            f"study {study}: {said}: take a database of your own (createdb), or ask its owner"
        )
    return StudyError(f"study {study}: {said}")


def _said(error: DBAPIError) -> str:
    """The first line of the message, without what every one begins with."""
    lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Multiple connection attempts"):
        lines = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    line = lines[0] if lines else type(error.orig).__name__
    line = re.sub(r"^connection (failed|is bad): (connection to )?", "", line)
    return re.sub(r"(FATAL|ERROR): +", "", line)


def _of_connection(study: str, said: str) -> StudyError:
    """Why there is no connection."""
    url = url_of(study)
    if "database" in said and "does not exist" in said:
        flags = (("-h", url.host), ("-p", url.port), ("-U", url.username))
        where = "".join(f" {flag} {value}" for flag, value in flags if value)
        return StudyError(
            f"study {study}: there is no such database: createdb{where} {url.database}"
        )
    if any(words in said for words in _REFUSED) or ("role" in said and "not exist" in said):
        return StudyError(
            f"study {study}: {said}: check the user, and the password in PGPASSWORD, in ~/.pgpass "
            "or in the URL"
        )
    if "invalid connection option" in said:
        return StudyError(f"study {study}: {said}")
    is_up = any(words in said for words in _BUSY)
    ask = "try again in a moment" if is_up else "is the server running, and there?"
    return AwayError(f"study {study} cannot be reached ({said}): {ask}", is_up=is_up)
