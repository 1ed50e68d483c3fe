"""Whether the process that runs a run still lives, with real processes. Needs Linux's /proc."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnres_cli.store import owner

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

TELL = "from attnres_cli.store import owner; print(owner.this_process(), flush=True)"
RENAME = "open('/proc/self/comm', 'w').write('a) Z (b'); "


def started(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


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
    with started(TELL) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        while state_of(process.pid) != "Z":
            time.sleep(0.01)

        assert owner.is_alive(name) is False
    assert name != owner.this_process()
    assert owner.is_alive(name) is False


def test_a_process_whose_name_holds_brackets_and_spaces_is_alive():
    with started(RENAME + TELL + "; input()") as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()

        alive = owner.is_alive(name)
        process.communicate("\n")

    assert alive


def test_a_later_process_with_the_same_id_is_not_the_owner():
    assert owner.is_alive(with_part(3, "1")) is False


def test_nothing_is_known_of_a_process_of_another_host_boot_or_container():
    host, _, namespace = owner.this_process().split("|")[0].rpartition("/")

    assert namespace.isdecimal()
    assert owner.is_alive(with_part(0, "some-other-host")) is None
    assert owner.is_alive(with_part(0, f"{host}/1")) is None
    assert owner.is_alive(with_part(1, "00000000-0000-0000-0000-000000000000")) is None


class Clock:
    """A watch over run 7 of a process on another host, with a clock that tests move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.watch = 1000.0, owner.Watch()
        self.other = with_part(0, "some-other-host/4026531836")
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def is_gone(self, heartbeat: str | None, after: float, name: str = "") -> bool:
        self.now += after
        return self.watch.is_gone(7, name or self.other, heartbeat)


def test_a_process_on_another_host_is_gone_when_its_heartbeat_stops(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = Clock(monkeypatch)

    assert not clock.is_gone("a", 0)  # however old it looks: clocks differ
    assert not clock.is_gone("a", owner.STALE_S - 1)
    assert not clock.is_gone("b", 2)
    assert not clock.is_gone("b", owner.STALE_S - 1)
    assert clock.is_gone("b", 2)
    assert not clock.is_gone("b", 0, f"{clock.other}0")  # a new owner is watched anew
    assert owner.STALE_S + owner.BEAT_S < 60


def test_a_process_on_another_host_that_never_beat_is_gone_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = Clock(monkeypatch)

    assert not clock.is_gone(None, 0)
    assert clock.is_gone(None, owner.STALE_S + 1)


def test_on_this_host_the_kernel_is_asked_instead_of_the_heartbeat():
    watch = owner.Watch()

    assert not watch.is_gone(7, owner.this_process(), None)
    assert watch.is_gone(7, with_part(3, "1"), "just now")
