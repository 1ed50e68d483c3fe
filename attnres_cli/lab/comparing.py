"""What `attnres ablate` does under one recipe: plan, train what is missing, compare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnres_cli.console import say

if TYPE_CHECKING:
    from attnres_cli.config.recipe import Recipe
    from attnres_cli.data.tokens import Tokens
    from attnres_cli.records.comparison_terms import ArmRecipe, Match
    from attnres_cli.records.plan import Arm, Plan
    from attnres_cli.records.run import RunRecord
    from attnres_cli.store.store import Store
    from attnres_cli.verdict.comparison import Comparison

_TUNING, _TUNED = "learning rates, on seeds kept for them", "each arm at its own learning rate"


@dataclass(frozen=True)
class Asked:
    """What was typed of a comparison, beside its recipe."""

    specs: Sequence[str]
    seeds: tuple[int, ...]
    baseline: str
    match: Match
    tune_lr: bool
    study: str
    workers: int | None
    device: str
    engine: str
    retry_failed: bool


@dataclass(frozen=True)
class Size:
    """A comparison under one recipe, on its data.

    Attributes:
        shared: all arms and seeds, each under the recipe itself.
        baseline: by its canonical name.

    """

    asked: Asked
    tokens: Tokens
    shared: Plan
    baseline: str

    def matched(self, own: Sequence[ArmRecipe]) -> Plan:
        """The plan with its arms made equal in what was asked for; `own` are known already."""
        from attnres_cli.lab import match as matching

        return matching.matched(self.shared, self.asked.match, self.baseline, self.tokens, own, say)

    def planned(self) -> tuple[Plan, list[RunRecord]]:
        """What is to be done, and the runs that the study holds."""
        from attnres_cli.lab import grid
        from attnres_cli.store.store import Store

        held, recipe = Store.existing(self.asked.study), self.shared.recipe
        own = held.arm_recipes(recipe.digest, self.tokens.fingerprint) if held else []
        plan, records = self.matched(own), held.runs(curves=False) if held else []
        grid.check_code(plan, records)
        return plan, records

    def compared(self, plan: Plan) -> tuple[list[Comparison], int]:
        """The comparisons after all that was missing of them is trained, and how many failed."""
        from attnres_cli.store.store import Store
        from attnres_cli.verdict.registered import labelled

        store, facts = Store.open(self.asked.study, create=True), self.tokens.description
        kept = store.keep_arm_recipes(plan, facts)  # of two commands one was first to time
        laboratory = _Laboratory(self.asked, store, self.tokens, self.baseline)
        found = laboratory.compared(self.matched(kept))
        labels = labelled(found, store.runs(curves=False), facts, store.registrations())
        return labels, len(laboratory.failed)


def sized(asked: Asked, recipe: Recipe) -> Size:
    """What was asked for, under one recipe; its data are loaded."""
    from attnres_cli.data import sources
    from attnres_cli.lab import grid

    tokens = sources.load(recipe)
    (base,) = grid.resolve([asked.baseline], recipe, tokens.vocab_size)
    arms = _arms(asked.specs, base, recipe, tokens.vocab_size)
    on = (asked.device, asked.workers, asked.engine)
    shared = grid.make(recipe, arms, asked.seeds, tokens.fingerprint, *on)
    return Size(asked, tokens, shared, base.variant)


def foresee(plan: Plan, records: Sequence[RunRecord], tokens: Tokens, tune_lr: bool) -> None:
    """Print what would be trained, as far as it can be known before."""
    from attnres_cli.lab import grid, tune
    from attnres_cli.report.terminal import print_plan

    plan = _timed(grid.without(plan, records), tokens)
    print_plan(plan, sys.stdout)
    if not tune_lr:
        return
    print_plan(_timed(grid.without(tune.grid(plan), records), tokens), sys.stdout, _TUNING)
    tuned = tune.tuned(plan, records)
    if len(tuned.arms) == len(plan.arms):
        print_plan(_timed(grid.without(tuned, records), tokens), sys.stdout, _TUNED)
    else:
        runs = len(plan.arms) * len(plan.seeds)
        sys.stdout.write(f"then {runs} runs at most, each arm at the rate chosen for it\n")


def _arms(specs: Sequence[str], base: Arm, recipe: Recipe, vocab_size: int) -> tuple[Arm, ...]:
    """The arms of these specs and the baseline; says where they are not what was typed."""
    from attnres_cli.lab import grid

    for spec, name in grid.renamed(specs, recipe):
        say(f"{spec} is {name} in a model of {2 * recipe.model.n_layers} sublayers")
    typed = grid.resolve(specs, recipe, vocab_size)
    if base.variant in {arm.variant for arm in typed}:
        return typed
    say(f"the baseline {base.variant} is trained too: every verdict is a difference from it")
    return (base, *typed)


def _timed(plan: Plan, tokens: Tokens) -> Plan:
    from attnres_cli.lab import grid

    if any(arm.step_s is None for arm, _ in plan.missing):
        say("timing a few training steps of every arm")
    return grid.timed(plan, tokens)


@dataclass
class _Laboratory:
    """Trains plans and compares what came of them."""

    asked: Asked
    store: Store
    tokens: Tokens
    baseline: str
    failed: set[int] = field(default_factory=set)  # run ids

    def compared(self, plan: Plan) -> list[Comparison]:
        """The comparison of a plan, and the one at tuned learning rates if that is asked for."""
        from attnres_cli.lab import tune
        from attnres_cli.verdict.labels import warnings

        plan = self._trained(plan)
        found = [self._judged(plan)]
        if not self.asked.tune_lr:
            return found
        tuning = self._trained(tune.grid(plan), _TUNING)
        tuned = tune.tuned(plan, self._runs(tuning))
        self.store.keep_arm_recipes(tuned, self.tokens.description)
        chosen = {arm.variant for arm in tuned.arms}
        for variant in [arm.variant for arm in plan.arms if arm.variant not in chosen]:
            say(f"{variant}: no learning rate of its own, its tuning runs have not all ended well")
        for line in warnings(tuned.arm_recipes):
            say(f"warning: {line}")
        if tuned.arms:
            found.append(self._judged(self._trained(tuned, _TUNED)))
        return found

    def _trained(self, plan: Plan, title: str = "") -> Plan:
        """Train what the study lacks of a plan; the plan, with its arms timed if need was."""
        from attnres_cli.lab import grid
        from attnres_cli.report.progress import progress
        from attnres_cli.report.terminal import print_plan

        facts = self.tokens.description
        records = self.store.plan(plan.specs, facts, retry_failed=self.asked.retry_failed)
        plan = grid.without(plan, records)
        if plan.missing:
            plan = _timed(plan, self.tokens)
            print_plan(plan, sys.stderr, title)
            ids = [record.id for record in records]
            with progress(plan, records) as on_event:
                grid.run(plan, self.asked.study, self.store, ids, on_event)
        self.failed |= {run.id for run in self._runs(plan) if run.status == "failed"}
        return plan

    def _runs(self, plan: Plan) -> list[RunRecord]:
        from attnres_cli.lab import grid

        digests = sorted({digest for _, digest in plan.digests})
        records = [run for d in digests for run in self.store.runs(recipe_digest=d, curves=False)]
        return grid.belonging(plan, records)

    def _judged(self, plan: Plan) -> Comparison:
        from attnres_cli.verdict.comparison import compare

        facts = self.tokens.description
        return compare(self._runs(plan), facts, self.baseline, plan.terms, plan.arm_recipes)
