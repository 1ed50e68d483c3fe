"""Whether a difference pays: columns of tokens and of time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnres_cli.records.step_ratio import StepRatio, TimedArm
from attnres_cli.stats.multiples import Budget
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.pays import step_ratios, time, tokens

RULES = Rules(budgets=(Budget(0.5, -0.3, 0.004, 7), Budget(2, 0.2, 0.004, 7)))
ON = {"numerics": "cpu fp32 eager, 1 thread", "device_name": "cpu"}


def timed(variant: str, median: float, baseline: str = "standard", n: int = 8) -> TimedArm:
    """An arm's ratio, with quartiles 1 % below and above."""
    ends = {"low": 0.99 * median, "high": 1.01 * median}
    return TimedArm("d", variant, baseline, n=n, median=median, **ends, **ON)


@pytest.fixture
def comparison(make_arm, judge) -> Comparison:
    """Seven seeds of `standard`, of one arm that gains and of one that loses."""
    base = [1.70, 1.72, 1.69, 1.71, 1.73, 1.70, 1.68]
    noise = [0.003, -0.002, 0.001, 0.0, -0.004, 0.002, 0.0]
    less, more = (
        [b + sign * (0.05 - e) for b, e in zip(base, noise, strict=True)] for sign in (-1, 1)
    )
    arms = {"standard": base, "attnres": less, "denseformer": more}
    found = judge(*(make_arm(name, *losses) for name, losses in arms.items()))
    return replace(found, rules=replace(found.rules, budgets=RULES.budgets))


def test_a_gain_is_worth_more_tokens_and_a_loss_fewer(comparison: Comparison):
    gain, loss = (tokens(comparison.arm(name), comparison) for name in ("attnres", "denseformer"))
    assert gain is not None
    assert loss is not None
    assert 1 < gain.low < gain.value < gain.high < 2
    assert 0.5 < loss.low < loss.value < loss.high < 1


def test_at_equal_time_a_slower_step_takes_the_gain_back(comparison: Comparison):
    arm = comparison.arm("attnres")
    assert time(arm, comparison) is None
    ratio = StepRatio(8, 1.4, 1.39, 1.41)
    held, gain = replace(comparison, step_ratios={"attnres": ratio}), tokens(arm, comparison)
    found = time(arm, held)
    assert gain is not None
    assert found is not None
    assert found.value == pytest.approx(gain.value / 1.4)
    assert found.low < gain.low / 1.4


def test_arms_of_other_numbers_of_tokens_are_worth_nothing_that_is_known(comparison: Comparison):
    arm = replace(comparison.arm("attnres"), tokens=1)
    assert tokens(arm, comparison) is None


def test_without_budgets_nothing_is_known(comparison: Comparison):
    arm = comparison.arm("attnres")
    assert tokens(arm, replace(comparison, rules=Rules())) is None


def test_ratios_are_those_of_runs_that_were_computed_alike(make_run):
    runs = [make_run("attnres", 0)]
    settings = runs[0].result.settings
    mine = {"numerics": settings.numerics, "device_name": settings.device_name}
    alike, other = replace(timed("attnres", 1.3), **mine), timed("hc", 1.8)
    found = step_ratios([alike, replace(other, numerics="cuda bf16 eager")], runs, "standard")
    assert {arm: ratio.median for arm, ratio in found.items()} == {"attnres": 1.3, "standard": 1.0}


def test_an_arm_that_was_timed_beside_another_baseline_is_held_against_this_one(make_run):
    runs = [make_run("attnres", 0)]
    settings = runs[0].result.settings
    mine = {"numerics": settings.numerics, "device_name": settings.device_name}
    both = [replace(timed(name, m), **mine) for name, m in (("attnres", 1.3), ("hc", 1.8))]
    found = step_ratios(both, runs, "attnres")["hc"]
    assert found.median == pytest.approx(1.8 / 1.3)
    assert math.log(found.high / found.low) > math.log(1.01 / 0.99)


def test_the_time_of_an_arm_is_that_of_the_machine_that_most_of_its_runs_had(make_run):
    names = ["Some CPU"] * 5 + ["Z CPU"] * 2
    runs = [make_run("attnres", n, settings={"device_name": name}) for n, name in enumerate(names)]
    numerics = runs[0].result.settings.numerics
    both = [
        replace(timed("attnres", m), numerics=numerics, device_name=name)
        for name, m in (("Some CPU", 1.1), ("Z CPU", 2.1))
    ]
    for order in (both, both[::-1]):
        assert step_ratios(order, runs, "standard")["attnres"].median == 1.1
