"""What qualifies an answer is one list; tests/report/test_golden.py has it in every format."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparisons import BASE, BETTER

from attnres_cli.records.comparison_terms import BY_DESIGN, ArmRecipe, Given, Terms, Trial, Tuned
from attnres_cli.records.run import Probe, Removed, Status
from attnres_cli.verdict.caveats import n_read, qualifiers, still_moving
from attnres_cli.verdict.comparison import Comparison, Rules


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
        "one of 2 tables: the chance that any of them is wrong is up to 10%",
        "runs 1 pending: the same ablate command finishes them",
        "1 run failed, which counts against its arm (mhc 1): --retry-failed trains failed runs",
        "the baseline ends above the bigram line",
        "every arm has the recipe's learning rate; tuned, an arm may do better (--tune-lr)",
        "judged by 5 of 6 seeds: attnres; the next look is at 8 seeds",
        "removed: laurel seed 3, having ended at 3.5000",
        "other versions of the software than the baseline",
    ):
        assert sum(words in line for line in told) == 1, words


def test_exploratory_tables_do_not_change_how_registered_ones_are_read(doubtful: Comparison):
    registered = replace(doubtful, registered="preregistered abcdef012345")
    shown = [registered, registered, doubtful]

    assert qualifiers(registered, n_tables=3)[0].endswith("any of them is wrong is up to 15%")
    assert qualifiers(registered, n_tables=30)[0].endswith("up to 1.5 of them are wrong on average")
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
    assert told.startswith("standard: lr 0.02 (between its neighbours). Another --set")
    changes = (("optim.warmup_fraction", 0.15),)
    second = (Trial(changes, (1.4, 1.5)),)
    less = replace(tuned, changes=changes, second=second, rate_digest="c" * 12)
    changed = [replace(own[0], how=less), own[1]]
    (told,) = qualifiers(judge(*arms, terms=terms, own=changed))
    assert told.startswith("standard does better at warmup 0.15 than at the recipe's value")
    assert told.endswith("--set optim.warmup_fraction=0.15 gives it to all")


def test_designs_that_were_still_moving_are_named_with_what_to_type(base, make_arm, judge):
    moved = Probe(100, added="query, gain", moved=(0.2, 0.04), agreement=(0.9, 0.2))
    held = replace(moved, moved=(0.04, 0.04))  # a walk of 100 random steps comes as far as 0.09
    assert still_moving([moved, replace(moved, moved=(0.16, 0.0))]) == {
        "query": pytest.approx(0.18)
    }
    assert still_moving([held, moved]) == still_moving([Probe(64)]) == still_moving([]) == {}

    on_the_way = {"attnres": {"gain": 0.1, "query": 0.7}, "hc": {"static": 0.8}}
    found = replace(judge(base, make_arm("attnres", *BETTER)), moving=on_the_way)
    (told,) = [line for line in qualifiers(found) if "still moving" in line]
    assert "still moving when training ended: hc (its static, 80% of the way" in told
    assert "allows), attnres; try" in told
    assert "--set arms.hc.optim.design_lr_scale=10" in told
    tuned = replace(found, terms=Terms(is_tuned=True))
    assert [line for line in qualifiers(tuned) if "way that the learning rate allows)" in line]
    assert not [line for line in qualifiers(tuned) if "try --set arms" in line]


@pytest.mark.parametrize(
    ("gaps", "is_torn"),
    [
        ([-0.05, -0.05, -0.05, -0.05, -0.05, -0.04, 0.9], True),  # most lower, the mean higher
        ([-0.05, -0.05, -0.05, -0.05, -0.05, -0.04, -0.06], False),
        ([0.01, -0.01, 0.02, -0.02, 0.03, -0.01, 0.9], False),  # the signs say nothing either
    ],
)
def test_a_mean_that_few_seeds_decide_is_said(gaps: list[float], is_torn: bool, make_arm, judge):
    base = [1.7 + 0.01 * i for i in range(7)]
    arm = [b + gap + 0.0001 * i for i, (b, gap) in enumerate(zip(base, gaps, strict=True))]
    told = [
        line
        for line in qualifiers(judge(make_arm("standard", *base), make_arm("attnres", *arm)))
        if "few seeds decide" in line
    ]
    assert bool(told) == is_torn
    assert all("the median is -0.0497, the sign test has p = 0.12" in line for line in told)


def test_an_arm_that_takes_anothers_learning_rate_is_named(make_arm, judge, facts):
    rates = {name: Given(0.01, name != "mhc") for name in ("standard", "attnres", "mhc")}
    own = [
        ArmRecipe("abcdef012345", facts.fingerprint, BY_DESIGN, name, "b" * 12, rate)
        for name, rate in rates.items()
    ]
    arms = [make_arm(name, *BASE) for name in rates]

    assert qualifiers(judge(*arms, terms=BY_DESIGN, own=own)) == [
        "the recipe has no settings for mhc; tuned, an arm may do better (--tune-lr)"
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
    assert "10.0 epochs: beyond 4" in of_data
    packed = {"zlib_bits": 1.0}  # of 2.16 bits per byte
    assert "2.2 bits per byte, zlib needs 1.0: too little training" in told(1.45, **packed)
    assert "zlib" not in told(1.45, zlib_bits=1.6)
    assert "only 1,000 evaluation tokens" in of_data


def test_runs_whose_weights_a_full_disk_took_are_named_beside_those_that_have_theirs(
    base, make_run, judge
):
    kept = {"weights_sha256": "0" * 64}
    arms = [make_run("attnres", seed, val_loss=1.4, **kept) for seed in range(3)]
    base = [replace(run, result=replace(run.result, **kept)) for run in base[:3]]
    lost = [make_run("mhc", seed, val_loss=1.5) for seed in range(4)]

    told = qualifiers(judge(base, arms, lost))

    assert [line for line in told if "weights" in line] == [
        "no final weights were kept of mhc seed 0, mhc seed 1, mhc seed 2 and 1 more, as of a full "
        "disk; losses are whole"
    ]
    assert not [line for line in qualifiers(judge(base, arms)) if "weights" in line]
