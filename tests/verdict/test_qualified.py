"""What qualifies an answer is one list; tests/report/test_golden.py has it in every format."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparisons import BASE, BETTER

from attnres_cli.records.comparison_terms import BY_DESIGN, ArmRecipe, Given, Terms, Tuned
from attnres_cli.records.run import Removed, Status
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.qualified import n_read, qualifiers


@pytest.fixture
def doubtful(make_arm, make_run, judge, facts) -> Comparison:
    """A clear answer with much to say against it."""
    runs = [
        *make_arm("standard", *(2.0 + loss for loss in BASE)),
        *make_arm("attnres", *(2.0 + loss for loss in BETTER[:4])),
        make_run("attnres", 4, val_loss=3.45, versions={"torch": "2.10.0"}),
        replace(make_run("attnres", 5, status=Status.PENDING), created_at="later"),
        make_run("mhc", 0, status=Status.FAILED, error="ValueError: no"),
    ]
    gone = Removed(
        "abcdef012345", "laurel", 3, facts.fingerprint, "", "", "2026", Status.COMPLETE, 3.5
    )
    found = judge(runs, rules=Rules(removed=(gone,)))
    return replace(found, registered="exploratory: this recipe is not preregistered")


def test_all_that_qualifies_an_answer_is_in_one_list(doubtful: Comparison):
    told = qualifiers(doubtful, n_tables=2)

    assert told[0] == "exploratory: this recipe is not preregistered"
    for words in (
        "one of 2 tables, each of which errs in 5 % of studies: all of them in up to 10 %",
        "runs 1 pending: the same ablate command goes on",
        "1 run failed: the same command with --retry-failed goes on",
        "the baseline ends above the bigram line",
        "one learning rate for every arm, the recipe's: at its own an arm may do better (--tune-lr",
        "judged by 5 of 6 seeds, the next look is at 8: attnres",
        "removed: laurel seed 3, having ended at 3.5000",
        "other versions than the baseline",
    ):
        assert sum(words in line for line in told) == 1, words


def test_exploratory_tables_do_not_change_how_registered_ones_are_read(doubtful: Comparison):
    registered = replace(doubtful, registered="preregistered abcdef012345")
    shown = [registered, registered, doubtful]

    assert qualifiers(registered, n_tables=3)[0].endswith("all of them in up to 15 %")
    assert qualifiers(registered, n_tables=30)[0].endswith("1.5 of them on average, at most")
    assert not any("tables" in line for line in qualifiers(registered))
    assert (n_read(registered, shown), n_read(doubtful, shown)) == (2, 3)


def test_nothing_qualifies_an_answer_at_tuned_rates(base, make_arm, judge, facts):
    rates = (0.005, 0.01, 0.02)
    tuned = Tuned(0.01, rates, (1.9, 1.5, 1.8), (7, 8), 0.01, False, "between its neighbours")
    terms = Terms(is_tuned=True)
    own = [
        ArmRecipe("abcdef012345", facts.fingerprint, terms, name, "b" * 12, tuned)
        for name in ("standard", "attnres")
    ]
    edge = [replace(own[0], how=replace(tuned, lr=0.02, is_on_edge=True)), own[1]]
    arms = base, make_arm("attnres", *BETTER)

    assert qualifiers(judge(*arms, terms=terms, own=own)) == []
    (told,) = qualifiers(judge(*arms, terms=terms, own=edge))
    assert told.startswith("standard: between its neighbours; lr 0.02 is taken")


def test_an_arm_that_takes_anothers_learning_rate_is_named(make_arm, judge, facts):
    rates = {name: Given(0.01, name != "mhc") for name in ("standard", "attnres", "mhc")}
    own = [
        ArmRecipe("abcdef012345", facts.fingerprint, BY_DESIGN, name, "b" * 12, rate)
        for name, rate in rates.items()
    ]
    arms = [make_arm(name, *BASE) for name in rates]

    assert qualifiers(judge(*arms, terms=BY_DESIGN, own=own)) == [
        "no learning rate of its own in this recipe: mhc; at one an arm may do better (--tune-lr)"
    ]


def test_a_baseline_that_learned_too_little_and_poor_or_few_data_are_named(make_arm, judge, facts):
    def told(loss: float, **changes: object) -> str:
        data = replace(facts, **changes)
        return "\n".join(qualifiers(judge(make_arm("standard", loss, loss + 0.1), data=data)))

    assert "above the bigram line" not in told(1.5)
    assert "above the bigram line" in told(2.5)
    assert "above" not in told(3.2, bigram_loss=None)
    assert "above the unigram line" in told(3.4, bigram_loss=None)
    assert "above" not in told(3.4, unigram_loss=None, bigram_loss=None)
    poor = {"unigram_loss": math.log(256), "bigram_loss": None}
    (line,) = told(5.6, **poor).splitlines()
    assert "there is nothing to learn" in line
    assert "nothing to learn" not in told(5.6, **poor, floor=1.2)
    runs = make_arm("standard", 1.5, 1.6, tokens=950_000)
    of_data = "\n".join(qualifiers(judge(runs, rules=Rules(eval_tokens=1000))))
    assert "reads its training tokens 10.0 times" in of_data
    assert "evaluated on 1,000 tokens" in of_data
