"""What a command says while it is at something."""

from __future__ import annotations

import time

import pytest

from attnres_cli import console


def test_what_takes_long_is_told_of_once_and_what_does_not_is_not(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with console.told_if_slow("still counting"):
        pass
    monkeypatch.setattr(console, "_LONG_S", 0.05)
    with console.told_if_slow("still planning"):
        time.sleep(0.5)

    assert capfd.readouterr().err == "attnres: still planning\n"
