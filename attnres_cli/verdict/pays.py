"""Whether a difference pays: what it is worth in tokens of the baseline, and at equal time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from attnres_cli.records.run import RunRecord
from attnres_cli.records.step_ratio import StepRatio, TimedArm
from attnres_cli.stats.multiples import Worth, worth
from attnres_cli.verdict.comparison import ArmResult, Comparison

_SELF = StepRatio(0, 1.0, 1.0, 1.0)


def tokens(arm: ArmResult, of: Comparison) -> Worth | None:
    """How many times its tokens the baseline needs for the arm's loss. None where that is not
    known, before the first look, and where arms were not trained on equal tokens.
    """
    base, interval = of.base, arm.interval
    if base is None or interval is None or arm.difference is None or arm.tokens != base.tokens:
        return None
    by_seed = {seed: arm.losses[seed] - base.losses[seed] for seed in arm.pairs}
    return worth(arm.difference, interval, by_seed, of.rules.budgets)


def time(arm: ArmResult, of: Comparison) -> Worth | None:
    """The same at equal time. None where steps were not timed."""
    found, ratio = tokens(arm, of), of.step_ratios.get(arm.variant)
    return None if found is None or ratio is None else found.over(ratio.median, ratio.error)


def step_ratios(
    timed: Sequence[TimedArm], runs: Sequence[RunRecord], baseline: str
) -> Mapping[str, StepRatio]:
    """By arm, how long its steps take as a multiple of the baseline's, computed as most of its runs
    were. Arms that were timed beside another than the baseline are held against it.
    """
    on = [(run.variant, run.result.settings) for run in runs if run.result is not None]
    n_runs = Counter((arm, way.numerics, way.device_name) for arm, way in on)
    ways = {key[1:] for key in n_runs}
    found: dict[str, dict[str, StepRatio]] = {}
    for each in sorted(timed, key=lambda one: -n_runs[one.variant, one.numerics, one.device_name]):
        if (each.numerics, each.device_name) in ways:
            beside = found.setdefault(each.baseline, {each.baseline: _SELF})
            beside.setdefault(each.variant, each.ratio)
    merged: dict[str, StepRatio] = {}
    for ratios in (found.pop(baseline, {}), *found.values()):  # beside the baseline itself first
        if baseline in ratios:
            for arm, ratio in ratios.items():
                merged.setdefault(arm, _over(ratio, ratios[baseline]))
    return merged


def _over(ours: StepRatio, theirs: StepRatio) -> StepRatio:
    """One ratio over another, spread as both are."""
    if theirs is _SELF or theirs.n == 0:
        return ours
    median = ours.median / theirs.median
    spreads = [math.log(each.high / each.low) / 2 for each in (ours, theirs)]
    half = math.exp(math.hypot(*spreads))
    return StepRatio(min(n for n in (ours.n, theirs.n) if n), median, median / half, median * half)
