"""Workers on a CPU share its cores evenly, and stay on their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnres_cli.lab.workers import cores
from attnres_cli.lab.workers.cores import shares
from attnres_cli.records import machine
from attnres_cli.records.machine import Cores


def test_the_threads_of_one_core_go_to_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(8):  # CPUs 0 and 4 are one core, and so on, as Linux numbers them
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{number % 4}\n")
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
    assert shares(Cores(tuple(range(8)), 8), 2) == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert shares(Cores((0, 4, 3), 3), 2) == [(0,), (4, 3)]


@pytest.mark.parametrize("n_cores", [1, 2, 3, 5, 8, 64])
@pytest.mark.parametrize("n_workers", [1, 2, 3, 4, 7, 16])
def test_every_core_is_used_as_evenly_as_possible(n_cores: int, n_workers: int):
    found = shares(Cores(tuple(range(n_cores)), n_cores), n_workers)
    assert len(found) == n_workers
    used = [sum(core in share for share in found) for core in range(n_cores)]
    assert 0 < min(used) >= max(used) - 1
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_under_a_quota_the_kernel_chooses_the_cores_of_each_worker():
    assert shares(Cores(tuple(range(64)), 2, "the container's quota"), 2) == [(), ()]


BOUND = """
import os, sys, threading
from attnres_cli.lab.workers.cores import bind

bind([int(sys.argv[1])])
found = []
thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
thread.start()
thread.join()
print(found[0] == os.sched_getaffinity(0) == {int(sys.argv[1])})
"""


@pytest.mark.skipif(machine.cores().n < 2, reason="there is one core")
def test_a_bound_process_and_its_threads_run_only_on_its_cores():
    command = [sys.executable, "-c", BOUND, str(machine.cores().numbers[-1])]
    assert subprocess.check_output(command, text=True).strip() == "True"


def test_cores_that_may_not_be_used_any_more_bind_to_nothing():
    before = os.sched_getaffinity(0)
    cores.bind([4095])
    cores.bind([])
    assert os.sched_getaffinity(0) == before
