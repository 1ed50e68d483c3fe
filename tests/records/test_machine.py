"""The limits of control groups and of the kernel on cores, memory and threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres_cli.records import machine
from attnres_cli.records.machine import cores, memory, memory_kills, most_threads

Tree = Callable[[dict[str, str]], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A function that writes files of /proc and /sys/fs/cgroup; there are four cores."""
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write


V2, V1 = "0::/jobs/mine\n", "4:memory:/jobs/mine\n3:cpu,cpuacct:/jobs/mine\n0::/\n"
QUOTA = "the container's quota"


@pytest.mark.parametrize(
    ("files", "n", "by"),
    [
        ({}, 4, ""),
        ({"proc/self/cgroup": V2, "cgroup/jobs/mine/cpu.max": "max 100000\n"}, 4, ""),
        ({"proc/self/cgroup": V2, "cgroup/jobs/mine/cpu.max": "250000 100000\n"}, 2, QUOTA),
        ({"proc/self/cgroup": V2, "cgroup/jobs/cpu.max": "50000 100000\n"}, 1, QUOTA),
        ({"proc/self/cgroup": V2, "cgroup/cpu.max": "300000 100000\n"}, 3, QUOTA),
        ({"proc/self/cgroup": V2, "cgroup/cpu.max": "6400000 100000\n"}, 4, ""),
        ({"proc/self/cgroup": V1, "cgroup/cpu/jobs/mine/cpu.cfs_quota_us": "200000\n",
          "cgroup/cpu/jobs/mine/cpu.cfs_period_us": "100000\n"}, 2, QUOTA),
        ({"proc/self/cgroup": V1, "cgroup/cpu/cpu.cfs_quota_us": "-1\n",
          "cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 4, ""),
    ],
)  # fmt: skip
def test_affinity_and_the_tightest_quota_bound_the_cores(tree, files, n: int, by: str, monkeypatch):
    tree(files)

    assert (cores().n, cores().by) == (n, by)
    assert cores().numbers == (0, 1, 2, 3)
    if n > 2:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3, 1})
        assert cores() == machine.Cores((1, 3), 2, "the process's affinity")


MEMINFO = "MemTotal:       16000 kB\nMemFree:  10 kB\nHugepagesize: 1 kB\nSwapTotal:  1000 kB\n"


@pytest.mark.parametrize(
    ("files", "kib", "whose"),
    [
        ({}, 17000, "this machine"),
        ({"proc/self/cgroup": V2, "cgroup/jobs/mine/memory.max": "max\n"}, 17000, "this machine"),
        ({"proc/self/cgroup": V2, "cgroup/jobs/memory.max": "4096000\n"}, 5000, "this container"),
        ({"proc/self/cgroup": V1, "cgroup/memory/jobs/memory.limit_in_bytes": "2048000\n",
          "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 3000, "this container"),
    ],
)  # fmt: skip
def test_memory_is_the_least_of_the_machine_and_its_groups(tree: Tree, files, kib: int, whose: str):
    tree({})
    assert memory() == (None, "")

    tree({"proc/meminfo": MEMINFO, **files})
    assert memory() == (kib * 1024, whose)


@pytest.mark.parametrize(
    ("value", "threads"), [("", None), ("3", 3), ("2,4", 2), ("0", None), ("many", None)]
)
def test_omp_num_threads_is_read_as_openmp_does(value: str, threads: int | None, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", value)

    assert most_threads() == threads


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, None),
        ({"proc/vmstat": "nr_free_pages 7\noom_kill 5\n"}, 5),
        ({"proc/self/cgroup": V2, "proc/vmstat": "oom_kill 5\n",
          "cgroup/jobs/mine/memory.events": "oom 9\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": V1,
          "cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 3\n"}, 3),
    ],
)  # fmt: skip
def test_kills_for_memory_are_our_groups_or_the_machines(tree: Tree, files, kills: int | None):
    tree(files)

    assert memory_kills() == kills
