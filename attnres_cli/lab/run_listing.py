"""The runs of a study, filtered, each with what sets it apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from attnres_cli.config import complete
from attnres_cli.config import recipe as recipes
from attnres_cli.config.as_typed import plain_name, settings, typed
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, unknown
from attnres_cli.records.run import RunRecord, Status
from attnres_cli.records.run_records import Listed
from attnres_cli.store.store import Store

_PLACES = ("data.path", "data.val_path")

_Settings = tuple[Mapping[str, Any], Mapping[str, Any]]
"""See `settings_of`."""


def filtered(records: Sequence[RunRecord], asked: Mapping[str, str]) -> list[RunRecord]:
    """The runs of this status, variant, recipe (a name, a file, or the start of a digest), tag and
    note (a part of it), as far as asked for. Raises UsageError for what none of the runs has.
    """
    if "status" in asked and asked["status"] not in list(Status):
        raise UsageError(unknown("status", asked["status"], list(Status)))
    found = list(records)
    for name, value in asked.items():
        is_free = name in ("status", "note")
        if not is_free and not any(_is(run, name, value) for run in records):
            known = {each for run in records for each in _known(run, name)}
            raise UsageError(unknown(f"{name} in this study", value, known))
        found = [run for run in found if _is(run, name, value)]
    return found


def _is(run: RunRecord, name: str, value: str) -> bool:
    if name == "note":
        return value in run.note
    if name == "recipe":
        return run.recipe == recipes.name_of(value) or run.recipe_digest.startswith(value)
    return value in _known(run, name)


def _known(run: RunRecord, name: str) -> tuple[str, ...]:
    """What a filter of that name may ask this run for."""
    if name == "recipe":
        return run.recipe, run.recipe_digest
    if name == "tag":
        return run.tags
    return (getattr(run, name),)


def chosen(store: Store, study: str, ids: Sequence[int]) -> list[RunRecord]:
    """The runs of these numbers, with curves. Raises UsageError where one is not there."""
    found = store.runs(ids=ids)
    for run_id in sorted(set(ids) - {record.id for record in found}):
        numbers = sorted(store.standings())
        held = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
        raise UsageError(f"no run {run_id} in study {study}, it holds {held}: attnres runs")
    return found


def listed(store: Store, records: Sequence[RunRecord]) -> list[Listed]:
    """These runs with where they stand and what sets them apart; without those removed just now."""
    standings, held = store.standings([record.id for record in records]), store.recipes()
    made_of = {each.digest: each.base_digest for each in store.arm_recipes()}
    first: dict[str, Recipe] = {}
    for digest, recipe in held.items():
        first.setdefault(plain_name(recipe.name), held[made_of.get(digest, digest)])
    bases = {name: _base(name, recipe) for name, recipe in first.items()}

    @cache  # not by the recipe, whose hash takes as long
    def own(digest: str) -> _Settings:
        return settings_of(held[digest])

    @cache
    def shared(name: str, variant: str) -> _Settings:
        return settings_of(bases[name][0].of(variant))

    names = {(r.recipe_digest, r.variant): plain_name(r.recipe) for r in records}
    apart = {
        (digest, variant): (*_apart(own(digest), shared(name, variant)), bases[name][1])
        for (digest, variant), name in names.items()
    }
    return [
        Listed(record, standings[record.id], held[record.recipe_digest], *apart[key])
        for record in records
        if record.id in standings
        for key in [(record.recipe_digest, record.variant)]
    ]


def _base(name: str, first: Recipe) -> tuple[Recipe, str]:
    """What the recipe of a name is, and in words which one that is."""
    if name in complete.recipes():
        return recipes.load(name), f"recipe {name} as it is shipped"
    return first, f"the first recipe {name} of this study"


def _apart(mine: _Settings, base: _Settings) -> tuple[Mapping[str, Any], dict[str, Any], str]:
    """The settings of a run, those that its base has not, and the same typed."""
    (ours, derived), (others, theirs) = mine, base
    own = {k: v for k, v in derived.items() if v != theirs.get(k) and ours[k] != others.get(k)}
    return derived, own, " ".join(typed(key, value) for key, value in own.items())


def settings_of(recipe: Recipe) -> _Settings:
    """The settings of a run's recipe, by section.key: first as they are, then with sizes that are
    not set as they follow from the others, and without places of data, of which a study knows the
    first alone.
    """
    held, shape = settings(recipe), asdict(recipe.model.shape(vocab_size=1))
    found = {key: value for key, value in held.items() if key not in _PLACES}
    sizes = {key: shape[key.removeprefix("model.")] for key in found if "model." in key}
    return held, found | sizes
