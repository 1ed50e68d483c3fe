"""Which runs are paired, how an arm is described, and what a comparison lists."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparisons import BASE, BETTER, WORSE, arm_of
from scipy.stats import ttest_rel

from attnres_cli.errors import last_line
from attnres_cli.records.comparison_terms import ArmRecipe, Terms, Tuned
from attnres_cli.records.run import Removed, Status
from attnres_cli.verdict.caveats import qualifiers
from attnres_cli.verdict.comparison import Rules


def test_runs_are_paired_by_seed_and_not_by_their_order(make_arm, judge, facts):
    base, arm = make_arm("standard", *BASE, 1.3), make_arm("attnres", *BETTER, 1.25)
    gone = Removed("abcdef012345", "attnres", 0, facts.fingerprint, "", "", "2026",
                   Status.COMPLETE, 1.39, "a core was busy")  # fmt: skip

    found = arm_of(judge(base, arm[1:], rules=Rules(removed=(gone,))))

    theirs = ttest_rel((*BETTER[1:], 1.25), (*BASE[1:], 1.3))
    assert found.pairs == (1, 2, 3, 4, 5)
    assert found.difference.p == pytest.approx(theirs.pvalue)
    assert arm_of(judge(base, arm[::-1])).difference == arm_of(judge(base, arm)).difference


@pytest.mark.parametrize(
    ("variant", "status", "loss", "word"),
    [
        ("attnres", Status.COMPLETE, 2.0, "inconclusive"),
        ("standard", Status.COMPLETE, 1.35, "better"),
        ("attnres", Status.DIVERGED, math.nan, "blocked"),
    ],
)
def test_the_word_with_a_run_that_was_left_out_stands_beside_the_word_without(
    variant: str, status: Status, loss: float, word: str, make_arm, make_run, judge, facts
):
    base, arm = make_arm("standard", *BASE, 1.3), make_arm("attnres", *BETTER, 1.22)
    gone = Removed("abcdef012345", variant, 5, facts.fingerprint, "", "", "2026",
                   status, loss, "a core was busy")  # fmt: skip
    runs = [run for run in (*base, *arm) if (run.variant, run.seed) != (variant, 5)]
    for name, later in (("standard", 1.45), ("attnres", 1.36)):  # in place of what was left out
        runs.append(replace(make_run(name, 6, val_loss=later), created_at="later"))

    comparison = judge(runs, rules=Rules(removed=(gone,)))

    found = arm_of(comparison)
    assert (found.verdict, found.whole.verdict) == ("better", word)
    if word != "blocked":
        assert found.whole.pairs == (0, 1, 2, 3, 4, 5)
    (told,) = [line for line in qualifiers(comparison) if line.startswith("with the runs")]
    assert told.startswith(f"with the runs that were left out: attnres {word} ")
    assert arm_of(judge(base, arm)).whole is None
    unfinished = replace(gone, status=Status.PENDING, val_loss=math.nan)
    assert arm_of(judge(runs, rules=Rules(removed=(unfinished,)))).whole is None


def test_seeds_that_are_not_the_first_ones_are_named(make_run, judge):
    def told(seeds: tuple[int, ...], **rules: bool) -> list[str]:
        runs = [
            make_run(name, seed, val_loss=1.5 + 0.1 * k)
            for name in ("standard", "attnres")
            for k, seed in enumerate(seeds)
        ]
        found = qualifiers(judge(runs, rules=Rules(**rules)))
        return [line for line in found if line.startswith("seeds")]

    assert told((3, 4, 5, 0, 8)) == ["seeds were chosen, they are not 0 to 4: 0, 3 to 5, 8"]
    assert told((4, 3, 2, 1, 0)) == []
    assert told((3, 4, 5, 0, 8), is_registered=True) == []


def test_an_arm_is_described_by_its_runs(base, make_run, judge, facts):
    runs = [
        make_run("attnres", seed, val_loss=loss, n_params=1_000_500, flops_per_token=7)
        for seed, loss in [(2, 1.3), (0, 1.1), (1, 1.2)]
    ]

    found = judge(base, runs)

    first, arm = found.arms
    assert (first.verdict, first.reason) == ("baseline", "")
    assert (first.difference, first.params_delta) == (None, 0)
    assert list(arm.losses.items()) == [(0, 1.1), (1, 1.2), (2, 1.3)]
    assert (arm.mean, arm.sd) == pytest.approx((1.2, 0.1))
    assert (arm.n_params, arm.params_delta, arm.flops_per_token) == (1_000_500, 500, 7)
    assert arm.tokens == 102_400
    assert (found.recipe, found.recipe_digest) == ("quick", "abcdef012345")
    assert found.data == facts


def test_an_arms_own_recipe_stands_with_it_and_the_shared_one_with_all(make_arm, judge, facts):
    shared, own = ("quick", "aaaaaaaaaaaa"), ("quick", "bbbbbbbbbbbb")
    how = Tuned(0.01, (0.01,), (1.5,), (7,), 0.0141, False, "")
    terms = Terms(is_tuned=True)
    tuned = ArmRecipe(shared[1], facts.fingerprint, terms, "attnres", own[1], how)
    base = make_arm("standard", *BASE, recipe=shared)

    found = judge(base, make_arm("attnres", *BETTER, recipe=own), terms=terms, own=[tuned])

    assert (found.terms, found.recipe_digest) == (terms, shared[1])
    assert arm_of(found).own == tuned
    assert arm_of(found).recipe_digest == own[1]
    assert arm_of(found, "standard").own is None


def test_failed_runs_are_listed_with_the_last_line_of_their_traceback(base, make_run, judge):
    error = "Traceback (most recent call last):\n  File ...\nValueError: d_model is 0\n"
    failed = make_run("attnres", 2, status=Status.FAILED, error=error)
    silent = make_run("attnres", 3, status=Status.FAILED)

    found = judge(base, [failed, silent])
    nothing = judge([failed, silent])

    for each in (found, nothing):
        lost = each.runs(Status.FAILED)
        assert [(run.variant, run.seed, last_line(run.error)) for run in lost] == [
            ("attnres", 2, "ValueError: d_model is 0"), ("attnres", 3, "unknown")
        ]  # fmt: skip
    assert [arm.variant for arm in found.arms] == ["standard"]
    assert nothing.arms == ()


def test_the_baseline_is_first_and_diverged_arms_are_last(base, make_arm, make_run, judge):
    gone = [make_run("gone", 0, val_loss=1.3), make_run("gone", 1, status=Status.DIVERGED)]
    lone = [make_run("lone", 0, val_loss=0.9)]

    found = judge(make_arm("worse", *WORSE), gone, make_arm("better", *BETTER), base, lone)

    names = [arm.variant for arm in found.arms]
    assert names == ["standard", "lone", "better", "worse", "gone"]
    assert math.isnan(found.arms[-1].mean)
    assert found.arms[-1].losses == {0: 1.3, 1: pytest.approx(math.nan, nan_ok=True)}


def test_versions_and_settings_are_listed_and_mixed_pairs_named(base, make_run, judge):
    newer = {"attnres": "0.1.0", "torch": "2.10.0", "python": "3.11.7"}
    other_python = {"attnres": "0.1.0", "torch": "2.9.0", "python": "3.12.1"}
    records = [
        make_run("attnres", 0, versions=newer, settings={"compiled": True}),
        make_run("attnres", 1),
        make_run("attnres", 2, versions=newer),
        make_run("window", 0, versions=other_python),
        make_run("window", 1, status=Status.FAILED, error="no"),
    ]

    found = judge(base, records)

    mixed = {arm.variant: arm.mixed for arm in found.arms}
    assert mixed == {"standard": (), "attnres": (0, 2), "window": ()}
    (line,) = [line for line in qualifiers(found) if "other versions" in line]
    assert "attnres on seed 0, 2." in line
    assert found.versions == [
        "attnres 0.1.0, torch 2.10.0, python 3.11.7",
        "attnres 0.1.0, torch 2.9.0, python 3.11.7",
        "attnres 0.1.0, torch 2.9.0, python 3.12.1",
    ]
    assert found.settings == [
        "cpu fp32 compiled, 1 thread on Some CPU, depth mixing by eager",
        "cpu fp32 eager, 1 thread on Some CPU, depth mixing by eager",
    ]


def test_arms_stand_in_order_of_their_differences_whichever_seeds_they_have(judge, make_arm):
    base = [*BASE, 2.5, 2.6, 2.4]  # later seeds end higher
    few, many = [loss - 0.05 - 0.001 * n for n, loss in enumerate(BASE)], [b - 0.2 for b in base]
    many = [loss + 0.002 * (n % 3) for n, loss in enumerate(many)]
    found = judge(make_arm("standard", *base), make_arm("few", *few), make_arm("many", *many))
    assert [arm.variant for arm in found.arms] == ["standard", "many", "few"]
