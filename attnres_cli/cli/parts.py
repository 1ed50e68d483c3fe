"""What `attnres ablate` trains, part by part: sizes of a ladder, comparisons of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnres_cli.config.recipe import Recipe
from attnres_cli.console import note, told_if_slow
from attnres_cli.data import sources
from attnres_cli.lab import branches, carried, grid, tune
from attnres_cli.lab.comparing import RATED, TUNED, Ablation, Request, ablation, check_margin
from attnres_cli.lab.experiment import Place
from attnres_cli.lab.grid import canonical, resolve
from attnres_cli.lab.until_decided import Until
from attnres_cli.records.plan import Plan
from attnres_cli.records.preregister import LEAST_SEEDS, Registration, read
from attnres_cli.records.run import Identity
from attnres_cli.report.plans import Step, in_all, plan_of, summed
from attnres_cli.report.progress import OnStderr
from attnres_cli.report.table import Report, joined
from attnres_cli.store.store import Store
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.numbers import plural

PLANNING = "still planning: many runs or large models take a while; Ctrl-C ends it"


@dataclass(frozen=True)
class Part:
    """One comparison, and what it is called beside others; empty where it is the only one."""

    title: str
    request: Request
    recipe: Recipe

    def ablation(self) -> Ablation:
        """What trains it."""
        if self.title:
            note(self.title)
        part, _, _ = self.title.partition(":")
        watcher = OnStderr(is_live=not self.request.place.in_process, part=part)
        with told_if_slow(PLANNING):
            return ablation(self.request, self.recipe, watcher)


def of_sizes(
    request: Request, whole: Recipe, sizes: Sequence[Recipe], *, all_here: bool
) -> list[Part]:
    """One part for each size of a recipe. Raises UsageError where an arm does not fit one of them:
    nothing is trained before that is known.
    """
    for size in sizes[1:] if all_here else sizes:
        resolve([request.baseline, *request.specs], size, vocab_size=256)
    if len(sizes) == 1:
        return [Part("", request, sizes[0])]
    changes = [", ".join(f"{k}={v}" for k, v in dict(rung).items()) for rung in whole.ladder]
    parts = [
        Part(f"size {number} of {len(sizes)}: {changed}", request, size)
        for number, (changed, size) in enumerate(zip(changes, sizes, strict=True), 1)
    ]
    base = carried.base_of(sizes) if request.tune_lr else None
    return parts if base is None else _carrying(parts, base)


def of_recipes(parts: Sequence[Sequence[Part]]) -> list[Part]:
    """The parts of several recipes, each with the name of its own."""
    if len(parts) == 1:
        return list(parts[0])
    return [
        replace(part, title=", ".join(filter(None, (f"recipe {part.recipe.name}", part.title))))
        for own in parts
        for part in own
    ]


def recipes_of(parts: Sequence[Part]) -> list[Recipe]:
    """The recipes of all parts, by canonical names of designs; none where more come of tuning."""
    if any(part.request.tune_lr for part in parts):
        return []
    return [grid.named(part.recipe) for part in parts]


def _carrying(parts: list[Part], base: int) -> list[Part]:
    """The part that is tuned first; the others take its settings, and the largest checks them."""
    first = parts.pop(base)

    def n_params(part: Part) -> int:
        return resolve([part.request.baseline], part.recipe, vocab_size=256)[0].n_params

    largest = max(parts, key=n_params)
    others = [
        replace(
            part,
            request=replace(
                part.request, tuned_at=first.recipe, is_largest=part.recipe == largest.recipe
            ),
        )
        for part in parts
    ]
    return [first, *others]


def of_plan(name: str, place: Place) -> list[Part]:
    """The comparisons of a plan."""
    todo = []
    for found, recipe in read(name, canonical):
        resolve(found.arms, recipe, vocab_size=256)
        matches = dict.fromkeys(["tokens", *(found.match or ())])
        todo += [(found, recipe, match) for match in matches]
    parts = []
    for number, (found, recipe, match) in enumerate(todo, 1):
        tune_lr = bool(found.tune_lr) and match == "tokens"
        margin = None if found.margin is None else str(found.margin)
        check_margin(margin, recipe)
        until = Until(seeds=found.seeds) if found.until else None
        seeds = found.seeds[:LEAST_SEEDS] if until else found.seeds
        # Without the margin: the study has it with the plan, and one that is typed is another.
        request = Request(found.arms, seeds, found.baseline, match, tune_lr, place, until=until)
        then = ", then each arm at its own learning rate" if tune_lr else ""
        title = (
            f"part {number} of {len(todo)}: {plural(len(found.arms), 'arm')} x "
            f"{'up to ' if until else ''}{plural(len(found.seeds), 'seed')} under recipe "
            f"{recipe.name} ({recipe.digest}), equal {match}{then}"
        )
        parts.append(Part(title, request, recipe))
    return parts


def fix(name: str, study: str) -> list[tuple[Registration, Recipe]]:
    """Write a plan into the study, which is made if it is not there; what it fixes. Raises
    RecipeError or VariantError where the plan is wrong, StudyError where the study holds runs of
    one of its recipes or another preregistration of it.
    """
    found = read(name, canonical)
    Store.open(study, create=True).register(found)
    return found


def foreseen(parts: Sequence[Part]) -> Report:
    """The plans of all parts, each of what those before it leave to train, and what all take."""
    found: list[Report] = []
    rows: list[Step] = []
    before: frozenset[Identity] = frozenset()
    shorter: list[Recipe] = []
    for part in parts:
        plans = []
        for plan, title in part.ablation().foreseen():
            left = branches.foreseen(replace(plan, done=plan.done | before), shorter)
            plans.append((left, title))
            found.append(plan_of(*plans[-1]))
        for plan, _ in plans:
            shorter += [plan.recipe_of(arm) for arm in plan.arms]
            before |= {plan.spec(arm, seed).identity for arm, seed in plan.missing}
        steps = [_step(plan, title or "the recipe's settings") for plan, title in plans]
        if part.request.tune_lr:
            is_carried = part.request.tuned_at is not None
            later = _carried(plans, part.request) if is_carried else _later(plans)
            notes = [f"then {plural(each.to_train, 'run')}, {each.title}" for each in later]
            if not is_carried:
                n = 12 if tune.has_seconds(plans[0][0]) else 8
                notes += [f"up to {n} runs more for an arm, where the edge of a grid is its best"]
            found[-1] = replace(found[-1], notes=[*found[-1].notes, *notes])
            steps += later
        rows += [summed(part.title, steps)] if len(parts) > 1 else steps
    return joined(found if len(rows) == 1 else [*found, in_all(rows)])


def _step(plan: Plan, title: str) -> Step:
    return Step(title, len(plan.missing), plan.seconds)


def _later(plans: Sequence[tuple[Plan, str]]) -> list[Step]:
    """What is not known before learning rates are tuned, as far as it can be foreseen."""
    by_title = {title: plan for plan, title in plans}
    shared, _ = plans[0]
    times = {arm.variant: arm.step_s for arm in shared.arms}
    known = [arm.variant for arm in by_title[tune.SECOND].arms] if tune.SECOND in by_title else []
    second = tune.second_at_shared(shared)
    arms = tuple(replace(a, step_s=times[a.variant]) for a in second.arms if a.variant not in known)
    whole = replace(shared, done=frozenset(), begun={})
    later = [_step(replace(second, arms=arms), tune.SECOND)] if arms else []
    titles = (RATED, TUNED) if tune.has_seconds(shared) else (TUNED,)
    return later + [_step(whole, title) for title in titles if title not in by_title]


def _carried(plans: Sequence[tuple[Plan, str]], request: Request) -> list[Step]:
    """What follows the shared rate where settings are carried over, if they are not known yet."""
    known, (shared, _) = {title for _, title in plans}, plans[0]
    whole = replace(shared, done=frozenset(), begun={})
    titled = {carried.CHECK: carried.checking(whole)} if request.is_largest else {}
    titled |= {RATED: whole, TUNED: whole} if tune.has_seconds(shared) else {TUNED: whole}
    return [_step(plan, title) for title, plan in titled.items() if title not in known]


def trained(parts: Sequence[Part]) -> tuple[list[list[Comparison]], int]:
    """Train what is missing of all parts: the comparisons of each, and how many runs failed. Two
    texts of one recipe, which has one name in a study, have here the names that were typed. Raises
    DataError before anything is trained where one of several texts is not there, or too short.
    """
    for part in parts:
        check_margin(part.request.margin, part.recipe)
    texts = {(part.recipe.data, part.recipe.train.eval_tokens): part.recipe for part in parts}
    for recipe in list(texts.values())[1:]:
        sources.load(recipe)
    named = {(part.recipe.digest, part.recipe.name) for part in parts}
    n_names = Counter(digest for digest, _ in named)
    ended = [part.ablation().compared() for part in parts]
    found = [
        [replace(one, recipe=part.recipe.name) for one in compared]
        if n_names[part.recipe.digest] > 1
        else compared
        for part, (compared, _) in zip(parts, ended, strict=True)
    ]
    return found, sum(n_failed for _, n_failed in ended)
