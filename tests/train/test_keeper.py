"""A run that is stopped and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from designs import build, tokens_of
from torch import Tensor
from training import SETTINGS, Lab, keeper_of, numbers

from attnres_cli.config.recipe import Optim
from attnres_cli.nn.shape import Shape
from attnres_cli.records.run import WEIGHTS, Status
from attnres_cli.train import keeper
from attnres_cli.train.checkpoint import Checkpoints, differing
from attnres_cli.train.keeper import Stopped, in_one_copy
from attnres_cli.train.optimizers import make_optimizers

EXPERTS = {"model": {"mlp": ["swiglu", "moe", "swiglu"]}, "train": {"micro_batch_size": 2}}
MUON = {"optim": {"optimizer": "muon"}, "train": {"micro_batch_size": 2}}
FASTER = {"optim": {"optimizer": "muon", "design_lr_scale": 10.0}}


COMPILER = {"compiled": True, "engine": "compile"}
FEW = (2, 3, 4)
MANY = (1, 2, 49, 50, 51, 100, 101, 200)
"""At points of the curve, evaluations and probes of a run of 200 steps, and between them."""


@pytest.mark.parametrize(
    ("variant", "settings", "sections", "stops"),
    [
        ("attnres", {}, {"model": {"n_layers": 1}}, MANY),
        pytest.param("mhc", {"precision": "bf16"}, EXPERTS, MANY, marks=pytest.mark.slow),
        pytest.param("attnres:block_size=2", COMPILER, {}, (61,), marks=pytest.mark.slow),
        ("attnres:block_size=2", {}, EXPERTS, FEW),
        ("standard", {"precision": "bf16"}, MUON, FEW),
        ("mhc", {"precision": "bf16"}, FASTER, FEW),
        ("laurel:kind=lr", {}, {}, FEW),
        ("noisy", {}, {}, FEW),
    ],
)
@pytest.mark.usefixtures("registered")
def test_a_run_resumed_again_and_again_ends_with_the_same_bits(
    variant: str, settings: dict, sections: dict, stops: tuple, lab: Lab, tmp_path: Path
):
    lab = lab.with_recipe(**sections)
    if stops != FEW:
        lab = lab.with_recipe(train={"tokens": 64 * 200})
    run = (variant, 3, replace(SETTINGS, **settings))

    torch.manual_seed(99)
    undisturbed = lab.run(*run, keeper=keeper_of(tmp_path / "whole"))
    for step in stops:
        lab.stop_at(step, keeper_of(tmp_path / "part"), *run)
    torch.manual_seed(5)
    torch.compiler.reset()
    result = lab.run(*run, keeper=keeper_of(tmp_path / "part"))

    assert numbers(result) == numbers(undisturbed)
    whole, part = (next(tmp_path.glob(f"{each}/{WEIGHTS}")) for each in ("whole", "part"))
    assert differing(whole, part) == []
    assert [probe.step for probe in result.probes] == ([6] if stops == FEW else [0, 50, 100, 200])


def test_tensors_in_one_copy_keep_every_bit_and_have_memory_of_their_own():
    square = torch.arange(12.0).reshape(3, 4)
    bits = torch.tensor([0x7FC00001, -1], dtype=torch.int32).view(torch.float32)  # of nan, two
    given = {"t": square.T, "one": torch.tensor(2.5), "nan": bits, "none": torch.empty(0, 3)}

    found = in_one_copy(given, torch.device("cpu"))

    assert list(found) == list(given)
    for name, tensor in given.items():
        assert found[name].shape == tensor.shape
        assert found[name].numpy().tobytes() == tensor.contiguous().numpy().tobytes()
        assert found[name].untyped_storage().nbytes() == tensor.nbytes


def test_a_run_goes_on_from_a_scale_that_had_no_axis_when_it_was_saved(tiny_shape: Shape):
    model, cpu = build("mhc:readout=sigmoid", tiny_shape), torch.device("cpu")
    optimizers = make_optimizers(model, Optim(lr=1e-3))
    model(tokens_of(), tokens_of()).backward()
    optimizers[0].step()
    saved = keeper.tensors_of(model, optimizers, cpu)
    before = {name: x.squeeze().clone() if ".head.0" in name else x for name, x in saved.items()}

    keeper.restore(before, model, optimizers, cpu)

    found = keeper.tensors_of(model, optimizers, cpu)
    assert {name: x.shape for name, x in found.items()} == {n: x.shape for n, x in saved.items()}
    assert all(torch.equal(found[name], x) for name, x in saved.items())
    optimizers[0].step()


def test_a_run_whose_tensors_are_copied_together_goes_on_with_the_same_bits(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lab = lab.with_recipe(**FASTER)
    lab.stop_at(3, keeper_of(tmp_path / "apart"), "mhc")
    undisturbed = lab.run("mhc", keeper=keeper_of(tmp_path / "apart"))

    def pretended(tensors: Iterable[tuple[str, Tensor]], _: torch.device) -> Iterable[object]:
        apart = dict(tensors)  # as on a GPU, which has no tensor of the CPU's
        for dtype in {tensor.dtype for tensor in apart.values()}:
            alike = {name: x for name, x in apart.items() if x.dtype is dtype}
            yield from in_one_copy(alike, torch.device("cpu")).items()

    monkeypatch.setattr(keeper, "carried", pretended)
    lab.stop_at(3, keeper_of(tmp_path / "together"), "mhc")
    result = lab.run("mhc", keeper=keeper_of(tmp_path / "together"))

    assert numbers(result) == numbers(undisturbed)
    apart, together = (next(tmp_path.glob(f"{x}/{WEIGHTS}")) for x in ("apart", "together"))
    assert apart.read_bytes() == together.read_bytes()


def test_what_is_copied_together_is_bounded_and_in_no_tensor_twice(monkeypatch):
    copied: list[int] = []
    of = in_one_copy

    def counted(tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        copied.append(len(tensors))
        return of(tensors, device)

    monkeypatch.setattr(keeper, "in_one_copy", counted)
    monkeypatch.setattr(keeper, "_TOGETHER_BYTES", 100)
    given = {str(n): torch.ones(n) for n in (10, 20, 5, 30, 1)}

    found = dict(keeper.carried(given.items(), torch.device("meta")))

    assert copied == [2, 2, 1]
    assert {name: tensor.numel() for name, tensor in found.items()} == {n: int(n) for n in given}
    assert {tensor.device.type for tensor in found.values()} == {"meta"}


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


def test_a_run_that_ends_before_its_first_checkpoint_leaves_its_weights_if_any(
    lab: Lab, tmp_path: Path
):
    keeper = keeper_of(tmp_path / "run")
    keeper.stop.wanted = True
    with pytest.raises(Stopped):  # before the first step
        lab.run(keeper=keeper)
    assert list(tmp_path.iterdir()) == []

    lab.run(keeper=keeper_of(tmp_path, every_s=30))
    assert [file.match(WEIGHTS) for file in tmp_path.iterdir()] == [True]


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


def test_a_full_disk_is_reported_once_and_the_last_checkpoint_stays(
    tmp_path: Path, request: pytest.FixtureRequest
):
    reported: list[str] = []
    keeper = keeper_of(tmp_path / "run", 0, on_trouble=reported.append)
    keeper.save({"step": 1}, lambda: {"x": torch.ones(10)})
    held = sorted((tmp_path / "run").iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits))

    # writing beyond these bytes of a file fails, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
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
