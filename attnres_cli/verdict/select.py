"""Which runs of a study a report is of: one recipe with those made of it, one fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnres_cli.config.recipe import name_of
from attnres_cli.errors import AttnresError, StudyError, UsageError, unknown
from attnres_cli.records.comparison_terms import BY_DESIGN, SHARED, ArmRecipe, Given, Terms, Tuned
from attnres_cli.records.run import FIRST_TUNING_SEED, Identity, RunRecord
from attnres_cli.verdict.codes import of_code, of_one_code, shown

Canonical = Callable[[str, str], str]
"""A spec and a recipe's digest in, the spec's canonical form under that recipe out."""

SHORTEST = 4  # start of a digest that names a recipe


@dataclass(frozen=True)
class Choice:
    """The runs to compare, and in `others` what --recipe would take for the study's other runs.
    `older` are those left out because of their code, under recipes made of this one too.
    """

    records: list[RunRecord]
    recipe_digest: str
    fingerprint: str
    baseline: str
    others: tuple[str, ...] = ()
    older: tuple[RunRecord, ...] = ()


def shared(
    records: Sequence[RunRecord], first: Mapping[str, str], names: Mapping[str, str]
) -> list[RunRecord]:
    """The runs, each once, under the first recipe that computes the same (`computed.first_of`), by
    its name: of two of one identity the one that has ended, else the first.
    """
    found: dict[Identity, RunRecord] = {}
    for record in records:
        if (digest := first[record.recipe_digest]) != record.recipe_digest:
            record = replace(record, recipe=names[digest], recipe_digest=digest)
        held = found.setdefault(record.identity, record)
        if held.result is None and record.result is not None:
            found[record.identity] = replace(record, created_at=held.created_at)
    return [*found.values()]


def of_shared(own: Sequence[ArmRecipe], first: Mapping[str, str]) -> list[ArmRecipe]:
    """The recipes of arms by the first digests; of two for one arm the first."""
    found: dict[tuple[str, str, Terms, str], ArmRecipe] = {}
    for each in own:
        base, digest = first[each.base_digest], first[each.digest]
        key = (base, each.fingerprint, each.terms, each.variant)
        found.setdefault(key, replace(each, base_digest=base, digest=digest))
    return [*found.values()]


def with_rates(records: Sequence[RunRecord], own: Sequence[ArmRecipe]) -> list[RunRecord]:
    """The runs, and after each what it is too: a run of a recipe with settings by design."""
    held: dict[tuple[str, str, str], dict[str, str]] = {}
    for each in own:
        if isinstance(each.how, Given):
            bases = held.setdefault((each.variant, each.digest, each.fingerprint), {})
            bases[each.base_digest] = each.recipe
    found = []
    for record in records:
        found.append(record)
        bases = held.get((record.variant, record.recipe_digest, record.fingerprint), {})
        found += [replace(record, recipe=name, recipe_digest=base) for base, name in bases.items()]
    return found


def with_rates_alone(own: Sequence[ArmRecipe]) -> list[ArmRecipe]:
    """The recipes of arms, and those that tuned ones have with their learning rates alone, where a
    second number of any arm was tuned too.
    """
    tuned = [each for each in own if isinstance(each.how, Tuned) and each.how.rate_digest]
    more = {_table(each) for each in tuned if isinstance(each.how, Tuned) and each.how.second}
    return [*own] + [
        replace(each, digest=each.how.rate_digest, terms=replace(each.terms, rate_only=True))
        for each in tuned
        if isinstance(each.how, Tuned) and _table(each) in more
    ]


def _table(each: ArmRecipe) -> tuple[str, str, Terms]:
    return each.base_digest, each.fingerprint, each.terms


def comparable(records: Sequence[RunRecord], own: Sequence[ArmRecipe] = ()) -> list[RunRecord]:
    """The runs that did not tune a learning rate, under recipes that were not made of others."""
    records = [record for record in records if record.seed < FIRST_TUNING_SEED]
    made = {(each.variant, each.digest) for each in own if each.digest != each.base_digest}
    whole = {each.base_digest for each in own}
    whole |= {r.recipe_digest for r in records if (r.variant, r.recipe_digest) not in made}
    return [record for record in records if record.recipe_digest in whole]


@dataclass(frozen=True)
class Runs:
    """The runs of a study to choose from, oldest first, and the recipes that arms have of their
    own. `canonical` takes torch, so it is asked only where no arm has the name as typed, with
    options in any order.
    """

    records: Sequence[RunRecord]
    own: Sequence[ArmRecipe] = ()
    study: str = ""
    canonical: Canonical = lambda spec, _digest: spec

    @cached_property
    def _comparable(self) -> list[RunRecord]:
        return comparable(self.records)

    def choose(self, recipe: str | None, baseline: str, codes: Collection[str] = ()) -> Choice:
        """The runs of one recipe on one fingerprint by one code, by default the newest of the
        study. `recipe` is a name or a file, the start of a digest, or digest@fingerprint; an arm's
        own recipe is reported with the one it was made of, and can be asked for by its digest.
        `codes` are starts of digests, see `of_one_code`.

        Raises StudyError where the study has no run, UsageError where it lacks the recipe, code or
        baseline.
        """
        records = self._comparable
        if not records:
            study = self.study
            raise StudyError(f"study {study} holds no runs yet: `attnres ablate --study {study}`")
        whole = comparable(records, self.own) or records
        meant = [r for r in whole if _is_meant(r, recipe)]
        meant = meant or [r for r in records if _is_meant(r, recipe)]
        if not meant:
            known = {name for r in records for name in (r.recipe, r.recipe_digest)}
            raise UsageError(unknown("recipe in this study", str(recipe), known))
        last = (of_code(meant, codes) or meant)[-1]
        family = self._family(last)
        if not of_code(family, codes):
            known = {shown(run) for run in family}
            raise UsageError(unknown("code of these runs", ", ".join(codes), known))
        arms = self._arms(last)
        name = named(baseline, last.recipe_digest, arms, self.canonical)
        if name not in arms and name != "standard":
            raise UsageError(unknown("baseline", baseline, arms))
        others = {f"{_group(r)} ({r.recipe})" for r in whole if _group(r) != _group(last)}
        return replace(self._of(last, name, codes), others=tuple(sorted(others)))

    def every(
        self, newest: Choice, recipe: str | None, baseline: str, codes: Collection[str] = ()
    ) -> list[Choice]:
        """A choice per recipe and data that `recipe` can mean, by default all, with `newest` last.
        One that lacks the baseline is among them.
        """
        last = {_group(r): r for r in comparable(self.records, self.own) if _is_meant(r, recipe)}
        last.pop(_group(newest.records[-1]), None)
        found = []
        for record in last.values():
            try:
                name = named(baseline, record.recipe_digest, self._arms(record), self.canonical)
            except AttnresError:  # a spec that does not fit this depth has no runs at it
                name = baseline
            found.append(self._of(record, name, codes))
        return [*found, newest]

    def _of(self, last: RunRecord, baseline: str, codes: Collection[str]) -> Choice:
        """The runs of the recipe of this one and of those made of it, by one code."""
        kept, older = of_one_code(self._family(last), codes or [shown(last)])
        chosen = [record for record in kept if record.recipe_digest == last.recipe_digest] or kept
        return Choice(chosen, last.recipe_digest, last.fingerprint, baseline, older=tuple(older))

    def _made_of(self, digest: str, fingerprint: str) -> list[ArmRecipe]:
        base = (digest, fingerprint)
        return [each for each in self.own if (each.base_digest, each.fingerprint) == base]

    def _family(self, last: RunRecord) -> list[RunRecord]:
        """The runs of the recipe of this one and of those made of it, on its data."""
        made = {each.digest for each in self._made_of(last.recipe_digest, last.fingerprint)}
        digests, data = {last.recipe_digest, *made}, last.fingerprint
        runs = [run for run in self._comparable if run.fingerprint == data]
        return [run for run in runs if run.recipe_digest in digests]

    def _arms(self, last: RunRecord) -> set[str]:
        """The arms of a recipe, those of recipes made of it too."""
        arms = {run.variant for run in self._comparable if _group(run) == _group(last)}
        return arms | {each.variant for each in self.own if each.base_digest == last.recipe_digest}

    def told(self, chosen: Choice) -> list[tuple[list[RunRecord], Terms, list[ArmRecipe]]]:
        """What a report compares: the runs under the shared recipe, then, for each of the terms on
        which arms got their own recipes, those runs and recipes. The former is left out where only
        the baseline was trained under the shared recipe, or the recipe has settings by design. Runs
        of other code are in none.
        """
        older = {record.id for record in chosen.older}
        records = [record for record in self._comparable if record.id not in older]
        own = self._made_of(chosen.recipe_digest, chosen.fingerprint)
        found = []
        for terms in dict.fromkeys(each.terms for each in own):
            mine = [each for each in own if each.terms == terms]
            digests = {each.variant: each.digest for each in mine}
            if not terms.is_tuned:  # the baseline, to which others are made equal, has the recipe
                digests.setdefault(terms.baseline, chosen.recipe_digest)
            of = {(name, digest, chosen.fingerprint) for name, digest in digests.items()}
            runs = [r for r in records if (r.variant, r.recipe_digest, r.fingerprint) in of]
            if runs and terms.baseline in ("", chosen.baseline):
                found.append((runs, terms, mine))
        is_shared = not any(each.terms.by_design for each in own)
        trained = {record.variant for record in chosen.records}
        if not found or (is_shared and trained - {chosen.baseline}):
            none: list[ArmRecipe] = []
            found.insert(0, (chosen.records, SHARED if is_shared else BY_DESIGN, none))
        return sorted(found, key=lambda each: each[1] not in (SHARED, BY_DESIGN))


def named(typed: str, digest: str, arms: Collection[str], canonical: Canonical) -> str:
    """An arm's canonical name under a recipe; torch is asked only if no arm has it as typed."""
    spec, colon, options = typed.strip().partition(":")
    name = spec + colon + ",".join(sorted(options.split(",")))
    return name if name in arms else canonical(typed, digest)


def _group(record: RunRecord) -> str:
    return f"{record.recipe_digest}@{record.fingerprint}"


def _is_meant(record: RunRecord, recipe: str | None) -> bool:
    """Whether the run's is this recipe: its name, its file, or the start of its digest."""
    if recipe is None:
        return True
    if record.recipe == name_of(recipe):
        return True
    return len(recipe) >= SHORTEST and _group(record).startswith(recipe)


def options_of(variant: str) -> tuple[str, dict[str, str]]:
    """The name and the options of a canonical spec, as text; one with add-ons is all name."""
    if "+" in variant:
        return variant, {}
    name, _, options = variant.partition(":")
    pairs = (option.partition("=") for option in options.split(",") if option)
    return name, {key: value for key, _, value in pairs}
