"""What the tests of the command line share: the command, an empty folder, quick data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Attnres, describe_by_few_tokens


@pytest.fixture
def attnres(capsys: pytest.CaptureFixture[str]) -> Attnres:
    """The command `attnres`, in this process."""
    return Attnres(capsys)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder in which commands are typed, in a wide terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture(autouse=True)
def _describe_data_by_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    describe_by_few_tokens(monkeypatch)


@pytest.fixture
def plugins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for plugins, which this process forgets after the test."""
    from attnres_cli.nn import residual

    residual.registry()  # all built-in designs, which a copy keeps
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    monkeypatch.setenv(residual.PLUGINS, "")  # a command sets it for its workers
    yield folder
    for name in [name for name in sys.modules if name.startswith("attnres_plugins.")]:
        del sys.modules[name]
