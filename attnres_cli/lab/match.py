"""Arms made equal to the baseline: in parameters, in FLOPs per token, or in the time of training.

Parameters and FLOPs are matched by the width of the MLP (d_ff), so that all arms still see the same
tokens. Time is matched by the number of tokens, from step times measured here in turn. The baseline
keeps the recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from attnres_cli.config.recipe import Recipe
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import UsageError
from attnres_cli.lab import bench
from attnres_cli.lab.grid import counted, sketch
from attnres_cli.nn.cost import StepBench, spread
from attnres_cli.nn.shape import Shape
from attnres_cli.records.comparison_terms import ArmRecipe, Given, Match, Matched, Tuned
from attnres_cli.records.plan import Arm, Plan, n_tokens

TOLERANCE = {"params": 0.005, "flops": 0.005, "time": 0.02}
"""The most that may remain, as a part of the baseline's; time is counted in whole steps."""

ROUNDS = 25
"""In which arms take turns when they are timed."""

_CLOSE = 0.001  # within this a width that is a multiple of 8 is taken, for the sake of GPUs
_UNIT = {"params": "parameters", "flops": "FLOPs per token", "time": "seconds"}


def matched(
    plan: Plan,
    match: Match,
    baseline: str,
    tokens: Tokens,
    held: Sequence[ArmRecipe],
    note: Callable[[str], None],
) -> Plan:
    """The plan with a recipe for each arm that makes it equal to the baseline. An arm that `held`
    has timed before keeps its tokens. Raises UsageError where an arm cannot be timed, or not be
    made equal within the tolerance, and names the nearest.
    """
    if match == "tokens":
        return plan
    terms = replace(plan.terms, match=match, baseline=baseline)
    (base,) = [arm for arm in plan.arms if arm.variant == baseline]
    others = [arm for arm in plan.arms if arm is not base]
    if match == "time":
        before = {arm.variant: arm.how for arm in held if arm.terms == terms}
        made = _by_tokens(plan, base, others, before, tokens, note)
    else:
        made = {arm.variant: _by_width(arm, base, plan, match, tokens) for arm in others}
    arms = tuple(made.get(arm.variant, arm) for arm in plan.arms)
    return replace(plan, arms=arms, terms=terms)


def _by_width(arm: Arm, base: Arm, plan: Plan, match: Match, tokens: Tokens) -> Arm:
    """The arm with the width of its MLPs that brings it nearest to the baseline."""
    recipe = plan.recipe_of(arm)
    shape = recipe.model.shape(tokens.vocab_size)
    design = sketch(arm.variant, shape)

    def count(d_ff: int) -> int:
        return counted(design, replace(shape, d_ff=d_ff))[match == "flops"]

    target = base.flops_per_token if match == "flops" else base.n_params
    d_ff = width(count, shape, target)
    counts = count(shape.d_ff), count(d_ff)
    how = Matched("d_ff", shape.d_ff, d_ff, *counts, target, given=_given(arm))
    _check(arm, base, how, match)
    if d_ff == shape.d_ff:
        return replace(arm, how=how)
    model = recipe.model.model_copy(update={"d_ff": d_ff})
    own = recipe.model_copy(update={"model": model})
    n_params, flops = counted(design, replace(shape, d_ff=d_ff))
    return replace(arm, n_params=n_params, flops_per_token=flops, recipe=own, how=how)


def width(count: Callable[[int], int], shape: Shape, target: int) -> int:
    """The d_ff with the count nearest to the target; the count grows by the same with each."""
    per_unit = count(shape.d_ff + 1) - count(shape.d_ff)
    exact = shape.d_ff + (target - count(shape.d_ff)) / per_unit
    eights = max(8, 8 * round(exact / 8))
    if abs(count(eights) / target - 1) <= _CLOSE:
        return eights
    return max(1, round(exact))


def _by_tokens(
    plan: Plan,
    base: Arm,
    others: Sequence[Arm],
    before: Mapping[str, Matched | Tuned | Given],
    tokens: Tokens,
    note: Callable[[str], None],
) -> dict[str, Arm]:
    """The arms with the tokens that take them as long as the baseline takes for its own."""
    new = [arm for arm in others if arm.variant not in before]
    timed = None
    if new:
        note(f"timing {len(new) + 1} arms in turn, {ROUNDS} rounds")
        timed = bench.steps(replace(plan, arms=(base, *new)), tokens, ROUNDS, base.variant, note)
    made = {}
    for arm in others:
        how = before.get(arm.variant)
        if not isinstance(how, Matched):
            assert timed is not None
            how = _timed(arm, plan.recipe, timed)
        _check(arm, base, how, "time")
        made[arm.variant] = _with_tokens(arm, plan.recipe_of(arm), how)
    return made


def _with_tokens(arm: Arm, recipe: Recipe, how: Matched) -> Arm:
    """The arm with the tokens that were measured to take it as long as the baseline."""
    if how.after == how.before:
        return replace(arm, how=how)
    train = recipe.train.model_copy(update={"tokens": how.after})
    return replace(arm, recipe=recipe.model_copy(update={"train": train}), how=how)


def _timed(arm: Arm, recipe: Recipe, timed: StepBench) -> Matched:
    conditions = timed.conditions
    for cost in timed.arms:
        if cost.wrong is not None and cost.variant in (arm.variant, conditions.baseline):
            raise UsageError(f"--match time: {cost.variant} cannot be timed: {cost.wrong}")
    (mine,) = [cost for cost in timed.arms if cost.variant == arm.variant]
    ratio = timed.versus(mine)
    assert ratio is not None
    step_s = spread(timed.times(conditions.baseline)).median
    steps = max(1, round(recipe.steps / ratio.median))
    return Matched(
        changed="tokens",
        before=n_tokens(recipe),
        after=steps * recipe.tokens_per_step,
        unmatched=recipe.steps * ratio.median * step_s,
        value=steps * ratio.median * step_s,
        target=recipe.steps * step_s,
        step_ratio=(ratio.median, ratio.low, ratio.high),
        rounds=conditions.rounds,
        device_name=conditions.device_name,
        given=_given(arm),
    )


def _given(arm: Arm) -> Given | None:
    """The learning rate that the recipe gives an arm, where it has rates by design."""
    return arm.how if isinstance(arm.how, Given) else None


def _check(arm: Arm, base: Arm, how: Matched, match: Match) -> None:
    """Raise UsageError where more remains than may."""
    most = TOLERANCE[match]
    if abs(how.remains) <= most:
        return
    finer = "more train.tokens make finer steps" if match == "time" else "a larger model is finer"
    raise UsageError(
        f"--match {match}: {arm.variant} cannot be brought within {most:.1%} of {base.variant}: "
        f"the nearest is {how.changed} {how.after:,} with {how.value:,.4g} {_UNIT[match]}, "
        f"{how.remains:+.2%}; leave the arm out, or change the recipe ({finer})"
    )
