"""Which comparisons were preregistered, and which are exploratory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnres_cli.records.comparison_terms import SHARED, ArmRecipe
from attnres_cli.records.preregister import Registration
from attnres_cli.records.run import DataDescription, RunRecord
from attnres_cli.verdict.comparison import Comparison, compare
from attnres_cli.verdict.select import Choice, told

EXPLORATORY = "exploratory"


def compared(
    chosen: Choice,
    records: Sequence[RunRecord],
    data: DataDescription,
    own: Sequence[ArmRecipe],
    registrations: Sequence[Registration],
) -> list[Comparison]:
    """The labelled comparisons of a recipe: on the shared terms, then on each of the others."""
    found = [
        compare(runs, data, chosen.baseline, terms, mine)
        for runs, terms, mine in told(chosen, records, own)
    ]
    return labelled(found, records, data, registrations)


def labelled(
    found: Sequence[Comparison],
    records: Sequence[RunRecord],
    facts: DataDescription,
    registrations: Sequence[Registration],
) -> list[Comparison]:
    """The comparisons of one recipe, labelled; unchanged where the study has no preregistration.

    Where the recipe has one, the registered arms on the registered seeds come first, compared with
    each other alone; any comparison that holds more, or other terms, is exploratory. Only the data
    of the recipe's first run count, since data are not fixed before.
    """
    if not registrations or not found:
        return list(found)
    digest = found[0].recipe_digest
    mine = next((each for each in registrations if each.recipe_digest == digest), None)
    if mine is None:
        return _explore(found, "this recipe is not preregistered")
    of_recipe = [record for record in records if record.recipe_digest == digest]
    if of_recipe and of_recipe[0].fingerprint != facts.fingerprint:
        return _explore(
            found, f"other data than of the first runs of preregistration {mine.digest}"
        )
    runs = [r for r in of_recipe if r.variant in mine.arms and r.seed in mine.seeds]
    runs = [r for r in runs if r.fingerprint == facts.fingerprint]
    if not runs:
        return _explore(found, f"nothing of preregistration {mine.digest} has been planned")
    first = compare(runs, facts, mine.baseline)
    ended = sum(record.result is not None for record in runs)
    label = f"preregistered {mine.digest}"
    if ended < mine.n_runs:
        label = (
            f"{EXPLORATORY} until all runs of preregistration {mine.digest} have ended: {ended} of "
            f"{mine.n_runs}"
        )
    others = [other for other in found if not _is_same(other, first)]
    explored = _explore(others, f"not as preregistered ({mine.digest})")
    return [replace(first, registered=label), *explored]


def _explore(found: Sequence[Comparison], why: str) -> list[Comparison]:
    return [replace(each, registered=f"{EXPLORATORY}: {why}") for each in found]


def _is_same(one: Comparison, other: Comparison) -> bool:
    """Whether they compare the same runs in the same way."""

    def runs(comparison: Comparison) -> set[tuple[str, int]]:
        return {(arm.variant, seed) for arm in comparison.arms for seed in arm.losses}

    return one.terms == SHARED and one.baseline == other.baseline and runs(one) == runs(other)
