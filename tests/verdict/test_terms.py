"""Arms with recipes of their own: which runs a report has, and what it says of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from attnres_cli.records.comparison_terms import (
    BY_DESIGN,
    SHARED,
    ArmRecipe,
    Given,
    Matched,
    Terms,
    Trial,
    Tuned,
)
from attnres_cli.records.run import FIRST_TUNING_SEED, RunRecord
from attnres_cli.report.comparison import facts_of, table_of
from attnres_cli.verdict import labels
from attnres_cli.verdict.judge import compare, may_be_tuning
from attnres_cli.verdict.registered import compared
from attnres_cli.verdict.select import Runs, with_rates_alone

BASE, TUNED, WIDE = "aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"
DATA = "0123456789abcdef"
AT_OWN_RATE = Terms(is_tuned=True)
IN_PARAMS = Terms("params", "standard")
HOW = Tuned(0.01, (0.005, 0.01, 0.02), (1.9, 1.5, None), (7, 8), 0.02, True, "the largest")
NARROWER = Matched("d_ff", 88, 86, 41_952, 41_568, 41_632)
SLOWER = Matched("tokens", 64_000, 51_200, 5.0, 4.0, 4.0, (1.25, 1.2, 1.3), 25, "Some CPU")


RECIPES = [  # both arms tuned, the baseline to the shared rate; attnres matched in parameters
    ArmRecipe(BASE, DATA, AT_OWN_RATE, "standard", BASE, HOW),
    ArmRecipe(BASE, DATA, AT_OWN_RATE, "attnres", TUNED, HOW),
    ArmRecipe(BASE, DATA, IN_PARAMS, "attnres", WIDE, NARROWER),
]


@pytest.fixture
def study(make_arm, make_run) -> list[RunRecord]:
    """The arms under the shared recipe, attnres under two of its own, and a tuning run."""
    return [
        *make_arm("standard", 1.5, 1.7, 1.6, recipe=("quick", BASE)),
        *make_arm("attnres", 1.39, 1.59, 1.5, recipe=("quick", BASE)),
        make_run("attnres", FIRST_TUNING_SEED, recipe=("quick", BASE), val_loss=9.0),
        *make_arm("attnres", 1.3, 1.4, 1.5, recipe=("quick", TUNED)),
        *make_arm("attnres", 1.4, 1.6, 1.5, recipe=("quick", WIDE)),
    ]


def test_a_report_has_the_newest_shared_recipe_and_those_made_of_it(study):
    chosen = Runs(study, RECIPES).choose(None, "standard")

    found = Runs(study, RECIPES).told(chosen)

    assert (chosen.recipe_digest, chosen.others) == (BASE, ())
    assert [terms for _, terms, _ in found] == [SHARED, AT_OWN_RATE, IN_PARAMS]
    for (runs, *_), digest in zip(found, (BASE, TUNED, WIDE), strict=True):
        arms = {(run.variant, run.recipe_digest) for run in runs}
        assert arms == {("standard", BASE), ("attnres", digest)}
        assert {run.seed for run in runs} == {0, 1, 2}  # and no run that tuned


def test_arms_matched_to_one_baseline_are_not_reported_for_another(study):
    chosen = Runs(study, RECIPES).choose(None, "attnres")
    by_digest = Runs(study, RECIPES).choose(TUNED, "attnres")

    assert [terms for _, terms, _ in Runs(study, RECIPES).told(chosen)] == [SHARED, AT_OWN_RATE]
    assert by_digest.recipe_digest == TUNED  # an arm's own recipe can be asked for


def test_a_shared_recipe_that_only_the_baseline_has_is_no_comparison(study):
    runs = [run for run in study if run.variant == "standard" or run.recipe_digest == WIDE]
    chosen = Runs(runs, RECIPES[2:]).choose(None, "standard")

    assert [terms for _, terms, _ in Runs(runs, RECIPES[2:]).told(chosen)] == [IN_PARAMS]


def test_the_facts_say_how_rates_were_found_what_was_changed_and_what_remains(study, judge):
    chosen = Runs(study, RECIPES).choose(None, "standard")
    shared, tuned, matched = (
        facts_of(judge(runs, terms=terms, own=mine))
        for runs, terms, mine in Runs(study, RECIPES).told(chosen)
    )
    of_time = ArmRecipe(BASE, DATA, Terms("time", "standard"), "attnres", WIDE, SLOWER)
    (in_time,), warnings = labels.remaining([of_time]), labels.warnings(RECIPES)

    (line,) = [line for line in shared if line.startswith("gates")]
    assert line.startswith("gates passed: 36 of 36 (the loss stayed finite, ")
    older = [replace(run, result=replace(run.result, proofs=())) for run in study]
    line = "6 runs of an older attnres did not prove that no token sees a later one"
    chosen = Runs(older, RECIPES).choose(None, "standard")
    assert line in facts_of(judge(chosen.records))
    assert "on seeds 7, 8, which no comparison uses" in "\n".join(tuned)
    line = "attnres: 0.005 1.9000, 0.01 1.5000, 0.02 diverged; lr 0.02 (the largest)"
    assert line in "\n".join(tuned)
    line = "attnres: d_ff 88 -> 86, parameters 41,952 -> 41,568; remains -0.154% of standard's"
    assert line in matched
    line = "attnres: tokens 64,000 -> 51,200, a step takes 1.250 [1.200, 1.300]"
    assert in_time.startswith(line)
    assert "25 rounds in turn on Some CPU" in in_time
    assert "remains +0.000% training time of standard's" in in_time
    assert len(warnings) == 2  # of best rates on the edge
    assert "attnres: lr 0.02 (the largest)" in warnings[1]


# by the protocol that tunes a second number


RATED = "d" * 12
SECOND = (Trial((("optim.weight_decay", 0.3),), (1.6, 1.6)),)
BY_PROTOCOL = replace(HOW, is_on_edge=False, rate_digest=RATED, regret=0.001, second=SECOND)


def lower(losses: tuple[float, ...], by: float) -> list[float]:
    return [loss - by + 1e-4 * i for i, loss in enumerate(losses)]


def tuned(regret: float, *, on_edge: bool = False) -> list[ArmRecipe]:
    how = replace(BY_PROTOCOL, regret=regret, is_on_edge=on_edge)
    base = replace(how, rate_digest=BASE, regret=0.001, is_on_edge=False)
    return [
        ArmRecipe(BASE, DATA, AT_OWN_RATE, "standard", BASE, base),
        ArmRecipe(BASE, DATA, AT_OWN_RATE, "attnres", TUNED, how),
    ]


def test_one_table_has_words_and_the_lesser_terms_beside_it(make_arm, facts):
    first = (1.5, 1.7, 1.6, 1.55, 1.65)
    runs = [
        *make_arm("standard", *first, recipe=("quick", BASE)),
        *make_arm("attnres", *lower(first, -0.01), recipe=("quick", BASE)),
        *make_arm("attnres", *lower(first, 0.1), recipe=("quick", RATED)),
        *make_arm("attnres", *lower(first, 0.2), recipe=("quick", TUNED)),
    ]
    own = with_rates_alone(tuned(0.001))
    chosen = Runs(runs, own).choose(None, "standard")

    (found,) = compared(Runs(runs, own), chosen, facts, [])

    assert (chosen.recipe_digest, found.terms) == (BASE, AT_OWN_RATE)
    assert [one.terms for one in found.beside] == [SHARED, replace(AT_OWN_RATE, rate_only=True)]
    means = [one.arm("attnres").difference.mean for one in (*found.beside, found)]
    assert means == pytest.approx([0.01, -0.1, -0.2], abs=1e-3)
    assert found.arm("attnres").verdict == "better"
    columns = [column.title for column in table_of(found).columns]
    assert {"at the shared rate", "at its rate alone"} <= set(columns)


@pytest.mark.parametrize(
    ("gap", "regret", "on_edge", "verdict"),
    [
        (0.1, 0.001, False, "worse"),
        (0.1, 0.2, False, "blocked"),
        (0.1, 0.001, True, "blocked"),
        (-0.1, 0.2, True, "better"),  # what it lost by tuning can only be more
        (0.0, 0.2, False, "inconclusive"),
    ],
)
def test_no_word_says_of_a_design_what_its_tuning_may_have_missed(
    gap: float, regret: float, on_edge: bool, verdict: str, make_arm, facts
):
    first = (1.5, 1.7, 1.6, 1.55, 1.65)
    noise = (1e-3, -1e-3, 0.5e-3, -0.5e-3, 0.0)
    runs = make_arm("standard", *first, recipe=("quick", BASE))
    losses = (x + gap + y for x, y in zip(first, noise, strict=True))
    runs += make_arm("attnres", *losses, recipe=("quick", TUNED))
    found = compare(runs, facts, "standard", AT_OWN_RATE, tuned(regret, on_edge=on_edge))

    arm = found.arm("attnres")
    assert arm.verdict == verdict
    assert ("tuning may have missed the best settings" in arm.reason) == (verdict == "blocked")


def test_a_worse_word_of_a_recipes_settings_heeds_what_they_may_miss(make_arm, facts):
    first = (1.5, 1.7, 1.6, 1.55, 1.65)
    runs = make_arm("standard", *first, recipe=("quick", BASE))
    losses = (x + 0.01 + i * 1e-4 for i, x in enumerate(first))
    runs += make_arm("attnres", *losses, recipe=("quick", TUNED))
    for regret, on_edge, verdict in (
        (None, False, "worse"),
        (0.02, False, "blocked"),
        (None, True, "blocked"),
    ):
        how = Given(0.02, is_own=True, regret=regret, is_on_edge=on_edge)
        own = [ArmRecipe(BASE, DATA, BY_DESIGN, "attnres", TUNED, how)]
        found = compare(runs, facts, "standard", BY_DESIGN, own)
        assert found.arm("attnres").verdict == verdict


@pytest.mark.parametrize(
    ("verdict", "arm", "base", "side"),
    [
        ("better", math.inf, 0.029, ""),
        ("better", 0.0, 0.03, "base"),
        ("worse", 0.0, math.inf, ""),
        ("equivalent", 0.009, 0.009, ""),
        ("equivalent", 0.01, 0.0, "arm"),
        ("equivalent", 0.0, math.inf, "base"),
        ("non-inferior", math.inf, 0.009, ""),
        ("non-inferior", 0.0, 0.01, "base"),
        ("inconclusive", math.inf, math.inf, ""),
    ],
)
def test_a_word_holds_if_it_would_with_what_tuning_may_have_missed(verdict, arm, base, side):
    ends = {"better": (-0.05, -0.03), "equivalent": (-0.01, 0.01), "non-inferior": (-0.03, 0.01)}
    found = may_be_tuning(verdict, ends.get(verdict, (0.01, 0.02)), arm, base, margin=0.02)
    assert found == side
