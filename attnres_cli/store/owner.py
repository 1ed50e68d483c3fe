"""Who is running a run, and whether that process still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """`host|boot id|process id|process start`: no other process, before or after, has the same."""
    pid = os.getpid()
    return "|".join((socket.gethostname(), _boot_id(), str(pid), _start_of(pid)))


def is_alive(owner: str) -> bool:
    """Whether that process may still be running. On another host it may, as far as we can know."""
    parts = owner.split("|")
    if len(parts) != 4 or not parts[2].isdecimal():
        return False  # nobody of ours wrote this
    host, boot, pid, start = parts
    if host != socket.gethostname():
        return True
    return boot == _boot_id() and start != "" and start == _start_of(int(pid))


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
