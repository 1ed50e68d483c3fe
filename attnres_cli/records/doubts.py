"""What makes data too poor for a verdict, whoever wins: known before a run is trained."""

from __future__ import annotations

import math

from attnres_cli.records.run import DataDescription

MOST_EPOCHS = 4  # Muennighoff et al., Scaling Data-Constrained Language Models, 2023
SMALL = 0.005  # nats per token: half of the gap that `attnres plan` asks for
EVAL_NOISE = 0.7  # nats: docs/data.md says how it was measured
EVAL_TOKENS = round((EVAL_NOISE / SMALL) ** 2)
STANDS_IN_TRAINING = ": too much to judge new text by"
"""What the split of data says where much of validation stands in training (data/overlap.py)."""
LEAST_GAIN = 0.01  # nats per token by which one line must lie below another to say anything


def eval_error(tokens: int) -> float:
    """By how much the choice of so many evaluation tokens shifts a difference: one standard error,
    nats per token.
    """
    return EVAL_NOISE / math.sqrt(tokens)


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


def of(data: DataDescription, n_tokens: int = 0, eval_tokens: int | None = None) -> list[str]:
    """A sentence for each doubt that data are enough for runs of `n_tokens` each, evaluated on
    `eval_tokens`.
    """
    found = []
    if nothing_to_learn(data):
        found.append(
            f"there is nothing to learn: token frequencies leave {data.unigram_loss:.4f} of "
            f"{math.log(data.vocab_size):.4f} nats per token, and the token before adds nothing"
        )
    if data.train_tokens and n_tokens > MOST_EPOCHS * data.train_tokens:
        found.append(
            f"{n_tokens / data.train_tokens:.1f} epochs: beyond {MOST_EPOCHS}, repeated tokens "
            "are worth less and less, and designs may differ in how they memorize (Muennighoff et "
            "al. 2023); use more data, or fewer train.tokens"
        )
    found += [part for part in (data.split or "").split("; ") if STANDS_IN_TRAINING in part]
    if eval_tokens is not None and eval_tokens < EVAL_TOKENS:
        found.append(
            f"only {eval_tokens:,} evaluation tokens: their choice alone can shift a difference by "
            f"{eval_error(eval_tokens):.3f} nats, which the intervals ignore; --set "
            f"train.eval_tokens={EVAL_TOKENS} brings that to {SMALL}"
        )
    return found
