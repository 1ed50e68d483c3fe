"""What runs must meet before they are compared: gates, and what a pair of them has in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.records.run import DataDescription, Gate, RunRecord, RunResult


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
