"""What Linux lets this process use of the machine, by whose word: cores, memory and its killer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cores:
    """The CPU cores that this process may run on, and on how many of them at once. `by` says whose
    word that is; it is empty where all of the machine's may be used.
    """

    numbers: tuple[int, ...]
    n: int
    by: str = ""


def cores() -> Cores:
    """By the affinity of this process and the quotas of its control groups, as of a container."""
    numbers, quota = tuple(sorted(os.sched_getaffinity(0))), _quota()
    if quota is not None and quota < len(numbers):
        return Cores(numbers, quota, "the container's quota")
    is_all = len(numbers) == os.cpu_count()
    return Cores(numbers, len(numbers), "" if is_all else "the process's affinity")


def is_rank() -> bool:
    """Whether torchrun, or what says the same, has started this process as one of several."""
    return all(name in os.environ for name in _OF_RANKS) and int(os.environ["WORLD_SIZE"]) > 1


_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def most_threads() -> int | None:
    """What OMP_NUM_THREADS says of a process; None where it says nothing, or no number."""
    said = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # others are of inner loops
    return int(said) if said.isdecimal() and 0 < int(said) < 10**6 else None


def memory() -> tuple[int | None, str]:
    """Bytes of memory and swap that processes of our control group may have together, and whose
    word that is. None where the system does not tell.
    """
    lines = (line.partition(":") for line in _text(_PROC / "meminfo").splitlines())
    told = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines if rest.strip()}
    if "MemTotal" not in told:
        return None, ""
    limits = [_text(folder / name).strip() for folder in _groups("memory") for name in _LIMITS]
    least = min((int(limit) for limit in limits if limit.isdecimal()), default=told["MemTotal"])
    swap = told.get("SwapTotal", 0)
    if least < told["MemTotal"]:
        return least + swap, "this container"
    return told["MemTotal"] + swap, "this machine"


_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of control groups, version 2 and 1


def memory_kills() -> int | None:
    """How many processes the kernel has ended for want of memory: of our control group, or of the
    whole machine. None where the system does not tell.
    """
    told = [folder / name for folder in _groups("memory") for name in _KILLS]
    return next((n for file in (*told, _PROC / "vmstat") if (n := _kills(file)) is not None), None)


_KILLS = ("memory.events", "memory.oom_control")  # of control groups, version 2 and 1


def _kills(file: Path) -> int | None:
    for line in _text(file).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


def _quota() -> int | None:
    """Whole cores' time that the tightest of our control groups allows, at least one."""
    found = []
    for folder in _groups("cpu"):
        pair = _text(folder / "cpu.max").split()  # version 2: `max 100000` where there is none
        pair = pair or [
            _text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if all(number.isdecimal() for number in pair):  # version 1: -1 where there is none
            found.append(max(1, int(pair[0]) // int(pair[1])))
    return min(found, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """Folders of this process's control groups, the innermost first. Some may not be there: what a
    container sees of them begins at its own.
    """
    for line in _text(_PROC / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        root = _GROUPS / controller if names else _GROUPS
        inner = root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield folder
            if folder == root:
                break


def _text(file: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
