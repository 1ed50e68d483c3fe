"""What `attnres ablate` does under one recipe: plan, train what is missing, compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from attnres_cli.config.as_typed import differing, settings
from attnres_cli.config.margin import nats
from attnres_cli.config.recipe import Recipe
from attnres_cli.data.sources import beginning, load
from attnres_cli.data.tokens import Tokens
from attnres_cli.lab import by_design, carried, grid, match, memory, not_shared, step_times, tune
from attnres_cli.lab.experiment import Experiment, Place, Watcher
from attnres_cli.lab.study_view import Held
from attnres_cli.lab.unread import Unread, unread
from attnres_cli.lab.until_decided import Growing, Until, foreseen
from attnres_cli.records.comparison_terms import ArmRecipe, Match, Terms
from attnres_cli.records.computed import first_of, may_agree, placed, settings_of
from attnres_cli.records.gates import has_failed
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import RunRecord
from attnres_cli.store.optuna import make_tables
from attnres_cli.store.store import Store
from attnres_cli.train import device as computing
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.labels import warnings
from attnres_cli.verdict.slope import stated

RATED = "each arm at its own learning rate"
TUNED = "each arm at its own settings"


@dataclass(frozen=True)
class Request:
    """What was typed of a comparison, beside its recipe."""

    specs: Sequence[str]
    seeds: tuple[int, ...]
    baseline: str
    match: Match
    tune_lr: bool
    place: Place
    margin: str | None = None
    until: Until | None = None
    tuned_at: Recipe | None = None  # with tune_lr: the size whose settings are carried over
    is_largest: bool = False  # of such sizes: the one at which they are checked


@dataclass(frozen=True)
class Ablation:
    """A comparison under one recipe. `shared` has all arms, each under the recipe itself, or at
    its learning rate for the design.
    """

    request: Request
    tokens: Tokens
    shared: Plan
    baseline: str
    watcher: Watcher
    base: Recipe | None = None  # `tuned_at`, as the study holds it

    def _planned(self) -> tuple[Plan, list[RunRecord], Store | None]:
        """The plan, and the runs that the study holds, if there is one."""
        held, recipe = Store.existing(self.request.place.study), self.shared.recipe
        own = held.arm_recipes(recipe.digest, self.tokens.fingerprint) if held else []
        plan, records = self._matched(own), held.runs(curves=False) if held else []
        if self.request.place.retry_failed:  # these are trained again
            records = [record for record in records if not has_failed(record)]
        if self.request.until is not None:  # refused before anything is written
            self.request.until.fixed(held, self.shared, self.baseline)
        if grid.without(plan, records).missing and held is not None:
            for note in not_shared.notes(plan, records, held):
                self.watcher.note(note)
        missing = grid.without(plan, records)  # refused before anything is written
        memory.fitted(missing, self.tokens, self.request.place.workers)
        return plan, records, held

    def foreseen(self) -> Iterator[tuple[Plan, str]]:
        """The plans to carry out, with titles, so far as they are known before the first run.
        Raises UsageError and VariantError as `compared`.
        """
        plan, records, held = self._planned()
        folder_of = held.folder_of if held else None

        def timed(part: Plan) -> Plan:
            part = grid.without(part, records, folder_of)
            part = memory.fitted(part, self.tokens, self.request.place.workers)
            return step_times.timed(part, self.tokens, self.watcher.note, self.baseline)

        plan = timed(plan)
        if (until := self.request.until) is not None:
            self.watcher.note(foreseen(plan, until.fixed(held, plan, self.baseline)))
        yield plan, ""
        if not self.request.tune_lr:
            return
        losses = tune.losses_of(records)
        if self.base is not None:
            tuned, _ = self._carried(plan, held)
            if self.request.is_largest and tuned.arms:
                yield timed(carried.checking(tuned)), carried.CHECK
        else:
            for title, stage in tune.STAGES.items():
                if (part := stage(plan, losses)).arms:
                    yield timed(part), title
            tuned = tune.tuned(plan, losses)
        if len(tuned.arms) == len(plan.arms):
            if tune.has_seconds(plan):
                yield timed(tune.at_rates(tuned, plan)), RATED
            yield timed(tuned), TUNED

    def compared(self) -> tuple[list[Comparison], int]:
        """Train what is missing; the comparisons (more at tuned settings), number of failures, each
        arm that no setting suits among them. Raises UsageError where an arm cannot be made equal to
        the baseline.
        """
        plan, records, _ = self._planned()
        place = self.request.place
        store = Store.open(place.study, create=True)
        experiment = Experiment(place, store, self.tokens, self.watcher, self.baseline)
        if grid.without(plan, records).missing:
            experiment.prepare(plan)
        if not store.knows_optuna():
            make_tables(place.study)
        if self.request.until is not None:
            self.request.until.fixed(store, self.shared, self.baseline, write=True)
        facts = self.tokens.description
        kept = store.keep_arm_recipes(plan, facts)  # of two commands one was first to time
        plan, is_tuned = self._matched(kept), self.request.tune_lr
        plan = experiment.complete(plan, "", None if is_tuned else self._more(plan, experiment))
        asked, diverged = [plan.terms], 0
        if is_tuned:
            tuned, diverged = self._tuned(plan, experiment)
            if tuned.arms:
                if tune.has_seconds(plan):
                    rated = tune.at_rates(tuned, plan)
                    experiment.records([*rated.specs, *tuned.specs])  # at one moment, as one plan
                    experiment.complete(rated, RATED)
                more = self._more(tuned, experiment)
                asked.append(experiment.complete(tuned, TUNED, more).terms)
        return self._judged(store, asked), len(experiment.failed) + diverged

    def _more(self, plan: Plan, experiment: Experiment) -> Growing | None:
        """What gives arms more seeds until they are decided, if that is asked for."""
        until, store = self.request.until, experiment.store
        if until is None:
            return None
        most = until.fixed(store, self.shared, self.baseline)

        def judged() -> Comparison | None:
            found = self._judged(store, [plan.terms])
            every = [each for one in found for each in (*one.beside, one)]
            mine = [one for one in every if one.terms == plan.terms and one.base is not None]
            return next(iter(mine), None)

        return Growing(experiment, plan, self.baseline, most, until.seeds, judged)

    def _matched(self, own: Sequence[ArmRecipe]) -> Plan:
        """The plan with its arms made equal in what was asked for; `own` are known already."""
        asked, note = self.request.match, self.watcher.note
        return match.matched(self.shared, asked, self.baseline, self.tokens, own, note)

    def _tuned(self, plan: Plan, experiment: Experiment) -> tuple[Plan, int]:
        """The plan at the settings that the tuning runs speak for, which are trained first; and how
        many arms diverged at every rate.
        """
        if self.base is not None:
            return self._checked(plan, experiment), 0
        for title, stage in tune.STAGES.items():
            part = stage(plan, tune.losses_of(experiment.store.runs(curves=False)))
            if part.arms:
                experiment.complete(part, title)
        losses = tune.losses_of(experiment.store.runs(curves=False))
        tuned = tune.tuned(plan, losses)
        experiment.store.keep_arm_recipes(tuned, self.tokens.description)
        chosen, diverged = {arm.variant for arm in tuned.arms}, tune.diverged(plan, losses)
        for variant in [arm.variant for arm in plan.arms if arm.variant not in chosen]:
            why = "it diverged at every learning rate that was tried"
            if variant not in diverged:
                why = "its tuning runs have not all ended well"
            self.watcher.warn(f"{variant}: no settings of its own, {why}")
        for line in warnings(tuned.arm_recipes):
            self.watcher.warn(line)
        return tuned, len(diverged)

    def _carried(self, plan: Plan, store: Store | None) -> tuple[Plan, list[str]]:
        """The plan at the settings of the base, and the arms that have none there."""
        assert self.base is not None
        found = store.arm_recipes(self.base.digest, self.tokens.fingerprint) if store else []
        specs = [self.request.baseline, *self.request.specs]
        return carried.carried(plan, found, self.base, specs)

    def _checked(self, plan: Plan, experiment: Experiment) -> Plan:
        """The plan at the settings of the base, which are checked if it is the largest."""
        tuned, without = self._carried(plan, experiment.store)
        experiment.store.keep_arm_recipes(tuned, self.tokens.description)
        for variant in without:
            self.watcher.warn(f"{variant}: no settings of its own, none were found at optim.base")
        if self.request.is_largest and tuned.arms:
            experiment.complete(carried.checking(tuned), carried.CHECK)
            losses = tune.losses_of(experiment.store.runs(curves=False))
            for line in carried.told(tuned, losses):
                self.watcher.warn(line)
        return tuned

    def _judged(self, store: Store, asked: Sequence[Terms]) -> list[Comparison]:
        """What `attnres report` says on these terms, or on those that leave them no words of their
        own, of all arms that the study holds by the code of now: a verdict is the same whichever
        command gives it.
        """
        held = Held(store, self.request.place.study, store.runs(curves=False), self.request.margin)
        recipe = f"{self.shared.recipe.digest}@{self.tokens.fingerprint}"
        codes = {arm.code.digest for arm in self.shared.arms}
        found = held.comparisons(held.choose(recipe, self.baseline, codes))
        mine = [one for one in found if {one.terms, *(e.terms for e in one.beside)} & {*asked}]
        return held.kept(mine or found)


def _held(
    asked: Recipe,
    store: Store | None,
    records: Sequence[RunRecord],
    place: Place,
    watcher: Watcher,
) -> Recipe:
    """The first recipe of the study that computes here what the one asked for does: its runs are
    those that are asked for. One that keeps less of each sublayer may be what fits into memory.
    """
    held = store.recipes() if store else {}
    alike = {
        digest: recipe
        for digest, recipe in {**held, asked.digest: asked}.items()
        if recipe.train.checkpoint_activations == asked.train.checkpoint_activations
        and may_agree(recipe, asked)
    }
    if len(alike) == 1:
        return asked
    device, ended = computing.devices(place.device)[0], settings_of(records)
    here = {digest: grid.settings(each, device, 1, place.engine) for digest, each in alike.items()}
    fixed = {each.recipe_digest for each in store.registrations()} if store else set()
    digest = first_of(alike, here | ended, fixed)[asked.digest]
    if digest == asked.digest:
        return asked
    same, values = alike[digest], settings(asked)
    keys = ", ".join(f"{key}={values.get(key)}" for key in differing([asked, same]))
    watcher.note(f"{keys} changes no loss: the runs are those of recipe {same.name} ({digest})")
    return placed(same, asked)


def _tokens(recipe: Recipe, watcher: Watcher) -> Tokens:
    """What is trained on. For GPUs that are not here nothing is fetched from a hub."""
    if computing.assumed() is None or recipe.data.source != "huggingface":
        return load(recipe)
    watcher.note(f"data.path {recipe.data.path} is not read: GPUs are assumed, nothing is trained")
    return unread(recipe)


def check_margin(typed: str | None, recipe: Recipe) -> None:
    """Raise RecipeError for a margin, by default the recipe's, that is none under this recipe."""
    if (margin := typed or recipe.margin) is not None:
        slope = stated(recipe)
        nats(margin, slope.value if slope else None)


def ablation(request: Request, recipe: Recipe, watcher: Watcher) -> Ablation:
    """A comparison under one recipe; loads its data, and tells what is not as it was typed."""
    check_margin(request.margin, recipe)
    tokens, place = _tokens(recipe, watcher), request.place
    held = Store.existing(place.study)
    records = held.runs(curves=False) if held else []
    recipe = _held(grid.named(recipe), held, records, place, watcher)
    for spec, name in grid.renamed(request.specs, recipe):
        watcher.note(f"{spec} is {name} in a model of {2 * recipe.model.n_layers} sublayers")
    (base,) = grid.resolve([request.baseline], recipe, tokens.vocab_size)
    arms = grid.resolve(request.specs, recipe, tokens.vocab_size)
    if base.variant not in {arm.variant for arm in arms}:
        watcher.note(
            f"the baseline {base.variant} is trained too: every verdict is a difference from it"
        )
        arms = (base, *arms)

    def planned(before: Sequence[RunRecord]) -> Plan:
        threads = grid.threads_of(before, held)
        on = (place.device, place.workers, place.engine, threads)
        plan = grid.make(recipe, arms, request.seeds, tokens.fingerprint, *on)
        if isinstance(tokens, Unread):
            return by_design.by_design(plan)
        begins = beginning(recipe.data, tokens)
        return by_design.by_design(replace(plan, data=tokens.description, beginning=begins))

    mine = {(spec.identity[:2], spec.code.digest) for spec in planned([]).specs}
    on_data = [run for run in records if run.fingerprint == tokens.fingerprint]
    shared = planned([run for run in on_data if (run.identity[:2], run.code) in mine])
    at = request.tuned_at
    at = None if at is None else _held(grid.named(at), held, records, place, watcher)
    return Ablation(request, tokens, shared, base.variant, watcher, at)
