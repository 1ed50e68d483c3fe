"""Which parameter learns how fast, and how far those of a design have come."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from training import COMPILED, SETTINGS, Lab, keeper_of, numbers

from attnres_cli.config.recipe import Optim
from attnres_cli.records.run import Settings
from attnres_cli.train import checkpoint
from attnres_cli.train.optimizers import lr_factor, named, names_of, order_before
from attnres_cli.train.trainer import Trainer

ADDING = ["attnres", "denseformer", "hc", "mhc", "delta", "layerscale", "laurel", "x0"]
NO_WARMUP = {"warmup_fraction": 0.0, "weight_decay": 0.0}


def first_step(trainer: Trainer) -> dict[str, Tensor]:
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.step(0)
    return {name: p.detach() - before[name] for name, p in trainer.model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("variant", [*ADDING, "standard", "postnorm", "deepnorm", "sandwich"])
def test_the_scale_reaches_what_a_design_adds_and_nothing_else(
    variant: str, optimizer: str, lab: Lab
):
    one, ten = (
        first_step(lab.trainer(variant, optim=NO_WARMUP | {"optimizer": optimizer} | scale))
        for scale in ({}, {"design_lr_scale": 10.0})
    )

    added = {name for name in one if name.startswith("residual.")} if variant in ADDING else set()
    assert bool(added) == (variant in ADDING)
    for name, step in one.items():
        if name in added:
            torch.testing.assert_close(
                ten[name], 10 * step, rtol=1e-3, atol=1e-5
            )  # of values near 4
        else:
            assert torch.equal(ten[name], step), name


@pytest.mark.parametrize("settings", [SETTINGS, pytest.param(COMPILED, marks=pytest.mark.slow)])
def test_a_scale_of_one_gives_the_bits_of_a_recipe_without(settings: Settings, lab: Lab):
    plain = lab.run("denseformer", settings=settings)
    one = lab.run("denseformer", settings=settings, optim={"design_lr_scale": 1.0})
    other = lab.run("denseformer", settings=settings, optim={"design_lr_scale": 3.0})

    assert numbers(one) == numbers(plain) != numbers(other)


@pytest.mark.parametrize("optim", [{}, {"optimizer": "muon"}])
def test_a_checkpoint_that_numbers_the_parameters_is_still_read(
    optim: dict, lab: Lab, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    lab = lab.with_recipe(optim=optim)
    undisturbed = lab.run("mhc", keeper=keeper_of(tmp_path / "whole"))
    saved = Trainer.tensors

    def numbered(self: Trainer) -> dict[str, Tensor]:
        found, orders = dict(saved(self)), order_before(self.model, self.spec.recipe.optim)
        for prefix, names in orders.items():
            for number, name in enumerate(names):
                for key in [key for key in found if key.startswith(f"{prefix}{name}.")]:
                    found[f"{prefix}{number}.{key.rpartition('.')[2]}"] = found.pop(key)
        assert not [key for key in found if key.startswith("adamw.sublayers")]
        return found

    with monkeypatch.context() as old:
        old.setattr(Trainer, "tensors", numbered)
        old.setattr(checkpoint, "FORMAT", 2)
        lab.stop_at(3, keeper_of(tmp_path / "part"), "mhc")
    result = lab.run("mhc", keeper=keeper_of(tmp_path / "part"))

    assert numbers(result) == numbers(undisturbed)


def test_parts_of_a_design_are_trained_at_multiples_of_their_own(lab: Lab):
    parts = {"design_lr_scale": 2.0, "part_lr_scale": {"vres": 3.0, "hc": 5.0, "x0": 7.0}}
    (optimizer,) = lab.trainer("hc+vres", optim=parts).optimizers
    scales = {n: each["scale"] for each in optimizer.param_groups for n in each["names"]}
    of_design = {n: s for n, s in scales.items() if n.startswith("residual")}
    assert {s for n, s in of_design.items() if ".addons.vres." in n} == {6}
    assert {s for n, s in of_design.items() if ".stream." in n} == {10}
    (alone,) = lab.trainer("vres", optim=parts).optimizers
    assert {each["scale"] for each in alone.param_groups} == {1, 6}
    (other,) = lab.trainer("attnres", optim=parts).optimizers
    assert {each["scale"] for each in other.param_groups} == {1, 2}


def test_a_multiple_of_a_part_that_a_design_lacks_changes_nothing(lab: Lab):
    one = lab.run("attnres", optim={"part_lr_scale": {"vres": 30.0}})
    assert numbers(one) == numbers(lab.run("attnres"))


def test_state_is_kept_by_name_so_that_another_grouping_is_no_other_parameter(lab: Lab):
    trainer = lab.trainer("hc", optim={"design_lr_scale": 10.0})
    trainer.step(0)
    kept = trainer.tensors()

    for prefix, optimizer in named(trainer.optimizers).items():
        for name in names_of(optimizer):
            parameter = trainer.model.get_parameter(name)
            assert torch.equal(
                kept[f"{prefix}{name}.exp_avg"], optimizer.state[parameter]["exp_avg"]
            )


# how far they moved


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_what_goes_one_way_all_the_time_has_moved_by_all_that_its_rate_allows(
    scale: float, lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    trainer = lab.trainer("denseformer", optim=NO_WARMUP | {"design_lr_scale": scale})
    weight = trainer.model.residual.weight
    monkeypatch.setattr(trainer, "_backward", lambda _windows: pushed(trainer.model, weight))
    for step in range(6):
        trainer.step(step)

    probe = trainer.probe(6)

    assert (probe.added, trainer.probe(0).moved) == ("weight", None)
    assert probe.moved == pytest.approx([1.0], rel=1e-3)
    assert probe.agreement == pytest.approx([1.0], rel=1e-3)


def pushed(model: torch.nn.Module, weight: Tensor) -> Tensor:
    """Gradients that always point the same way, for this parameter alone."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3 * (parameter is weight))
    return torch.zeros(())


def test_what_goes_to_and_fro_has_moved_little(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    trainer = lab.trainer("denseformer", optim=NO_WARMUP, train={"tokens": 64 * 40})
    weight, noise = trainer.model.residual.weight, torch.Generator().manual_seed(0)

    def drawn(_windows: Tensor) -> Tensor:
        pushed(trainer.model, weight)
        weight.grad = torch.randn(weight.shape, generator=noise)
        return torch.zeros(())

    monkeypatch.setattr(trainer, "_backward", drawn)
    for step in range(40):
        trainer.step(step)
    probe = trainer.probe(40)

    assert probe.moved[0] < 0.3
    assert 0.1 < probe.agreement[0] < 0.4


def test_a_design_that_adds_nothing_has_nothing_to_tell(lab: Lab):
    for variant in ("standard", "postnorm"):
        assert {(probe.added, probe.moved) for probe in lab.run(variant).probes} == {("", None)}


# the schedule


def factors(optim: Optim, steps: int) -> list[float]:
    return [lr_factor(optim, step, steps) for step in range(steps)]


def test_cosine_rises_to_one_and_falls_to_its_floor():
    found = factors(Optim(lr=1.0, warmup_fraction=0.1, final_lr_fraction=0.1), 100)

    assert found[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert found[10] == 1.0
    assert found[-1] == pytest.approx(0.1)
    assert found[10:] == sorted(found[10:], reverse=True)


def test_wsd_stays_at_one_until_the_last_steps():
    found = factors(Optim(lr=1.0, schedule="wsd", decay_fraction=0.2, final_lr_fraction=0.0), 100)

    assert set(found[5:79]) == {1.0}
    assert found[80:] == pytest.approx([(99 - step) / 20 for step in range(80, 100)])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_shortest_runs_have_a_schedule_too(schedule: str):
    for steps in (1, 2, 3):
        assert all(0 < each <= 1 for each in factors(Optim(lr=1.0, schedule=schedule), steps))
