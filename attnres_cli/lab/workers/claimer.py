"""A command of ours as a job of a cluster: it takes runs from the study until none is left.

Imported on machines where nothing of ours but the command itself need be imported: no torch here.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any, Protocol

from attnres_cli.errors import DONE, SOME_FAILED, UsageError, required
from attnres_cli.lab.workers.signals import handled

_TICK_S = 0.2
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


@dataclass(frozen=True)
class Outcome:
    """How a claimer ended: its exit code, all that it printed, and its last words on stderr."""

    code: int
    out: str
    said: str

    @property
    def is_done(self) -> bool:
        """Whether it came to its report: then no run of the command is left, wherever it is."""
        return self.code == DONE or (self.code == SOME_FAILED and self.out != "")


class Jobs(Protocol):
    """The claimers of one command on a cluster, so many."""

    n: int

    def ended(self) -> Sequence[Outcome]:
        """Return how those that have ended did."""

    def cancel(self) -> None:
        """End the others; each saves its run, which waits again."""


class Claimer:
    """A command that is called where a cluster puts it: the words after `attnres`."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.folder = tuple(words), Path.cwd()
        self.environment = {n: text for n, text in os.environ.items() if n.startswith("ATTNRES_")}
        if sys.stdout.isatty():  # what is printed there is shown here
            self.environment["COLUMNS"] = str(shutil.get_terminal_size().columns)
        self._pid, self._is_told = 0, False

    @property
    def command(self) -> list[str]:
        """What is run."""
        return [sys.executable, "-m", "attnres_cli", *self.words]

    def __call__(self) -> Outcome:
        """Run it to its end. It is a process in a group of its own: signals of the cluster, as that
        of a time limit, are for us, who tell it. It does not outlive us. Raises SystemExit once it
        has saved its run on SIGTERM: without a result, since the cluster may begin the job again.
        """
        environment = os.environ | self.environment
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as out,
            handled({signal.SIGTERM: self._heed}),  # submitit lets it pass without a word
        ):
            process = subprocess.Popen(  # noqa: S603
                self.command, cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.PIPE, text=True, process_group=0,
                preexec_fn=_end_with_parent,
            )  # fmt: skip
            self._pid = process.pid
            said: list[str] = []
            reader = Thread(target=_read, args=(process.stderr, said), daemon=True)
            reader.start()
            try:
                while process.poll() is None:  # a wait would not hear that Ray cancels it
                    if self._is_told:
                        raise SystemExit(128 + signal.SIGTERM)
                    time.sleep(_TICK_S)
            except BaseException:
                self.stop()
                process.poll()
                reader.join(_TICK_S)  # its last words
                raise
            reader.join()
            out.seek(0)
            return Outcome(process.returncode, out.read(), said[-1] if said else "")

    def _heed(self, _number: int, _frame: object) -> None:
        """A signal's handler, which only notes it: a second one cuts no saving short."""
        self._is_told = True

    def stop(self) -> None:
        """Ask it to save its run, and wait for that."""
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGTERM)
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)  # takes no lock: in a handler

    def checkpoint(self) -> Any:
        """For submitit, when the job's time is over: the same claimer, as a job to requeue."""
        self.stop()
        helpers = required("submitit.helpers", "slurm", "--launch slurm", UsageError)
        return helpers.DelayedSubmission(Claimer(self.words))


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def _read(stream: IO[str], said: list[str]) -> None:
    """Pass on what a claimer says, for the job's log; keep its last line."""
    with stream:
        for line in stream:
            sys.stderr.write(line)
            sys.stderr.flush()
            said[:] = [line.strip()]
