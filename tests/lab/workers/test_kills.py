"""Real commands, interrupted or killed and continued: the study is the undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grids
import pytest
from grids import KIMI, OFTEN, done, forked_by, lives, query, running, started, wait_until

from attnres_cli.lab.workers.pool import prepare
from attnres_cli.nn import residual

ONE = ["ablate", "standard", "--seeds", "1", "--recipe", "smoke", "--workers", "1"]
ONE += ["--set", "train.tokens=40k", "--set", "train.eval_tokens=512"]  # 78 steps
GRID = ["ablate", "standard", "attnres:block_size=2", *ONE[2:], "--seeds", "2", "--workers", "2"]
ON_KIMI = ["ablate", "standard", "attnres", *GRID[3:], *KIMI]


def calm(folder: Path, typed: list[str]):
    folder.mkdir(exist_ok=True)
    done(folder, *typed)
    return grids.study(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    return calm(tmp_path_factory.mktemp("undisturbed"), GRID)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_an_interrupted_command_saves_its_runs_and_ends_with_one_line(tmp_path: Path, number):
    typed = [*ONE, "--set", "train.tokens=400k"]
    with started(tmp_path, *typed, ATTNRES_CHECKPOINT_S="0.1") as begun:
        begun.wait_for(lambda: grids.some_have_begun(tmp_path))
        pids = [pid for pid, _, _ in running(tmp_path)]
        begun.signal(number)
        assert begun.end() == 130, begun.err
    assert "interrupted; what is done is in the study, the same command goes on" in begun.err
    assert "Traceback" not in begun.err
    assert grids.statuses(tmp_path) == ["pending"]
    assert not any(map(lives, pids))
    assert list((tmp_path / "attnres.runs").glob("*/0*.json"))


@pytest.mark.slow
def test_a_study_that_is_removed_ends_the_command_with_one_line_and_is_not_made_again(
    tmp_path: Path,
):
    with started(tmp_path, *ONE, "--set", "train.tokens=4M", **OFTEN) as command:
        command.wait_for(lambda: grids.some_have_begun(tmp_path))
        pids = forked_by(command.process.pid)
        (tmp_path / "attnres.db").unlink()
        assert command.end() == 2, command.err
        wait_until(lambda: not any(map(lives, pids)), 120)
    assert command.err.splitlines()[-1].startswith("attnres: study attnres.db was removed while")
    assert "Traceback" not in command.err
    assert not (tmp_path / "attnres.db").exists()


def test_workers_end_with_their_killed_launcher_and_the_same_command_continues(tmp_path: Path):
    with started(tmp_path, *ONE, **OFTEN) as command:
        command.wait_for(lambda: grids.some_have_begun(tmp_path))
        pids = forked_by(command.process.pid)
        os.kill(command.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(lives, pids)), 120)
    assert len(pids) >= 2
    assert grids.statuses(tmp_path) != ["complete"]
    assert calm(tmp_path, ONE) == calm(tmp_path / "undisturbed", ONE)


IMPORTS = """
import torch
from attnres_cli.nn.residual import register
from attnres_variants.standard import Standard
"""
DESIGN = """
@register("{}")
class {}(Standard):
    def write(self, state, l, y):
        if y.requires_grad:
            {}
        return state + y
"""
DESIGNS = {
    "raises": "raise ValueError('not today')",
    "torn": "raise ImportError('/tmp/a/b.main.so: file too short')",
    "hungry": "return state + y + torch.empty(2**60)",
    "wild": "return state + y * float('nan')",
}


@pytest.fixture
def designs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A plugin of designs that fail only in training, where no check sees it."""
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))
    monkeypatch.setenv("ATTNRES_PLUGINS", "")
    prepare()  # else workers would be copies of a process that has the designs of the first command
    file = tmp_path / "designs.py"
    classes = [DESIGN.format(name, name.title(), body) for name, body in DESIGNS.items()]
    file.write_text(IMPORTS + "".join(classes))
    yield file
    sys.modules.pop("attnres_plugins.designs", None)


def test_runs_that_fail_or_diverge_end_no_others_and_can_be_trained_again(tmp_path, designs: Path):
    options = ["--plugin", str(designs), *ONE[2:], "--set", "train.tokens=4k"]

    found = done(tmp_path, "ablate", "standard", *DESIGNS, *options, code=3)
    (error,) = query(tmp_path, "SELECT error FROM attnres_runs WHERE variant = 'raises'")[0]
    designs.write_text(designs.read_text().replace("raise Val", "return state + y #"))
    sys.modules.pop("attnres_plugins.designs")
    for name in DESIGNS:
        del residual._REGISTRY[name]
    again = done(tmp_path, "ablate", "standard", "raises", *options, "--retry-failed")

    arms = {arm["variant"]: arm for arm in found["arms"]}
    assert (arms["wild"]["verdict"], arms["wild"]["mean"]) == ("blocked", None)
    assert "diverged" in arms["wild"]["reason"]
    failed = {run["variant"]: run["error"] for run in found["failed"]}
    assert failed.keys() == {"raises", "torn", "hungry"}
    left = "/tmp/a/b.main.so was left half compiled by a killed command: delete it"
    assert failed["torn"].endswith(left)
    assert failed["raises"] == "ValueError: not today"
    assert error.startswith("Traceback")
    assert "16 sequences at a time: --set train.micro_batch_size=8" in failed["hungry"]
    losses = {arm["variant"]: arm["losses"] for arm in again["arms"]}
    assert losses["raises"] == losses["standard"] == arms["standard"]["losses"]


def test_a_checkpoint_interval_that_is_no_number_is_refused(tmp_path: Path):
    with pytest.raises(AssertionError, match="must be a number of seconds from 0 up, got 'often'"):
        done(tmp_path, *GRID, ATTNRES_CHECKPOINT_S="often")


def stop_in_writing(folder: Path, pid: int) -> bool:
    """Halt that process while it writes a checkpoint; False if its run ends before."""
    half = f"*/.*.{pid}"  # a file that it has not finished
    with suppress(ProcessLookupError):
        while any(found == pid for found, _, _ in running(folder)):
            deadline = time.monotonic() + 0.2
            while not any((folder / "attnres.runs").glob(half)) and time.monotonic() < deadline:
                time.sleep(0.0002)
            os.kill(pid, signal.SIGSTOP)
            if any((folder / "attnres.runs").glob(half)):  # what is half written now stays so
                return True
            os.kill(pid, signal.SIGCONT)
    return False


def are_enough(kills: list[str], wanted: int) -> bool:
    """Whether there are so many, a quarter of them while a checkpoint was half written."""
    return len(kills) >= wanted and 4 * kills.count("in writing") >= wanted


def kill_at_random(
    folder: Path, typed: list[str], chance: random.Random, kills: list[str], wanted: int
) -> None:
    """Kill processes of a study until there were enough kills, or all its runs have ended."""
    with ExitStack() as commands:
        command = commands.enter_context(started(folder, *typed, **OFTEN))
        while command.process.poll() is None and not are_enough(kills, wanted):
            time.sleep(chance.uniform(0.0, 0.1))
            # A run that has not advanced since its last kill is spared: a second death there would
            # count as its own fault. So are workers of a killed command that have not begun again.
            now = [(pid, run) for pid, attempts, run in running(folder) if attempts == 1]
            now = [pid for pid, run in now if lives(pid) and grids.has_begun(folder, run)]
            if len(now) == 2 and chance.random() < 0.5:  # the whole machine goes
                command.die()
                kills += ["launcher", "worker", "worker"]
                command = commands.enter_context(started(folder, *typed, **OFTEN))
            elif now:
                pid = chance.choice(now)
                is_writing = chance.random() < 0.5 and stop_in_writing(folder, pid)
                with suppress(ProcessLookupError):  # its last run has just ended
                    os.kill(pid, signal.SIGKILL)
                    kills.append("in writing" if is_writing else "anywhere")
        command.succeed()


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        pytest.param(GRID, 6, marks=pytest.mark.slow, id="dense"),
        pytest.param([*GRID, "--set", "train.tokens=120k"], 30, marks=pytest.mark.nightly, id="30"),
        pytest.param(ON_KIMI, 8, marks=pytest.mark.nightly, id="kimi"),
    ],
)
def test_kills_at_random_moments_change_no_bit(typed: list[str], wanted: int, tmp_path: Path):
    expected = calm(tmp_path / "calm", typed)
    chance, kills = random.Random(5), []
    while not are_enough(kills, wanted):  # a study may end before there were
        before = len(kills)
        (folder := tmp_path / str(before)).mkdir()
        kill_at_random(folder, typed, chance, kills, wanted)
        assert len(kills) > before
        assert grids.study(folder) == expected


@pytest.mark.parametrize("after_s", [pytest.param(0.1, marks=pytest.mark.nightly), 1.0])
@pytest.mark.slow
def test_ctrl_c_while_workers_start_ends_all_with_a_line(tmp_path: Path, after_s: float):
    with started(tmp_path, *GRID) as grid:
        grid.wait_for(lambda: grids.statuses(tmp_path) and forked_by(grid.process.pid))
        time.sleep(after_s)
        pids = forked_by(grid.process.pid)
        grid.signal(signal.SIGINT)
        assert grid.end() == 130, grid.err
    wait_until(lambda: not any(map(lives, pids)), 60)
    assert "Traceback" not in grid.err
    assert running(tmp_path) == []


@pytest.mark.slow
def test_two_commands_at_once_share_the_runs_and_a_third_trains_none(tmp_path: Path, undisturbed):
    with started(tmp_path, *GRID) as one, started(tmp_path, *GRID) as other:
        one.succeed()
        other.succeed()
    assert grids.study(tmp_path) == undisturbed
    times = "SELECT id, started_at, finished_at, attempts FROM attnres_runs"
    before = query(tmp_path, times)
    first, second = done(tmp_path, *GRID), done(tmp_path, *GRID)
    assert first == second
    assert query(tmp_path, times) == before
    assert {attempts for *_, attempts in before} == {1}


@pytest.mark.slow
def test_a_full_disk_ends_a_command_and_a_small_one_costs_only_checkpoints(tmp_path, undisturbed):
    # room for the study, three checkpoints of half a megabyte, and the one that is to stay free
    with grids.small_disk(tmp_path / "disk", "3000k") as disk:
        with started(disk, *GRID) as full:
            full.wait_for(lambda: len(running(disk)) == 2)
            with suppress(OSError), (disk / "fill").open("wb", buffering=0) as fill:
                while True:
                    fill.write(bytes(4096))
            assert full.end() == 2
        (disk / "fill").unlink()
        with started(disk, *GRID, **OFTEN) as cramped:
            cramped.succeed()
        losses, weights = grids.numbers(disk), grids.files(disk)

    assert f"the disk ({disk}) is full: free some space" in full.err
    assert "Traceback" not in full.err
    assert 1 <= cramped.err.count("no checkpoint could be written") <= 4  # once for a run
    assert "No space left on device" in cramped.err
    assert losses == undisturbed[0]
    assert weights.items() <= undisturbed[1].items()
    missing = len(undisturbed[1]) - len(weights)
    assert cramped.err.count("its final weights could not be written") == missing
