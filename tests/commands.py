"""The command `attnres`, in the process of a test or in one of its own."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from attnres_cli import console
from attnres_cli.cli import app
from attnres_cli.data import reference

typer.main.get_command = cache(typer.main.get_command)  # which takes 30 ms of every command


def describe_by_few_tokens(patch: pytest.MonkeyPatch) -> None:
    """The lines that losses are compared with are fitted to a sample, whose size is a constant."""
    for name in ("MOST", "TRAIN_TOKENS", "VAL_TOKENS"):
        patch.setattr(reference, name, 2**14)


def ended(*arguments: str) -> int:
    """The exit code; what was printed stays where it went."""
    argv, sys.argv = sys.argv, ["attnres", *arguments]
    try:
        return app.run()
    except SystemExit as told:
        return told.code if isinstance(told.code, int) else 0
    finally:
        sys.argv = argv
        console.be(console.USUAL)


def attnres(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return ended(*arguments), *capsys.readouterr()


class Attnres:
    """`attnres` as a test types it: `attnres("runs")` gives the exit code, stdout and stderr."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        return attnres(self._capsys, *arguments)

    def prints(self, *arguments: str) -> str:
        """The stdout of a command that succeeds."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.prints(*arguments, "--format", "json"))

    def csv(self, *arguments: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.prints(*arguments, "--format", "csv"))))

    def refuses(self, *arguments: str) -> str:
        """The one line of a command that prints no result and ends with exit code 2."""
        code, out, err = self(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err


def process(*arguments: str, folder: Path | None = None) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "attnres_cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"COLUMNS": "200"},
    )
    return done.returncode, done.stdout, done.stderr
