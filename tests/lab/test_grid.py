"""The grid: what a study lacks of it; runs of other code are not what it asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnres_cli.config.recipe import load
from attnres_cli.lab import grid
from attnres_cli.records import device_flops


@pytest.fixture
def plan():
    recipe = load("smoke")
    arms = grid.resolve(["standard", "denseformer"], recipe, 256)
    return grid.make(recipe, arms, (0, 1), "0123456789abcdef", "cpu", 1)


def test_a_plan_lacks_what_the_study_has_by_other_code_alone(plan, make_run):
    standard, dense = plan.arms
    run = make_run("denseformer", 0, recipe=("smoke", plan.recipe.digest))
    mine = replace(run, code=dense.code.digest, fingerprint=plan.fingerprint)
    older = replace(mine, seed=1, code="0123456789ab")

    missing = grid.without(plan, [mine, older]).missing

    assert missing == [(standard, 0), (standard, 1), (dense, 1)]
    assert {spec.code for spec in plan.specs} == {standard.code, dense.code}
    assert standard.code.design != dense.code.design
    assert standard.code.shared == dense.code.shared


@pytest.mark.parametrize(
    ("width", "workers", "threads", "expected"),
    [
        (64, None, None, (8, 1)),  # workers, threads of each
        (64, 2, None, (2, 1)),
        (512, None, None, (1, 8)),
        (512, 2, None, (2, 4)),
        (512, 2, 8, (2, 8)),
        (64, None, 3, (2, 3)),
        (64, None, 16, (1, 8)),
    ],
)
def test_threads_follow_from_what_is_compared_and_workers_from_them(
    width: int, workers: int, threads: int, expected: tuple[int, int], monkeypatch
):
    monkeypatch.setattr(device_flops, "cores", lambda: tuple(range(8)))
    recipe = load("smoke", [f"model.d_model={width}"])
    arms = grid.resolve(["standard", "rezero"], recipe, 256)

    made = grid.make(recipe, arms, (0, 1, 2, 3), "0", "cpu", workers, threads=threads)

    assert (len(made.devices), made.settings.threads) == expected
