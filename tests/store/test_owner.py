"""Whether the process that runs a run still lives, with real processes. Needs Linux's /proc."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnres_cli.store import owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

TELL = "from attnres_cli.store import owner; print(owner.this_process(), flush=True)"
RENAME = "open('/proc/self/comm', 'w').write('a) Z (b'); "


@contextmanager
def started(script: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the line that it prints first."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.communicate("\n")


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def with_part(position: int, value: str) -> str:
    """This process, with one of host, boot id, process id and start changed."""
    parts = owner.this_process().split("|")
    parts[position] = value
    return "|".join(parts)


def test_this_process_is_alive_and_always_the_same_owner():
    assert owner.is_alive(owner.this_process())
    assert owner.this_process() == owner.this_process()


def test_a_process_that_has_ended_is_dead_also_as_a_zombie():
    with started(TELL) as (process, name):
        while state_of(process.pid) != "Z":
            time.sleep(0.01)
        assert owner.is_alive(name) is False
    assert name != owner.this_process()
    assert owner.is_alive(name) is False


def test_a_process_whose_name_holds_brackets_and_spaces_is_alive():
    with started(RENAME + TELL + "; input()") as (_, name):
        assert owner.is_alive(name)


def test_a_later_process_with_the_same_id_is_not_the_owner():
    assert owner.is_alive(with_part(3, "1")) is False


def test_nothing_is_known_of_a_process_that_another_user_hides(monkeypatch: pytest.MonkeyPatch):
    def refused(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(owner.os, "kill", refused)
    assert owner.is_alive(with_part(2, "999999999")) is None


def test_nothing_is_known_of_a_process_of_another_host_boot_or_container():
    host, _, namespace = owner.this_process().split("|")[0].rpartition("/")
    assert namespace.isdecimal()
    assert owner.is_alive(with_part(0, "some-other-host")) is None
    assert owner.is_alive(with_part(0, f"{host}/1")) is None
    assert owner.is_alive(with_part(1, "00000000-0000-0000-0000-000000000000")) is None


def test_a_process_on_another_host_is_gone_without_heartbeat(monkeypatch: pytest.MonkeyPatch):
    now, watch, other = 1000.0, owner.Watch(), with_part(0, "some-other-host/4026531836")
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for name, heartbeat, after, is_gone in (
        (other, "a", 0, False),  # however old it looks: clocks differ
        (other, "a", owner.STALE_S - 1, False),
        (other, "b", 2, False),
        (other, "b", owner.STALE_S - 1, False),
        (other, "b", 2, True),
        (f"{other}0", "b", 0, False),  # a new owner is watched anew
        (f"{other}1", None, 0, False),
        (f"{other}1", None, owner.STALE_S + 1, True),
    ):
        now += after
        assert watch.is_gone(7, name, heartbeat) == is_gone
    assert owner.STALE_S + owner.BEAT_S < 60


def test_on_this_host_the_kernel_is_asked_instead_of_the_heartbeat():
    watch = owner.Watch()
    assert not watch.is_gone(7, owner.this_process(), None)
    assert watch.is_gone(7, with_part(3, "1"), "just now")
