"""Commands in folders of their own, and what they leave in a study there."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest
from commands import ended

from attnres_cli.records.run import WEIGHTS

PATIENCE_S = 450  # half of a test's time limit, so that a test that hangs says so
KIMI = ["--set", "model.attention=[kda,mla]", "--set", "model.positions=none"]
KIMI += ["--set", "model.mlp=moe"]  # the paper's trunk, of two layers
OFTEN = {"ATTNRES_CHECKPOINT_S": "0"}  # a checkpoint after every step
PLACE = {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def wait_until(holds: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Command:
    """A command in a session of its own, under torchrun if it has several ranks. Its output goes
    to files beside its folder.
    """

    def __init__(self, folder: Path, *typed: str, ranks: int = 1, **environment: str) -> None:
        launcher = (*TORCHRUN, str(ranks)) if ranks > 1 else ()
        name = f"{folder.name}.{len(list(folder.parent.glob(f'{folder.name}.*.out')))}"
        self._out, self._err = (folder.parent / f"{name}.{end}" for end in ("out", "err"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *launcher, "-m", "attnres_cli", *typed],
                cwd=folder,
                stdout=out,
                stderr=err,
                env=os.environ | PLACE | environment,
                start_new_session=True,
            )

    out = property(lambda self: self._out.read_text())
    err = property(lambda self: self._err.read_text())

    def signal(self, number: signal.Signals) -> None:
        """Send it to all processes of the command, as a terminal or a dying machine does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def succeed(self) -> None:
        assert self.end() == 0, self.err

    def die(self) -> None:
        for pid in forked_by(self.process.pid):  # ranks are in sessions of their own
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.signal(signal.SIGKILL)
        self.end()

    def wait_for(self, holds: Callable[[], object]) -> None:
        """Wait until that holds, while the command runs."""
        wait_until(lambda: holds() or self._has_ended())

    def _has_ended(self) -> bool:
        assert self.process.poll() is None, self.err
        return False


@contextmanager
def started(folder: Path, *typed: str, ranks: int = 1, **environment: str) -> Iterator[Command]:
    command = Command(folder, *typed, ranks=ranks, **environment)
    try:
        yield command
    finally:
        command.die()


def done(folder: Path, *typed: str, code: int = 0, **environment: str) -> dict[str, Any]:
    """Run a command in this process, which saves its imports; return the JSON that it prints."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        for name, value in (PLACE | environment).items():
            patch.setenv(name, value)
        assert ended(*typed, "--format", "json") == code, err.getvalue()
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows that a statement finds in the study; none where its tables are not there yet."""
    uri = f"file:{folder / 'attnres.db'}?mode=rw"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(uri, 60, uri=True)) as held:
        return held.execute(sql).fetchall()
    return []


def statuses(folder: Path) -> list[str]:
    return [status for (status,) in query(folder, "SELECT status FROM attnres_runs ORDER BY id")]


def running(folder: Path) -> list[tuple[int, int, int]]:
    """Return (process id, attempts, run) of every run that is being trained."""
    sql = "SELECT owner, attempts, id FROM attnres_runs WHERE status = 'running'"
    return [(int(owner.split("|")[2]), *rest) for owner, *rest in query(folder, sql)]


def has_begun(folder: Path, run: int) -> bool:
    return any((folder / "attnres.runs").glob(f"{run}-*/0*.json"))


def some_have_begun(folder: Path) -> bool:
    return any(has_begun(folder, run) for _, _, run in running(folder))


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def forked_by(launcher: int, *, deep: bool = True) -> set[int]:
    """Process ids of a process's children, or of all its descendants (deep)."""
    found = set[int]()
    with suppress(FileNotFoundError):
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        found.update(map(int, children))
    return found.union(*map(forked_by, found)) if deep else found


def numbers(folder: Path) -> list[tuple[Any, ...]]:
    """Every number that training decides: losses, curves and probes."""
    runs = "SELECT id, variant, seed, status, steps, val_loss, initial_loss FROM attnres_runs"
    curve = "SELECT run_id, step, train_loss, val_loss FROM attnres_curve"
    probes = "SELECT run_id, step, name, data FROM attnres_probes"
    all_ = (query(folder, f"{sql} ORDER BY 1, 2, 3") for sql in (runs, curve, probes))
    found = list(itertools.chain.from_iterable(all_))
    assert len(found) > 50
    assert query(folder, "PRAGMA integrity_check") == [("ok",)]
    return found


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "attnres.runs").rglob("*"))
        if path.is_file()
    }


def study(folder: Path) -> tuple[list[tuple[Any, ...]], dict[str, str]]:
    """Numbers and final weights; asserts that nothing else is left beside the study."""
    weights = files(folder)
    assert all(Path(name).match(WEIGHTS) for name in weights)
    assert len(weights) == len(statuses(folder))
    return numbers(folder), weights


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
