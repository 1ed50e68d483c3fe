"""What makes data too poor for a verdict, whoever wins: known before a run is trained."""

from __future__ import annotations

import math

from attnres_cli.records.run import DataDescription

LEAST_GAIN = 0.01  # nats per token by which one line must lie below another to say anything


def line(data: DataDescription) -> tuple[str, float] | None:
    """The lowest reference line, which a model that has learned much is below, and its name; None
    where there is none, or nothing to learn.
    """
    if nothing_to_learn(data):
        return None
    if data.bigram_loss is not None:
        return "bigram", data.bigram_loss
    return None if data.unigram_loss is None else ("unigram", data.unigram_loss)


def nothing_to_learn(data: DataDescription) -> bool:
    """Whether neither how often a token comes nor the token before it tells what comes. Where the
    floor is known, it says what there is to learn.
    """
    if data.unigram_loss is None or data.bigram_loss is not None or data.floor is not None:
        return False
    return data.unigram_loss > math.log(data.vocab_size) - LEAST_GAIN


def of(data: DataDescription) -> list[str]:
    """A sentence for each doubt."""
    if nothing_to_learn(data):
        uniform = math.log(data.vocab_size)
        return [
            f"there is nothing to learn: token frequencies leave {data.unigram_loss:.4f} nats per "
            f"token of ln(vocab) {uniform:.4f}, and the token before adds nothing; unless it lies "
            "further back, no design can be better than another"
        ]
    return []
