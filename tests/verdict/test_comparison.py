"""What the runs of one recipe say about each arm, and what forbids them to say it."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest
from scipy.stats import ttest_rel

from attnres_cli.records.comparison_terms import ArmRecipe, Terms, Tuned
from attnres_cli.records.run import DataDescription, Gate, RunRecord, Status
from attnres_cli.stats.looks import first_rate
from attnres_cli.stats.power import detectable
from attnres_cli.verdict.comparison import ArmResult, Comparison, last_line
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.qualified import qualifiers

BASE = (1.50, 1.70, 1.60, 1.40, 1.55)  # seeds that differ more than the arms below do
BETTER = (1.39, 1.59, 1.50, 1.31, 1.45)
WORSE = (1.61, 1.80, 1.71, 1.50, 1.65)
EQUAL = (1.51, 1.68, 1.61, 1.40, 1.54)

UNFINISHED = [
    (
        {"status": Status.PENDING},
        "no verdict yet",
        "seed 1 is pending",
    ),
    (
        {"status": Status.RUNNING},
        "no verdict yet",
        "seed 1 is running, or was killed",
    ),
    (
        {"status": Status.FAILED, "error": "no"},
        "blocked",
        "seed 1 failed",
    ),
]
GATES = [
    ({"status": Status.DIVERGED, "steps": 120}, "seed 1 diverged at step 120"),
    ({"initial_loss": 6.6, "val_loss": 1.5}, "seed 1 starts at 6.60, not near ln(vocab) 5.55"),
    ({"initial_loss": 4.5, "val_loss": 1.5}, "seed 1 starts at 4.50, not near ln(vocab) 5.55"),
    ({"val_loss": 5.6}, "seed 1 ends at 5.600, above its start: it has learned nothing"),
]
UNEQUAL = [
    ({"tokens": 51_200, "steps": 200}, "seed 1 saw 51200 tokens, the baseline 102400"),
    (
        {"tokens": 51_200},
        "seed 1 was trained with 128 tokens per step, the baseline with 256",
    ),
    (
        {"settings": {"device": "cuda"}},
        "seed 1 was computed on cuda fp32 eager, the baseline on cpu fp32 eager, 1 thread",
    ),
    (
        {"settings": {"precision": "bf16"}},
        "seed 1 was computed on cpu bf16 eager, 1 thread, the baseline on cpu fp32 eager, 1 thread",
    ),
    (
        {"settings": {"compiled": True}},
        "seed 1 was computed on cpu fp32 compiled, 1 thread, the baseline on cpu fp32 eager, "
        "1 thread",
    ),
    (
        {"settings": {"threads": 2}},
        "seed 1 was computed on cpu fp32 eager, 2 threads, the baseline on cpu fp32 eager, "
        "1 thread",
    ),
]
GATE_NAMES = ["diverged", "high start", "low start", "no learning"]


def arm_of(comparison: Comparison, variant: str) -> ArmResult:
    (arm,) = [arm for arm in comparison.arms if arm.variant == variant]
    return arm


def names_of(comparison: Comparison) -> list[str]:
    return [arm.variant for arm in comparison.arms]


@pytest.mark.parametrize(
    ("losses", "verdict"), [(BETTER, "better"), (WORSE, "worse"), (EQUAL, "not separable")]
)
def test_the_verdict_follows_the_paired_difference(losses, verdict: str, make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("attnres", *losses)

    arm = arm_of(compare(records, facts, "standard"), "attnres")

    assert arm.verdict == verdict


def test_the_difference_is_that_of_scipys_paired_test(make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("attnres", *BETTER)

    arm = arm_of(compare(records, facts, "standard"), "attnres")

    theirs = ttest_rel(BETTER, BASE)
    interval = theirs.confidence_interval(0.95)
    assert arm.difference is not None
    assert arm.difference.p == pytest.approx(theirs.pvalue)
    assert arm.difference.ci95 == pytest.approx((interval.low, interval.high))


def test_runs_are_paired_by_seed_and_not_by_their_order(make_arm, facts):
    ordered = compare(make_arm("standard", *BASE) + make_arm("a", *BETTER), facts, "standard")
    mixed = compare(make_arm("standard", *BASE) + make_arm("a", *BETTER)[::-1], facts, "standard")

    assert arm_of(mixed, "a").difference == arm_of(ordered, "a").difference


def test_the_interval_is_that_of_the_looks_rate_and_the_reason_names_the_look(make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("a", *BETTER) + make_arm("b", *EQUAL)

    comparison = compare(records, facts, "standard")

    a, b = arm_of(comparison, "a"), arm_of(comparison, "b")
    theirs = ttest_rel(BETTER, BASE).confidence_interval(1 - first_rate(2))
    assert a.interval == pytest.approx((theirs.low, theirs.high), abs=1e-5)
    assert a.reason == "look at 5 seeds, the next at 8"
    assert b.sees == pytest.approx(detectable(5, b.difference.sd, first_rate(2)))
    assert b.reason == f"{a.reason}; would have seen {b.sees:.4f} or more with 80 % power"


def test_the_baseline_is_called_so_and_compared_with_nothing(make_arm, facts):
    comparison = compare(make_arm("standard", *BASE), facts, "standard")

    (arm,) = comparison.arms
    assert (arm.verdict, arm.reason, arm.difference, arm.params_delta) == ("baseline", "", None, 0)


def test_an_arm_is_described_by_its_runs(make_run, make_arm, facts):
    arm_runs = [
        make_run(
            "attnres",
            seed,
            val_loss=loss,
            n_params=1_000_500,
            flops_per_token=7,
        )
        for seed, loss in [(2, 1.3), (0, 1.1), (1, 1.2)]
    ]

    arm = arm_of(compare(make_arm("standard", *BASE) + arm_runs, facts, "standard"), "attnres")

    assert list(arm.losses.items()) == [(0, 1.1), (1, 1.2), (2, 1.3)]
    assert (arm.mean, arm.sd) == pytest.approx((1.2, 0.1))
    assert (arm.n_params, arm.params_delta, arm.flops_per_token) == (1_000_500, 500, 7)
    assert arm.tokens == 102_400


@pytest.mark.parametrize(("changes", "verdict", "reason"), UNFINISHED)
def test_before_all_seeds_of_the_first_look_have_ended_there_is_no_verdict(
    changes, verdict: str, reason: str, make_arm, make_run, facts
):
    base, arms = make_arm("standard", *BASE), make_arm("attnres", *BETTER)
    lacks, base_lacks = arms.copy(), base.copy()
    lacks[1], base_lacks[1] = make_run("attnres", 1, **changes), make_run("standard", 1, **changes)

    ours = arm_of(compare(base + lacks, facts, "standard"), "attnres")
    theirs = arm_of(compare(base_lacks + arms, facts, "standard"), "attnres")

    assert (ours.verdict, ours.reason, ours.interval) == (verdict, reason, None)
    assert (theirs.verdict, theirs.reason) == (verdict, f"the baseline's {reason}")


@pytest.mark.parametrize(("changes", "reason"), GATES, ids=GATE_NAMES)
def test_an_arm_is_blocked_at_a_gate_with_its_reason(
    changes, reason: str, make_arm, make_run, facts
):
    runs = make_arm("attnres", *BETTER)
    runs[1] = make_run("attnres", 1, **changes)

    arm = arm_of(compare(make_arm("standard", *BASE) + runs, facts, "standard"), "attnres")

    assert (arm.verdict, arm.reason, arm.difference) == ("blocked", reason, None)


@pytest.mark.parametrize(("changes", "reason"), GATES, ids=GATE_NAMES)
def test_a_gate_that_stops_the_baseline_blocks_every_arm(
    changes, reason: str, make_arm, make_run, facts
):
    base = make_arm("standard", *BASE)
    base[1] = make_run("standard", 1, **changes)

    comparison = compare(base + make_arm("attnres", *BETTER), facts, "standard")

    arm = arm_of(comparison, "attnres")
    assert (arm.verdict, arm.reason) == ("blocked", f"the baseline's {reason}")
    baseline = arm_of(comparison, "standard")
    assert (baseline.verdict, baseline.reason) == ("baseline", reason)


@pytest.mark.parametrize("nats", [-0.99, 0.99])
def test_an_untrained_loss_within_one_nat_of_ln_vocab_passes(
    nats: float, make_arm, facts: DataDescription
):
    start = math.log(facts.vocab_size) + nats
    runs = make_arm("attnres", *BETTER, initial_loss=start)

    arm = arm_of(compare(make_arm("standard", *BASE) + runs, facts, "standard"), "attnres")

    assert arm.verdict == "better"


@pytest.mark.parametrize(
    ("changes", "reason"),
    UNEQUAL,
    ids=["tokens", "step", "device", "precision", "compiled", "threads"],
)
def test_runs_that_are_not_alike_are_never_paired(changes, reason: str, make_arm, make_run, facts):
    runs = make_arm("attnres", *BETTER)
    runs[1] = make_run("attnres", 1, **changes)

    arm = arm_of(compare(make_arm("standard", *BASE) + runs, facts, "standard"), "attnres")

    assert (arm.verdict, arm.reason, arm.difference) == ("blocked", reason, None)


def test_where_time_is_matched_runs_of_other_token_counts_are_paired(make_arm, facts):
    runs = make_arm("attnres", *BETTER, tokens=51_200, steps=200)
    records = make_arm("standard", *BASE) + runs

    matched = compare(records, facts, "standard", Terms("time", "standard"))
    alike = compare(records, facts, "standard", Terms("params", "standard"))

    assert arm_of(matched, "attnres").verdict == "better"
    assert "51200 tokens" in arm_of(alike, "attnres").reason


def test_other_tokens_per_step_are_refused_even_where_time_is_matched(make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("attnres", *BETTER, tokens=51_200)

    comparison = compare(records, facts, "standard", Terms("time", "standard"))

    assert arm_of(comparison, "attnres").verdict == "blocked"
    assert "128 tokens per step" in arm_of(comparison, "attnres").reason


def test_a_loss_below_the_least_possible_one_blocks(make_arm, facts: DataDescription):
    records = make_arm("standard", *BASE) + make_arm("attnres", *BETTER)

    comparison = compare(records, replace(facts, floor=1.35), "standard")

    reason = "seed 3 ends at 1.3100, below the least possible loss 1.3500: something leaks"
    assert arm_of(comparison, "attnres").reason == reason
    assert arm_of(comparison, "standard").reason == ""


def test_gates_are_read_from_the_study_where_it_has_them(make_arm, facts):
    runs = make_arm("attnres", *BETTER)
    runs[1] = replace(runs[1], gates=(Gate("learned", False, 1.59, high=1.5),))

    comparison = compare(make_arm("standard", *BASE) + runs, facts, "standard")

    arm = arm_of(comparison, "attnres")
    assert arm.reason == "seed 1 ends at 1.590, above its start: it has learned nothing"
    assert arm.gates[1] == runs[1].gates
    assert [gate.name for gate in arm.gates[0]] == ["finite", "start", "learned"]


def test_an_arms_own_recipe_stands_with_it_and_the_shared_one_with_all(make_arm, facts):
    shared, own = ("quick", "aaaaaaaaaaaa"), ("quick", "bbbbbbbbbbbb")
    how = Tuned(0.01, (0.01,), (1.5,), (7,), 0.0141, False, "")
    terms = Terms(is_tuned=True)
    tuned = ArmRecipe(shared[1], facts.fingerprint, terms, "attnres", own[1], how)
    records = make_arm("standard", *BASE, recipe=shared) + make_arm("attnres", *BETTER, recipe=own)

    comparison = compare(records, facts, "standard", terms, [tuned])

    assert (comparison.terms, comparison.recipe_digest) == (terms, shared[1])
    assert arm_of(comparison, "attnres").own == tuned
    assert arm_of(comparison, "attnres").recipe_digest == own[1]
    assert arm_of(comparison, "standard").own is None


def test_runs_on_another_machine_of_the_same_kind_are_paired(make_arm, facts):
    other = {"device_name": "Another CPU"}
    runs = make_arm("attnres", *BETTER, settings=other)

    arm = arm_of(compare(make_arm("standard", *BASE) + runs, facts, "standard"), "attnres")

    assert arm.verdict == "better"


def test_runs_computed_by_another_engine_are_paired(make_arm, facts):
    runs = make_arm("attnres", *BETTER, settings={"engine": "reference"})

    arm = arm_of(compare(make_arm("standard", *BASE) + runs, facts, "standard"), "attnres")

    assert (arm.verdict, arm.engines) == ("better", ("reference",))


def test_without_runs_of_the_baseline_every_arm_is_blocked(make_arm, facts):
    records = make_arm("a", *BETTER) + make_arm("b", *WORSE)

    comparison = compare(records, facts, "standard")

    assert {(arm.verdict, arm.reason, arm.params_delta) for arm in comparison.arms} == {
        ("blocked", "no runs of the baseline in this comparison", None)
    }
    assert comparison.baseline == "standard"


def test_another_baseline_turns_the_verdict(make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("attnres", *BETTER)

    comparison = compare(records, facts, "attnres")

    assert arm_of(comparison, "standard").verdict == "worse"
    assert arm_of(comparison, "attnres").verdict == "baseline"


def test_a_seed_that_one_side_never_had_blocks_the_row(make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("attnres", *BETTER)[1:]

    arm = arm_of(compare(records, facts, "standard"), "attnres")

    reason = "seed 0 is missing, which others have: --seeds with all of theirs"
    assert (arm.verdict, arm.reason, arm.difference) == ("blocked", reason, None)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_fewer_seeds_than_a_first_look_takes_give_no_verdict(n: int, make_arm, facts):
    records = make_arm("standard", *BASE[:n]) + make_arm("attnres", *BETTER[:n])

    arm = arm_of(compare(records, facts, "standard"), "attnres")

    assert (arm.verdict, arm.reason) == ("no verdict yet", f"{n} of 5 seeds")
    assert arm.interval is None


def test_arms_that_differ_alike_on_every_seed_are_blocked(make_arm, facts):
    records = make_arm("standard", *[1.5] * 5) + make_arm("attnres", *[1.25] * 5)

    arm = arm_of(compare(records, facts, "standard"), "attnres")

    assert arm.verdict == "blocked"
    assert "no spread" in arm.reason


def test_an_arm_that_equals_the_baseline_is_not_separable(make_arm, facts):
    records = make_arm("standard", *BASE) + make_arm("attnres", *BASE)

    arm = arm_of(compare(records, facts, "standard"), "attnres")

    assert arm.verdict == "not separable"


def test_an_arm_that_is_better_alone_may_not_be_so_among_many(make_arm, facts):
    base, weak = make_arm("standard", *BASE), (1.42, 1.61, 1.51, 1.31, 1.32)
    others = [make_arm(f"other {i}", *EQUAL) for i in range(5)]

    alone = compare(base + make_arm("a", *weak), facts, "standard")
    among = compare(sum(others, base + make_arm("a", *weak)), facts, "standard")

    assert arm_of(alone, "a").verdict == "better"
    assert arm_of(among, "a").verdict == "not separable"


def test_a_diverged_run_leaves_its_arm_without_a_mean(make_arm, make_run, facts):
    runs = [*make_arm("attnres", 1.3), make_run("attnres", 1, status=Status.DIVERGED)]

    arm = arm_of(compare(make_arm("standard", *BASE) + runs, facts, "standard"), "attnres")

    assert math.isnan(arm.mean)
    assert arm.losses[0] == 1.3
    assert math.isnan(arm.losses[1])


def test_failed_runs_are_listed_with_the_last_line_of_their_traceback(make_arm, make_run, facts):
    error = "Traceback (most recent call last):\n  File ...\nValueError: d_model is 0\n"
    failed = make_run("attnres", 2, status=Status.FAILED, error=error)
    silent = make_run("attnres", 3, status=Status.FAILED)

    comparison = compare([*make_arm("standard", *BASE), failed, silent], facts, "standard")

    lost = comparison.runs(Status.FAILED)
    found = [(run.variant, run.seed, last_line(run.error)) for run in lost]
    assert found == [("attnres", 2, "ValueError: d_model is 0"), ("attnres", 3, "unknown")]
    assert names_of(comparison) == ["standard"]


def test_a_comparison_in_which_every_run_failed_lists_them(make_run, facts):
    runs = [make_run("standard", s, status=Status.FAILED, error="no") for s in (0, 1)]

    comparison = compare(runs, facts, "standard")

    assert comparison.arms == ()
    assert len(comparison.runs(Status.FAILED)) == 2


def test_the_baseline_comes_first_then_arms_by_loss_and_diverged_ones_last(
    make_arm, make_run, facts
):
    records: list[RunRecord] = [
        *make_arm("worse", *WORSE),
        make_run("gone", 0, status=Status.DIVERGED),
        *make_arm("better", *BETTER),
        *make_arm("standard", *BASE),
        make_run("lone", 0, val_loss=0.9),
    ]

    comparison = compare(records, facts, "standard")

    assert names_of(comparison) == ["standard", "lone", "better", "worse", "gone"]


def test_runs_paired_over_versions_are_named_and_those_of_one_version_are_not(
    make_arm, make_run, facts
):
    newer = {"attnres": "0.1.0", "torch": "2.10.0", "python": "3.11.7"}
    other_python = {"attnres": "0.1.0", "torch": "2.9.0", "python": "3.12.1"}
    records = [
        *make_arm("standard", *BASE),
        make_run("attnres", 0, versions=newer),
        make_run("attnres", 1),
        make_run("attnres", 2, versions=newer),
        make_run("window", 0, versions=other_python),
        make_run("window", 1),
    ]

    comparison = compare(records, facts, "standard")

    assert {arm.variant: arm.mixed for arm in comparison.arms} == {
        "standard": (),
        "attnres": (0, 2),
        "window": (),
    }
    (line,) = [line for line in qualifiers(comparison) if "other versions" in line]
    assert "attnres on seed 0, 2;" in line


def test_versions_and_settings_are_told_once_each(make_arm, make_run, facts):
    newer = {"attnres": "0.2.0", "torch": "2.10.0", "python": "3.12.1"}
    records = [
        *make_arm("standard", *BASE),
        make_run("attnres", 0, versions=newer, settings={"compiled": True}),
        make_run("attnres", 1, status=Status.FAILED, error="no"),
    ]

    comparison = compare(records, facts, "standard")

    assert comparison.versions == [
        "attnres 0.1.0, torch 2.9.0, python 3.11.7",
        "attnres 0.2.0, torch 2.10.0, python 3.12.1",
    ]
    assert comparison.settings == [
        "cpu fp32 compiled, 1 thread on Some CPU, depth mixing by eager",
        "cpu fp32 eager, 1 thread on Some CPU, depth mixing by eager",
    ]


def test_a_comparison_names_its_recipe_and_data(make_arm, facts):
    comparison = compare(make_arm("standard", *BASE), facts, "standard")

    assert (comparison.recipe, comparison.recipe_digest) == ("quick", "abcdef012345")
    assert comparison.data == facts


def test_no_report_imports_torch():
    rooms = ("report.comparison", "report.page", "report.terminal", "report.progress")
    modules = ", ".join(f"attnres_cli.{name}" for name in (*rooms, "verdict.select"))
    script = f"import sys, {modules}; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
