"""The command `attnres`, in the process of a test or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_cli import console
from attnres_cli.cli import app


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
    """Exit code, stdout and stderr."""
    return ended(*arguments), *capsys.readouterr()


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
