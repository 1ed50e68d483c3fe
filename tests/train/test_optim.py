"""The schedule and the optimiser's groups."""

from __future__ import annotations

import pytest
from designs import build

from attnres_cli.config.recipe import Optim
from attnres_cli.nn.shape import Shape
from attnres_cli.train.trainer import lr_factor, make_optimizers


def factors(optim: Optim, steps: int) -> list[float]:
    return [lr_factor(optim, step, steps) for step in range(steps)]


def test_cosine_rises_to_one_and_falls_to_its_floor():
    found = factors(Optim(lr=1.0, warmup_fraction=0.1, final_lr_fraction=0.1), 100)

    assert found[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert found[10] == 1.0
    assert found[-1] == pytest.approx(0.1)
    assert found[10:] == sorted(found[10:], reverse=True)


def test_wsd_stays_at_one_until_the_last_steps():
    optim = Optim(lr=1.0, schedule="wsd", decay_fraction=0.2, final_lr_fraction=0.0)

    found = factors(optim, 100)

    assert set(found[5:79]) == {1.0}
    assert found[80:] == pytest.approx([(99 - step) / 20 for step in range(80, 100)])


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_runs_have_a_schedule_too(schedule: str, steps: int):
    found = factors(Optim(lr=1.0, schedule=schedule), steps)

    assert all(0 < factor <= 1 for factor in found)


def test_matrices_are_decayed_and_embeddings_and_gains_are_not(tiny_shape: Shape):
    model = build("standard", tiny_shape)
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    decayed, rest = make_optimizers(model, Optim(lr=1e-3))[0].param_groups

    assert {names[id(p)].split(".")[-2] for p in decayed["params"]} == {
        "qkv", "out", "gate_up", "head",
    }  # fmt: skip
    assert all(p.ndim == 1 or names[id(p)] == "embed.weight" for p in rest["params"])
