"""The runs of a study, filtered, each with what sets it apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from attnres_cli.config import recipe as recipes
from attnres_cli.config.as_typed import plain_name, settings, typed
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, unknown
from attnres_cli.records.run import RunRecord, Status
from attnres_cli.records.run_records import Listed
from attnres_cli.store.store import Store

_PLACES = ("data.path", "data.val_path")


@dataclass(frozen=True)
class Filter:
    """What runs must be, as it is typed; None lets all through."""

    status: str | None = None
    variant: str | None = None
    recipe: str | None = None  # a name, or the start of a digest
    tag: str | None = None
    note: str | None = None  # a part of it

    @property
    def typed(self) -> list[str]:
        """As words of a command."""
        return [word for name, value in self._asked.items() for word in (f"--{name}", value)]

    @property
    def _asked(self) -> dict[str, str]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def of(self, records: Sequence[RunRecord]) -> list[RunRecord]:
        """The runs that it leaves. Raises UsageError where it names what none of them has."""
        if self.status is not None and self.status not in list(Status):
            raise UsageError(unknown("status", self.status, list(Status)))
        found = list(records)
        for name, value in self._asked.items():
            is_free = name in ("status", "note")
            if not is_free and not any(_is(run, name, value) for run in records):
                known = {each for run in records for each in _known(run, name)}
                raise UsageError(unknown(f"{name} in this study", value, known))
            found = [run for run in found if _is(run, name, value)]
        return found


def _is(run: RunRecord, name: str, value: str) -> bool:
    if name == "note":
        return value in run.note
    return value in _known(run, name) or (name == "recipe" and run.recipe_digest.startswith(value))


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
    apart = {
        key: _apart(held[key[0]], bases[plain_name(name)], key[1])
        for key, name in {(r.recipe_digest, r.variant): r.recipe for r in records}.items()
    }
    return [
        Listed(record, standings[record.id], held[record.recipe_digest], *apart[key])
        for record in records
        if record.id in standings
        for key in [(record.recipe_digest, record.variant)]
    ]


def _base(name: str, first: Recipe) -> tuple[Recipe, str]:
    """What the recipe of a name is, and in words which one that is."""
    if name in recipes.names():
        return recipes.load(name), f"recipe {name} as it is shipped"
    return first, f"the first recipe {name} of this study"


def _apart(
    recipe: Recipe, base: tuple[Recipe, str], variant: str
) -> tuple[Mapping[str, Any], dict[str, Any], str, str]:
    """The settings of a variant's runs, those that its base has not, the same typed, the base."""
    shared, words = base[0].of(variant), base[1]
    mine, theirs = derived(recipe), derived(shared)
    ours, others = _settings(recipe), _settings(shared)
    own = {k: v for k, v in mine.items() if v != theirs.get(k) and ours[k] != others.get(k)}
    differs = " ".join(typed(key, value) for key, value in own.items())
    return mine, own, differs, words


_settings = cache(settings)  # a study has a few recipes, and thousands of runs


@cache
def derived(recipe: Recipe) -> Mapping[str, Any]:
    """The settings of a run's recipe, by section.key: sizes that are not set as they follow from
    the others. Without places of data, of which a study knows the first alone.
    """
    shape = asdict(recipe.model.shape(vocab_size=1))
    found = {key: value for key, value in _settings(recipe).items() if key not in _PLACES}
    return found | {key: shape[key.removeprefix("model.")] for key in found if "model." in key}
