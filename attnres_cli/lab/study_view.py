"""What a study holds, read once, and the comparisons that follow from it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from attnres_cli.config.as_typed import bench_typed, is_searched
from attnres_cli.config.margin import nats
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import AttnresError, StudyError, UsageError, unknown
from attnres_cli.lab import ledger
from attnres_cli.records.comparison_terms import Terms
from attnres_cli.records.computed import first_of, settings_of
from attnres_cli.records.run import Probe, RunRecord
from attnres_cli.store.store import Store
from attnres_cli.verdict.caveats import OF_MOVING, still_moving
from attnres_cli.verdict.codes import of_one_code, shown
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.downstream import Downstream, downstream
from attnres_cli.verdict.ladder import Ladder, Rung, ladder
from attnres_cli.verdict.pays import step_ratios
from attnres_cli.verdict.registered import EXPLORATORY, compared
from attnres_cli.verdict.report_section import Chapter
from attnres_cli.verdict.select import (
    SHORTEST,
    Choice,
    Runs,
    comparable,
    named,
    of_shared,
    shared,
    with_rates,
    with_rates_alone,
)
from attnres_cli.verdict.slope import Slope, slope_of
from attnres_cli.verdict.two_recipes import Row, Side, rows

TASKS = "tasks"
"""Of which a table is in the ledger, beside that of losses."""


@dataclass
class Held:
    """What a study holds. `study` is its name as it was typed, `records` its runs, or those of them
    that are to be chosen from, without curves; `margin`, as it was typed, goes before a recipe's.
    Of every comparison the rows of `arms`, as they were typed, are given, and the baseline's.
    """

    store: Store
    study: str
    records: list[RunRecord]
    margin: str | None = None
    arms: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._recipes = self.store.recipes()
        self._registrations = self.store.registrations()
        fixed = {each.recipe_digest for each in self._registrations}
        self._first = first_of(self._recipes, settings_of(self.records), fixed)
        names = {digest: recipe.name for digest, recipe in self._recipes.items()}
        self._own = of_shared(with_rates_alone(self.store.arm_recipes()), self._first)
        self.records = with_rates(shared(self.records, self._first, names), self._own)
        by_time = sorted(
            self.records, key=lambda run: run.created_at
        )  # merged ones have new numbers
        self._runs = Runs(by_time, self._own, self.study, self._canonical)
        self._removed = tuple(
            replace(each, recipe_digest=self._first[each.recipe_digest])
            for each in self.store.removed()
        )

    def choose(self, recipe: str | None, baseline: str, codes: Collection[str] = ()) -> Choice:
        """The runs under one recipe by one code, by default the newest; see `select.choose`."""
        chosen = self._runs.choose(self._meant(recipe), baseline, codes)
        held = self._arms(chosen)
        for typed, name in self._rows(chosen).items():
            if name not in held:
                raise UsageError(unknown("arm of this recipe", typed, held))
        return chosen

    def every(self, recipe: str | None, baseline: str, codes: Collection[str] = ()) -> list[Choice]:
        """The runs under each recipe that is meant, by default all, those of the newest last."""
        newest = self.choose(recipe, baseline, codes)
        found = self._runs.every(newest, self._meant(recipe), baseline, codes)
        return [one for one in found if self._has_rows(one)]

    def sides(
        self, recipes: Sequence[str], codes: Collection[str] = ()
    ) -> tuple[Side, Side, list[Row]]:
        """Two recipes side by side, each the newest that is meant. Raises UsageError where there is
        no such recipe, where both are one, or none of the rows that are asked for.
        """
        found = []
        for recipe in recipes:
            chosen = self._runs.choose(self._meant(recipe), "standard", codes)
            digest, data = chosen.recipe_digest, self.store.data(chosen.fingerprint)
            of_bytes = self.store.evaluated(digest, chosen.fingerprint)
            found.append(Side(self.recipe(digest), chosen, data, of_bytes))
        first, second = found
        one = first.recipe.digest
        if (one, first.data) == (second.recipe.digest, second.data):
            raise UsageError(
                f"--recipe {recipes[0]} and --recipe {recipes[1]} are the same recipe, {one}: "
                "digests, as attnres runs has them, tell recipes of one name apart"
            )
        every = rows(first, second, "standard")
        variants = {row.variant for row in every}
        names = [named(typed, one, variants, self._canonical) for typed in self.arms]
        for name in names:
            if name not in variants:
                raise UsageError(unknown("arm of these recipes", name, variants))
        return first, second, [row for row in every if not names or row.variant in names]

    def by_recipe(self, recipes: Sequence[str], codes: Collection[str] = ()) -> list[Comparison]:
        """The comparisons under each of these recipes, of all rows."""
        chosen = [self._runs.choose(self._meant(each), "standard", codes) for each in recipes]
        return self.kept([one for each in chosen for one in self._compared(each)])

    def _meant(self, recipe: str | None) -> str | None:
        """What --recipe names, by its digest if it computes what an earlier one does."""
        start, at, data = (recipe or "").partition("@")
        for digest, first in self._first.items():
            is_named = len(start) >= SHORTEST and digest.startswith(start)
            if digest != first and (is_named or self._recipes[digest].name == recipe):
                known = {run.recipe for run in self.records}
                return recipe if recipe in known else f"{first}{at}{data}"
        return recipe

    def _arms(self, chosen: Choice) -> set[str]:
        own = {each.variant for each in self._own if each.base_digest == chosen.recipe_digest}
        return own | {run.variant for run in chosen.records}

    def _rows(self, chosen: Choice) -> dict[str, str]:
        """By what was typed, the canonical names of the rows that are asked for under a recipe."""
        asked = chosen.recipe_digest, self._arms(chosen), self._canonical
        return {typed: named(typed, *asked) for typed in self.arms}

    def _has_rows(self, chosen: Choice) -> bool:
        """Whether a recipe has any of the rows; a spec that does not fit its depth has no runs."""
        try:
            return not self.arms or bool(self._arms(chosen) & {*self._rows(chosen).values()})
        except AttnresError:
            return False

    def _only(self, comparison: Comparison, chosen: Choice) -> Comparison:
        """The comparison with the rows that were asked for, as they stand in the whole table."""
        if not self.arms:
            return comparison
        names = {comparison.baseline, *self._rows(chosen).values()}
        arms = tuple(arm for arm in comparison.arms if arm.variant in names)
        return replace(comparison, arms=arms, n_hidden=len(comparison.arms) - len(arms))

    def _canonical(self, spec: str, digest: str) -> str:
        from attnres_cli.lab.grid import canonical  # with torch, which reports need only for this

        return canonical(spec, self.recipe(digest))

    def recipe(self, digest: str) -> Recipe:
        """The recipe of that digest."""
        return self._recipes[digest]

    def slope(self, chosen: Choice) -> Slope | None:
        """Of the baseline's loss over tokens, at the recipe chosen."""
        mine = (chosen.baseline, chosen.fingerprint)
        runs = [
            run
            for run in comparable(self.records)
            if (run.variant, run.fingerprint) == mine and not is_searched(run.recipe)
        ]
        runs = of_one_code(runs, {shown(run) for run in chosen.records})[0]
        recipes = {run.recipe_digest: self.recipe(run.recipe_digest) for run in runs}
        recipes[chosen.recipe_digest] = self.recipe(chosen.recipe_digest)
        return slope_of(chosen.recipe_digest, chosen.baseline, runs, recipes)

    def comparisons(self, chosen: Choice) -> list[Comparison]:
        """The comparisons under a recipe, the preregistered one first."""
        return [self._only(one, chosen) for one in self._compared(chosen)]

    def kept(self, found: Sequence[Comparison], kind: str = "") -> list[Comparison]:
        """The comparisons, each with the number of tables that the study was asked for, these
        included: it keeps that, see `ledger.kept`.
        """
        return ledger.kept(found, self.store, self.study, self._first, kind)

    def _compared(self, chosen: Choice) -> list[Comparison]:
        """The same, of all rows."""
        data = self.store.data(chosen.fingerprint)
        rules = self._rules(chosen)
        found = compared(self._runs, chosen, data, self._registrations, rules)
        return [self._with_measured(one) for one in found]

    def _with_measured(self, comparison: Comparison) -> Comparison:
        """The comparison with what of its arms was still moving when training ended, how long
        their steps take, and the bytes of what was evaluated.
        """
        runs = [run for run in comparison.records if run.result is not None]
        probes = self.store.probes([run.id for run in runs], only=OF_MOVING)
        last: dict[str, list[Probe]] = {}
        for run in runs:
            last.setdefault(run.variant, []).extend(probes[run.id][-1:])
        found = {variant: still_moving(each) for variant, each in last.items()}
        digest, base = comparison.recipe_digest, comparison.baseline
        timed = self._timed(comparison)
        ratios = step_ratios(self.store.step_ratios(digest), runs, base) if timed else {}
        ratios = {arm: ratio for arm, ratio in ratios.items() if arm in timed}
        lacking = [arm for arm in timed if arm not in {*ratios, base}]
        typed = bench_typed([base, *lacking], self.recipe(digest), self.study) if lacking else ""
        return replace(
            comparison,
            moving={arm: moved for arm, moved in found.items() if moved},
            step_ratios=ratios,
            evaluated=self.store.evaluated(digest, comparison.data.fingerprint),
            bench=typed,
        )

    def _timed(self, comparison: Comparison) -> list[str]:
        """The arms whose steps are those of the recipe's own shape, which is what is timed; none
        where each is trained for its own number of steps.
        """
        if comparison.terms.match == "time":
            return []
        model = self.recipe(comparison.recipe_digest).model
        digests = {arm.variant: arm.recipe_digest for arm in comparison.arms}
        return [
            name
            for name, digest in digests.items()
            if not digest or self.recipe(digest).model == model
        ]

    def downstream(self, chosen: Choice) -> list[Downstream]:
        """What tasks say beside each comparison under a recipe. Raises StudyError where no run of
        it has answered any.
        """
        comparisons = self.comparisons(chosen)
        items = self.store.items([run.id for one in comparisons for run in one.records])
        found = [downstream(one, items) for one in comparisons]
        if not items:
            raise StudyError(
                f"no run of recipe {found[0].comparison.recipe} has answered a task yet: "
                "`attnres evaluate` asks runs"
            )
        found = [each for each in found if each.tasks]
        kept = self.kept([each.comparison for each in found], TASKS)
        return [replace(each, comparison=one) for each, one in zip(found, kept, strict=True)]

    def _rules(self, chosen: Choice) -> Rules:
        """By what runs under a recipe are judged. Raises RecipeError where a margin is none."""
        recipe, found = self.recipe(chosen.recipe_digest), self.slope(chosen)
        margin, slope = self.margin or recipe.margin, found.value if found else None
        budgets = found.budgets if found else ()
        margin_nats = None if margin is None else nats(margin, slope)
        evaluated, is_routed = recipe.train.eval_tokens, "moe" in recipe.model.mlp
        table = (chosen.recipe_digest, chosen.fingerprint, chosen.baseline)
        return Rules(
            margin_nats, slope, budgets, self._removed, eval_tokens=evaluated, is_routed=is_routed,
            most=self.store.until_decided(*table), is_typed=self.margin is not None,
        )  # fmt: skip

    def chapters(self, chosen: Choice, *, whole: bool) -> list[Chapter]:
        """The comparisons under a recipe, each with its runs; the `whole` ones with what pages and
        figures show besides.
        """
        found = [Chapter(one, study=self.study) for one in self.comparisons(chosen)]
        return [self._whole(one) for one in found] if whole else found

    def _whole(self, chapter: Chapter) -> Chapter:
        """A chapter with curves, recipes and the last probes."""
        store, held = self.store, chapter.comparison
        ids = [run.id for run in held.records]
        last = {number: probes[-1] for number, probes in store.probes(ids).items() if probes}
        digests = {run.recipe_digest for run in held.records} | {held.recipe_digest}
        recipes = {digest: self.recipe(digest) for digest in digests}
        curved = {run.id: run for run in store.runs(ids=ids)}  # without those removed just now
        held = replace(held, records=tuple(curved.get(run.id, run) for run in held.records))
        return replace(chapter, comparison=held, probes=last, recipes=recipes)

    def ladders(self, chosen: Choice) -> list[Ladder]:
        """All sizes of a recipe's name on its data by its code, on each of the terms that two or
        more have. Raises StudyError where there is but one.
        """
        name, codes = chosen.records[-1].recipe, {shown(run) for run in chosen.records}
        sizes: dict[Terms, list[Rung]] = {}
        for one in self._runs.every(chosen, name, chosen.baseline, codes):
            if one.fingerprint == chosen.fingerprint and {shown(r) for r in one.records} & codes:
                recipe = self.recipe(one.recipe_digest)
                for terms, comparison in self._on_all_terms(one).items():
                    sizes.setdefault(terms, []).append(Rung(recipe, comparison))
        found, errors = [], []
        for rungs in sizes.values():
            try:
                found.append(ladder(rungs))
            except StudyError as error:  # on these terms one size
                errors.append(error)
        if not found:
            raise errors[0]
        kept = iter(self.kept([rung.comparison for one in found for rung in one.rungs]))
        return [self._told(one, [next(kept) for _ in one.rungs], chosen) for one in found]

    def _on_all_terms(self, chosen: Choice) -> dict[Terms, Comparison]:
        """The first comparison on each of the terms, settings by design for the shared ones'."""
        found: dict[Terms, Comparison] = {}
        for one in self._compared(chosen):
            for each in (*one.beside, one):
                if not each.terms.rate_only:
                    found.setdefault(replace(each.terms, by_design=False), each)
        return found

    def _told(self, found: Ladder, kept: Sequence[Comparison], chosen: Choice) -> Ladder:
        """The ladder with the rows that were asked for, of laws that were fitted to all; `kept` are
        its comparisons, as the study keeps them.
        """
        kept = [self._only(one, chosen) for one in kept]
        names = {arm.variant for one in kept for arm in one.arms}
        return replace(
            found,
            rungs=tuple(map(Rung, [rung.recipe for rung in found.rungs], kept)),
            arms=tuple(arm for arm in found.arms if arm.variant in names),
            registered=EXPLORATORY if self._registrations else "",
        )

    def every_ladder(self, shown: Sequence[Choice]) -> list[Ladder]:
        """Of each recipe's name and data, what its sizes say together, if it has several."""
        found = []
        keys = {(chosen.records[-1].recipe, chosen.fingerprint): chosen for chosen in shown}
        for chosen in reversed(keys.values()):
            try:
                found += self.ladders(chosen)
            except StudyError:  # one size
                continue
        return found
