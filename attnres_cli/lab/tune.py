"""A learning rate for every arm: the same grid, at the same budget, on seeds kept for it alone.

That every arm is trained at the baseline's best rate is the commonest way in which comparisons of
architectures are unfair (arXiv 2509.02046).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from attnres_cli.records.comparison_terms import Tuned
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import FIRST_TUNING_SEED, Identity, RunRecord
from attnres_cli.stats.optima import parabola_vertex
from attnres_cli.stats.pairs import mean_sd

SEEDS = (FIRST_TUNING_SEED, FIRST_TUNING_SEED + 1)
"""Of the tuning runs; `--seeds` takes none of them."""

_N_RATES = 5
_FACTOR = math.sqrt(2)


def rates(lr: float) -> tuple[float, ...]:
    """The grid around a recipe's learning rate: 0.01 -> 0.005, 0.00707, 0.01, 0.0141, 0.02."""
    steps = range(-(_N_RATES // 2), _N_RATES // 2 + 1)
    return tuple(_rounded(lr * _FACTOR**step) if step else lr for step in steps)


def grid(plan: Plan) -> Plan:
    """Every arm of the plan at every rate, on the tuning seeds; the baseline is one of the arms."""
    arms = [
        replace(arm, recipe=plan.recipe_of(arm).at_rate(lr), how=None)
        for lr in rates(plan.recipe.optim.lr)
        for arm in plan.arms
    ]
    return replace(plan, arms=tuple(arms), seeds=SEEDS, done=frozenset())


def tuned(plan: Plan, records: Sequence[RunRecord]) -> Plan:
    """The plan with each arm at its tuned rate, without arms whose tuning runs have not ended."""
    losses = {
        record.identity: record.result.val_loss for record in records if record.result is not None
    }
    arms = [_tuned(arm, plan, losses) for arm in plan.arms]
    terms = replace(plan.terms, is_tuned=True)
    found = tuple(arm for arm in arms if arm is not None)
    return replace(plan, arms=found, terms=terms, done=frozenset())


def _tuned(arm: Arm, plan: Plan, losses: dict[Identity, float]) -> Arm | None:
    own = plan.recipe_of(arm)
    shared, means = own.optim.lr, []
    grid = rates(shared)
    for lr in grid:
        at = replace(arm, recipe=own.at_rate(lr))
        found = [losses.get(plan.spec(at, seed).identity) for seed in SEEDS]
        known = [loss for loss in found if loss is not None]
        if len(known) < len(SEEDS):
            return None
        mean, _ = mean_sd(known)
        means.append(mean if math.isfinite(mean) else None)
    lr, is_on_edge, fit = choose(grid, means, shared)
    how = Tuned(shared, grid, tuple(means), SEEDS, lr, is_on_edge, fit)
    return replace(arm, recipe=own.at_rate(lr), how=how)


def choose(
    grid: Sequence[float], losses: Sequence[float | None], shared: float
) -> tuple[float, bool, str]:
    """A learning rate, whether it is at the grid's edge, and how it was chosen.

    The rate is the vertex of the parabola in log(lr) through the best rate of the ascending grid
    and its two neighbours, and lies between them. It is the best rate itself where that lacks two
    neighbours that trained, or all three are equal; the shared one where no rate trained. A loss is
    None where training diverged.
    """
    trained = [(loss, i) for i, loss in enumerate(losses) if loss is not None]
    if not trained:
        return shared, False, "training diverged at every rate: the shared one is kept"
    _, best = min(trained)
    if best in (0, len(grid) - 1):
        word = "largest" if best else "smallest"
        return grid[best], True, f"the best is the {word} of the grid: a better one may lie beyond"
    low, middle, high = losses[best - 1 : best + 2]
    if low is None or high is None:
        return grid[best], False, "the best of the grid: the rate next to it diverged"
    assert middle is not None
    logs = [math.log(lr) for lr in grid[best - 1 : best + 2]]
    vertex = parabola_vertex(logs, [low, middle, high])
    if vertex is None:
        return grid[best], False, "the best of the grid: its neighbours are as good"
    return _rounded(math.exp(vertex)), False, "parabola through the best of the grid and next to it"


def _rounded(lr: float) -> float:
    """To three digits, so that a rate can be read and typed."""
    return float(f"{lr:.3g}")
