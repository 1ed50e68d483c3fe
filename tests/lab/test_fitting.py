"""Runs that cannot fit in memory are refused with settings that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DeviceError
from attnres_cli.lab import grid, memory
from attnres_cli.records.plan import Plan, smaller_step
from attnres_cli.report.plans import plan_of
from attnres_cli.train.device import memory_there
from attnres_cli.train.trainer import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:training is not compiled")
There = Callable[[float], None]
BASE = ["train.batch_size=12", "model.seq_len=64"]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> There:
    monkeypatch.setattr(memory, "_PROCESS_BYTES", 0)
    words = "this machine has little"
    return lambda n: monkeypatch.setattr(memory, "memory_there", lambda _device: (int(n), words))


@cache
def tokens() -> Tokens:
    return sources.load(load("smoke"))


def plan_for(*changes: str, specs: Sequence[str] = ("standard", "mhc"), workers: int = 1) -> Plan:
    recipe = load("smoke", [*BASE, *changes])
    arms = grid.resolve(specs, recipe, 256)
    return grid.make(recipe, arms, (0, 1), tokens().fingerprint, "cpu", workers)


def fitted(plan: Plan, workers: int | None = None) -> Plan:
    return memory.fitted(plan, tokens(), workers)


def peaks(plan: Plan) -> list[int]:
    return [arm.memory.peak for arm in fitted(plan).arms if arm.memory is not None]


def test_a_run_that_fits_with_the_margin_is_not_refused(there: There):
    small, large = peaks(plan_for())
    assert small < large
    there(large / 1.14)
    assert peaks(plan_for()) == [small, large]
    there(large / 1.16)
    with pytest.raises(DeviceError, match=r"a run of mhc needs .* of a step\), and this machine"):
        fitted(plan_for())


@pytest.mark.parametrize("share", [0.8, 0.3])
def test_the_suggested_settings_fit(there: There, share: float):
    most = max(peaks(plan_for())) * share
    there(most)
    with pytest.raises(DeviceError) as refused:
        fitted(plan_for())
    typed = str(refused.value).rpartition(": ")[2].split()
    assert typed[::2] == ["--set"] * len(typed[::2])
    assert max(peaks(plan_for(*typed[1::2]))) <= most


def test_if_nothing_fits_no_settings_are_suggested_and_no_other_arm_is_counted(there, monkeypatch):
    there(1000)
    monkeypatch.setattr(memory, "_KNOWN", {})
    with pytest.raises(DeviceError, match=r"of standard needs .* not one sequence at a time fits"):
        fitted(plan_for())
    assert len(memory._KNOWN) == 1


def test_runs_that_have_ended_need_no_memory(there: There):
    plan = plan_for()
    there(1000)
    ended = replace(plan, done=frozenset(spec.identity for spec in plan.specs))
    assert fitted(ended).arms == plan.arms


def test_as_many_workers_start_as_fit_and_a_typed_number_that_does_not_is_refused(there: There):
    small, large = peaks(plan_for())
    there((small + large) / 1.2)
    plan = plan_for(workers=2)
    fewer = fitted(plan)
    assert len(fewer.devices) == 1
    assert "1 worker, not 2, for want of memory: 2 workers at once need" in fewer.workers_by
    assert fewer.workers_by in plan_of(fewer).notes
    with pytest.raises(DeviceError, match=r"2 workers at once need .*: --workers 1$"):
        fitted(plan, workers=2)


def test_a_plan_shows_the_memory_in_every_format():
    report = plan_of(fitted(plan_for()))
    (table,) = report.tables
    at = [column.title for column in table.columns].index("memory")
    assert all(row[at].text.endswith(" MB") for row in table.cells)
    assert report.records[0]["memory_bytes"] == peaks(plan_for())[0]
    assert {"weights_bytes", "optimiser_bytes"} <= set(report.records[0])


H100 = "NVIDIA H100 80GB HBM3"


def test_a_gpu_that_is_idle_by_arithmetic_has_two_workers(there: There):
    for name, changes, n_bytes, expected in (
        (H100, "", 80e9, 2),  # launching is all
        (H100, "model.d_model=2048 model.n_layers=1 train.batch_size=64", 80e9, 1),
        (H100, "train.compile=on", 80e9, 1),
        (H100, "", 1.1e9, 1),  # one fits beside its CUDA context
        ("a GPU of which nothing is known", "", 80e9, 1),
    ):
        plan = plan_for(*changes.split())
        compiled = plan.recipe.train.compile == "on"
        settings = replace(plan.settings, device="cuda", device_name=name, compiled=compiled)
        plan = replace(plan, devices=("cuda:0",), settings=settings)
        there(n_bytes)

        found = fitted(plan)

        assert found.devices == ("cuda:0",) * expected
        assert ("2 workers: by arithmetic, a step of " in found.workers_by) == (expected == 2)
        assert fitted(found) == found
        assert len(fitted(plan, workers=1).devices) == 1


def test_every_worker_of_a_gpu_needs_a_context_beside_its_run(there: There):
    plan = plan_for(workers=2)
    settings = replace(plan.settings, device="cuda", device_name=H100)
    plan = replace(plan, devices=("cuda:0",) * 2, settings=settings)
    both = 2 * memory._CONTEXT_BYTES + 2 * 2**26

    there(both / 1.3)
    assert len(fitted(plan).devices) == 1
    there(both)
    assert len(fitted(plan).devices) == 2


def test_of_a_gpu_what_other_processes_leave_is_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(3e9), int(80e9)))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: int(1e9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: H100)
    assert memory_there("cuda:0") == (4e9, f"cuda:0 ({H100}) has 4.0 of 80.0 GB free")


def test_a_step_that_ran_out_of_memory_is_made_smaller_and_trains_the_same():
    train = load("smoke", ["train.batch_size=12"]).train
    typed = []
    for _ in range(6):
        key, value = (typed := [*typed, smaller_step(train)])[-1].rpartition(".")[2].split("=")
        fewer = {key: True if value == "true" else int(value)}
        train = train.model_copy(update=fewer)
        if train.checkpoint_activations:
            break
    rows = [f"--set train.micro_batch_size={n}" for n in (6, 3, 1)]
    assert typed == [*rows, "--set train.checkpoint_activations=true"]
    assert smaller_step(train).startswith("not one sequence at a time fits")


def test_a_design_is_counted_once(monkeypatch: pytest.MonkeyPatch):
    fitted(plan_for())
    monkeypatch.setattr(Trainer, "__init__", None)
    assert len(peaks(plan_for("optim.lr=1e-3", "train.tokens=1M"))) == 2


def test_a_refused_command_writes_nothing(there: There, here: Path, attnres):
    there(10**6)
    data = ("--set", "data.source=permutations", "--set", "data.degree=4")
    for extra in ([], ["--dry-run"]):
        said = attnres.refuses("ablate", "standard", "--recipe", "smoke", *data, *extra)
        assert "and this machine has little: --set train." in said
        assert not list(here.iterdir())


def test_a_disk_with_too_little_room_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, folder = plan_for(), tmp_path / "not" / "there.runs"
    needed = plan.kept_bytes + plan.checkpoint_bytes
    for free, is_told in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr(memory, "disk_usage", lambda _, n=free: SimpleNamespace(free=n))
        told = memory.lacks_disk(plan, folder)
        assert bool(told) == is_told
    assert f"the disk of {folder} has " in told
    assert "losses are kept, final weights and checkpoints that do not fit are lost" in told
