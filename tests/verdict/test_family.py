"""What a table says while its study grows: plans, looks, removed runs, margins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from comparisons import arm_of

from attnres_cli.records.run import Removed, RunRecord, Status
from attnres_cli.report.comparison import facts_of
from attnres_cli.stats.sequential import ALPHA, first_rate, interval, shares
from attnres_cli.verdict.caveats import qualifiers
from attnres_cli.verdict.comparison import Rules
from attnres_cli.verdict.family import family
from attnres_cli.verdict.rows import pairs_text

LOSSES = np.random.default_rng(0).normal(1.5, 0.1, 20)
NOISE = np.random.default_rng(1).normal(0, 0.02, (4, 20))


@pytest.fixture
def planned(make_run):
    """A function that makes the runs of arms on seeds, all planned at that minute."""

    def make(minute: int, variants: str, seeds: range, gain: float = 0.0) -> list[RunRecord]:
        at = f"2026-01-01T00:{minute:02}:00.000000+00:00"
        runs = []
        for name in variants.split():
            off = np.zeros(20) if name == "standard" else NOISE[len(name) % 4] - gain
            for seed in seeds:
                run = make_run(name, seed, val_loss=LOSSES[seed] + off[seed])
                runs.append(replace(run, created_at=at))
        return runs

    return make


def removed(*runs: RunRecord, reason: str | None = None, **changes: object) -> Rules:
    """Rules of a study from which these runs were removed."""
    found = [
        Removed(
            run.recipe_digest, run.variant, run.seed, run.fingerprint, run.code, run.created_at,
            "2026-01-02", Status.COMPLETE, run.result and run.result.val_loss, reason,
        )
        for run in runs
    ]  # fmt: skip
    return Rules(removed=tuple(replace(each, **changes) for each in found))


# The plan


def test_the_plan_is_what_there_was_when_the_first_arm_joined(planned):
    first = planned(1, "standard", range(7)) + planned(2, "attnres", range(7))
    more = planned(3, "standard attnres", range(7, 12))
    mixed = planned(5, "standard attnres", range(2)) + planned(1, "standard attnres", range(4, 6))

    assert family(first + more, "standard").planned == 7
    assert family(planned(1, "standard", range(3)), "standard").planned == 3
    found = family(mixed, "standard")
    assert (found.seeds, found.planned) == ((4, 5, 0, 1), 2)  # in the order of their planning


def test_later_arms_take_nothing_from_those_before_and_a_lone_baseline_costs_half(planned):
    first = planned(1, "standard attnres mhc", range(5))
    later = planned(2, "hc", range(5)) + planned(3, "delta frac", range(5))
    alone, together = planned(1, "standard", range(5)), planned(2, "standard attnres", range(7))

    before, after = family(first, "standard").rates, family(first + later, "standard").rates
    at_once, after_it = family(together, "standard"), family(alone + together, "standard")

    assert before == {name: after[name] for name in before}
    assert [after[name] for name in ("attnres", "hc", "frac")] == pytest.approx(
        [ALPHA * part for part in shares([2, 1, 2])]
    )
    assert sum(after.values()) <= ALPHA
    assert at_once.rates["attnres"] == pytest.approx(ALPHA * 0.8)
    assert after_it.rates["attnres"] == pytest.approx(ALPHA * 0.4)
    assert after_it.planned == 7


def test_registered_arms_have_one_look_with_all_of_the_rate(planned, judge):
    runs = planned(1, "standard", range(6)) + planned(2, "attnres mhc", range(6))

    found = judge(runs, rules=Rules(is_registered=True))

    arm = arm_of(found)
    ours = np.array([arm.losses[seed] for seed in range(6)])
    assert arm.interval == interval(ours, LOSSES[:6], ALPHA / 2)
    assert arm.look.next is None
    assert "verdicts at 6 seeds (6 were registered for 2 arms)" in facts_of(found)


def test_an_edited_design_counts_as_one_more_arm(planned, judge):
    def coded(minute: int, variant: str, design: str, trunk: str = "0") -> list[RunRecord]:
        parts = {"engine": "0", "loop": "0", "data": "0", "trunk": trunk, "design": design}
        versions = {f"code_{name}": part for name, part in parts.items()}
        runs = planned(minute, variant, range(5))
        return [replace(run, versions=versions, code=design) for run in runs]

    base, before = coded(1, "standard", "0"), coded(1, "attnres", "1")
    after = coded(2, "attnres", "2")

    hidden = judge(base, after, rules=removed(*before))
    found = (
        judge(base, before),  # the first arm
        judge(base, after, older=before),  # one more
        hidden,  # one more, though the first was removed
        judge(base, after, older=coded(1, "attnres", "1", trunk="1")),  # first, after its baseline
    )

    rates = [each.family.rates["attnres"] for each in found]
    assert rates == pytest.approx([ALPHA * part for part in (0.8, 0.1, 0.1, 0.4)])
    assert hidden.removed == ()


# Looks


def test_between_looks_nothing_changes_and_the_row_says_of_how_many_seeds_it_is(planned, judge):
    runs = planned(1, "standard attnres", range(7))
    more = planned(2, "standard attnres", range(7, 10))
    enough = planned(3, "standard attnres", range(10, 11))

    tables = judge(runs), judge(runs, more), judge(runs, more, enough)

    before, between, after = map(arm_of, tables)
    assert between.interval == before.interval
    assert (between.difference, between.mean) == (before.difference, before.mean)
    assert pairs_text(before, tables[0]) == "7"
    assert pairs_text(between, tables[1]) == "7 of 10"
    assert (after.look.n, after.look.next) == (11, 17)
    assert before.interval[0] <= after.interval[0] < after.interval[1] <= before.interval[1]
    told = "verdicts at 7, 11, 17 seeds, ...; between them no word changes (7 were planned for 1 "
    assert f"{told}arm)" in facts_of(tables[1])
    better = planned(1, "standard attnres", range(7), gain=0.1)
    lacks = judge(better, planned(2, "standard", range(7, 11)))  # the seeds of a later look
    assert (arm_of(lacks).verdict, arm_of(lacks).look.n) == ("better", 7)
    gap = arm_of(lacks).mean - arm_of(lacks, "standard").mean  # the means are of its seven seeds
    assert arm_of(lacks).difference.mean == pytest.approx(gap)


# Removed runs


def test_a_removed_run_blocks_its_row_unless_a_reason_is_given(planned, judge):
    runs = planned(1, "standard attnres", range(6), gain=0.1)
    (gone,) = [run for run in runs if (run.variant, run.seed) == ("attnres", 2)]
    left = [run for run in runs if run is not gone]
    with_reason = removed(gone, reason="a core was busy")

    found, again = judge(left, rules=removed(gone)), judge(runs, rules=removed(gone))
    short = judge(left, rules=with_reason)
    more = judge(left, planned(2, "standard attnres", range(6, 7)), rules=with_reason)

    ended = f"having ended at {gone.result.val_loss:.4f}"
    assert arm_of(found).verdict == "blocked"
    reason = f"seed 2 was removed, {ended}: the same ablate command trains it"
    assert arm_of(found).reason == reason
    assert f"removed: attnres seed 2, {ended}" in qualifiers(found)
    assert (arm_of(again).verdict, again.removed) == ("better", ())
    assert arm_of(short).reason == "5 of 6 seeds"
    assert arm_of(more).pairs == (0, 1, 3, 4, 5, 6)  # its look takes another
    assert f"removed: attnres seed 2, {ended}; left out: a core was busy" in qualifiers(more)
    for change in ({"fingerprint": "f" * 16}, {"recipe_digest": "b" * 12}, {"code": "c" * 12}):
        assert judge(left, rules=removed(gone, **change)).removed == ()  # of another table


def test_a_removed_baseline_run_blocks_all_and_a_removed_arm_counts(planned, judge):
    runs = planned(1, "standard attnres mhc", range(6))

    found = judge(runs[:2] + runs[3:], rules=removed(runs[2]))
    without_mhc = judge(runs[:12], rules=removed(*runs[12:]))

    assert {arm.verdict for arm in found.arms} == {"baseline", "blocked"}
    assert arm_of(found).reason.startswith("the baseline's seed 2 was removed, having")
    assert without_mhc.family.rates["attnres"] == pytest.approx(ALPHA * 0.8 / 2)


def test_planning_many_seeds_and_removing_the_rest_buys_no_earlier_look(planned, judge):
    runs = planned(1, "standard attnres", range(12))
    some, rest = [r for r in runs if r.seed < 6], [r for r in runs if r.seed >= 6]

    found = judge(some, rules=removed(*rest, status=Status.PENDING))

    assert found.family.planned == 12
    assert (arm_of(found).verdict, arm_of(found).pairs) == ("blocked", tuple(range(6)))
    assert arm_of(found).reason.startswith("seed 6 was removed, not having ended")


# Seeds apart


def test_a_seed_far_from_the_others_is_named(planned, judge):
    runs = planned(1, "standard attnres", range(7))
    runs[9] = replace(runs[9], result=replace(runs[9].result, val_loss=2.9))

    found = judge(runs)

    assert arm_of(found).far == (2,)
    told = f"outliers, far from the other seeds: attnres seed 2 ({2.9 - LOSSES[2]:+.4f})"
    assert told in qualifiers(found)
    assert first_rate(1) == arm_of(found).look.alpha
