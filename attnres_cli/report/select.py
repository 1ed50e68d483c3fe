"""Which runs of a study a report is of: one recipe, one fingerprint of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnres_cli.errors import StudyError, UsageError, unknown
from attnres_cli.run import RunRecord


@dataclass(frozen=True)
class Choice:
    """The runs to compare; `others` names what the study holds besides, or is empty."""

    records: list[RunRecord]
    recipe_digest: str
    fingerprint: str
    baseline: str
    others: str


def choose(records: Sequence[RunRecord], study: str, recipe: str | None, baseline: str) -> Choice:
    """The runs of the recipe of that name or digest, by default of the one run last.

    Raises:
        StudyError: the study holds no run.
        UsageError: no such recipe or baseline in it, with the nearest there is.

    """
    if not records:
        raise StudyError(f"study {study} holds no runs yet: `attnres ablate --study {study}`")
    of_recipe = [r for r in records if recipe in (None, r.recipe, r.recipe_digest)]
    if not of_recipe:
        raise UsageError(unknown("recipe in this study", str(recipe), {r.recipe for r in records}))
    last = of_recipe[-1]
    groups = {(r.recipe, r.recipe_digest, r.fingerprint) for r in records}
    groups.discard((last.recipe, last.recipe_digest, last.fingerprint))
    others = ", ".join(f"{name} ({digest}) on data {mark}" for name, digest, mark in sorted(groups))
    same = (last.recipe_digest, last.fingerprint)
    chosen = [r for r in records if (r.recipe_digest, r.fingerprint) == same]
    arms = {r.variant for r in chosen}
    name = _sorted_options(baseline)
    if name not in arms and name != "standard":
        raise UsageError(unknown("baseline", baseline, arms))
    return Choice(chosen, *same, name, others)


def _sorted_options(spec: str) -> str:
    """A spec with its options sorted: as near to its canonical form as one comes without torch."""
    name, colon, options = spec.strip().partition(":")
    return name + colon + ",".join(sorted(options.split(",")))
