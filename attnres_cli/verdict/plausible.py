"""Too good to be true: a difference for which the baseline would need four times its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from attnres_cli.records.gates import CAUSAL
from attnres_cli.records.run import Gate, RunRecord
from attnres_cli.verdict.numbers import plural

PLAUSIBLE = "plausible"
"""The tag of runs whose user has looked, and says why in their note."""

_TOKENS = 4
_STEEP = 0.5  # nats per e-fold of tokens, where no slope is known: no recipe of ours is steeper


def is_doubtful(
    losses: Mapping[int, float],
    base: Mapping[int, float],
    slope: float | None,
    floor: float | None = None,
) -> bool:
    """Whether an arm's losses by seed lie so far below the baseline's, which fall by `slope` nats
    per e-fold of tokens. Not where a floor of the task is known and no slope: there a design may
    find the answer at once, and one that sees it falls below the floor.
    """
    if slope is None and floor is not None:
        return False
    return _gap(losses, base) < -(_STEEP if slope is None else slope) * math.log(_TOKENS)


def doubt(
    runs: Sequence[RunRecord],
    losses: Mapping[int, float],
    base: Mapping[int, float],
    met: Mapping[int, Sequence[Gate]],
) -> str:
    """What was looked at (the gates of the arm's runs), what to look at, and how to say that it is
    true all the same.
    """
    proven = sum(any(g.name == CAUSAL and g.passed for g in of_run) for of_run in met.values())
    checked = f"{plural(proven, 'run')} of it proved that no token sees a later one"
    if not proven:
        checked = "Its runs, of an older attnres, did not prove that no token sees a later one"
    return (
        f"too good to be true: {-_gap(losses, base):.4f} nats per token below the baseline, which "
        f"would need more than {_TOKENS} times its tokens for that. {checked}; see whether "
        "validation text stands in training (attnres init shows its share). If it is true all the "
        f"same, say why: attnres runs note {runs[0].id} WHY, then attnres runs tag {runs[0].id} "
        f"{PLAUSIBLE}"
    )


def reason(runs: Sequence[RunRecord]) -> str:
    """Why somebody believes an arm; empty where nobody says it."""
    return next((run.note for run in runs if PLAUSIBLE in run.tags and run.note), "")


def _gap(losses: Mapping[int, float], base: Mapping[int, float]) -> float:
    pairs = [losses[seed] - base[seed] for seed in losses.keys() & base.keys()]
    found = fmean(pairs) if pairs else 0.0
    return found if math.isfinite(found) else 0.0
