"""The grid of runs: which of them a study lacks, and with how many threads they are trained."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnres_cli.config.recipe import load
from attnres_cli.errors import VariantError
from attnres_cli.lab import grid
from attnres_cli.records import machine
from attnres_cli.records.machine import Cores
from attnres_cli.records.run import Status
from attnres_cli.report.plans import _lines


@pytest.fixture
def plan():
    recipe = load("smoke")
    arms = grid.resolve(["standard", "denseformer"], recipe, 256)
    return grid.make(recipe, arms, (0, 1), "0123456789abcdef", "cpu", 1)


def test_runs_by_other_code_do_not_count(plan, make_run):
    standard, dense = plan.arms
    run = make_run("denseformer", 0, recipe=("smoke", plan.recipe.digest))
    mine = replace(run, code=dense.code.digest, fingerprint=plan.fingerprint)
    older = replace(mine, seed=1, code="0123456789ab")
    missing = grid.without(plan, [mine, older]).missing
    assert missing == [(standard, 0), (standard, 1), (dense, 1)]
    assert {spec.code for spec in plan.specs} == {standard.code, dense.code}
    assert standard.code.design != dense.code.design
    assert standard.code.shared == dense.code.shared


def test_threads_follow_from_the_width_and_workers_from_the_threads(monkeypatch):
    for width, workers, threads, expected in (
        (64, None, None, (8, 1)),  # workers, threads of each
        (64, 2, None, (2, 1)),
        (512, None, None, (1, 8)),
        (512, 2, None, (2, 4)),
        (512, 2, 8, (2, 8)),
        (64, None, 3, (2, 3)),
        (64, None, 16, (1, 8)),
    ):
        monkeypatch.setattr(machine, "cores", lambda: Cores(tuple(range(8)), 8))
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        recipe = load("smoke", [f"model.d_model={width}"])
        arms = grid.resolve(["standard", "rezero"], recipe, 256)
        made = grid.make(recipe, arms, (0, 1, 2, 3), "0", "cpu", workers, threads=threads)
        assert (len(made.devices), made.settings.threads) == expected


NOT_PAIRED = "not 4 as the study's runs, which are not paired with these: "
TWO, ALL = Cores((0, 1), 2), "; 2 cores, all of this machine"
QUOTA, BOUND = Cores((0, 1, 2, 3), 2, "the container's quota"), Cores((0, 1), 2, "the affinity")


def test_the_environment_bounds_the_threads_and_the_plan_says_what_decided(monkeypatch):
    for width, held, omp, allowed, threads, said in (
        (512, None, "", TWO, 2, f"2 threads for each run, shared by all workers{ALL}"),
        (512, None, "1", TWO, 1, f"1 thread for each run, OMP_NUM_THREADS=1{ALL}"),
        (512, None, "8", TWO, 2, f"2 threads for each run, shared by all workers{ALL}"),
        (512, None, "", QUOTA, 2, "shared by all workers; 2 cores, by the container's quota"),
        (64, None, "8", TWO, 1, "1 thread for each run, which pays up to a width of"),
        (64, 2, "", TWO, 2, f"2 threads for each run, as the study's runs{ALL}"),
        (64, 4, "1", TWO, 1, f"1 thread for each run, {NOT_PAIRED}OMP_NUM_THREADS=1{ALL}"),
        (64, 4, "", BOUND, 2, f"2 threads for each run, {NOT_PAIRED}2 cores, by the affinity"),
    ):
        monkeypatch.setattr(machine, "cores", lambda allowed=allowed: allowed)
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
        recipe = load("smoke", [f"model.d_model={width}"])
        arms = grid.resolve(["standard"], recipe, 256)
        made = grid.make(recipe, arms, (0,), "0", "cpu", None, threads=held)
        assert made.settings.threads == threads
        assert said in made.threads_by


def test_a_plan_says_from_which_step_runs_with_checkpoints_go_on(plan, make_run, tmp_path):
    (standard, dense), of = plan.arms, ("smoke", plan.recipe.digest)
    runs = [
        replace(run, code=arm.code.digest, fingerprint=plan.fingerprint)
        for arm, run in (
            (dense, make_run("denseformer", 0, recipe=of, status=Status.PENDING)),
            (standard, make_run("standard", 1, recipe=of, status=Status.RUNNING)),
        )
    ]
    for name in ("000000012.json", "000000024.json", "000000024.safetensors"):
        (tmp_path / name).touch()

    found = grid.without(plan, runs, lambda run: tmp_path / ("" if run is runs[0] else "none"))

    assert found.begun == {runs[0].identity: 24}
    assert "1 of them goes on: denseformer seed 0 from step 24" in _lines(found)


def test_a_multiple_of_a_part_that_nobody_knows_is_refused():
    recipe = load("smoke", ["optim.part_lr_scale={vers: 3}"])
    with pytest.raises(VariantError, match=r"part_lr_scale: .* did you mean 'vres'"):
        grid.resolve(["standard"], recipe, 256)
