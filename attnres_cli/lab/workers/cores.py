"""Which cores of a CPU each worker is bound to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from attnres_cli.records.machine import Cores

_TOPOLOGY = Path("/sys/devices/system/cpu")


def shares(cores: Cores, n_workers: int) -> list[tuple[int, ...]]:
    """The cores of each worker. All are used, as evenly as can be, and the two threads of one
    physical core are next to each other. More workers than cores take turns. None are bound under a
    quota: which of its cores a machine has free then, the kernel knows, and neighbours have others.
    """
    if cores.n < len(cores.numbers):
        return [()] * n_workers
    order = sorted(cores.numbers, key=_place)
    n = len(order)
    if n_workers >= n:
        return [(order[worker % n],) for worker in range(n_workers)]
    ends = [n * worker // n_workers for worker in range(n_workers + 1)]
    return [tuple(order[a:b]) for a, b in pairwise(ends)]


def bind(cores: Sequence[int]) -> None:
    """Bind this process and its future threads to these cores, where the system lets it."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError:  # as where cores were taken away from us meanwhile
        return


def _place(core: int) -> tuple[int, int, int]:
    """Socket, physical core and number, so far as the system says."""
    folder = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        socket, physical = (
            int((folder / name).read_text(encoding="ascii"))
            for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return 0, core, core
    return socket, physical, core
