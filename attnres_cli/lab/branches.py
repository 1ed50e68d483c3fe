"""Runs that go on from shorter ones: up to the decay of these they are the same run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError
from attnres_cli.lab.workers.provenance import made_with
from attnres_cli.lab.workers.worker import checkpoints_of
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import RunRecord, RunSpec, Settings, Status
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import LONGER, newest_step
from attnres_cli.train.loop import joint


def branch(store: Store, plan: Plan, records: Sequence[RunRecord]) -> None:
    """Let runs of a plan that have not begun go on from shorter ones of the study, where these are
    their beginning, so that several budgets cost little more than the largest.
    `records` are runs of it. What cannot be taken here is trained from the start.
    """
    arms = {(arm.variant, plan.recipe_of(arm).digest): arm for arm in plan.arms}
    pending = [record for record in records if record.status is Status.PENDING]
    fresh = [record for record in pending if not newest_step(store.folder_of(record))]
    if not fresh or not any(joint(plan.recipe_of(arm)) for arm in plan.arms):
        return
    ended = [run for run in store.runs(curves=False) if run.status is Status.COMPLETE]
    known = {run.recipe_digest: store.recipe(run.recipe_digest) for run in ended}
    for record in fresh:
        spec = plan.spec(arms[record.variant, record.recipe_digest], record.seed)
        same = [run for run in ended if _but_recipe(run) == _but_recipe(record)]
        shorter = [run for run in same if _is_beginning(known[run.recipe_digest], spec.recipe)]
        for run in sorted(shorter, key=lambda run: -joint(known[run.recipe_digest])):
            with suppress(UsageError, OSError):  # nothing is left, other versions, a full disk
                taken = kept(store, run, spec, plan.settings)
                begin(store, record, spec, plan.settings, run.id, *taken)
                break


def foreseen(plan: Plan, shorter: Sequence[Recipe]) -> Plan:
    """The plan with the steps from which its runs will go on, once those of shorter recipes that
    are planned before them have ended.
    """
    begun = dict(plan.begun)
    for arm, seed in plan.missing:
        of = plan.recipe_of(arm)
        steps = [joint(recipe) for recipe in shorter if _is_beginning(recipe, of)]
        begun.setdefault(plan.spec(arm, seed).identity, max(steps, default=0))
    return replace(plan, begun={identity: step for identity, step in begun.items() if step})


def _but_recipe(run: RunRecord) -> tuple[str, int, str, str]:
    return run.variant, run.seed, run.fingerprint, run.code


def _is_beginning(recipe: Recipe, of: Recipe) -> bool:
    """Whether runs of a recipe are, up to its decay, the beginning of those of a longer one."""
    if not 0 < joint(recipe) <= joint(of) or recipe.steps >= of.steps:
        return False
    steps = [math.ceil(each.optim.warmup_fraction * each.steps) for each in (recipe, of)]
    theirs = {name: getattr(recipe.optim, name) for name in ("warmup_fraction", "decay_fraction")}
    alike = of.at(recipe.train.tokens)
    alike = alike.model_copy(update={"optim": alike.optim.model_copy(update=theirs)})
    return steps[0] == steps[1] and alike.digest == recipe.digest


def kept(
    store: Store, run: RunRecord, spec: RunSpec, settings: Settings
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a run has kept for longer ones, computed as `spec` is now. Raises UsageError."""
    held = checkpoints_of(store, run, settings, made_with(spec, settings))
    return replace(held, folder=held.folder / LONGER).take()


def begin(
    store: Store,
    found: RunRecord,
    spec: RunSpec,
    settings: Settings,
    origin: int,
    state: dict[str, Any],
    tensors: dict[str, Tensor],
) -> None:
    """Write a run down as if it had come as far as the one of number `origin`."""
    checkpoints_of(store, found, settings, made_with(spec, settings)).save(
        state["step"], state, tensors
    )
    if not found.note:
        store.note(found.id, f"trained on from run {origin}, step {state['step']}")
