"""Which comparisons were preregistered, and which are exploratory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnres_cli.config.margin import nats
from attnres_cli.records.comparison_terms import BY_DESIGN, SHARED, ArmRecipe, Terms, Tuned
from attnres_cli.records.preregister import Registration
from attnres_cli.records.run import DataDescription, Removed, RunRecord
from attnres_cli.verdict.comparison import Comparison, Rules
from attnres_cli.verdict.judge import compare
from attnres_cli.verdict.select import Choice, Runs

EXPLORATORY = "exploratory"


def compared(
    held: Runs,
    chosen: Choice,
    data: DataDescription,
    registrations: Sequence[Registration],
    rules: Rules = Rules(),  # noqa: B008 (frozen)
) -> list[Comparison]:
    """The labelled comparisons of a recipe: on the shared terms, then on each of the others."""
    found = []
    for runs, terms, mine in held.told(chosen):
        digests = {run.recipe_digest for run in runs}
        older = tuple(run for run in chosen.older if run.recipe_digest in digests)
        found.append(compare(runs, data, chosen.baseline, terms, mine, rules, older))
    left_out = {run.id for run in chosen.older}
    same_code = [record for record in held.records if record.id not in left_out]
    return _lesser_beside(labelled(found, same_code, data, registrations, held.own))


def _lesser_beside(found: Sequence[Comparison]) -> list[Comparison]:
    """Each comparison at tuned settings with those of its arms at tuned rates and at the shared
    ones beside it. Only the first gets words, so that all three are one table's error.
    """
    lesser = [[each for each in found if _is_lesser(each, one)] for one in found]
    taken = {id(each) for below in lesser for each in below}
    pairs = zip(found, lesser, strict=True)
    return [replace(one, beside=tuple(below)) for one, below in pairs if id(one) not in taken]


def _is_lesser(one: Comparison, than: Comparison) -> bool:
    """Whether one is of the arms of a tuned comparison, at its rates or at the shared settings."""
    if one.registered and not is_exploratory(one) and is_exploratory(than):
        return False  # what was fixed keeps its words
    hows = [arm.own.how for arm in than.arms if arm.own is not None]
    if not than.terms.is_tuned or than.terms.rate_only:
        return False
    if not all(isinstance(how, Tuned) and how.rate_digest for how in hows):
        return False  # by an earlier protocol, with words of its own
    untuned = replace(than.terms, is_tuned=False)
    terms = (replace(than.terms, rate_only=True), untuned, replace(untuned, by_design=True))
    names = {arm.variant for arm in than.arms}
    is_whole = all(arm.variant in names for arm in one.arms)
    return one.terms in terms and is_whole and one.baseline == than.baseline


def labelled(
    found: Sequence[Comparison],
    records: Sequence[RunRecord],
    facts: DataDescription,
    registrations: Sequence[Registration],
    own: Sequence[ArmRecipe] = (),
) -> list[Comparison]:
    """The comparisons of one recipe, labelled; unchanged where the study has no preregistration.

    Where the recipe has one, the registered arms on the registered seeds come first, compared with
    each other alone, on each of its terms; any comparison that holds more, or is on others, is
    exploratory. Only the data of the recipe's first runs count, as many texts as were registered,
    since data are not fixed before.
    """
    if not registrations or not found:
        return list(found)
    digest = found[0].recipe_digest
    mine = next((each for each in registrations if each.recipe_digest == digest), None)
    if mine is None:
        return _explore(found, "this recipe is not preregistered")
    of_recipe = [record for record in records if record.recipe_digest == digest]
    gone = [run.fingerprint for run in found[0].rules.removed if run.recipe_digest == digest]
    read = dict.fromkeys([*gone, *(record.fingerprint for record in of_recipe)])
    texts = [*read][: mine.texts or 1]
    if texts and facts.fingerprint not in texts:
        why = f"other data than of the first runs of preregistration {mine.digest}"
        return _explore(found, why)
    runs = [r for r in _of_plan(mine, of_recipe) if r.fingerprint == facts.fingerprint]
    if not runs:
        return _explore(found, f"nothing of preregistration {mine.digest} has been planned")
    rates = any((each.base_digest, each.terms) == (digest, BY_DESIGN) for each in own)
    groups = {BY_DESIGN if rates else SHARED: (runs, found[0])}
    for one in found:
        if mine.has(one.terms) and one.terms.baseline in ("", mine.baseline):
            groups.setdefault(one.terms, (_of_plan(mine, one.records), one))
    fixed = []
    for terms, (runs, one) in groups.items():
        recipes = [each for each in own if (each.base_digest, each.terms) == (digest, terms)]
        rules, older = _fixed(one.rules, mine), tuple(_of_plan(mine, one.older))
        first = compare(runs, facts, mine.baseline, terms, recipes, rules, older)
        fixed.append(replace(first, registered=_label(mine, first)))
    seen = [_compared(one) for one in fixed]
    others = [other for other in found if _compared(other) not in seen]
    return [*fixed, *_explore(others, f"not as preregistered ({mine.digest})")]


def is_exploratory(one: Comparison) -> bool:
    """Whether a comparison is of a study with a preregistration, and not what that fixed."""
    return one.registered.startswith(EXPLORATORY)


def _of_plan(mine: Registration, runs: Sequence[RunRecord]) -> list[RunRecord]:
    return [run for run in runs if _is_of(mine, run)]


def _is_of(mine: Registration, run: RunRecord | Removed) -> bool:
    return run.variant in mine.arms and run.seed in mine.seeds


def _fixed(rules: Rules, mine: Registration) -> Rules:
    margin = rules.margin
    if mine.margin is not None and not rules.is_typed:
        margin = nats(mine.margin, rules.slope)
    most = len(mine.seeds) if mine.until else None
    removed = tuple(run for run in rules.removed if _is_of(mine, run))
    return replace(rules, is_registered=True, margin=margin, most=most, removed=removed)


def _label(mine: Registration, found: Comparison) -> str:
    if any(run.result is not None for run in found.older):
        return f"{EXPLORATORY}: what is compared was changed after runs of it ended"
    if found.rules.is_typed:
        return f"{EXPLORATORY}: the margin is not that of preregistration {mine.digest}"
    ended = sum(run.result is not None for run in found.records)
    if ended == mine.n_runs or (mine.until and _is_decided(mine, found)):
        return f"preregistered {mine.digest}"
    return (
        f"{EXPLORATORY} until all runs of preregistration {mine.digest} have ended: {ended} of "
        f"{mine.n_runs}"
    )


def _is_decided(mine: Registration, found: Comparison) -> bool:
    """Whether every arm of a plan has its word, or had its last look."""
    waits = [arm for arm in found.arms if arm.verdict in ("pending", "inconclusive")]
    is_open = [arm for arm in waits if arm.look is None or arm.look.next is not None]
    return len(found.arms) == len(mine.arms) and not is_open


def _explore(found: Sequence[Comparison], why: str) -> list[Comparison]:
    return [replace(each, registered=f"{EXPLORATORY}: {why}") for each in found]


def _compared(one: Comparison) -> tuple[Terms, str, set[tuple[str, int]]]:
    """The terms, the baseline and the runs, which other labels do not change."""
    return one.terms, one.baseline, {(arm.variant, n) for arm in one.arms for n in arm.losses}
