"""What a table says as its study grows: plans, looks, removed runs, margins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attnres_cli.records.run import Removed, RunRecord, Status
from attnres_cli.report.comparison import pairs_text, verdict_text
from attnres_cli.report.facts import facts_of
from attnres_cli.stats.looks import ALPHA, first_rate, interval, shares
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.family import family
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.qualified import qualifiers

LOSSES = np.random.default_rng(0).normal(1.5, 0.1, 20)
NOISE = np.random.default_rng(1).normal(0, 0.02, (4, 20))


@pytest.fixture
def planned(make_run):
    """A function that makes the runs of arms on seeds, all planned at that minute."""

    def make(minute: int, variants: str, seeds: range, gain: float = 0.0) -> list[RunRecord]:
        at = f"2026-01-01T00:{minute:02}:00.000000+00:00"
        return [
            replace(
                make_run(
                    name,
                    seed,
                    val_loss=LOSSES[seed]
                    + (name != "standard") * (NOISE[len(name) % 4, seed] - gain),
                ),
                created_at=at,
            )
            for name in variants.split()
            for seed in seeds
        ]

    return make


def arm_of(found: Comparison, name: str = "attnres"):
    return next(arm for arm in found.arms if arm.variant == name)


def removed(run: RunRecord, reason: str | None = None) -> Removed:
    assert run.result is not None
    return Removed(
        run.recipe_digest, run.variant, run.seed, run.fingerprint, run.code, run.created_at,
        "2026-01-02", Status.COMPLETE, run.result.val_loss, reason,
    )  # fmt: skip


def test_seeds_stand_in_the_order_in_which_they_were_planned(planned):
    runs = planned(5, "standard attnres", range(2)) + planned(1, "standard attnres", range(4, 6))

    found = family(runs, "standard")

    assert (found.seeds, found.planned) == ((4, 5, 0, 1), 2)


def test_the_plan_is_what_there_was_when_the_first_arm_joined(planned):
    runs = planned(1, "standard", range(7)) + planned(2, "attnres", range(7))
    more = planned(3, "standard attnres", range(7, 12))

    assert family(runs + more, "standard").planned == 7
    assert family(planned(1, "standard", range(3)), "standard").planned == 3


def test_arms_that_join_later_take_nothing_from_those_before_them(planned):
    first = planned(1, "standard attnres mhc", range(5))
    later = planned(2, "hc", range(5)) + planned(3, "delta frac", range(5))

    alone, all_ = family(first, "standard").rates, family(first + later, "standard").rates

    assert alone == {name: all_[name] for name in alone}
    assert [all_[name] for name in ("attnres", "hc", "frac")] == pytest.approx(
        [ALPHA * part for part in shares([2, 1, 2])]
    )
    assert sum(all_.values()) <= ALPHA


def test_between_looks_nothing_changes_and_the_row_says_of_how_many_seeds_it_is(planned, facts):
    runs = planned(1, "standard attnres", range(7))
    more = planned(2, "standard attnres", range(7, 10))
    enough = planned(3, "standard attnres", range(10, 11))

    before, between, after = (
        compare(records, facts, "standard") for records in (runs, runs + more, runs + more + enough)
    )

    assert arm_of(between).interval == arm_of(before).interval
    assert arm_of(between).difference == arm_of(before).difference
    assert arm_of(between).mean == arm_of(before).mean
    assert pairs_text(arm_of(before), before) == "7"
    assert pairs_text(arm_of(between), between) == "7 of 10"
    assert (arm_of(after).look.n, arm_of(after).look.next) == (11, 17)
    low, high = arm_of(after).interval
    assert arm_of(before).interval[0] <= low < high <= arm_of(before).interval[1]
    told = (
        "verdicts at 7, 11, 17 seeds, ...; between them no word changes (7 were planned for 1 arm)"
    )
    assert told in facts_of(between)


def test_means_of_a_row_differ_by_its_difference(planned, facts):
    runs = planned(1, "standard attnres", range(7)) + planned(2, "standard", range(7, 10))

    found = compare(runs, facts, "standard")

    gap = arm_of(found).mean - arm_of(found, "standard").mean
    assert arm_of(found).difference.mean == pytest.approx(gap)


def test_an_arm_that_lacks_seeds_of_a_later_look_keeps_its_verdict(planned, facts):
    runs = planned(1, "standard attnres", range(7), gain=0.1)
    more = planned(2, "standard", range(7, 11))

    arm = arm_of(compare(runs + more, facts, "standard"))

    assert (arm.verdict, arm.look.n) == ("better", 7)


def test_a_removed_run_blocks_its_row_and_is_named(planned, facts):
    runs = planned(1, "standard attnres", range(6), gain=0.1)
    gone = next(run for run in runs if (run.variant, run.seed) == ("attnres", 2))
    left = [run for run in runs if run is not gone]

    found = compare(left, facts, "standard", rules=Rules(removed=(removed(gone),)))

    arm, loss = arm_of(found), gone.result.val_loss
    assert arm.verdict == "blocked"
    assert arm.reason == (
        f"seed 2 was removed, having ended at {loss:.4f}: the same ablate command trains it"
    )
    told = f"removed: attnres seed 2, having ended at {loss:.4f}"
    assert told in qualifiers(found)
    again = compare(runs, facts, "standard", rules=Rules(removed=(removed(gone),)))
    assert (arm_of(again).verdict, again.removed) == ("better", ())


def test_a_removed_run_of_the_baseline_blocks_every_row(planned, facts):
    runs = planned(1, "standard attnres mhc", range(6))
    gone, left = runs[2], runs[:2] + runs[3:]

    found = compare(left, facts, "standard", rules=Rules(removed=(removed(gone),)))

    assert {arm.verdict for arm in found.arms} == {"baseline", "blocked"}
    assert arm_of(found).reason.startswith("the baseline's seed 2 was removed, having")


def test_a_seed_left_out_with_a_reason_is_named_and_its_look_takes_another(planned, facts):
    runs = planned(1, "standard attnres", range(6))
    gone = next(run for run in runs if (run.variant, run.seed) == ("attnres", 2))
    left = [run for run in runs if run is not gone]
    rules = Rules(removed=(removed(gone, "a core was busy"),))

    short = compare(left, facts, "standard", rules=rules)
    more = compare(
        left + planned(2, "standard attnres", range(6, 7)), facts, "standard", rules=rules
    )

    assert arm_of(short).reason == "5 of 6 seeds"
    assert arm_of(more).pairs == (0, 1, 3, 4, 5, 6)
    loss = gone.result.val_loss
    told = f"removed: attnres seed 2, having ended at {loss:.4f}; left out: a core was busy"
    assert told in qualifiers(more)


def test_a_removed_run_of_another_table_is_not_named(planned, facts):
    runs = planned(1, "standard attnres", range(6))
    others = [
        replace(removed(runs[-1]), **change)
        for change in (
            {"fingerprint": "f" * 16},
            {"recipe_digest": "b" * 12},
            {"code": "c" * 12},
        )
    ]

    found = compare(runs[:-1], facts, "standard", rules=Rules(removed=tuple(others)))

    assert found.removed == ()


def test_a_removed_arm_still_counts(planned, facts):
    runs = planned(1, "standard attnres mhc", range(6))
    gone = tuple(removed(run) for run in runs if run.variant == "mhc")
    left = [run for run in runs if run.variant != "mhc"]

    found = compare(left, facts, "standard", rules=Rules(removed=gone))

    assert found.family.rates["attnres"] == pytest.approx(ALPHA * 0.8 / 2)


def test_registered_arms_have_one_look_with_all_of_the_rate(planned, facts):
    runs = planned(1, "standard", range(6)) + planned(2, "attnres mhc", range(6))

    found = compare(runs, facts, "standard", rules=Rules(is_registered=True))

    arm = arm_of(found)
    ours = np.array([arm.losses[seed] for seed in range(6)])
    assert arm.interval == interval(ours, LOSSES[:6], ALPHA / 2)
    assert arm.look.next is None
    assert "verdicts at 6 seeds (6 were registered for 2 arms)" in facts_of(found)


def test_a_margin_gives_words_for_small_differences(planned, facts):
    runs = planned(1, "standard attnres", range(7))
    alone = arm_of(compare(runs, facts, "standard"))
    low, high = alone.interval
    wide, one_sided = max(-low, high) + 1e-4, high + 1e-4

    equal = compare(runs, facts, "standard", rules=Rules(margin=wide))
    no_worse = compare(runs, facts, "standard", rules=Rules(margin=one_sided))

    assert alone.verdict == "not separable"
    assert arm_of(equal).verdict == "equal within the margin"
    assert -low > one_sided
    assert arm_of(no_worse).verdict == "no worse by the margin"
    assert f"margin: {wide:.4f} nats/token; a difference within it does not matter" in facts_of(
        equal
    )


def test_a_difference_of_rounding_is_not_better(planned, facts):
    runs = planned(1, "standard", range(6))
    ours = [
        replace(
            run, variant="attnres", result=replace(run.result, val_loss=run.result.val_loss - d)
        )
        for run, d in zip(runs, (1e-8, 2e-8, 1e-8, 3e-8, 2e-8, 2e-8), strict=True)
    ]

    arm = arm_of(compare(runs + ours, facts, "standard"))

    assert arm.verdict == "not separable"


def test_what_would_have_been_seen_is_told_in_nats_and_where_it_is_known_in_compute(planned, facts):
    runs = planned(1, "standard attnres", range(7))

    arm = arm_of(compare(runs, facts, "standard"))

    assert verdict_text(arm) == f"not separable (sees {arm.sees:.3f})"
    times = np.exp(arm.sees / 0.4)
    assert verdict_text(arm, slope=0.4) == f"not separable (sees {arm.sees:.3f}, {times:.2f}x)"


def test_a_seed_far_from_the_others_is_named(planned, facts):
    runs = planned(1, "standard attnres", range(7))
    runs[9] = replace(runs[9], result=replace(runs[9].result, val_loss=2.9))

    found = compare(runs, facts, "standard")

    gap = 2.9 - LOSSES[2]
    assert arm_of(found).far == (2,)
    told = f"attnres: far from its other seeds: 2 ({gap:+.4f}); a mean speaks of all seeds, not of"
    assert f"{told} most" in qualifiers(found)
    assert first_rate(1) == arm_of(found).look.alpha


def test_a_baseline_that_was_trained_first_costs_half_of_the_rate(planned):
    first = planned(1, "standard", range(5))
    together = planned(2, "standard attnres", range(7))

    assert family(together, "standard").rates["attnres"] == pytest.approx(ALPHA * 0.8)
    assert family(first + together, "standard").rates["attnres"] == pytest.approx(ALPHA * 0.4)
    assert family(first + together, "standard").planned == 7


def test_who_plans_many_seeds_and_removes_the_rest_has_no_earlier_look(planned, facts):
    runs = planned(1, "standard attnres", range(12))
    some, rest = [r for r in runs if r.seed < 6], [r for r in runs if r.seed >= 6]
    gone = tuple(replace(removed(run), status=Status.PENDING) for run in rest)

    found = compare(some, facts, "standard", rules=Rules(removed=gone))

    assert found.family.planned == 12
    assert (arm_of(found).verdict, arm_of(found).pairs) == ("blocked", tuple(range(6)))
    assert arm_of(found).reason.startswith("seed 6 was removed, not having ended")


def test_a_design_that_was_edited_is_an_arm_more(planned, facts):
    def coded(runs: list[RunRecord], design: str) -> list[RunRecord]:
        names = ("trunk", "engine", "loop", "data")
        versions = {f"code_{name}": "0" * 12 for name in names} | {"code_design": design}
        return [replace(run, versions=versions, code=design) for run in runs]

    base = coded(planned(1, "standard", range(5)), "d0")
    before = coded(planned(1, "attnres", range(5)), "d1")
    after = coded(planned(2, "attnres", range(5)), "d2")
    other_trunk = [replace(run, versions=run.versions | {"code_trunk": "1"}) for run in before]

    first = compare(base + before, facts, "standard")
    edited = compare(base + after, facts, "standard", older=before)
    gone = tuple(removed(run) for run in before)
    hidden = compare(base + after, facts, "standard", rules=Rules(removed=gone))
    elsewhere = compare(base + after, facts, "standard", older=other_trunk)

    assert first.family.rates == {"attnres": pytest.approx(ALPHA * 0.8)}
    assert edited.family.rates["attnres"] == pytest.approx(ALPHA * 0.1)
    assert hidden.family.rates["attnres"] == pytest.approx(ALPHA * 0.1)
    assert hidden.removed == ()
    assert elsewhere.family.rates["attnres"] == pytest.approx(ALPHA * 0.4)  # the baseline was first
