"""What an arm is worth in the baseline's compute, over recipes of one name that differ in size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.records.plan import n_tokens
from attnres_cli.stats import scaling
from attnres_cli.stats.pairs import Difference, mean_sd, paired
from attnres_cli.stats.scaling import FLOOR_SIZES, Multiplier, PowerLaw
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.numbers import plural

PFLOP_S_DAY = 8.64e19
"""The paper's unit of compute, in FLOPs."""

LEAST_RANGE = 2.0
"""Of the baseline's compute, from the smallest size to the largest, that a law is fitted over."""

_TREND_SIZES = 3

Course = Literal["grows", "fades", "holds", ""]
"""What a gain does over sizes; it holds where the interval of its trend contains 0."""


@dataclass(frozen=True)
class Rung:
    """One recipe of a ladder and the comparison of its arms."""

    recipe: Recipe
    comparison: Comparison

    @property
    def baseline(self) -> ArmResult:
        """The arm that the others are compared with."""
        assert self.comparison.base is not None
        return self.comparison.base

    def arm(self, variant: str) -> ArmResult | None:
        """That arm, None where it may not be compared here."""
        arms = self.comparison.arms
        return next((arm for arm in arms if arm.variant == variant and arm.is_sound), None)

    def mean(self, arm: ArmResult) -> float:
        """Its loss over all seeds that the baseline has too, whatever looks there were."""
        shared = sorted(arm.losses.keys() & self.baseline.losses.keys())
        return mean_sd([arm.losses[seed] for seed in shared])[0]


@dataclass(frozen=True)
class Scaled:
    """One arm over the rungs; compute in PFLOP/s-days, losses in nats per token.

    Attributes:
        law: from four rungs up with a floor E that all arms share, below without; None where the
            rungs take nearly the same compute.
        worth: how much more compute the baseline takes to the arm's loss at the largest rung; None
            for the baseline, and where `reason` says why.
        plain: where `law` may have a floor, the fit without; `plain_worth` by it.
        trend: how the difference from the baseline changes per doubling of what `Ladder.doubled`
            names, from the slope of every seed that all sizes share; None below three sizes or two
            seeds.
        steps: how it changes from each rung to the next, over the same seeds; empty where there is
            no trend, or where that does not grow from every rung to the next.
        gap: the mean of the differences at all sizes, over the same seeds.
    """

    variant: str
    law: PowerLaw | None = None
    worth: Multiplier | None = None
    plain: PowerLaw | None = None
    plain_worth: Multiplier | None = None
    trend: Difference | None = None
    steps: tuple[Difference, ...] = ()
    gap: float | None = None
    reason: str = ""

    @property
    def course(self) -> Course:
        """What becomes of the difference, whatever its sign; empty without a trend."""
        if self.trend is None or not self.gap:
            return ""
        low, high = self.trend.ci95
        if low <= 0 <= high:
            return "holds"
        return "grows" if self.trend.mean * self.gap > 0 else "fades"

    @property
    def turns(self) -> list[int]:
        """The steps that go the other way than the trend, both with intervals beside 0."""
        trend = self.trend
        if trend is None or trend.ci95[0] <= 0 <= trend.ci95[1]:
            return []
        sign = math.copysign(1, trend.mean)
        return [k for k, step in enumerate(self.steps) if max(sign * end for end in step.ci95) < 0]


@dataclass(frozen=True)
class Ladder:
    """The rungs, by compute of the baseline; the arms that all rungs have, the baseline first; and
    what is left out, with why: other arms, and recipes of the same compute as a newer one.
    """

    rungs: tuple[Rung, ...]
    arms: tuple[Scaled, ...]
    left_out: tuple[str, ...]
    registered: str = ""  # exploratory, where the study has preregistrations

    @property
    def terms(self) -> Terms:
        """Those of every size; where only some have rates by design, of the first."""
        return self.rungs[0].comparison.terms

    @property
    def size_names(self) -> list[str]:
        """`8 layers` for each size; by width, tokens or digest where depths are not different."""
        models = [rung.recipe.model for rung in self.rungs]
        by_unit = {
            "layers": [model.n_layers for model in models],
            "wide": [model.d_model for model in models],
            "tokens": [rung.baseline.tokens for rung in self.rungs],
        }
        for unit, numbers in by_unit.items():
            if len(set(numbers)) == len(numbers):
                return [f"{number:,} {unit}" for number in numbers]
        return [rung.recipe.digest for rung in self.rungs]

    @property
    def doubled(self) -> str:
        """What trends are per doubling of: layers, or tokens of one model; empty without either."""
        return _doubled(self.rungs)

    @property
    def has_laws(self) -> bool:
        """Whether the sizes differ enough in compute for laws over it."""
        return self.arms[0].law is not None


def compute(arm: ArmResult) -> float:
    """Training FLOPs of a run, by count, in PFLOP/s-days."""
    return arm.flops_per_token * arm.tokens / PFLOP_S_DAY


def ladder(sizes: Sequence[Rung]) -> Ladder:
    """Recipes of one name, each compared by itself on the same terms, and what they say together.
    Raises StudyError where fewer than two sizes have the baseline.
    """
    baseline = sizes[0].comparison.baseline
    rungs: dict[float, Rung] = {}
    left_out = []
    for rung in sizes:
        digest = rung.recipe.digest
        if rung.arm(baseline) is None:
            left_out.append(f"recipe {digest}: no sound runs of {baseline}")
            continue
        at = compute(rung.baseline)
        if at in rungs:
            left_out.append(f"recipe {rungs[at].recipe.digest}: {digest} has the same compute")
        rungs[at] = rung
    if len(rungs) < 2:
        name = sizes[0].comparison.recipe
        raise StudyError(
            f"the study holds {plural(len(rungs), 'size')} of recipe {name} with runs of "
            f"{baseline}, scaling takes two or more: "
            f"`attnres ablate --recipe {name} --set model.n_layers=...`"
        )
    ordered = tuple(rungs[at] for at in sorted(rungs))
    names = dict.fromkeys(arm.variant for rung in ordered for arm in rung.comparison.arms)
    found = []
    for variant in sorted(names, key=lambda each: each != baseline):
        own = [rung.arm(variant) for rung in ordered]
        missing = [rung.recipe.digest for rung, arm in zip(ordered, own, strict=True) if not arm]
        if missing:
            left_out.append(f"{variant}: not comparable under recipe {', '.join(missing)}")
        else:
            found.append([arm for arm in own if arm is not None])
    return Ladder(ordered, _scaled(found, ordered), tuple(left_out))


def _scaled(arms: Sequence[Sequence[ArmResult]], rungs: Sequence[Rung]) -> tuple[Scaled, ...]:
    """Each arm, given at every rung, the baseline first."""
    base, *others = (Scaled(own[0].variant) for own in arms)
    trends = [_trend(rungs, own, arms[0]) for own in arms[1:]]
    found = [replace(one, **trend) for one, trend in zip(others, trends, strict=True)]
    sizes = [[compute(arm) for arm in own] for own in arms]
    if max(sizes[0]) < LEAST_RANGE * min(sizes[0]):
        reason = (
            f"{base.variant} takes nearly the same compute at every size: a law over compute takes "
            f"a range of {LEAST_RANGE:g}"
        )
        return base, *(replace(one, reason=reason) for one in found)
    means = [[rung.mean(arm) for rung, arm in zip(rungs, own, strict=True)] for own in arms]
    floor = scaling.shared_floor(sizes, means) if len(rungs) >= FLOOR_SIZES else None
    worths, reason = _worths(sizes, means, floor is not None)
    laws = scaling.fit(sizes, means, floor or 0.0)
    fitted = [
        replace(one, law=law, worth=worth, reason=reason if one is not base else "")
        for one, law, worth in zip((base, *found), laws, worths, strict=True)
    ]
    if floor is None:
        return tuple(fitted)
    plain = zip(fitted, scaling.fit(sizes, means), _worths(sizes, means, False)[0], strict=True)
    return tuple(replace(one, plain=law, plain_worth=worth) for one, law, worth in plain)


def _worths(
    sizes: Sequence[Sequence[float]], means: Sequence[Sequence[float]], floor: bool
) -> tuple[list[Multiplier | None], str]:
    """The multiplier of every arm, None of the baseline; or of none, with the reason."""
    try:
        return [None, *scaling.multipliers(sizes, means, floor)], ""
    except ValueError as error:
        return [None] * len(sizes), str(error)


def _doubled(rungs: Sequence[Rung]) -> str:
    models = [rung.recipe.model for rung in rungs]
    if len({model.n_layers for model in models}) >= _TREND_SIZES:
        return "layers"
    is_one = all(model == models[0] for model in models)
    budgets = {n_tokens(rung.recipe) for rung in rungs}
    return "tokens" if is_one and len(budgets) >= _TREND_SIZES else ""


def _trend(
    rungs: Sequence[Rung], ours: Sequence[ArmResult], theirs: Sequence[ArmResult]
) -> dict[str, Any]:
    """Trend, steps and mean of the difference over the rungs; empty where there is no trend."""
    unit, pairs = _doubled(rungs), list(zip(ours, theirs, strict=True))
    shared = sorted(set.intersection(*(set(a.losses) & set(b.losses) for a, b in pairs)))
    if not unit or len(shared) < 2:
        return {}
    recipes = [rung.recipe for rung in rungs]
    sizes = [each.model.n_layers if unit == "layers" else n_tokens(each) for each in recipes]
    at = [math.log2(size) for size in sizes]
    gaps = [[a.losses[seed] - b.losses[seed] for seed in shared] for a, b in pairs]
    weights = [each - fmean(at) for each in at]
    scale = sum(weight**2 for weight in weights)
    slopes = [
        sum(weight * gap for weight, gap in zip(weights, of_seed, strict=True)) / scale
        for of_seed in zip(*gaps, strict=True)
    ]
    grows = all(before < after for before, after in pairwise(at))
    try:
        steps = [paired(after, before) for before, after in pairwise(gaps)] if grows else []
        trend = paired(slopes, [0.0] * len(slopes))
    except ValueError:  # no spread at all
        return {}
    return {"trend": trend, "steps": tuple(steps), "gap": fmean(map(fmean, gaps))}
