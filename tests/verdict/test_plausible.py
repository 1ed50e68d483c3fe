"""What is too good to be true is blocked, until somebody says why it is true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from comparisons import BASE, arm_of

from attnres_cli.records.gates import CAUSAL, DOUBTS, PROOFS
from attnres_cli.verdict.caveats import qualifiers
from attnres_cli.verdict.comparison import Rules

FALLS = 0.4  # nats per e-fold of tokens: 0.555 for four times as many


def lower(by: float) -> list[float]:
    """The baseline's losses less so much, with some spread."""
    return [loss - by - 0.01 * n for n, loss in enumerate(BASE)]


@pytest.mark.parametrize(
    ("by", "slope", "word"),
    [
        (0.50, FALLS, "better"),
        (0.56, FALLS, "blocked"),
        (0.56, None, "better"),  # no slope is known: 0.69
        (0.70, None, "blocked"),
        (-0.70, FALLS, "worse"),
    ],
)
def test_four_times_the_tokens_are_believed_of_no_design(by, slope, word, make_arm, judge):
    arm = make_arm("attnres", *lower(by))
    older = [replace(run, result=replace(run.result, proofs=())) for run in arm]

    found = judge(make_arm("standard", *BASE), arm, rules=Rules(slope=slope))

    assert arm_of(found).verdict == word
    if word == "blocked":
        reason = arm_of(found).reason
        assert "too good to be true" in reason
        assert "5 runs of it proved that no token sees a later one" in reason
        assert f"attnres runs tag {arm[0].id} plausible" in reason
        found = judge(make_arm("standard", *BASE), older, rules=Rules(slope=slope))
        assert "older attnres, did not prove" in arm_of(found).reason


def test_a_task_whose_floor_is_known_may_be_solved_at_once(make_arm, judge, facts):
    arm = make_arm("attnres", *lower(0.9))

    found = judge(make_arm("standard", *BASE), arm, data=replace(facts, floor=0.2))

    assert arm_of(found).verdict == "better"


def test_a_reason_lets_the_word_stand_and_is_printed_beside_it(make_arm, judge):
    arm = make_arm("attnres", *lower(0.7))
    arm[2] = replace(arm[2], note="it has twice the layers", tags=("plausible",))

    found = judge(make_arm("standard", *BASE), arm)

    assert arm_of(found).verdict == "better"
    expected = "attnres looks too good to be true; its note says why: it has twice the layers"
    assert expected in qualifiers(found)


def test_a_proof_that_failed_blocks_and_a_doubt_stands_beside_the_word(make_run, make_arm, judge):
    def of(*wrong: str):
        proofs = tuple((name, "wrong" if name in wrong else "") for name in (*PROOFS, *DOUBTS))
        return [make_run("attnres", n, val_loss=x, proofs=proofs) for n, x in enumerate(lower(0.1))]

    leaks, doubted = (judge(make_arm("standard", *BASE), of(*w)) for w in ((CAUSAL,), DOUBTS))

    assert arm_of(leaks).verdict == "blocked"
    assert "seed 0 fails a proof" in arm_of(leaks).reason
    assert arm_of(doubted).verdict == "better"
    said = [line for line in qualifiers(doubted) if line.startswith("attnres: ")]
    assert said == [
        "attnres: some of its parameters can never learn (attnres check attnres)",
        "attnres: whether it can learn, and starts as it says, is unknown: it fits no small trunk "
        "(attnres check attnres)",
        "attnres: it does not start as it says (attnres check attnres)",
    ]
