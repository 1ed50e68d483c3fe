"""The command `attnres` in the process of a test."""

from __future__ import annotations

import sys

import pytest

from attnres_cli.cli import app


def ended(*arguments: str) -> int:
    """The exit code; what was printed stays where it went."""
    argv, sys.argv = sys.argv, ["attnres", *arguments]
    try:
        with pytest.raises(SystemExit) as told:
            app.main()
    finally:
        sys.argv = argv
    return told.value.code if isinstance(told.value.code, int) else 0


def attnres(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    return ended(*arguments), *capsys.readouterr()
