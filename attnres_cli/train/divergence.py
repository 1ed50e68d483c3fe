"""When a run has diverged though its loss is a number."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnres_cli.records.run import Point

MARGIN = 1.0
"""Nats per token above a guess that knows nothing, ln(vocab): a model there is sure of what is
false, and spikes that training recovers from seldom come so high.
"""

LONG = 0.25
"""Of the run's steps: a warm-up, or a spike and its recovery, is over in less. What is above for so
long does not come back in time to be compared with anything.
"""

SHORTEST = 20
"""Steps that are long in any run: a quarter of a very short one is a few noisy losses."""


def has_diverged(
    curve: Sequence[Point], step: int, train_loss: float, steps: int, vocab_size: int
) -> bool:
    """Whether a run of `steps` steps, now at `step`, counts as diverged.

    It does where its loss is not finite, or where all its training losses were MARGIN nats above
    both ln(vocab) and its own start for LONG. The start counts, so that a design which begins far
    above ln(vocab) and comes down is left to learn. It rests on the curve alone, so that a run that
    is continued ends as one that was not stopped.
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
