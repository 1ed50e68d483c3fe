"""Settings that were tuned at the base of a transfer, carried over to the other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnres_cli.config.arms import LR
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError
from attnres_cli.lab.grid import canonical
from attnres_cli.lab.protocol import rates
from attnres_cli.lab.tune import Losses, trials, tried
from attnres_cli.records.comparison_terms import ArmRecipe, Tuned
from attnres_cli.records.plan import Arm, Plan

CHECK = "the carried rates at the largest size, beside 1.41 times more and less"


def base_of(sizes: Sequence[Recipe]) -> int | None:
    """Which size of a ladder is tuned for all; None where each is tuned by itself. Raises
    UsageError where the base is none of them.
    """
    optim = sizes[0].optim
    if len(sizes) == 1 or optim.base is None:
        return None
    deep = optim.transfer == "completep"
    wanted = (optim.base.d_model, optim.base.n_layers if deep else None)
    found = [(one.model.d_model, one.model.n_layers if deep else None) for one in sizes]
    if wanted not in found:
        layers = f" and {optim.base.n_layers} layers" if deep else ""
        raise UsageError(
            f"--tune-lr tunes at optim.base, width {optim.base.d_model}{layers}, which is no size "
            "of the ladder: add it, or leave optim.transfer out to tune each size by itself"
        )
    return found.index(wanted)


def carried(
    plan: Plan, found: Sequence[ArmRecipe], base: Recipe, specs: Sequence[str]
) -> tuple[Plan, list[str]]:
    """The plan with each arm at what was tuned for it at the base; and the arms without."""
    tuned = {each.variant: each.how for each in found if _is_whole(each)}
    names = {canonical(spec, plan.recipe): canonical(spec, base) for spec in specs}
    arms, without = [], []
    for arm in plan.arms:
        how = tuned.get(names.get(arm.variant, arm.variant))
        if isinstance(how, Tuned):
            arms.append(_at(arm, plan, how, base))
        else:
            without.append(arm.variant)
    terms = replace(plan.terms, is_tuned=True, by_design=False)  # as it is read back
    return replace(plan, arms=tuple(arms), terms=terms, done=frozenset()), without


def _is_whole(each: ArmRecipe) -> bool:
    return each.terms.is_tuned and not each.terms.rate_only and each.terms.match == "tokens"


def _at(arm: Arm, plan: Plan, how: Tuned, base: Recipe) -> Arm:
    own = plan.recipe_of(arm)
    where = f"width {base.model.d_model}, {base.model.n_layers} layers"
    how = replace(
        how,
        fit=f"{how.fit}; tuned at {where}, carried over by {base.optim.transfer}",
        rate_digest=own.at_rate(how.lr).digest,
    )
    return replace(arm, recipe=own.changed((LR, how.lr), *how.changes), how=how)


def checking(plan: Plan) -> Plan:
    """Every arm of a carried plan at three rates, its own in the middle, on the tuning seeds."""
    return tried(plan, [(arm, at) for arm in plan.arms for at in _around(arm, plan)])


def _around(arm: Arm, plan: Plan) -> list[tuple[tuple[str, float]]]:
    return [((LR, lr),) for lr in rates(plan.recipe_of(arm).optim.lr)[1:4]]


def told(plan: Plan, losses: Losses) -> list[str]:
    """A line for each arm whose carried rate is not the best of the three at this size."""
    lines = []
    for arm in plan.arms:
        own, around = plan.recipe_of(arm).optim.lr, _around(arm, plan)
        pairs = zip(around, trials(arm, plan, losses, around), strict=True)
        means = {lr: t.mean for ((_, lr),), t in pairs if t is not None and t.mean is not None}
        best = min(means, key=lambda lr: means[lr], default=own)
        if best == own:
            continue
        gap = f"{means[own] - means[best]:.4f} nats lower" if own in means else "well, it diverged"
        lines.append(
            f"{arm.variant}: the rate carried over, {own:g}, is not the best of three at the "
            f"largest size: {best:g} ends {gap}; without optim.transfer each size is tuned by "
            "itself"
        )
    return lines
