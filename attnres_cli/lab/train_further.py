"""A finished run trained further, where longer runs of its schedule begin as it did."""

from __future__ import annotations

import math
from dataclasses import replace

from attnres_cli.config.recipe import Recipe
from attnres_cli.data import sources
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid, verify
from attnres_cli.lab.branches import begin, kept
from attnres_cli.lab.experiment import Experiment, Place, Watcher
from attnres_cli.lab.workers.provenance import code_of
from attnres_cli.records.run import WAITS, RunRecord, Status
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import newest_step
from attnres_cli.train.loop import joint


def longer(recipe: Recipe, tokens: int) -> Recipe:
    """The recipe with more tokens and as many steps of warm-up. Raises UsageError where its runs
    are not the beginning of such longer ones.
    """
    own, warmup = recipe.at(tokens), math.ceil(recipe.optim.warmup_fraction * recipe.steps)
    if own.steps <= recipe.steps:
        raise UsageError(
            f"--tokens: the run has had {recipe.train.tokens:,}: more are needed, got {tokens:,}"
        )
    if not joint(recipe):
        how = "a cosine falls from the warm-up on"
        if recipe.optim.schedule == "wsd":
            how = "its decay begins before the warm-up ends"
        raise UsageError(
            f"its learning rate is that of {recipe.train.tokens:,} tokens from the start ({how}): "
            "only what was trained with optim.schedule=wsd, or optim.final_lr_fraction=1, can go on"
        )
    fractions = [float(f"{warmup / own.steps:.{digits}g}") for digits in range(1, 18)]
    fractions.append((warmup - 0.5) / own.steps)  # 0.28 * 100 is above 28
    fraction = next(f for f in fractions if math.ceil(f * own.steps) == warmup)
    optim = own.optim.model_copy(update={"warmup_fraction": fraction})
    own = own.model_copy(update={"optim": optim})
    if joint(own) < joint(recipe):
        raise UsageError(
            f"--tokens {tokens:,}: its decay would begin before step {joint(recipe)}, from which "
            "the run goes on: more are needed"
        )
    return own


def extend(place: Place, run_id: int, tokens: int, watcher: Watcher) -> RunRecord:
    """Train a run of the study to more tokens, as a run of its own, and return it.

    It goes on from where the decay begins, or from the end where there is none: its final loss and
    weights are, bit for bit, those of a run that had the tokens from the start. Points of its curve
    and probes before are those of the first run. Raises UsageError where that cannot be.
    """
    store = Store.open(place.study, create=True)
    (record,) = store.runs(ids=[run_id])
    if record.status is not Status.COMPLETE or record.result is None:
        raise UsageError(f"run {run_id} is {record.status}: only what is complete can go on")
    recipe = store.recipe(record.recipe_digest, record.fingerprint)
    longer(recipe, tokens)  # refused before data are loaded
    data = sources.load(recipe)
    plan, _ = verify.plan(record, recipe, data)
    (arm,) = plan.arms
    arm = replace(arm, code=code_of(record.variant), step_s=record.result.step_s)
    own = longer(plan.recipe, tokens)  # with how ranks share the run
    plan = replace(plan, recipe=own, arms=(arm,))
    (spec,) = plan.specs
    taken = kept(store, record, spec, plan.settings)
    experiment = Experiment(place, store, data, watcher)
    (found,) = experiment.records(plan.specs)
    if found.status in WAITS and not newest_step(store.folder_of(found)):
        begin(store, found, spec, plan.settings, run_id, *taken)
    plan = grid.without(plan, [found], store.folder_of)
    if plan.missing:
        watcher.plan(plan, f"run {run_id} trained further")
    experiment.train_missing(plan, [found])
    return store.runs(ids=[found.id])[0]
