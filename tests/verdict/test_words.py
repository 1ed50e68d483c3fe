"""What each word of a verdict means: losses go in, a word comes out.

Every arm is compared with the baseline on the same seeds. The interval of the mean difference holds
for all arms and all looks of the study together, and it decides:

    better                   the whole interval lies below 0: the arm's loss is lower
    worse                    the whole interval lies above 0
    inconclusive            the interval contains 0: this study is inconclusive
    equivalent  the whole interval lies within a margin that the user gave: equivalent
    non-inferior   the interval ends below that margin, but begins beyond it: non-inferior

Without an interval there is no such word:

    identical                every loss is the baseline's, bit for bit
    pending           pending: seeds of the first look are still to come
    blocked                  a comparison would be unfair or unsound; the reason says why
    baseline                 what the others are compared with
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparisons import BASE, BETTER, EQUAL, WORSE, arm_of
from scipy.stats import ttest_rel

from attnres_cli.records.comparison_terms import Terms
from attnres_cli.records.gates import PROOFS
from attnres_cli.records.run import Gate, Status
from attnres_cli.stats.power import detectable
from attnres_cli.stats.sequential import first_rate
from attnres_cli.verdict.comparison import Rules

ROUNDED = [loss - n * 1e-8 for loss, n in zip(BASE, (1, 2, 1, 3, 2), strict=True)]
CLOSE, WIDE = 0.05, 0.2
"""Margins in nats per token. The interval of EQUAL reaches from about -0.02 to +0.02, that of
BETTER from -0.12 to -0.09, that of WORSE from +0.09 to +0.12."""


@pytest.mark.parametrize(
    ("losses", "margin", "word", "reason"),
    [
        # on seeds 0 to 4 the baseline ends at 1.50, 1.70, 1.60, 1.40 and 1.55 nats per token
        ((1.39, 1.59, 1.50, 1.31, 1.45), None, "better", "look at 5 seeds"),
        ((1.61, 1.80, 1.71, 1.50, 1.65), None, "worse", "look at 5 seeds"),
        ((1.51, 1.68, 1.61, 1.40, 1.54), None, "inconclusive", "would have seen"),
        ((1.50, 1.70, 1.60, 1.40, 1.55), None, "identical", "bit for bit"),
        (ROUNDED, None, "inconclusive", "would have seen"),  # lower only by rounding
        # with a margin: differences that do not matter, whatever their sign
        ((1.51, 1.68, 1.61, 1.40, 1.54), CLOSE, "equivalent", "look at 5 seeds"),
        ((1.39, 1.59, 1.50, 1.31, 1.45), WIDE, "equivalent", "look at 5 seeds"),
        ((1.61, 1.80, 1.71, 1.50, 1.65), WIDE, "equivalent", "look at 5 seeds"),
        ((1.39, 1.59, 1.50, 1.31, 1.45), CLOSE, "better", "look at 5 seeds"),
        ((1.61, 1.80, 1.71, 1.50, 1.65), CLOSE, "worse", "look at 5 seeds"),
        ((1.61, 1.80, 1.71, 1.50, 1.65), 0.1, "worse", "look at 5 seeds"),  # the margin within
        ((1.41, 1.71, 1.51, 1.39, 1.46), CLOSE, "non-inferior", "look at 5 seeds"),
        ((1.41, 1.71, 1.51, 1.39, 1.46), 0.01, "inconclusive", "would have seen"),
        # too few seeds
        ((1.39, 1.59, 1.50, 1.31), None, "pending", "4 of 5 seeds"),
        ((1.39, 1.59, 1.50), None, "pending", "3 of 5 seeds"),
        ((1.39, 1.59), None, "pending", "2 of 5 seeds"),
        ((1.39,), None, "pending", "1 of 5 seeds"),
        # nothing that could be compared
        ((1.25, 1.45, 1.35, 1.15, 1.30), None, "blocked", "no spread"),  # 0.25 lower everywhere
        ((1.39, 1.59, 1.50, 1.31, math.nan), None, "blocked", "seed 4 diverged"),
        (
            (1.39, 1.59, 1.50, 1.31, 5.60),
            None,
            "blocked",
            "seed 4 ends at 5.600, not below its start",
        ),
    ],
)
def test_losses_go_in_and_a_word_comes_out(losses, margin, word, reason, make_run, make_arm, judge):
    status = {True: Status.DIVERGED, False: Status.COMPLETE}
    arm = [
        make_run("attnres", seed, val_loss=loss, status=status[math.isnan(loss)])
        for seed, loss in enumerate(losses)
    ]

    found = judge(make_arm("standard", *BASE[: len(losses)]), arm, rules=Rules(margin=margin))

    assert arm_of(found).verdict == word
    assert reason in arm_of(found).reason
    assert arm_of(found, "standard").verdict == "baseline"
    if word in ("pending", "blocked"):
        assert arm_of(found).interval is None
        return
    low, high = arm_of(found).interval
    is_small = margin is not None and max(-low, high) < margin
    assert (word == "equivalent") == is_small
    assert (word == "better") == (high < 0 and not is_small)
    assert (word == "worse") == (low > 0 and not is_small)


def test_the_interval_is_at_the_rate_of_its_look(base, make_arm, judge):
    found = judge(base, make_arm("a", *BETTER), make_arm("b", *EQUAL))

    a, b = arm_of(found, "a"), arm_of(found, "b")
    theirs = ttest_rel(BETTER, BASE)
    interval = theirs.confidence_interval(1 - first_rate(2))
    assert a.interval == pytest.approx((interval.low, interval.high), abs=1e-5)
    assert a.difference.p == pytest.approx(theirs.pvalue)
    interval = theirs.confidence_interval(0.95)
    assert a.difference.ci95 == pytest.approx((interval.low, interval.high))
    assert a.reason == "look at 5 seeds, the next at 8"
    assert b.detectable == pytest.approx(detectable(5, b.difference.sd, first_rate(2)))
    assert b.reason == f"{a.reason}; would have seen {b.detectable:.4f} or more with 80 % power"


def test_the_word_depends_on_the_baseline_and_on_how_many_arms_there_are(base, make_arm, judge):
    turned = judge(base, make_arm("attnres", *BETTER), baseline="attnres")
    weak = make_arm("a", 1.42, 1.61, 1.51, 1.31, 1.32)
    others = [make_arm(f"other {i}", *EQUAL) for i in range(5)]

    assert arm_of(turned, "standard").verdict == "worse"
    assert arm_of(turned).verdict == "baseline"
    assert arm_of(judge(base, weak), "a").verdict == "better"
    assert arm_of(judge(base, weak, *others), "a").verdict == "inconclusive"


@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        ({"status": Status.PENDING}, "pending", "seed 1 is pending"),
        ({"status": Status.RUNNING}, "pending", "seed 1 is running, or was killed"),
        ({"status": Status.FAILED, "error": "no"}, "blocked", "seed 1 failed"),
    ],
)
def test_no_word_before_the_first_look(changes, word, reason, base, make_arm, make_run, judge):
    arm = make_arm("attnres", *BETTER)
    lacks = [make_run("attnres", 1, **changes), *arm[:1], *arm[2:]]
    base_lacks = [make_run("standard", 1, **changes), *base[:1], *base[2:]]

    ours, theirs = arm_of(judge(base, lacks)), arm_of(judge(base_lacks, arm))

    assert (ours.verdict, ours.reason, ours.interval) == (word, reason, None)
    assert (theirs.verdict, theirs.reason) == (word, f"the baseline's {reason}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": Status.DIVERGED, "steps": 120}, "diverged at step 120"),
        ({"initial_loss": 6.6}, "starts at 6.60, not near ln(vocab) 5.55"),
        ({"initial_loss": 4.5}, "starts at 4.50, not near ln(vocab) 5.55"),
        ({"val_loss": 5.6}, "ends at 5.600, not below its start: it has learned nothing"),
    ],
)
def test_a_gate_blocks_its_arm_or_every_arm(changes, reason, base, make_arm, make_run, judge):
    arm = make_arm("attnres", *BETTER)
    stopped, base_stopped = (
        [runs[0], make_run(runs[0].variant, 1, **changes), *runs[2:]] for runs in (arm, base)
    )

    ours, found = arm_of(judge(base, stopped)), judge(base_stopped, arm)

    assert (ours.verdict, ours.reason, ours.difference) == ("blocked", f"seed 1 {reason}", None)
    assert arm_of(found).verdict == "blocked"
    assert arm_of(found).reason == f"the baseline's seed 1 {reason}"
    assert arm_of(found, "standard").verdict == "baseline"
    assert arm_of(found, "standard").reason == f"seed 1 {reason}"


def test_gates_are_the_studys_and_know_the_least_possible_loss(base, make_arm, judge, facts):
    runs = make_arm("attnres", *BETTER)
    leaks = judge(base, runs, data=replace(facts, floor=1.35))
    runs[1] = replace(runs[1], gates=(Gate("learned", False, 1.59, high=1.5),))

    arm = arm_of(judge(base, runs))

    assert arm.reason == "seed 1 ends at 1.590, not below its start: it has learned nothing"
    assert arm.gates[1] == runs[1].gates
    assert [gate.name for gate in arm.gates[0]] == ["finite", "start", "learned", *PROOFS]
    reason = "seed 3 ends at 1.3100, below the least possible loss 1.3500: something leaks"
    assert arm_of(leaks).reason == reason
    assert arm_of(leaks, "standard").reason == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": 51_200, "steps": 200}, "saw 51200 tokens, the baseline 102400"),
        ({"tokens": 51_200}, "was trained with 128 tokens per step, the baseline with 256"),
        ({"device": "cuda"}, "was computed on cuda fp32 eager"),
        ({"precision": "bf16"}, "was computed on cpu bf16 eager, 1 thread"),
        ({"compiled": True}, "was computed on cpu fp32 compiled, 1 thread"),
        ({"threads": 2}, "was computed on cpu fp32 eager, 2 threads"),
    ],
)
def test_runs_that_are_not_alike_are_never_paired(changes, reason, base, make_arm, make_run, judge):
    if "tokens" not in changes:
        changes = {"settings": changes}
        reason += ", the baseline on cpu fp32 eager, 1 thread"
    runs = make_arm("attnres", *BETTER)
    runs[1] = make_run("attnres", 1, **changes)

    arm = arm_of(judge(base, runs))

    assert (arm.verdict, arm.reason, arm.difference) == ("blocked", f"seed 1 {reason}", None)


def test_another_start_machine_or_engine_blocks_nothing(base, make_arm, judge):
    for changes in (
        {"initial_loss": math.log(256) - 0.99},  # within one nat of ln(vocab)
        {"initial_loss": math.log(256) + 0.99},
        {"settings": {"device_name": "Another CPU"}},
        {"settings": {"engine": "reference"}},
    ):
        arm = arm_of(judge(base, make_arm("attnres", *BETTER, **changes)))
        assert arm.verdict == "better"
        assert arm.engines == (changes.get("settings", {}).get("engine", "eager"),)


@pytest.mark.parametrize(
    ("steps", "matched", "blocked_by"),
    [(200, "time", ""), (200, "params", "51200 tokens"), (400, "time", "128 tokens per step")],
)
def test_only_matched_time_allows_other_tokens(steps, matched, blocked_by, base, make_arm, judge):
    runs = make_arm("attnres", *BETTER, tokens=51_200, steps=steps)

    arm = arm_of(judge(base, runs, terms=Terms(matched, "standard")))

    assert arm.verdict == ("blocked" if blocked_by else "better")
    assert blocked_by in arm.reason


def test_arms_without_the_baseline_or_without_one_of_its_seeds_are_blocked(base, make_arm, judge):
    found = judge(make_arm("a", *BETTER), make_arm("b", *WORSE))
    lacks = arm_of(judge(base, make_arm("attnres", *BETTER)[1:]))

    reason = "no runs of the baseline in this comparison"
    said = {(arm.verdict, arm.reason, arm.params_delta) for arm in found.arms}
    assert (said, found.baseline) == ({("blocked", reason, None)}, "standard")
    reason = "seed 0 is missing, which others have: --seeds with all of theirs"
    assert (lacks.verdict, lacks.reason, lacks.difference) == ("blocked", reason, None)
