"""Real commands in folders of their own, and what they leave in a study there."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from attnres_cli.records.run import WEIGHTS

PATIENCE_S = 450  # half of a test's time: what hangs is to say so, and not to take all of CI's
KIMI = ["--set", "model.attention=[kda,mla]", "--set", "model.positions=none"]
KIMI += ["--set", "model.mlp=moe"]  # the paper's trunk, of two layers
OFTEN = {"ATTNRES_CHECKPOINT_S": "0"}  # where a run spends much of its time writing checkpoints


class Command:
    """A command in a session of its own, with all it says in files beside its folder."""

    def __init__(self, folder: Path, *typed: str, **environment: str) -> None:
        name = f"{folder.name}.{len(list(folder.parent.glob(f'{folder.name}.*.out')))}"
        self._out, self._err = (folder.parent / f"{name}.{end}" for end in ("out", "err"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "attnres_cli", *typed],
                cwd=folder,
                stdout=out,
                stderr=err,
                env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"} | environment,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def signal(self, number: signal.Signals) -> None:
        """To all of its processes, as a terminal or a dying machine sends it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def succeed(self) -> None:
        assert self.end() == 0, self.err

    def die(self) -> None:
        self.signal(signal.SIGKILL)
        self.end()

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Until that holds, while the command runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline
            assert self.process.poll() is None, self.err
            time.sleep(0.02)


@contextmanager
def started(folder: Path, *typed: str, **environment: str) -> Iterator[Command]:
    """A command that runs; all its processes are gone afterwards."""
    command = Command(folder, *typed, **environment)
    try:
        yield command
    finally:
        command.die()


def done(folder: Path, *typed: str, code: int = 0, **environment: str) -> dict[str, Any]:
    """What a command prints as JSON, having ended with that exit code."""
    with started(folder, *typed, "--format", "json", **environment) as command:
        assert command.end() == code, command.err
    found: dict[str, Any] = json.loads(command.out)
    return found


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """What a statement finds in the study; nothing where its tables are not there yet."""
    if not (folder / "attnres.db").exists():
        return []
    with closing(sqlite3.connect(folder / "attnres.db", timeout=60)) as connection:
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.OperationalError:
            return []


def statuses(folder: Path) -> list[str]:
    return [status for (status,) in query(folder, "SELECT status FROM attnres_runs ORDER BY id")]


def running(folder: Path) -> list[tuple[int, int, int]]:
    """(process id, attempts, run) of the runs that are being trained."""
    sql = "SELECT owner, attempts, id FROM attnres_runs WHERE status = 'running'"
    return [(int(owner.split("|")[2]), *rest) for owner, *rest in query(folder, sql)]


def has_begun(folder: Path, run: int) -> bool:
    """Whether a run has come to a checkpoint."""
    return any((folder / "attnres.runs").glob(f"{run}-*/0*.json"))


def some_have_begun(folder: Path) -> bool:
    return any(has_begun(folder, run) for _, _, run in running(folder))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def forked_by(launcher: int, *, deep: bool = True) -> set[int]:
    """Process ids of all that a process has started, and they, which may still be importing."""
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    except FileNotFoundError:
        return set()
    found = set(map(int, children))
    return found.union(*map(forked_by, found)) if deep else found


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    """Every number that training decides: losses of the runs, their curves and probes."""
    runs = "SELECT id, variant, seed, status, steps, val_loss, initial_loss FROM attnres_runs"
    curve = "SELECT run_id, step, train_loss, val_loss FROM attnres_curve"
    probes = "SELECT run_id, step, name, data FROM attnres_probes ORDER BY run_id, step, name"
    found = query(folder, f"{runs} ORDER BY id") + query(folder, f"{curve} ORDER BY run_id, step")
    found += query(folder, probes)
    assert len(found) > 50
    assert query(folder, "PRAGMA integrity_check") == [("ok",)]
    return found


def files(folder: Path) -> dict[str, str]:
    """Digests of all that lies beside the study."""
    found = sorted(path for path in (folder / "attnres.runs").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in found
    }


def study(folder: Path) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Numbers and final weights; nothing else is left beside the study."""
    weights = files(folder)
    assert all(Path(name).match(WEIGHTS) for name in weights)
    assert len(weights) == len(statuses(folder))
    return numbers(folder), weights


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A folder on a disk of that size."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
