"""A run that is stopped and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attnres_variants.standard import Standard
from training import COMPILED, SETTINGS, Lab, keeper_of, largest_file, numbers

from attnres_cli.nn import residual
from attnres_cli.records.run import WEIGHTS, RunResult, Settings, Status
from attnres_cli.train.checkpoint import Checkpoints, differing
from attnres_cli.train.keeper import Stopped

EXPERTS = {"model": {"mlp": ["swiglu", "moe", "swiglu"]}, "train": {"micro_batch_size": 2}}
MUON = {"optim": {"optimizer": "muon"}, "train": {"micro_batch_size": 2}}


@pytest.fixture
def longer(lab: Lab) -> Lab:
    """200 steps, two between points of the curve; evaluated after 100 and 200, probed after 0, 50,
    100 and 200.
    """
    return lab.with_recipe(train={"tokens": 64 * 200})


def resumed(
    lab: Lab, folder: Path, stops: Iterable[int], variant: str, settings: Settings = SETTINGS
) -> RunResult:
    """A run that was stopped after these steps, having ended as one that was not."""
    torch.manual_seed(99)
    undisturbed = lab.run(variant, 3, settings, keeper=keeper_of(folder / "whole"))
    part = folder / "part"
    for step in stops:
        lab.stop_at(step, keeper_of(part), variant, 3, settings)
    torch.manual_seed(5)
    torch.compiler.reset()
    result = lab.run(variant, 3, settings, keeper=keeper_of(part))

    assert numbers(result) == numbers(undisturbed)
    assert differing(*(next(folder.glob(f"{each}/{WEIGHTS}")) for each in ("whole", "part"))) == []
    return result


@pytest.mark.parametrize(
    ("variant", "precision", "sections"),
    [
        ("attnres", "fp32", {"model": {"n_layers": 1}}),
        pytest.param("mhc", "bf16", EXPERTS, marks=pytest.mark.slow),
        pytest.param("attnres:block_size=2", "fp32", EXPERTS, marks=pytest.mark.nightly),
        pytest.param("attnres:block_size=2", "fp32", MUON, marks=pytest.mark.nightly),
        pytest.param("laurel:kind=lr", "fp32", {}, marks=pytest.mark.nightly),
    ],
)
def test_a_run_resumed_again_and_again_ends_with_the_same_bits(
    variant: str, precision: str, sections: dict, longer: Lab, tmp_path: Path
):
    lab, settings = longer.with_recipe(**sections), replace(SETTINGS, precision=precision)
    stops = (1, 2, 49, 50, 51, 100, 101, 200)  # at points, evaluations, probes, and between

    result = resumed(lab, tmp_path, stops, variant, settings)

    assert [probe.step for probe in result.probes] == [0, 50, 100, 200]


@pytest.mark.parametrize(
    ("variant", "precision", "sections"),
    [
        ("attnres:block_size=2", "fp32", EXPERTS),
        ("standard", "bf16", MUON),
        ("mhc", "bf16", MUON),
        ("laurel:kind=lr", "fp32", {}),
        ("noisy", "fp32", {}),
    ],
)
def test_so_does_a_run_of_any_design_precision_and_optimizer(
    variant: str,
    precision: str,
    sections: dict,
    lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    residual.registry()
    monkeypatch.setattr(residual, "_REGISTRY", dict(residual._REGISTRY))

    class Noisy(Standard):  # draws from generators, which go on where they were
        def write(self, state, l, y):
            return state + torch.nn.functional.dropout(y, 0.1, self.training)

    residual.register("noisy")(Noisy)
    settings = replace(SETTINGS, precision=precision)

    resumed(lab.with_recipe(**sections), tmp_path, (2, 3, 4), variant, settings)


@pytest.mark.slow
def test_so_does_a_compiled_run(longer: Lab, tmp_path: Path):
    resumed(longer, tmp_path, (61,), "attnres:block_size=2", COMPILED)


def test_a_finished_run_is_not_trained_again_and_adds_up_its_times(lab: Lab, tmp_path: Path):
    lab.stop_at(6, keeper_of(tmp_path))
    state, _ = keeper_of(tmp_path).load()
    seen = []

    result = lab.run(on_step=lambda step, _: seen.append(step), keeper=keeper_of(tmp_path))

    assert set(seen) == {6}
    assert result.train_s > state["train_s"] > 0
    assert result.peak_bytes >= state["peak_bytes"] > 10_000_000
    assert 0 < result.step_s < 1


def test_a_checkpoint_at_every_step_changes_no_number(lab: Lab, tmp_path: Path):
    plain = lab.run("attnres")
    saved: list[int] = []

    kept = lab.run("attnres", keeper=keeper_of(tmp_path, 0, on_saved=saved.append))

    assert numbers(kept) == numbers(plain)
    assert saved == [1, 2, 3, 4, 5, 6]


def test_stopping_in_an_evaluation_repeats_only_the_evaluation(lab: Lab, tmp_path: Path):
    undisturbed, keeper = lab.run(), keeper_of(tmp_path)

    def at_half(step: int, _loss: float | None) -> None:
        keeper.stop.wanted = step == 3  # before the evaluation at this step begins

    with pytest.raises(Stopped):
        lab.run(on_step=at_half, keeper=keeper)
    assert keeper.step == 3
    result = lab.run(keeper=keeper_of(tmp_path))

    assert numbers(result) == numbers(undisturbed)


def test_stopping_before_the_first_step_leaves_nothing(lab: Lab, tmp_path: Path):
    keeper = keeper_of(tmp_path / "run")
    keeper.stop.wanted = True

    with pytest.raises(Stopped):
        lab.run(keeper=keeper)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("lr", "is_a_number"), [(3e4, False), (10.0, True)])
def test_a_diverging_run_that_was_stopped_diverges_alike(
    lr: float, is_a_number: bool, lab: Lab, tmp_path: Path
):
    wild = lab.with_recipe(optim={"lr": lr}, train={"tokens": 64 * 120})
    undisturbed = wild.run()
    assert (undisturbed.status, math.isnan(undisturbed.val_loss)) == (Status.DIVERGED, True)
    assert undisturbed.steps < 120 / 2
    assert math.isfinite(undisturbed.curve[-1].train_loss or 0.0) is is_a_number

    wild.stop_at(undisturbed.steps // 2, keeper_of(tmp_path))
    result = wild.run(keeper=keeper_of(tmp_path))

    assert repr(numbers(result)) == repr(numbers(undisturbed))  # nan is not nan


def test_a_run_shorter_than_the_interval_writes_only_its_weights(lab: Lab, tmp_path: Path):
    lab.run(keeper=keeper_of(tmp_path, every_s=30))

    assert [file.match(WEIGHTS) for file in tmp_path.iterdir()] == [True]


def test_slow_writes_happen_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    keeper = keeper_of(tmp_path, every_s=30)

    def slow() -> dict[str, torch.Tensor]:
        now[0] += 10
        return {"x": torch.ones(1)}

    due = []
    for step in range(1, 1001):
        now[0] += 1
        if keeper.is_due():
            due.append(step)
            keeper.save({"step": step}, slow)

    assert due == [30, 530]  # ten seconds are a fiftieth of 500


def test_a_full_disk_is_reported_once_and_the_last_checkpoint_stays(tmp_path: Path):
    reported: list[str] = []
    keeper = keeper_of(tmp_path / "run", 0, on_trouble=reported.append)
    keeper.save({"step": 1}, lambda: {"x": torch.ones(10)})
    held = sorted((tmp_path / "run").iterdir())

    with largest_file(50_000):
        for step in (2, 3):
            keeper.save({"step": step}, lambda: {"x": torch.ones(100_000)})
        weights = keeper.keep_weights(torch.nn.Linear(200, 200))

    assert weights is None
    checkpoint, final = reported
    assert "no checkpoint could be written" in checkpoint
    assert "its final weights could not be written" in final
    assert all("File too large" in text for text in reported)
    assert sorted((tmp_path / "run").iterdir()) == held
    found = Checkpoints(tmp_path / "run", {"recipe": "a"}).load()
    assert found is not None
    assert found[0] == {"step": 1}
