"""Real commands on machines that misbehave: memory, locks, clocks, folders, and many at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grids
import pytest
from commands import ended
from grids import OFTEN, done, query, running, started

ONE = ["ablate", "standard", "--seeds", "1", "--recipe", "smoke", "--workers", "1"]
ONE += ["--set", "train.tokens=40k", "--set", "train.eval_tokens=512"]
GRID = ["ablate", "standard", "attnres:block_size=2", *ONE[2:], "--seeds", "2", "--workers", "2"]
MIB = 2**20

NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
static int pass(const char *name, int file, int command, void *argument) {
    if (command == F_SETLK || command == F_SETLKW || command == F_GETLK) {
        errno = ENOLCK;
        return -1;
    }
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    return real(file, command, argument);
}
#define PASS(name) int name(int file, int command, ...) { \\
    va_list rest; va_start(rest, command); void *argument = va_arg(rest, void *); va_end(rest); \\
    return pass(#name, file, command, argument); }
PASS(fcntl)
PASS(fcntl64)
"""
BACK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long by(void) { return access(getenv("BACK"), F_OK) ? 0 : -7200; }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += by();
    return code;
}
int gettimeofday(struct timeval *now, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    now->tv_sec += by();
    return code;
}
"""


def preloaded(source: str, folder: Path) -> dict[str, str]:
    """The environment of a process in which the C library has other functions, from C."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    code, library = folder / "other.c", folder / "other.so"
    code.write_text(source, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, code, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@contextmanager
def memory_group() -> Iterator[Path]:
    """A control group that counts memory."""
    root = Path("/sys/fs/cgroup")
    root = root / "memory" if (root / "memory").is_dir() else root
    group = root / "attnres-test"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("only root can make a control group")
    try:
        yield group
    finally:
        grids.wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def limit(group: Path, n_bytes: int) -> None:
    names = ("memory.limit_in_bytes", "memory.max")
    next(group / name for name in names if (group / name).exists()).write_text(str(n_bytes))


def used(group: Path) -> int:
    names = ("memory.usage_in_bytes", "memory.current")
    return int(next(group / name for name in names if (group / name).exists()).read_text())


@pytest.mark.nightly
def test_a_worker_killed_for_memory_is_told_as_such_and_its_run_goes_on(tmp_path: Path):
    calm = tmp_path / "calm"
    calm.mkdir()
    typed = [*ONE, "--set", "train.tokens=400k"]
    done(calm, *typed)
    tight = tmp_path / "tight"
    tight.mkdir()
    with memory_group() as group, started(tight, *typed, **OFTEN) as command:
        (group / "cgroup.procs").write_text(str(command.process.pid))
        command.wait_for(lambda: grids.some_have_begun(tight))
        ((pid, _, _),) = running(tight)
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        while grids.lives(pid):  # as a neighbor that takes more and more
            with suppress(OSError):  # version 1 takes no limit below what is used
                limit(group, used(group) - MIB // 4)
        limit(group, 2**40)
        command.succeed()
        said = command.err

    assert "worker process ended with SIGKILL, from the machine's memory killer: lower " in said
    assert grids.study(tight) == grids.study(calm)


@pytest.mark.nightly
def test_a_disk_that_cannot_lock_files_is_named_at_once(tmp_path: Path):
    with started(tmp_path, *ONE, **preloaded(NO_LOCKS, tmp_path.parent)) as command:
        assert command.end() == 2

    (line,) = command.err.splitlines()
    assert line.startswith("attnres: study attnres.db: the disk (")
    assert "cannot lock files, as some network disks cannot: put the study on a local disk" in line


@pytest.mark.nightly
def test_a_clock_that_is_set_back_changes_no_bit(tmp_path: Path):
    folders = calm, ours = tmp_path / "calm", tmp_path / "ours"
    for folder in folders:
        folder.mkdir()
    done(calm, *GRID)
    switch = tmp_path / "back"
    environment = preloaded(BACK, tmp_path) | {"BACK": str(switch)}
    with started(ours, *GRID, **OFTEN, **environment) as killed:
        killed.wait_for(lambda: grids.some_have_begun(ours))
        switch.touch()
        killed.wait_for(lambda: "complete" in grids.statuses(ours))
        killed.die()
    with started(ours, *GRID, **environment) as command:
        command.succeed()

    assert grids.study(ours) == grids.study(calm)


@pytest.mark.slow
def test_a_file_in_the_place_of_the_runs_folder_is_refused_in_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "attnres.runs").write_text("mine")

    assert ended(*ONE) == 2

    line = capfd.readouterr().err.splitlines()[-1]
    assert "attnres.runs" in line
    assert (tmp_path / "attnres.runs").read_text() == "mine"


@pytest.mark.nightly
def test_a_study_is_merged_while_commands_write_to_it(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    with started(source, *GRID, "--seeds", "6") as command:
        command.wait_for(lambda: "complete" in grids.statuses(source))
        merges = 0
        while command.process.poll() is None:
            done(tmp_path, "runs", "merge", "source/attnres.db", "--into", "attnres.db")
            merges += 1
        command.succeed()
    done(tmp_path, "runs", "merge", "source/attnres.db", "--into", "attnres.db")

    assert merges > 1
    assert set(grids.statuses(tmp_path)) == {"complete"}
    assert len(grids.numbers(tmp_path)) == len(grids.numbers(source))


@pytest.mark.nightly
def test_sixteen_commands_on_one_study_train_each_run_once(tmp_path: Path):
    typed = [*GRID, "--seeds", "40", "--workers", "1", "--set", "train.tokens=10k"]
    with ExitStack() as all_:
        commands = [all_.enter_context(started(tmp_path, *typed)) for _ in range(16)]
        for command in commands:
            command.succeed()

    attempts = query(tmp_path, "SELECT attempts FROM attnres_runs")
    assert attempts == [(1,)] * 80
    assert set(grids.statuses(tmp_path)) == {"complete"}
    assert query(tmp_path, "PRAGMA integrity_check") == [("ok",)]
    assert not any("Traceback" in command.err for command in commands)


@pytest.mark.nightly
@pytest.mark.parametrize("place", ["TMPDIR", "/dev/shm"])
def test_a_full_folder_for_temporary_files_costs_nothing(tmp_path: Path, place: str):
    folders = calm, ours = tmp_path / "calm", tmp_path / "ours"
    for folder in folders:
        folder.mkdir()
    done(calm, *GRID)
    with grids.small_disk(tmp_path / "disk", "64k") as disk:
        (disk / "fill").write_bytes(bytes(60 * 2**10))
        if place == "TMPDIR":
            with started(ours, *GRID, TMPDIR=str(disk)) as command:
                command.succeed()
        else:
            inside = ["sh", "-c", f'mount --bind {disk} /dev/shm && exec "$@"', "sh"]
            typed = ["unshare", "--mount", *inside, sys.executable, "-m", "attnres_cli", *GRID]
            subprocess.run(typed, cwd=ours, env=os.environ | grids.PLACE, check=True)

    assert grids.study(ours) == grids.study(calm)
