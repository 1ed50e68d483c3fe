"""How the arms of a comparison are judged: what blocks them, their looks, and the words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnres_cli.records.code import Code
from attnres_cli.records.comparison_terms import SHARED, ArmRecipe, Terms
from attnres_cli.records.run import (
    ENDED,
    WAITS,
    DataDescription,
    Removed,
    RunRecord,
    RunResult,
    Status,
)
from attnres_cli.stats.pairs import far, mean_sd, paired, signs
from attnres_cli.stats.power import detectable
from attnres_cli.stats.sequential import Look, look, word
from attnres_cli.verdict.comparison import ArmResult, Comparison, Rules, Verdict, ended_how
from attnres_cli.verdict.family import Family, family
from attnres_cli.verdict.soundness import (
    believed,
    doubt,
    gates_of,
    is_doubtful,
    mixed,
    restored,
    stopped,
    unequal,
)

_SEVERAL = 2

_UNFINISHED = {
    Status.PENDING: "is pending",
    Status.RUNNING: "is running, or was killed",
    Status.FAILED: "failed",
}


def compare(
    records: Sequence[RunRecord],
    data: DataDescription,
    baseline: str,
    terms: Terms = SHARED,
    own: Sequence[ArmRecipe] = (),
    rules: Rules = Rules(),  # noqa: B008 (frozen)
    older: Sequence[RunRecord] = (),
) -> Comparison:
    """Compare the arms of these runs, which are of one fingerprint; an arm's runs have its recipe
    in `own` or the shared one. Without runs of the baseline every arm is blocked. `older` are runs
    that are left out because of their code: a design that was edited is an arm more.
    """
    own_of = {found.variant: found for found in own}
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(record.variant, []).append(record)
    gone = _of_recipes(rules.removed, records, own, data)
    removed, edited = _by_code(gone, older, records)
    too = [replace(e, variant=f"{e.variant} {e.code}") for e in edited if e.variant != baseline]
    every = [*records, *removed, *too]
    held = family(every, baseline, is_registered=rules.is_registered, most=rules.most)
    there = {(run.variant, run.seed) for run in records}
    lost = tuple(each for each in removed if (each.variant, each.seed) not in there)
    table = _Table(data, terms, rules, held, by_arm.get(baseline, []), lost)
    arms = _with_base([table.judged(runs) for runs in by_arm.values() if _results(runs)])
    arms = _beside_whole(arms, table, by_arm)
    arms = [replace(arm, own=own_of.get(arm.variant)) for arm in arms]
    arms = [_withheld(arm, own_of, baseline, rules.margin) for arm in arms]
    arms = _in_order(arms, baseline)
    return Comparison(
        recipe=(own[0].recipe if own else "") or records[0].recipe,
        recipe_digest=own[0].base_digest if own else records[0].recipe_digest,
        data=data, baseline=baseline, arms=tuple(arms), records=tuple(records), terms=terms,
        rules=rules, family=held, removed=lost, older=tuple(older),
    )  # fmt: skip


def _results(runs: Sequence[RunRecord]) -> dict[int, RunResult]:
    return {run.seed: run.result for run in runs if run.result is not None}


def _of_recipes(
    removed: Sequence[Removed],
    records: Sequence[RunRecord],
    own: Sequence[ArmRecipe],
    data: DataDescription,
) -> list[Removed]:
    """The removed runs of these arms' recipes on these data, by whatever code."""
    own_digest = {each.variant: each.digest for each in own}
    digest = {run.variant: run.recipe_digest for run in records} | own_digest
    return [
        each
        for each in removed
        if each.fingerprint == data.fingerprint
        and each.recipe_digest == digest.get(each.variant, records[0].recipe_digest)
    ]


def _by_code(
    gone: Sequence[Removed], older: Sequence[RunRecord], records: Sequence[RunRecord]
) -> tuple[list[Removed], list[RunRecord | Removed]]:
    """The removed runs of the arms as they are, and what is of designs that were edited since."""
    codes = {(run.variant, run.code) for run in records}
    names, shared = {run.variant for run in records}, Code.of(records[-1].versions).shared
    removed = [e for e in gone if (e.variant, e.code) in codes or e.variant not in names]
    edited = [run for run in older if Code.of(run.versions).shared == shared]
    return removed, [*(e for e in gone if e not in removed), *edited]


@dataclass(frozen=True)
class _Table:
    """What all arms of a comparison are judged by."""

    data: DataDescription
    terms: Terms
    rules: Rules
    family: Family
    base: Sequence[RunRecord]
    lost: Sequence[Removed]  # that are not there again

    def judged(self, runs: Sequence[RunRecord]) -> ArmResult:
        """The arm with its difference and what may be said of it."""
        base = _results(self.base)
        arm = replace(_described(runs, base, self.data), mixed=mixed(runs, self.base))
        blocked = stopped(runs, self.data)
        if runs is self.base:
            return replace(arm, verdict="baseline", reason=blocked or "", is_sound=not blocked)
        blocked = (
            blocked
            or stopped(self.base, self.data, "the baseline's ")
            or unequal(_results(runs), base, self.terms)
            or (None if self.base else "no runs of the baseline in this comparison")
        )
        theirs = _losses(base)
        if not blocked and is_doubtful(arm.losses, theirs, self.rules.slope, self.data.floor):
            arm = replace(arm, believed=believed(runs))
            blocked = None if arm.believed else doubt(runs, arm.losses, theirs, arm.gates)
        if blocked:
            return replace(arm, reason=blocked)
        same = [arm.losses[seed] == theirs[seed] for seed in arm.losses.keys() & base.keys()]
        arm = self._looked(replace(arm, is_sound=bool(same)), runs, theirs)
        if len(same) >= _SEVERAL and all(same):
            return replace(arm, verdict="identical", reason="every loss is the same, bit for bit")
        return arm

    def _looked(
        self, arm: ArmResult, runs: Sequence[RunRecord], base: Mapping[int, float]
    ) -> ArmResult:
        """The arm as of its last look, or with all its pairs before the first."""
        seeds, missing = paired_seeds(self.family, self.lost, runs, self.base)
        ours, theirs = ([of[s] for s in seeds] for of in (arm.losses, base))
        found = look(ours, theirs, self.family.looks(arm.variant))
        n = found.n or len(seeds)
        ours, theirs, no_spread = ours[:n], theirs[:n], ""
        arm = replace(arm, look=found, pairs=tuple(seeds[:n]))
        if n:
            arm = replace(arm, **_means(ours))
        try:
            difference = paired(ours, theirs)
        except ValueError as error:
            difference, no_spread = None, str(error)
        gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
        lying = tuple(seeds[i] for i in far(gaps))
        arm = replace(arm, difference=difference, far=lying, signs=signs(gaps) if gaps else None)
        if found.n == 0:
            return replace(arm, **unlooked(found, len(seeds), missing))
        if difference is None:
            return replace(arm, look=None, reason=no_spread)
        sees = detectable(n, difference.sd, found.alpha) if difference.sd > 0 else None
        verdict, why = word(found.low, found.high, self.rules.margin), found.reason
        if verdict == "inconclusive" and sees is not None:
            why += f"; would have seen {sees:.4f} or more with 80 % power"
        return replace(arm, verdict=verdict, reason=why, detectable=sees)


Missing = tuple[str, bool]
"""Why a pair is missing, and whether it is still to come."""


def unlooked(found: Look, n: int, missing: Missing | None) -> dict[str, Any]:
    """Verdict and reason of an arm with n pairs before its first look."""
    why, waits = missing or (f"{n} of {found.next} seeds", True)
    return {"verdict": "pending" if waits else "blocked", "reason": why}


def paired_seeds(
    held: Family,
    lost: Sequence[Removed],
    runs: Sequence[RunRecord],
    base: Sequence[RunRecord],
    lacks: Callable[[RunRecord], str] = lambda _run: "",
) -> tuple[list[int], Missing | None]:
    """The seeds that arm and baseline have, in the order in which they were planned, up to the
    first that one lacks; and why it does, with whether it is still to come. `lacks` says what an
    ended run lacks besides, which is to come.
    """
    sides = ((runs, ""), (base, "the baseline's "))
    pair = {each[0].variant for each, _ in sides}
    excluded = {each.seed for each in lost if each.variant in pair and each.reason}
    seeds: list[int] = []
    for seed in held.seeds:
        if seed in excluded:
            continue
        for each, whose in sides:
            if missing := _missing(each, seed, lost, whose, lacks):
                return seeds, missing
        seeds.append(seed)
    return seeds, None


def _missing(
    runs: Sequence[RunRecord],
    seed: int,
    lost: Sequence[Removed],
    whose: str,
    lacks: Callable[[RunRecord], str],
) -> Missing | None:
    """Why an arm has no loss on a seed, and whether it is still to come."""
    run = next((run for run in runs if run.seed == seed), None)
    if run is not None:
        if run.result is not None:
            why = lacks(run)
            return (f"{whose}seed {seed} {why}", True) if why else None
        return f"{whose}seed {seed} {_UNFINISHED[run.status]}", run.status in WAITS
    for each in lost:
        if (each.variant, each.seed) == (runs[0].variant, seed):
            told = f"{whose}seed {seed} was removed, {ended_how(each)}"
            return f"{told}: the same ablate command trains it", False
    return (f"{whose}seed {seed} is missing, which others have: --seeds with all of theirs", False)


def _described(
    runs: Sequence[RunRecord], base: Mapping[int, RunResult], data: DataDescription
) -> ArmResult:
    """An arm as its runs describe it, judged by nothing yet."""
    results = _results(runs)
    one = next(iter(results.values()))
    losses = _losses(results)
    return ArmResult(
        variant=runs[0].variant,
        losses=losses,
        n_params=one.n_params,
        params_delta=one.n_params - next(iter(base.values())).n_params if base else None,
        flops_per_token=one.flops_per_token,
        tokens=one.tokens,
        **_means([*losses.values()]),
        engines=tuple(sorted({result.settings.engine for result in results.values()})),
        verdict="blocked",
        reason="",
        recipe_digest=runs[0].recipe_digest,
        gates={run.seed: gates_of(run, data) for run in runs if run.result is not None},
    )


def _losses(results: Mapping[int, RunResult]) -> dict[int, float]:
    return {seed: result.val_loss for seed, result in sorted(results.items())}


def _means(losses: Sequence[float]) -> dict[str, Any]:
    mean, sd = mean_sd(losses)
    return {"mean": mean, "sd": sd}


def _with_base(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """The arms, the baseline's mean over the seeds of the arm with most pairs, if any has some."""
    pairs = max((arm.pairs for arm in arms), key=len, default=())
    return [
        replace(arm, pairs=pairs, **_means([arm.losses[seed] for seed in pairs]))
        if arm.verdict == "baseline" and pairs
        else arm
        for arm in arms
    ]


def _beside_whole(
    arms: Sequence[ArmResult], table: _Table, by_arm: Mapping[str, Sequence[RunRecord]]
) -> list[ArmResult]:
    """The arms, each beside what it would be with the ended runs that were left out of its pairs
    with a reason.
    """
    base = next((arm.variant for arm in arms if arm.verdict == "baseline"), "")
    left_out = [each for each in table.lost if each.reason and each.status in ENDED]
    every = {name: restored(runs, left_out) for name, runs in by_arm.items()}
    lost = tuple(each for each in table.lost if each not in left_out)
    table = replace(table, base=every.get(base, ()), lost=lost)
    concerned = {each.variant for each in left_out}
    return [
        replace(arm, whole=table.judged(every[arm.variant]))
        if arm.variant != base and concerned & {arm.variant, base}
        else arm
        for arm in arms
    ]


def _in_order(arms: Sequence[ArmResult], baseline: str) -> list[ArmResult]:
    """The baseline, then by difference from it, as means may be over other seeds; diverged last."""
    base = next((arm.mean for arm in arms if arm.variant == baseline), 0.0)

    def place(arm: ArmResult) -> tuple[bool, bool, float]:
        gap = arm.difference.mean if arm.difference else arm.mean - base
        return arm.variant != baseline, math.isnan(arm.mean), gap

    return sorted(arms, key=place)


def may_be_tuning(
    verdict: Verdict, ends: tuple[float, float], arm: float, base: float, margin: float | None
) -> str:
    """Which side, `arm` or `base`, tuning may have failed by so much that the word of an interval
    might not hold; empty for none. Both are nats per token that tuning may have missed.
    """
    (low, high), within = ends, margin or 0.0
    bounds = {
        "better": [("base", base, -high)],
        "worse": [("arm", arm, low)],
        "equivalent": [("base", base, within - high), ("arm", arm, low + within)],
        "non-inferior": [("base", base, within - high)],
    }.get(verdict, [])
    return next((side for side, missed, left in bounds if missed > 0 and missed >= left), "")


def _withheld(
    arm: ArmResult, own: Mapping[str, ArmRecipe], baseline: str, margin: float | None
) -> ArmResult:
    """The arm without its word, where tuning may have missed as much as that takes."""
    if arm.interval is None:
        return arm
    names = {"arm": arm.variant, "base": baseline}
    missed = {side: own[name].may_miss if name in own else 0.0 for side, name in names.items()}
    side = may_be_tuning(arm.verdict, arm.interval, missed["arm"], missed["base"], margin)
    if not side:
        return arm
    by = "beyond what was tried"
    if math.isfinite(missed[side]):
        by = f"by {missed[side]:.3f} nats per token"
    why = f"tuning may have missed the best settings of {names[side]} {by}"
    return replace(arm, verdict="blocked", reason=why)
