"""Data that are too poor for a verdict, whoever wins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from studies import FACTS

from attnres_cli.records import doubts


def test_more_than_four_epochs_are_doubted_by_their_number():
    (found,) = doubts.of(FACTS, n_tokens=7 * FACTS.train_tokens)

    assert "7.0 epochs: beyond 4" in found
    assert "Muennighoff et al. 2023" in found
    assert doubts.of(FACTS, n_tokens=4 * FACTS.train_tokens, eval_tokens=65_536) == []
    assert doubts.of(replace(FACTS, train_tokens=0), n_tokens=10**9) == []  # a generated task


@pytest.mark.parametrize(("eval_tokens", "noise"), [(4096, "0.011"), (10_000, "0.007")])
def test_few_tokens_to_evaluate_on_are_doubted_by_their_noise(eval_tokens: int, noise: str):
    (found,) = doubts.of(FACTS, eval_tokens=eval_tokens)

    assert f"only {eval_tokens:,} evaluation tokens" in found
    assert f"by {noise} nats" in found
    assert "--set train.eval_tokens=19600 brings that to 0.005" in found
    assert doubts.EVAL_NOISE / math.sqrt(doubts.EVAL_TOKENS) == pytest.approx(doubts.SMALL)
    assert doubts.of(FACTS, eval_tokens=doubts.EVAL_TOKENS) == []
