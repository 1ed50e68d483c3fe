"""How long steps of arms take, in turn with the baseline's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from older import make_older

from attnres_cli.config.recipe import load
from attnres_cli.data import sources
from attnres_cli.lab import grid, step_times
from attnres_cli.records.plan import TIMED_STEPS, Plan
from attnres_cli.records.step_ratio import StepRatio, TimedArm
from attnres_cli.report.plans import _lines
from attnres_cli.store.store import Store
from attnres_cli.train.trainer import Trainer


@pytest.fixture
def plan():
    recipe = load("smoke")
    arms = grid.resolve(["standard", "denseformer"], recipe, 256)
    return grid.make(recipe, arms, (0, 1), "0123456789abcdef", "cpu", 1)


def test_a_plan_says_what_share_of_a_core_its_steps_were_timed_with(plan: Plan):
    tokens, before = sources.load(plan.recipe), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # which others inherit
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        timed = step_times.timed(plan, tokens)
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, before)

    assert 0 < timed.core_share < 0.6  # a quarter
    assert "of its core meanwhile" in "\n".join(_lines(timed))
    assert step_times.timed(timed, tokens).core_share == timed.core_share


def test_steps_of_an_arm_and_its_baseline_are_taken_in_turn(plan: Plan, monkeypatch):
    names = []
    of = Trainer.step

    def step(self: Trainer, number: int) -> torch.Tensor:
        names.append(self.spec.variant)
        return of(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    timed = step_times.timed(plan, sources.load(plan.recipe), baseline="standard")

    assert names[-2 * (TIMED_STEPS + 1) :] == ["denseformer", "standard"] * (TIMED_STEPS + 1)
    itself, dense = (arm.step_ratio for arm in timed.arms)
    assert itself is not None
    assert dense is not None
    assert 0.5 < itself.median < 2
    assert 0.5 < dense.low <= dense.median <= dense.high < 5


def test_an_arm_that_cannot_be_trained_has_no_time_and_the_others_have(plan: Plan, monkeypatch):
    of = Trainer.step

    def step(self: Trainer, number: int) -> torch.Tensor:
        if self.spec.variant == "denseformer":
            raise RuntimeError("a design may raise anything")
        return of(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    timed = step_times.timed(plan, sources.load(plan.recipe), baseline="standard")
    assert [arm.step_s is None for arm in timed.arms] == [False, True]


def test_without_room_for_both_an_arm_is_timed_alone(plan: Plan, monkeypatch):
    of, alive = Trainer.step, set[str]()

    def step(self: Trainer, number: int) -> torch.Tensor:
        alive.add(self.spec.variant)
        if alive == {"standard", "denseformer"}:
            alive.clear()
            raise torch.OutOfMemoryError("both")
        return of(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    timed = step_times.timed(plan, sources.load(plan.recipe), baseline="standard")
    assert [arm.step_s is None for arm in timed.arms] == [False, False]
    assert timed.arms[1].step_ratio is None


def test_an_arm_without_room_for_itself_is_named_with_what_to_type(plan: Plan, monkeypatch):
    of = Trainer.step

    def step(self: Trainer, number: int) -> torch.Tensor:
        if self.spec.variant == "denseformer":
            raise torch.OutOfMemoryError("one")
        return of(self, number)

    monkeypatch.setattr(Trainer, "step", step)
    timed = step_times.timed(plan, sources.load(plan.recipe), baseline="standard")

    assert timed.no_room == ("denseformer",)
    assert [arm.step_s is None for arm in timed.arms] == [False, True]
    told = "denseformer ran out of memory with 16 sequences at a time: --set train.micro_batch_"
    assert told in _lines(timed)[-1]


def test_a_study_keeps_the_newest_ratio_of_each_arm(here: Path, attnres):
    attnres("ablate", "standard", "attnres", "--recipe", "smoke", "--seeds", "2")
    store = Store.open("attnres.db", create=True)
    digest = store.runs()[0].recipe_digest
    first, second = store.step_ratios(digest)
    assert (first.variant, first.baseline, second.baseline) == ("attnres", "standard", "standard")
    newer = replace(first, median=7.0)
    store.keep_step_ratios([newer])
    assert store.step_ratios(digest) == [newer, second]


def test_a_study_from_before_there_were_ratios_gets_them_when_written_to(here: Path, attnres):
    attnres("ablate", "standard", "--recipe", "smoke", "--seeds", "2")
    make_older(Path("attnres.db"), "0009")
    attnres("ablate", "standard", "attnres", "--recipe", "smoke", "--seeds", "2")
    store = Store.open("attnres.db", create=False)
    found = store.step_ratios(store.runs()[0].recipe_digest)
    assert [each.variant for each in found] == ["attnres"]


def compiled(plan: Plan, *sets: str) -> Plan:
    """The plan, timed, of smoke as it is compiled."""
    recipe = load("smoke", ["train.compile=on", "model.n_layers=1", *sets])
    arms = grid.resolve(["standard", "denseformer"], recipe, 256)
    plan = grid.make(recipe, arms, (0, 1), plan.fingerprint, "cpu", 1)
    return step_times.timed(plan, sources.load(recipe), baseline="standard")


def test_compiled_steps_of_a_short_study_are_not_timed(plan: Plan, monkeypatch):
    short = compiled(plan)
    monkeypatch.setattr(step_times, "_warm", lambda *_: pytest.fail("it is compiled"))
    found = step_times.compiled(short, sources.load(short.recipe), print, "standard")
    assert short.seconds is not None
    assert step_times.SHARE * short.seconds < 120
    assert [arm.step_ratio for arm in found.arms] == [None, None]


@pytest.mark.slow
def test_compiled_steps_of_a_long_study_are_timed_in_turn_but_for_those_that_are_known(
    plan: Plan, monkeypatch
):
    names, of = [], Trainer.step

    def step(self: Trainer, number: int) -> torch.Tensor:
        names.append((self.spec.variant, self.settings.compiled))
        return of(self, number)

    long, told = compiled(plan, "train.tokens=200M"), list[str]()
    monkeypatch.setattr(Trainer, "step", step)
    tokens = sources.load(long.recipe)
    known = step_times.compiled(long, tokens, told.append, "standard", {"denseformer"})
    assert (names, told, known.arms[1].step_ratio) == ([], [], None)
    base, dense = step_times.compiled(long, tokens, told.append, "standard").arms

    pair = [("denseformer", True), ("standard", True)]
    assert names == [*pair[::-1], *pair * (TIMED_STEPS + 1)]
    assert (base.step_ratio, len(told)) == (None, 1)
    assert dense.step_ratio is not None
    assert dense.step_ratio.n == TIMED_STEPS
    assert dense.step_ratio.high < 5  # without compilation


@pytest.mark.slow
def test_a_report_has_the_time_of_compiled_runs_or_the_command_that_measures_it(
    here: Path, attnres, monkeypatch
):
    typed = ("ablate", "standard", "denseformer", "--recipe", "smoke", "--seeds", "2")
    typed += ("--set", "train.compile=on", "--set", "train.tokens=2k", "--in-process")
    code, _, err = attnres(*typed)
    lacking = attnres.prints("report", "--notes")
    command, again = (
        re.findall("`attnres (bench standard denseformer [^`]*)`", " ".join(told.split()))
        for told in (err, lacking)
    )
    assert (code, command) == (0, again)
    assert attnres.json("report")["arms"][1]["step_ratio"] is None

    attnres.prints(*shlex.split(command[0]), "--rounds", "3")
    assert attnres.json("report")["arms"][1]["step_ratio"]["n"] == 3
    Path("attnres.db").rename("timed.db")
    monkeypatch.setattr(step_times, "SHARE", 1e6)
    attnres(*typed)
    assert attnres.json("report")["arms"][1]["step_ratio"]["n"] == TIMED_STEPS
    assert "no step times" not in attnres.prints("report", "--notes")


def test_the_error_of_a_ratio_is_that_of_a_median_by_its_quartiles():
    ratio = StepRatio.of([1.0, 1.1, 1.2, 1.3, 1.4])
    assert (ratio.n, ratio.low, ratio.median, ratio.high) == (5, 1.1, 1.2, 1.3)
    assert ratio.error == pytest.approx(1.96 * 1.2533 * 0.1671 / 1.349 / 5**0.5, rel=1e-3)
    alone = TimedArm("d", "attnres", "standard", "cpu", "EPYC", 5, 1.2, 1.1, 1.3)
    assert alone.ratio == ratio
