"""A PostgreSQL server for a test session, on the loopback interface; its data are not kept."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "lab", "s3cret-%-word"  # as a URL has to quote it
QUOTED = "s3cret-%25-word"


def programs() -> Path:
    """Return the folder of initdb and pg_ctl, the newest there is; skip the test without them."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found and shutil.which("pg_ctl") else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    for folder in reversed(folders):
        if (folder / "initdb").exists():
            return folder
    pytest.skip("PostgreSQL is not installed: initdb and pg_ctl are not found")


class Server:
    """A server on a port of 127.0.0.1. The user that it runs as owns its folder."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs, self._data = folder, programs, str(folder / "data")
        self.log = folder / "server.log"  # of every statement
        user = _server_user()
        self._as = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        secret = folder / "password"
        secret.write_text(PASSWORD + "\n", encoding="utf-8")
        for path in (folder, secret) if user is not None else ():
            shutil.chown(path, **self._as)
        self._do(
            "initdb", "-D", self._data, "-U", USER, "--auth=scram-sha-256", "--no-sync",
            f"--pwfile={secret}", "--encoding=UTF8", "--locale=C",
        )  # fmt: skip
        secret.unlink()

    def start(self) -> None:
        """Start it without fsync, and wait until it takes connections."""
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off"
        options += f" -c unix_socket_directories={self.folder} -c log_statement=all"
        self._do("pg_ctl", "-D", self._data, "-w", "-l", str(self.log), "-o", options, "start")

    def stop(self) -> None:
        """Stop it as if its machine died: connections are cut."""
        self._do("pg_ctl", "-D", self._data, "-w", "-m", "immediate", "stop")

    def url(self, database: str = "postgres", *, user: str = USER, password: str = QUOTED) -> str:
        """The study on one of its databases, with the password quoted."""
        return f"postgresql+psycopg://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def sql(
        self, statement: str, database: str = "postgres", *, password: str = PASSWORD
    ) -> list[tuple]:
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, password=password, dbname=database,
            autocommit=True,
        ) as connection:  # fmt: skip
            found = connection.execute(statement)
            return found.fetchall() if found.description else []

    def hang_up(self, connection: Any) -> None:
        """Cut a connection of psycopg, which notices when it sends something."""
        self.sql(f"SELECT pg_terminate_backend({connection.info.backend_pid}, 5000)")

    def commit_unanswered(self, connection: Any) -> None:
        """Commit, and cut the connection before the answer. Raises psycopg's OperationalError."""
        connection.commit()
        self.hang_up(connection)
        connection.execute("SELECT 1")

    def dump(self, database: str) -> str:
        command = [str(self._programs / "pg_dump"), "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(
            [*command, "-U", USER, database], env=os.environ | {"PGPASSWORD": PASSWORD},
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip

    def _do(self, program: str, *arguments: str) -> None:
        said = self.folder / "said"  # no pipe: the server would keep it open
        with said.open("ab") as file:
            done = subprocess.run(
                [str(self._programs / program), *arguments], check=False, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                extra_groups=[] if self._as else None, **self._as,
            )  # fmt: skip
        assert done.returncode == 0, said.read_text(encoding="utf-8")


class Proxy:
    """A way to a server that can stop to forward, as a network does that drops all packets."""

    def __init__(self, port: int) -> None:
        self._to, self._flows = ("127.0.0.1", port), threading.Event()
        self._flows.set()
        self.delay_s = 0.0
        """How long every packet takes."""
        self._open: list[tuple[socket.socket, socket.socket]] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def stall(self) -> None:
        """Take everything, and pass nothing on."""
        self._flows.clear()

    def flow(self) -> None:
        """Pass on what came meanwhile, and what comes."""
        self._flows.set()

    def half_close(self) -> None:
        """End every connection in one direction: what is sent arrives, no answer comes."""
        for ours, _ in self._open:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_WR)
        self._open.clear()

    def close(self) -> None:
        """Take nobody any more."""
        self._door.close()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                ours, _ = self._door.accept()
                theirs = socket.create_connection(self._to)
                self._open.append((ours, theirs))
                for ends in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError), source:
            while data := source.recv(2**16):
                self._flows.wait()
                time.sleep(self.delay_s)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def _server_user() -> pwd.struct_passwd | None:
    """The user that runs the server if we are root, which it refuses; None: our own."""
    users = {user.pw_name: user for user in pwd.getpwall()}
    return (users.get("postgres") or users["nobody"]) if os.geteuid() == 0 else None


def open_to_all() -> str | None:
    """Where to make a folder that every user can reach, unlike pytest's; None: Python's default."""
    usual = Path(tempfile.gettempdir())
    return None if all(each.stat().st_mode & 1 for each in (usual, *usual.parents)) else "/tmp"


@contextmanager
def running() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="attnres-pg-", dir=open_to_all()))
    with ExitStack() as last:
        last.callback(shutil.rmtree, folder, ignore_errors=True)
        server = Server(folder, programs())
        server.start()
        last.callback(server.stop)
        yield server
