"""Which runs of a study a report is of: one recipe, one fingerprint of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def choose(
    records: Sequence[RunRecord],
    study: str,
    recipe: str | None,
    baseline: str,
    canonical: Callable[[str, str], str] = lambda spec, _digest: spec,
) -> Choice:
    """The runs of one recipe on one fingerprint, by default the newest of the study.

    Args:
        records: all runs of the study.
        study: what to call it in messages.
        recipe: a name, the start of a digest, or digest@fingerprint.
        baseline: a spec; options in any order.
        canonical: the canonical form of a spec under the recipe of a digest, asked for where the
            study holds no arm of the name as it is typed (to know it takes torch).

    Raises:
        StudyError: the study holds no run.
        UsageError: no such recipe or baseline in it, with the nearest there is.

    """
    if not records:
        raise StudyError(f"study {study} holds no runs yet: `attnres ablate --study {study}`")
    of_recipe = [record for record in records if recipe is None or _is_meant(record, recipe)]
    if not of_recipe:
        known = {name for r in records for name in (r.recipe, r.recipe_digest)}
        raise UsageError(unknown("recipe in this study", str(recipe), known))
    last = of_recipe[-1]
    chosen = [record for record in records if _group(record) == _group(last)]
    others = {f"{r.recipe} ({_group(r)})" for r in records if _group(r) != _group(last)}
    arms = {record.variant for record in chosen}
    name = _sorted_options(baseline)
    if name not in arms:
        name = canonical(baseline, last.recipe_digest)
    if name not in arms and name != "standard":
        raise UsageError(unknown("baseline", baseline, arms))
    return Choice(chosen, last.recipe_digest, last.fingerprint, name, ", ".join(sorted(others)))


def _group(record: RunRecord) -> str:
    return f"{record.recipe_digest}@{record.fingerprint}"


def _is_meant(record: RunRecord, recipe: str) -> bool:
    return record.recipe == recipe or (len(recipe) >= 4 and _group(record).startswith(recipe))


def _sorted_options(spec: str) -> str:
    """A spec with its options sorted: as near to its canonical form as one comes without torch."""
    name, colon, options = spec.strip().partition(":")
    return name + colon + ",".join(sorted(options.split(",")))
