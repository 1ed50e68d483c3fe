"""What runs must meet before they are compared: gates, what a pair of them has in common, and a
difference that is not too good to be true: the baseline would need four times its tokens for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.records.run import DataDescription, Gate, Removed, RunRecord, RunResult
from attnres_cli.verdict.numbers import plural

PLAUSIBLE = "plausible"
"""The tag of runs whose user has looked, and says why in their note."""

_TOKENS = 4
_STEEP = 0.5  # nats per e-fold of tokens, where no slope is known: no recipe of ours is steeper


def stopped(runs: Sequence[RunRecord], data: DataDescription, whose: str = "") -> str | None:
    """Why an arm's ended runs may not be judged: one was stopped at a gate."""
    for run in runs:
        for gate in () if run.result is None else gates_of(run, data):
            if not gate.passed and gate.name not in gates.DOUBTS:
                assert run.result is not None
                return f"{whose}seed {run.seed} {gates.explain(gate, run.result, run.error)}"
    return None


def gates_of(run: RunRecord, data: DataDescription) -> tuple[Gate, ...]:
    """Those of an ended run, as the study has them."""
    assert run.result is not None
    return run.gates or gates.of(run.result, data)


def unequal(
    results: Mapping[int, RunResult], base: Mapping[int, RunResult], terms: Terms
) -> str | None:
    """Why the runs of an arm may not be paired with the baseline's."""
    for seed in sorted(results.keys() & base.keys()):
        ours, theirs = results[seed], base[seed]
        if ours.tokens * theirs.steps != theirs.tokens * ours.steps:
            here, there = (each.tokens // each.steps for each in (ours, theirs))
            return f"seed {seed} was trained with {here} tokens per step, the baseline with {there}"
        if ours.tokens != theirs.tokens and terms.match != "time":
            return f"seed {seed} saw {ours.tokens} tokens, the baseline {theirs.tokens}"
        on, base_on = ours.settings.numerics, theirs.settings.numerics
        if on != base_on:
            return f"seed {seed} was computed on {on}, the baseline on {base_on}"
    return None


def mixed(runs: Sequence[RunRecord], base_runs: Sequence[RunRecord]) -> tuple[int, ...]:
    """The seeds on which an arm and the baseline were trained by different versions of torch, so
    far as both are known.
    """

    def by_seed(runs: Sequence[RunRecord]) -> dict[int, str | None]:
        return {run.seed: run.versions.get("torch") for run in runs if run.result is not None}

    ours, base = by_seed(runs), by_seed(base_runs)
    return tuple(
        s for s in sorted(ours.keys() & base.keys()) if len({ours[s], base[s]} - {None}) > 1
    )


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
    proven = sum(
        any(g.name == gates.CAUSAL and g.passed for g in of_run) for of_run in met.values()
    )
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


def believed(runs: Sequence[RunRecord]) -> str:
    """Why somebody believes an arm; empty where nobody says it."""
    return next((run.note for run in runs if PLAUSIBLE in run.tags and run.note), "")


def restored(runs: Sequence[RunRecord], removed: Sequence[Removed]) -> list[RunRecord]:
    """The runs of an arm with those of it that were left out with a reason, as far as is known of
    them: what a verdict would be with them.
    """
    like = next((run for run in runs if run.result is not None), None)
    if like is None or like.result is None:
        return [*runs]
    result = like.result
    return [*runs] + [
        replace(
            like, seed=e.seed, status=e.status, gates=(),
            result=replace(result, status=e.status, val_loss=e.val_loss),
        )
        for e in removed
        if e.variant == like.variant
    ]  # fmt: skip


def _gap(losses: Mapping[int, float], base: Mapping[int, float]) -> float:
    pairs = [losses[seed] - base[seed] for seed in losses.keys() & base.keys()]
    found = fmean(pairs) if pairs else 0.0
    return found if math.isfinite(found) else 0.0
