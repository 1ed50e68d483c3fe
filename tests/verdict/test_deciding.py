"""How many seeds decide an inconclusive arm: the first look that has the power."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparisons import BASE

from attnres_cli.records.comparison_terms import Terms
from attnres_cli.stats.power import power
from attnres_cli.verdict.comparison import Rules
from attnres_cli.verdict.power import deciding

GAPS = (0.06, -0.07, -0.02, 0.03, -0.09)  # mean -0.018


@pytest.fixture
def open_arm(make_arm):
    return make_arm("attnres", *(loss + gap for loss, gap in zip(BASE, GAPS, strict=True)))


def test_the_first_look_with_enough_power_decides_and_no_smaller_one(base, open_arm, judge):
    comparison = judge(base, open_arm)
    found = deciding(comparison)

    assert (found.arm.variant, found.arm.verdict) == ("attnres", "inconclusive")
    effect = abs(found.arm.difference.mean) / found.arm.difference.sd
    for size, alpha in comparison.family.looks("attnres"):
        if size >= found.seeds:
            break
        assert size == 5 or power(size, effect, alpha) < 0.8
    assert size == found.seeds
    assert power(size, effect, alpha) >= 0.8
    assert found.n_more == found.seeds - 5
    seconds = [run.result.train_s for run in (*base, *open_arm)]
    assert found.seconds == pytest.approx(found.n_more * (seconds[0] + seconds[-1]))


def test_nothing_is_said_to_decide_what_no_later_look_or_no_thousand_seeds_would(
    base, open_arm, make_arm, judge
):
    assert deciding(judge(base, open_arm, rules=Rules(is_registered=True))) is None
    assert deciding(replace(judge(base, open_arm), terms=Terms(is_tuned=True))) is None
    small = [loss + gap + 0.0179 for loss, gap in zip(BASE, GAPS, strict=True)]
    assert deciding(judge(base, make_arm("attnres", *small))) is None
    assert deciding(judge(base, make_arm("attnres", *BASE[:4]))) is None  # before the first look
    assert deciding(judge(base, make_arm("attnres", *(loss - 0.5 for loss in BASE)))) is None


def test_of_several_open_arms_the_one_that_fewest_seeds_decide_is_named(
    base, open_arm, make_arm, judge
):
    near = make_arm("mhc", *(b + g - 0.03 for b, g in zip(BASE, GAPS, strict=True)))

    found = deciding(judge(base, open_arm, near))

    assert found.arm.variant == "mhc"
    assert math.isfinite(found.seconds)
