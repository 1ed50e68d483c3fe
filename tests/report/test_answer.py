"""The answer in a sentence: names while one can read them, counts where they are many."""

from __future__ import annotations

import pytest
from comparisons import BASE

from attnres_cli.report.answer import answer
from attnres_cli.verdict.comparison import Rules

NOISE = (0.001, -0.002, 0.003, 0.0, -0.001)


def shifted(gap: float) -> list[float]:
    return [loss + gap + step for loss, step in zip(BASE, NOISE, strict=True)]


@pytest.mark.parametrize(
    ("n", "words"),
    [
        (6, "arm0 by 0.0998 ["),
        (7, "Better than standard: 7 of 7 arms, by 0.0998 to 0.1598, most arm6 by 0.1598 ["),
    ],
)
def test_more_than_six_arms_of_one_verdict_are_counted(n: int, words: str, base, make_arm, judge):
    arms = [make_arm(f"arm{i}", *shifted(-0.1 - 0.01 * i)) for i in range(n)]

    assert words in answer(judge(base, *arms))


@pytest.mark.parametrize(("gap", "side"), [(-0.01, "below"), (0.01, "above")])
def test_an_arm_equal_within_the_margin_but_apart_from_0_is_named_with_its_side(
    gap: float, side: str, base, make_arm, judge
):
    arms = make_arm("apart", *shifted(gap)), make_arm("alike", *shifted(0.0))

    told = answer(judge(base, *arms, rules=Rules(margin=0.05)))

    assert "equal to standard within the margin of 0.05 nats per token, of them apart by" in told
    assert told.endswith(f"] {side} standard.")
    assert "alike by" not in told
