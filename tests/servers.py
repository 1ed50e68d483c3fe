"""A PostgreSQL server of our own, for as long as a test session: loopback only, nothing kept."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

USER, PASSWORD = "lab", "s3cret-%-word"  # as a URL has to quote it
QUOTED = "s3cret-%25-word"


def programs() -> Path | None:
    """The folder of initdb and pg_ctl, the newest there is."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found and shutil.which("pg_ctl") else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


class Server:
    """A running server.

    Attributes:
        folder: where its data lie; the user that it runs as owns it.
        port: on 127.0.0.1.

    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self._user = _server_user()
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        secret = folder / "password"
        secret.write_text(PASSWORD + "\n", encoding="utf-8")
        if self._user is not None:
            os.chown(secret, self._user.pw_uid, self._user.pw_gid)
        self._do(
            "initdb", "-D", str(self._data), "-U", USER, "--auth=scram-sha-256", "--no-sync",
            f"--pwfile={secret}", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip
        secret.unlink()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Start it, and wait until it takes connections. Nothing it writes need last."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off"
        options += f" -c unix_socket_directories={self.folder} -c log_statement=all"
        self._do("pg_ctl", "-D", str(self._data), "-w", "-l", str(self.log), "-o", options, "start")

    def stop(self) -> None:
        """Stop it as when its machine dies: connections are cut, nobody is asked."""
        self._do("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    @property
    def log(self) -> Path:
        """Where it writes every statement down."""
        return self.folder / "server.log"

    def url(self, database: str = "postgres", *, user: str = USER, password: str = QUOTED) -> str:
        """The study on one of its databases, with the password as a URL has it."""
        return f"postgresql+psycopg://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[tuple]:
        """What a statement finds; it is committed at once."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname=database,
            autocommit=True,
        ) as connection:  # fmt: skip
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def hang_up(self, connection: Any) -> None:
        """Cut a connection of psycopg, which finds out with what it sends next."""
        self.sql(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 5000)")

    def commit_unanswered(self, connection: Any) -> None:
        """Commit, and be gone before saying so. Raises psycopg's OperationalError."""
        connection.commit()
        self.hang_up(connection)
        connection.execute("SELECT 1")

    def dump(self, database: str) -> str:
        """All of a database as text."""
        arguments = ["-h", "127.0.0.1", "-p", str(self.port), "-U", USER, database]
        environment = os.environ | {"PGPASSWORD": PASSWORD}
        done = subprocess.run(
            [str(self._programs / "pg_dump"), *arguments],
            check=True, capture_output=True, text=True, env=environment,
        )  # fmt: skip
        return done.stdout

    def _do(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._programs / program), *arguments]
        user = None if self._user is None else self._user.pw_uid
        group = None if self._user is None else self._user.pw_gid
        said = self.folder / "said"  # no pipe: the server would keep it open
        with said.open("ab") as file:
            done = subprocess.run(
                command, check=False, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file,
                stderr=file, user=user, group=group, extra_groups=None if user is None else [],
            )  # fmt: skip
        assert done.returncode == 0, said.read_text(encoding="utf-8")


def _server_user() -> pwd.struct_passwd | None:
    """Whom the server runs as, where we are root, whom it refuses; None: as we do."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise LookupError("no user postgres or nobody to run a server as")


def open_to_all() -> str | None:
    """Where to make a folder that every user can reach, which pytest's are not; None: where Python
    makes them.
    """
    usual = Path(tempfile.gettempdir())
    return None if all(each.stat().st_mode & 1 for each in (usual, *usual.parents)) else "/tmp"


@contextmanager
def running(programs: Path) -> Iterator[Server]:
    """A server that runs; it and its data are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="attnres-pg-", dir=open_to_all()))
    try:
        server = Server(folder, programs)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
