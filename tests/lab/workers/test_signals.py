"""Signals end a command wherever they meet Python."""

from __future__ import annotations

import signal
import sys
import time
import weakref

import pytest

from attnres_cli.lab import step_times
from attnres_cli.lab.workers.signals import handled, interrupt, none_lost


class Thing:
    """What a weak reference is to."""


def interrupted(number: signal.Signals) -> None:
    """Receive a signal in the callback of a weak reference: Python ignores what it raises there."""
    things = [Thing()]
    _ref = weakref.ref(things[0], lambda _gone: signal.raise_signal(number))
    things.clear()
    time.sleep(30)


def test_a_signal_in_the_callback_of_a_weak_reference_is_not_lost():
    for number, handler, named in (
        (signal.SIGINT, signal.default_int_handler, ()),
        (signal.SIGTERM, interrupt, (signal.SIGTERM,)),
    ):
        with handled({number: handler}), none_lost(), pytest.raises(KeyboardInterrupt) as raised:
            interrupted(number)
        assert raised.value.args == named


def test_other_errors_in_a_callback_are_reported_as_usual(monkeypatch: pytest.MonkeyPatch):
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(lost.exc_value))
    things, error = [Thing()], ValueError("a fault of ours")

    def fail(_gone: object) -> None:
        raise error

    _ref = weakref.ref(things[0], fail)
    with none_lost():
        things.clear()

    assert reported == [error]


def test_ctrl_c_in_a_callback_ends_a_command_with_its_line(here, monkeypatch, attnres):
    monkeypatch.setattr(step_times, "timed", lambda *_arguments: interrupted(signal.SIGINT))
    code, _, err = attnres("ablate", "standard", "--seeds", "1", "--recipe", "smoke")
    assert code == 130
    assert "attnres: interrupted; what is done is in the study" in err
    assert "ignored" not in err
