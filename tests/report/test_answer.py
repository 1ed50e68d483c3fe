"""The answer in a sentence: names while one can read them, counts where they are many."""

from __future__ import annotations

import pytest

from attnres_cli.report.answer import answer
from attnres_cli.verdict.comparison import Rules
from attnres_cli.verdict.judge import compare

BASE = (1.50, 1.70, 1.60, 1.40, 1.55)
NOISE = (0.001, -0.002, 0.003, 0.0, -0.001)


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (6, "arm0 by 0.0998 ["),
        (7, "Better than standard: 7 of 7 arms, by 0.0998 to 0.1598, most arm6 by 0.1598 ["),
    ],
)
def test_more_than_six_arms_of_one_verdict_are_counted(n: int, words: str, make_arm, facts):
    records = [*make_arm("standard", *BASE)]
    for number in range(n):
        gap = 0.1 + 0.01 * number
        losses = [loss - gap + step for loss, step in zip(BASE, NOISE, strict=True)]
        records += make_arm(f"arm{number}", *losses)

    assert words in answer(compare(records, facts, "standard"))


@pytest.mark.parametrize(("gap", "side"), [(-0.01, "below"), (0.01, "above")])
def test_an_arm_that_is_equal_within_the_margin_but_apart_from_0_is_told_so(
    gap: float, side: str, make_arm, facts
):
    records = [*make_arm("standard", *BASE)]
    for name, shift in (("apart", gap), ("alike", 0.0)):
        losses = [loss + shift + step for loss, step in zip(BASE, NOISE, strict=True)]
        records += make_arm(name, *losses)

    told = answer(compare(records, facts, "standard", rules=Rules(margin=0.05)))

    assert "equal to standard within the margin of 0.05 nats per token, of them apart by" in told
    assert told.endswith(f"] {side} standard.")
    assert "alike by" not in told
