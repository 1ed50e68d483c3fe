"""Signals end a command wherever they meet Python."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnres_cli.lab.workers.signals import handled, interrupt, none_lost


class Thing:
    """What a weak reference is to."""


def drop(things: list[Thing]) -> None:
    """Whatever their weak references' callbacks raise is ignored."""
    things.clear()
    time.sleep(30)


@pytest.mark.parametrize(
    ("number", "handler", "named"),
    [
        (signal.SIGINT, signal.default_int_handler, ()),
        (signal.SIGTERM, interrupt, (signal.SIGTERM,)),
    ],
)
def test_a_signal_that_meets_a_weak_references_callback_is_not_lost(
    number: signal.Signals, handler: Callable[[int, Any], None], named: tuple[int, ...]
):
    things = [Thing()]
    _ref = weakref.ref(things[0], lambda _gone: signal.raise_signal(number))

    with handled({number: handler}), none_lost(), pytest.raises(KeyboardInterrupt) as raised:
        drop(things)

    assert raised.value.args == named


def test_what_else_cannot_be_raised_is_told_as_ever(monkeypatch: pytest.MonkeyPatch):
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_value))
    thing, error = Thing(), ValueError("a fault of ours")

    def fail(_gone: object) -> None:
        raise error

    _ref = weakref.ref(thing, fail)
    with none_lost():
        del thing

    assert told == [error]


INTERRUPTED = """
import signal, sys, weakref
from attnres_cli.cli import app
from attnres_cli.lab import grid

class Thing: pass

def timed(*arguments):
    thing = Thing()
    ref = weakref.ref(thing, lambda gone: signal.raise_signal(signal.SIGINT))
    del thing
    return usual(*arguments)

usual, grid.timed = grid.timed, timed
sys.argv = ["attnres", "ablate", "standard", "--seeds", "1", "--recipe", "smoke"]
app.main()
"""


def test_ctrl_c_in_a_callback_ends_a_command_with_its_line(tmp_path: Path):
    typed = [sys.executable, "-c", INTERRUPTED]

    done = subprocess.run(
        typed, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )

    assert done.returncode == 130, done.stderr
    assert "attnres: interrupted; what is done is in the study" in done.stderr
    assert "ignored" not in done.stderr
