"""The command `attnres` in the process of a test."""

from __future__ import annotations

import sys

import pytest

from attnres_cli import cli


def attnres(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    argv, sys.argv = sys.argv, ["attnres", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            cli.main()
    finally:
        sys.argv = argv
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err
