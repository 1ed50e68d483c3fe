"""Comparison: what the runs of one recipe say about each arm, and whether they may say it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import SHARED, ArmRecipe, Terms
from attnres_cli.records.run import (
    SHARED_CODE,
    DataDescription,
    Gate,
    RunRecord,
    RunResult,
    Status,
)
from attnres_cli.stats.pairs import LEAST_SEEDS, Difference, judged, mean_sd, paired, word
from attnres_cli.stats.power import ALPHA

Verdict = Literal["better", "worse", "not separable", "blocked", "baseline"]

_UNFINISHED = {
    Status.PENDING: "is pending: the same ablate command goes on",
    Status.RUNNING: "is running, or was killed: the same ablate command goes on",
    Status.FAILED: "failed: the same ablate command with --retry-failed trains it again",
}
_NAMES_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
RULE = (
    "better or worse: the paired t test over three shared seeds or more has p < 0.05 after Holm's "
    "correction for the number of arms; else not separable (in brackets the least difference, in "
    "nats per token, that this study would have seen with 80 % power)"
)


@dataclass(frozen=True)
class ArmResult:
    """One arm: its runs, its difference from the baseline, the verdict and why."""

    variant: str
    losses: Mapping[int, float]  # by seed, nats per token; nan where it diverged
    n_params: int
    params_delta: int | None
    flops_per_token: int
    tokens: int
    mean: float  # over the seeds that the baseline has too, or if there are none over all
    sd: float | None
    tokens_per_second: float
    step_s: float
    engines: tuple[str, ...]  # of depth mixing; more than one where its runs differ
    difference: Difference | None
    verdict: Verdict
    reason: str
    recipe_digest: str = ""
    own: ArmRecipe | None = None  # where its recipe is not the shared one
    gates: Mapping[int, tuple[Gate, ...]] = field(default_factory=dict)  # by seed
    mfu: float | None = None  # of the device's peak, where that is known
    mixed: tuple[int, ...] = ()  # seeds whose baseline other versions of the software trained


@dataclass(frozen=True)
class Comparison:
    """The arms of one recipe on one fingerprint of data, the baseline first, then by loss, with
    the runs that were compared. Under some terms arms have recipes of their own, derived from it.
    """

    recipe: str
    recipe_digest: str
    data: DataDescription
    baseline: str
    arms: tuple[ArmResult, ...]
    records: tuple[RunRecord, ...]
    terms: Terms = SHARED
    registered: str = ""  # preregistered, or exploratory; where the study has preregistrations

    @property
    def base(self) -> ArmResult | None:
        """The arm of the baseline; None where no run of it has ended."""
        return next((arm for arm in self.arms if arm.variant == self.baseline), None)

    def runs(self, *statuses: Status) -> list[RunRecord]:
        """Those in one of these states."""
        return [record for record in self.records if record.status in statuses]

    @property
    def versions(self) -> list[str]:
        """Those that trained its runs, each once."""
        return sorted({version(record) for record in self.records if record.result is not None})

    @property
    def settings(self) -> list[str]:
        """How its runs were computed, each way once."""
        on = [record.result.settings for record in self.records if record.result is not None]
        return sorted({f"{s.numerics} on {s.device_name}, depth mixing by {s.engine}" for s in on})


def compare(
    records: Sequence[RunRecord],
    data: DataDescription,
    baseline: str,
    terms: Terms = SHARED,
    own: Sequence[ArmRecipe] = (),
) -> Comparison:
    """Compare the arms of these runs, which are of one fingerprint; an arm's runs have its recipe
    in `own` or the shared one. Without runs of the baseline every arm is blocked.
    """
    own_of = {found.variant: found for found in own}
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(record.variant, []).append(record)
    base = by_arm.get(baseline, [])
    found = [
        replace(_judge(runs, base, data, terms), own=own_of.get(runs[0].variant))
        for runs in by_arm.values()
        if _results(runs)
    ]
    arms = _correct(found, _results(base))
    arms.sort(key=lambda arm: (arm.variant != baseline, math.isnan(arm.mean), arm.mean))
    return Comparison(
        recipe=records[0].recipe,
        recipe_digest=own[0].base_digest if own else records[0].recipe_digest,
        data=data,
        baseline=baseline,
        arms=tuple(arms),
        records=tuple(records),
        terms=terms,
    )


def last_line(error: str | None) -> str:
    """The line of a traceback that names the error; CUDA's go on with advice below it."""
    lines = (error or "unknown").strip().splitlines()
    named = [line for line in lines if _NAMES_ERROR.match(line)]
    return (named or lines)[-1]


def version(record: RunRecord) -> str:
    """`attnres 0.1.0, torch 2.9.0, python 3.11.7`: what trained a run."""
    names = ("attnres", "torch", "python")
    return ", ".join(f"{name} {record.versions.get(name, '?')}" for name in names)


def _results(runs: Sequence[RunRecord]) -> dict[int, RunResult]:
    return {run.seed: run.result for run in runs if run.result is not None}


def _judge(
    runs: Sequence[RunRecord], base_runs: Sequence[RunRecord], data: DataDescription, terms: Terms
) -> ArmResult:
    """The arm with its paired difference, uncorrected, and the gate that blocks it, if any."""
    results, base = _results(runs), _results(base_runs)
    one = next(iter(results.values()))
    shares = [result.mfu for result in results.values() if result.mfu is not None]
    losses = {seed: result.val_loss for seed, result in sorted(results.items())}
    shared = losses.keys() & base.keys() or losses.keys()
    mean, sd = mean_sd([losses[seed] for seed in sorted(shared)])
    arm = ArmResult(
        variant=runs[0].variant,
        losses=losses,
        n_params=one.n_params,
        params_delta=one.n_params - next(iter(base.values())).n_params if base else None,
        flops_per_token=one.flops_per_token,
        tokens=one.tokens,
        mean=mean,
        sd=sd,
        tokens_per_second=median(result.tokens_per_second for result in results.values()),
        step_s=median(result.step_s for result in results.values()),
        mfu=median(shares) if shares else None,
        engines=tuple(sorted({result.settings.engine for result in results.values()})),
        difference=None,
        verdict="blocked",
        reason="",
        recipe_digest=runs[0].recipe_digest,
        gates={run.seed: _gates(run, data) for run in runs if run.result is not None},
        mixed=_mixed(runs, base_runs),
    )
    if runs is base_runs:
        return replace(arm, verdict="baseline", reason=_gate(runs, data) or "")
    blocked = (
        _gate(runs, data)
        or _gate(base_runs, data, "the baseline's ")
        or _unequal(results, base, terms)
        or (None if base_runs else "no runs of the baseline in this comparison")
    )
    if blocked:
        return replace(arm, reason=blocked)
    try:
        return replace(arm, difference=paired(*_pairs(arm, base)))
    except ValueError as error:
        return replace(arm, reason=str(error))


def _pairs(arm: ArmResult, base: Mapping[int, RunResult]) -> tuple[list[float], list[float]]:
    """Losses of the arm and of the baseline, of the seeds that both have."""
    shared = sorted(arm.losses.keys() & base.keys())
    return [arm.losses[seed] for seed in shared], [base[seed].val_loss for seed in shared]


def _gate(runs: Sequence[RunRecord], data: DataDescription, whose: str = "") -> str | None:
    """Why an arm's runs may not be judged: unfinished, failed, or stopped at a gate."""
    for run in runs:
        seed = f"{whose}seed {run.seed}"
        if run.result is None:
            return f"{seed} {_UNFINISHED[run.status]}"
        for gate in _gates(run, data):
            if not gate.passed:
                return f"{seed} {gates.explain(gate, run.result)}"
    return None


def _gates(run: RunRecord, data: DataDescription) -> tuple[Gate, ...]:
    """Those of an ended run, as the study has them."""
    assert run.result is not None
    return run.gates or gates.of(run.result, data)


def _unequal(
    results: Mapping[int, RunResult], base: Mapping[int, RunResult], terms: Terms
) -> str | None:
    """Why the runs of an arm may not be paired with the baseline's."""
    for seed in sorted(results.keys() & base.keys()):
        ours, theirs = results[seed], base[seed]
        if ours.tokens * theirs.steps != theirs.tokens * ours.steps:
            return (
                f"seed {seed} was trained with {ours.tokens // ours.steps} tokens per step, the "
                f"baseline with {theirs.tokens // theirs.steps}"
            )
        if ours.tokens != theirs.tokens and terms.match != "time":
            return f"seed {seed} saw {ours.tokens} tokens, the baseline {theirs.tokens}"
        if ours.settings.numerics != theirs.settings.numerics:
            return (
                f"seed {seed} was computed on {ours.settings.numerics}, the baseline on "
                f"{theirs.settings.numerics}"
            )
    return None


_NUMERIC = ("attnres", "torch", *SHARED_CODE)
"""Software that decides a run's numbers beyond rounding."""


def _mixed(runs: Sequence[RunRecord], base_runs: Sequence[RunRecord]) -> tuple[int, ...]:
    """The seeds on which an arm and the baseline were trained by different versions, so far as both
    are known.
    """

    def by_seed(runs: Sequence[RunRecord]) -> dict[int, Mapping[str, str]]:
        return {run.seed: run.versions for run in runs if run.result is not None}

    def differ(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
        known = [name for name in _NUMERIC if name in ours and name in theirs]
        return any(ours[name] != theirs[name] for name in known)

    ours, base = by_seed(runs), by_seed(base_runs)
    return tuple(s for s in sorted(ours.keys() & base.keys()) if differ(ours[s], base[s]))


def _correct(arms: Sequence[ArmResult], base: Mapping[int, RunResult]) -> list[ArmResult]:
    """The arms with p corrected over all that have a difference, and the word that follows."""
    tested = [arm for arm in arms if arm.difference is not None]
    found = judged([_pairs(arm, base) for arm in tested])
    worded = {arm.variant: _worded(arm, one) for arm, one in zip(tested, found, strict=True)}
    return [worded.get(arm.variant, arm) for arm in arms]


def _worded(arm: ArmResult, difference: Difference) -> ArmResult:
    verdict, p = word(difference), difference.p_holm
    sign = "<" if p < ALPHA else ">="
    reason = f"p {p:.2g} {sign} {ALPHA} over {difference.n} shared seeds"
    if difference.n < LEAST_SEEDS:
        reason += f"; fewer than {LEAST_SEEDS} say nothing"
    if verdict == "not separable" and difference.detectable is not None:
        reason += f"; would have seen {difference.detectable:.4f} or more with 80 % power"
    return replace(arm, difference=difference, verdict=verdict, reason=reason)
