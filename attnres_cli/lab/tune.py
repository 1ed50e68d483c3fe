"""Tuning by `lab/protocol.py`: which runs it takes next, and the plan at what they decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from attnres_cli.config.arms import LR
from attnres_cli.config.recipe import Recipe
from attnres_cli.lab.grid import sketch
from attnres_cli.lab.protocol import (
    SCALES,
    SEEDS,
    Changes,
    best_of,
    beyond,
    decided,
    extended,
    kept,
    rates,
    seconds,
)
from attnres_cli.records.comparison_terms import Trial, Tuned, given_of
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import Identity, RunRecord
from attnres_cli.train.optimizers import design_parameters

Losses = Mapping[Identity, float]


def adds_parameters(arm: Arm, recipe: Recipe) -> bool:
    """Whether a design adds parameters that may learn at another rate."""
    return bool(design_parameters(sketch(arm.variant, recipe.model.shape(vocab_size=1))))


def first(plan: Plan, _losses: Losses) -> Plan:
    """Every arm of the plan at every rate; the baseline is one of the arms."""
    of_arms = [[(arm, ((LR, lr),)) for lr in _first(arm, plan)] for arm in plan.arms]
    in_turn = [each for at in zip_longest(*of_arms) for each in at if each is not None]
    return tried(plan, in_turn)


def further(plan: Plan, losses: Losses) -> Plan:
    """The rates beyond the grid, for arms whose best is at its edge."""
    wanted = []
    for arm in plan.arms:
        grid, seen = _grid(arm, plan, losses), _first(arm, plan)
        wanted += [(arm, ((LR, lr),)) for lr in grid if lr not in seen]
    return tried(plan, wanted)


def second(plan: Plan, losses: Losses) -> Plan:
    """The second number of every arm at its best rate; less those whose rates are not known."""
    wanted = []
    for arm in plan.arms:
        lr = _best_rate(arm, plan, losses)
        wanted += [] if lr is None else _seconds(arm, plan, lr)
    return tried(plan, wanted)


def last(plan: Plan, losses: Losses) -> Plan:
    """A setting beyond the others, for arms whose best is the last of its kind."""
    wanted = []
    for arm in plan.arms:
        lr = _best_rate(arm, plan, losses)
        wanted += [] if lr is None else _seconds(arm, plan, lr, losses)[len(SCALES) :]
    return tried(plan, wanted)


def second_at_shared(plan: Plan) -> Plan:
    """What `second` will be like, before the best rates are known."""
    at = [(arm, plan.recipe_of(arm).optim.lr) for arm in plan.arms]
    return tried(plan, [each for arm, lr in at for each in _seconds(arm, plan, lr)])


SECOND = "a second number at the best rate, on the same seeds"
STAGES: Mapping[str, Callable[[Plan, Losses], Plan]] = {
    "learning rates, on seeds kept for them": first,
    "learning rates beyond the grid, where its edge was best": further,
    SECOND: second,
    "second numbers beyond the grid, where its edge was best": last,
}
"""By title: what to train next, given the losses of all before; without arms where nothing is."""


def tuned(plan: Plan, losses: Losses) -> Plan:
    """The plan with each arm at its own settings, without arms of which none is known."""
    arms = [arm for each in plan.arms if (arm := _tuned(each, plan, losses)) is not None]
    terms = replace(plan.terms, is_tuned=True, by_design=False)  # as it is read back
    return replace(plan, arms=tuple(arms), terms=terms, done=frozenset())


def has_seconds(plan: Plan) -> bool:
    """Whether a second number is tuned of any arm, so that its rate alone is something else."""
    return any(given_of(arm.how) is None for arm in plan.arms)


def at_rates(found: Plan, before: Plan) -> Plan:
    """A tuned plan with the learning rates alone; `before` is the one that was tuned."""
    recipes = {arm.variant: before.recipe_of(arm) for arm in before.arms}
    arms = []
    for arm in found.arms:
        assert isinstance(arm.how, Tuned)
        arms.append(replace(arm, recipe=recipes[arm.variant].at_rate(arm.how.lr), how=None))
    return replace(found, arms=tuple(arms), terms=replace(found.terms, rate_only=True))


def diverged(plan: Plan, losses: Losses) -> list[str]:
    """The arms that diverged at every rate."""
    found = []
    for arm in plan.arms:
        tries = trials(arm, plan, losses, [((LR, lr),) for lr in _first(arm, plan)])
        if all(trial is not None and trial.mean is None for trial in tries):
            found.append(arm.variant)
    return found


def losses_of(records: Sequence[RunRecord]) -> Losses:
    """What runs have come to; nan where one diverged."""
    return {run.identity: run.result.val_loss for run in records if run.result is not None}


def tried(plan: Plan, wanted: Sequence[tuple[Arm, Changes]]) -> Plan:
    """The plan of these arms at these settings, on the tuning seeds."""
    arms = [
        replace(arm, recipe=plan.recipe_of(arm).changed(*changes), how=None)
        for arm, changes in wanted
    ]
    return replace(plan, arms=tuple(arms), seeds=SEEDS, done=frozenset())


def _seconds(
    arm: Arm, plan: Plan, lr: float, losses: Losses | None = None
) -> list[tuple[Arm, Changes]]:
    """Settings of an arm at its best rate: three, and given `losses` one more where the best of
    them is the last of its kind. None of an arm that has settings of its own in the recipe.
    """
    if given_of(arm.how) is not None:
        return []
    own = plan.recipe_of(arm)
    changes = seconds(own.optim, adds=adds_parameters(arm, own))
    settings = [((LR, lr), *each) for each in changes]
    if losses is not None:
        best = best_of(trials(arm, plan, losses, [((LR, lr),), *settings]))
        more = beyond(own.optim, changes[best - 1]) if best else ()
        settings += [((LR, lr), *each) for each in more]
    return [(arm, each) for each in settings]


def trials(arm: Arm, plan: Plan, losses: Losses, settings: Sequence[Changes]) -> list[Trial | None]:
    """What came of each setting; None where not all of its runs have ended."""
    found: list[Trial | None] = []
    for changes in settings:
        at = replace(arm, recipe=plan.recipe_of(arm).changed(*changes))
        known = [losses.get(plan.spec(at, seed).identity) for seed in SEEDS]
        trained = [loss for loss in known if loss is not None]
        finite = tuple(loss if math.isfinite(loss) else None for loss in trained)
        found.append(Trial(changes, finite) if len(trained) == len(SEEDS) else None)
    return found


def _first(arm: Arm, plan: Plan) -> tuple[float, ...]:
    """The rates that an arm tries first."""
    return rates(plan.recipe_of(arm).optim.lr, is_own=given_of(arm.how) is not None)


def _grid(arm: Arm, plan: Plan, losses: Losses) -> tuple[float, ...]:
    """The rates of an arm: more than the first where the best of these is at an edge."""
    grid = _first(arm, plan)
    return extended(grid, best_of(trials(arm, plan, losses, [((LR, lr),) for lr in grid])))


def _best_rate(arm: Arm, plan: Plan, losses: Losses) -> float | None:
    grid = _grid(arm, plan, losses)
    best = best_of(trials(arm, plan, losses, [((LR, lr),) for lr in grid]))
    return None if best is None else grid[best]


def _tuned(arm: Arm, plan: Plan, losses: Losses) -> Arm | None:
    own, grid = plan.recipe_of(arm), _grid(arm, plan, losses)
    by_rate = trials(arm, plan, losses, [((LR, lr),) for lr in grid])
    best = best_of(by_rate)
    if best is None:
        return None
    settings = [changes for _, changes in _seconds(arm, plan, grid[best], losses)]
    more = trials(arm, plan, losses, settings)
    adds = adds_parameters(arm, own)
    how = decided(own.optim.lr, by_rate, more, on_a_line=adds)
    if how is None:
        return None
    if (given := given_of(arm.how)) is not None:
        how = kept(how, given)
    how = replace(how, rate_digest=own.at_rate(how.lr).digest)
    return replace(arm, recipe=own.changed((LR, how.lr), *how.changes), how=how)
