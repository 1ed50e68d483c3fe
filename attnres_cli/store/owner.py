"""Who is running a run, and whether that process still lives.

Of a process on this host, the kernel knows. Of one on another host only its heartbeat tells, and
that is judged by whether it moves, not by what it says: clocks of hosts differ. A host is the same
one until it boots again: many machines may have one name.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

BEAT_S = 10.0  # seconds between heartbeats
STALE_S = 45.0  # seconds after which a heartbeat on another host that does not move is gone


def this_process() -> str:
    """`host|boot id|process id|process start`: no other process, before or after, has the same."""
    pid = os.getpid()
    return "|".join((_host(), _boot_id(), str(pid), _start_of(pid)))


def is_alive(owner: str) -> bool | None:
    """Whether that process still runs. None: nobody here can know, as it is of another host, or of
    another user and hidden.
    """
    parts = owner.split("|")
    if len(parts) != 4:
        return False  # nobody of ours wrote this
    host, boot, pid, start = parts
    if (host, boot) != (_host(), _boot_id()):
        return None
    found = _start_of(int(pid)) if pid.isdecimal() else ""
    if not found and pid.isdecimal() and _is_hidden(int(pid)):
        return None
    return start != "" and start == found


def _is_hidden(pid: int) -> bool:
    """Whether it is a process of another user, which /proc may not show (hidepid)."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return not Path(f"/proc/{pid}").exists()
    except OSError:
        return False
    return False


class Watch:
    """Tells which owners are gone, having seen their heartbeats before."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[tuple[str, str | None], float]] = {}  # by run, and since when

    def is_gone(self, run_id: int, owner: str, heartbeat: str | None) -> bool:
        """Whether the process that runs a run is gone; called again and again."""
        if (alive := is_alive(owner)) is not None:
            return not alive
        now, sign = time.monotonic(), (owner, heartbeat)
        before, since = self._seen.get(run_id, (None, now))
        if before != sign:
            self._seen[run_id] = (sign, now)
            return False
        return now - since > STALE_S


def _host() -> str:
    """The name of the host and, since containers may share it, which process ids we see."""
    try:
        return f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return socket.gethostname()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _start_of(pid: int) -> str:
    """Clock ticks from boot to the start of a process; empty if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    after_name = fields.rpartition(")")[2].split()  # the name may hold spaces and brackets
    return "" if after_name[0] in ("Z", "X") else after_name[19]
