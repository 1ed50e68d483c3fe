"""Arms with recipes of their own: which runs a report has, and what it says of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnres_cli.records.comparison_terms import SHARED, ArmRecipe, Matched, Terms, Tuned
from attnres_cli.records.run import FIRST_TUNING_SEED, RunRecord
from attnres_cli.report.facts import facts_of
from attnres_cli.verdict import labels
from attnres_cli.verdict.select import choose, told

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
    chosen = choose(study, "attnres.db", None, "standard", own=RECIPES)

    found = told(chosen, study, RECIPES)

    assert (chosen.recipe_digest, chosen.others) == (BASE, ())
    assert [terms for _, terms, _ in found] == [SHARED, AT_OWN_RATE, IN_PARAMS]
    for (runs, *_), digest in zip(found, (BASE, TUNED, WIDE), strict=True):
        arms = {(run.variant, run.recipe_digest) for run in runs}
        assert arms == {("standard", BASE), ("attnres", digest)}
        assert {run.seed for run in runs} == {0, 1, 2}  # and no run that tuned


def test_arms_matched_to_one_baseline_are_not_reported_for_another(study):
    chosen = choose(study, "attnres.db", None, "attnres", own=RECIPES)
    by_digest = choose(study, "attnres.db", TUNED, "attnres", own=RECIPES)

    assert [terms for _, terms, _ in told(chosen, study, RECIPES)] == [SHARED, AT_OWN_RATE]
    assert by_digest.recipe_digest == TUNED  # an arm's own recipe can be asked for


def test_a_shared_recipe_that_only_the_baseline_has_is_no_comparison(study):
    runs = [run for run in study if run.variant == "standard" or run.recipe_digest == WIDE]
    chosen = choose(runs, "attnres.db", None, "standard", own=RECIPES[2:])

    assert [terms for _, terms, _ in told(chosen, runs, RECIPES[2:])] == [IN_PARAMS]


def test_the_facts_say_how_rates_were_found_what_was_changed_and_what_remains(study, judge):
    chosen = choose(study, "attnres.db", None, "standard", own=RECIPES)
    shared, tuned, matched = (
        facts_of(judge(runs, terms=terms, own=mine))
        for runs, terms, mine in told(chosen, study, RECIPES)
    )
    of_time = ArmRecipe(BASE, DATA, Terms("time", "standard"), "attnres", WIDE, SLOWER)
    (in_time,), warnings = labels.remaining([of_time]), labels.warnings(RECIPES)

    (line,) = [line for line in shared if line.startswith("gates")]
    assert line.startswith("gates passed: 36 of 36 (the loss stayed finite, ")
    older = [replace(run, result=replace(run.result, proofs=())) for run in study]
    line = "6 runs of an older attnres did not prove that no token sees a later one"
    chosen = choose(older, "attnres.db", None, "standard", own=RECIPES)
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
    assert "lr 0.02 is taken" in warnings[1]
