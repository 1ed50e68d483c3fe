"""Comparison: what the runs of one recipe say about each arm, and whether they may say it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from attnres_cli.run import DataFacts, RunRecord, RunResult, Settings, Status
from attnres_cli.stats import Difference, holm, mean_sd, paired

Verdict = Literal["better", "worse", "not separable", "blocked", "baseline"]

ALPHA = 0.05
_UNFINISHED = {
    Status.PENDING: "is pending: the same ablate command goes on",
    Status.RUNNING: "is running, or was killed: the same ablate command goes on",
    Status.FAILED: "failed: the same ablate command with --retry-failed trains it again",
}
_START_TOLERANCE = 1.0  # nats around ln(vocab) within which an untrained model's loss lies
_NAMES_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
RULE = (
    "better or worse: the paired t test over shared seeds has p < 0.05 after Holm's correction "
    "for the number of arms; else not separable"
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
    mean: float
    sd: float | None
    tokens_per_second: float
    step_s: float
    engines: tuple[str, ...]  # of depth mixing; more than one where its runs differ
    difference: Difference | None
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Failure:
    """A run that came to nothing; error is one line."""

    variant: str
    seed: int
    error: str


@dataclass(frozen=True)
class Comparison:
    """All arms of one recipe on one fingerprint of data, the baseline first, then by loss."""

    recipe: str
    recipe_digest: str
    data: DataFacts
    baseline: str
    arms: tuple[ArmResult, ...]
    failed: tuple[Failure, ...]
    n_pending: int
    n_running: int
    versions: tuple[str, ...]
    settings: tuple[str, ...]


def compare(records: Sequence[RunRecord], data: DataFacts, baseline: str) -> Comparison:
    """Compare the arms of these runs, which are of one recipe and one fingerprint.

    Without runs of the baseline every arm is blocked for that reason.
    """
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(record.variant, []).append(record)
    base = by_arm.get(baseline, [])
    arms = _correct([_judge(runs, base, data) for runs in by_arm.values() if _results(runs)])
    arms.sort(key=lambda arm: (arm.variant != baseline, math.isnan(arm.mean), arm.mean))
    failed = [record for record in records if record.status is Status.FAILED]
    results = [record.result for record in records if record.result is not None]
    return Comparison(
        recipe=records[0].recipe,
        recipe_digest=records[0].recipe_digest,
        data=data,
        baseline=baseline,
        arms=tuple(arms),
        failed=tuple(Failure(r.variant, r.seed, last_line(r.error)) for r in failed),
        n_pending=sum(record.status is Status.PENDING for record in records),
        n_running=sum(record.status is Status.RUNNING for record in records),
        versions=tuple(sorted({_version(r) for r in records if r.result is not None})),
        settings=tuple(sorted({_where(result.settings) for result in results})),
    )


def last_line(error: str | None) -> str:
    """The line of a traceback that names the error; CUDA's go on with advice below it."""
    lines = (error or "unknown").strip().splitlines()
    named = [line for line in lines if _NAMES_ERROR.match(line)]
    return (named or lines)[-1]


def _version(record: RunRecord) -> str:
    parts = [f"{name} {record.versions.get(name, '?')}" for name in ("attnres", "torch", "python")]
    return ", ".join(parts)


def _where(settings: Settings) -> str:
    return f"{settings.numerics} on {settings.device_name}, depth mixing by {settings.engine}"


def _results(runs: Sequence[RunRecord]) -> dict[int, RunResult]:
    return {run.seed: run.result for run in runs if run.result is not None}


def _judge(runs: Sequence[RunRecord], base_runs: Sequence[RunRecord], data: DataFacts) -> ArmResult:
    """The arm with its paired difference, uncorrected, and the gate that blocks it, if any."""
    results, base = _results(runs), _results(base_runs)
    one = next(iter(results.values()))
    losses = {seed: result.val_loss for seed, result in sorted(results.items())}
    mean, sd = mean_sd(list(losses.values()))
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
        engines=tuple(sorted({result.settings.engine for result in results.values()})),
        difference=None,
        verdict="blocked",
        reason="",
    )
    if runs is base_runs:
        return replace(arm, verdict="baseline", reason=_gate(runs, data) or "")
    blocked = (
        _gate(runs, data)
        or _gate(base_runs, data, "the baseline's ")
        or _unequal(results, base)
        or (None if base_runs else "no runs of the baseline in this comparison")
    )
    if blocked:
        return replace(arm, reason=blocked)
    shared = sorted(results.keys() & base.keys())
    try:
        difference = paired([losses[s] for s in shared], [base[s].val_loss for s in shared])
    except ValueError as error:
        return replace(arm, reason=str(error))
    return replace(arm, difference=difference)


def _gate(runs: Sequence[RunRecord], data: DataFacts, whose: str = "") -> str | None:
    """Why an arm's runs may not be judged: unfinished, failed, diverged, or nothing learned."""
    for run in runs:
        seed, result = f"{whose}seed {run.seed}", run.result
        if result is None:
            return f"{seed} {_UNFINISHED[run.status]}"
        if run.status is Status.DIVERGED:
            return f"{seed} diverged at step {result.steps}"
        start = math.log(data.vocab_size)
        if abs(result.initial_loss - start) > _START_TOLERANCE:
            return f"{seed} starts at {result.initial_loss:.2f}, not near ln(vocab) {start:.2f}"
        if result.val_loss >= result.initial_loss:
            return f"{seed} ends at {result.val_loss:.3f}, above its start: it has learned nothing"
    return None


def _unequal(results: Mapping[int, RunResult], base: Mapping[int, RunResult]) -> str | None:
    """Why the runs of an arm may not be paired with the baseline's."""
    for seed in sorted(results.keys() & base.keys()):
        ours, theirs = results[seed], base[seed]
        if ours.tokens != theirs.tokens:
            return f"seed {seed} saw {ours.tokens} tokens, the baseline {theirs.tokens}"
        if ours.settings.numerics != theirs.settings.numerics:
            return (
                f"seed {seed} was computed on {ours.settings.numerics}, the baseline on "
                f"{theirs.settings.numerics}"
            )
    return None


def _correct(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """The arms with Holm's p over all that have a difference, and the word that follows."""
    tested = [arm for arm in arms if arm.difference is not None]
    p_holm = dict(
        zip(
            [arm.variant for arm in tested],
            holm([arm.difference.p for arm in tested if arm.difference is not None]),
            strict=True,
        )
    )
    return [_word(arm, p_holm[arm.variant]) if arm.variant in p_holm else arm for arm in arms]


def _word(arm: ArmResult, p_holm: float) -> ArmResult:
    assert arm.difference is not None
    difference = replace(arm.difference, p_holm=p_holm)
    verdict: Verdict = "not separable"
    if p_holm < ALPHA:
        verdict = "better" if difference.mean < 0 else "worse"
    sign = "<" if p_holm < ALPHA else ">="
    reason = f"p {p_holm:.2g} {sign} {ALPHA} over {difference.n} shared seeds"
    return replace(arm, difference=difference, verdict=verdict, reason=reason)
