"""When a run has diverged though its loss is a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnres_cli.records.run import Point

MARGIN = 1.0
"""Nats per token above ln(vocab), the guess that knows nothing: a model there is sure of what is
false, and spikes that training recovers from seldom come so high.
"""

LONG = 0.25
"""Share of the run's steps; a warm-up, or a spike and its recovery, takes less."""

SHORTEST = 20
"""Steps that are long in any run: a quarter of a very short one is a few noisy losses."""


def has_diverged(
    curve: Sequence[Point], step: int, train_loss: float, steps: int, vocab_size: int
) -> bool:
    """Whether a run of `steps` steps, now at `step`, counts as diverged: its loss is not finite, or
    all training losses of LONG were MARGIN nats above both ln(vocab) and the run's start (a design
    that begins far above ln(vocab) may come down). Only the curve counts, so that a continued run
    ends as one that was not stopped.
    """
    if not math.isfinite(train_loss):
        return True
    start = curve[0].val_loss
    known = start if start is not None and math.isfinite(start) else 0.0
    limit = max(math.log(vocab_size), known) + MARGIN
    if train_loss <= limit:
        return False
    below = [p.step for p in curve if p.train_loss is None or p.train_loss <= limit]
    return step - max(below, default=0) >= max(LONG * steps, SHORTEST)
