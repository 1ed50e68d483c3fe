"""What a plan puts into a study, where it is not there yet: recipes, data, runs, registrations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, Table, delete, func, insert, or_, select, text, update

from attnres_cli.config.as_typed import is_searched, searched_name
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.computed import may_agree
from attnres_cli.records.evaluated import Evaluated
from attnres_cli.records.gates import PROOFS
from attnres_cli.records.run import (
    FIRST_TUNING_SEED,
    DataDescription,
    Identity,
    RunRecord,
    RunSpec,
    Status,
)
from attnres_cli.store import postgres, rows, tables, upgrade
from attnres_cli.store.engine import readable
from attnres_cli.store.holding import OF_RUNS
from attnres_cli.store.queries import ARM_RECIPES
from attnres_cli.store.reader import Reader
from attnres_cli.store.retry import patient
from attnres_cli.store.rows import Row
from attnres_cli.store.tables import recipes, runs

if TYPE_CHECKING:
    from attnres_cli.records.plan import Plan
    from attnres_cli.records.preregister import Registration


class Planner(Reader):
    """A study that can be written to. What is not there stays so while a transaction is alone."""

    @contextmanager
    def _write(self, *, alone: bool = False) -> Iterator[Connection]:
        """Change rows of the study; `alone`, what others may be about to write too."""
        with self._explained(), readable(self._name), self._writing.begin() as connection:
            if alone and connection.dialect.name == "postgresql":
                postgres.alone(connection)
            yield connection

    @patient
    def plan(
        self, specs: Sequence[RunSpec], facts: DataDescription, *, retry_failed: bool = False
    ) -> list[RunRecord]:
        """The runs of these specs, in their order, which are made where there are none. Runs whose
        process is gone wait again, and if asked for, those that failed or failed a proof.
        """
        with self._write(alone=True) as connection:
            _keep_data(connection, facts, specs[0].recipe if specs else None)
            ids = _run_ids(connection, specs)
            free(connection, self._orphans(connection, ids, lock=True))
            if retry_failed:
                _retry(connection, ids)
        found = self.runs(ids=ids)  # curves are not read while nobody else may write
        if len(found) < len(ids):  # another command has removed one just now
            return self.plan(specs, facts)
        return found

    def _orphans(
        self, connection: Connection, ids: Sequence[int], *, lock: bool = False
    ) -> list[Row]:
        """The running ones of these runs whose process is gone; with `lock` kept from changes."""
        running = select(runs).where(runs.c.id.in_(ids), runs.c.status == Status.RUNNING)
        if lock:  # not those that somebody is changing right now: their processes live
            running = running.order_by(runs.c.id).with_for_update(skip_locked=True)
        found = connection.execute(running).all()
        return [row for row in found if self._watch.is_gone(row.id, row.owner, row.heartbeat_at)]

    @patient
    def keep_arm_recipes(self, plan: Plan, facts: DataDescription) -> list[ArmRecipe]:
        """Record the recipes that arms of a plan have of their own, and return what then stands.
        What was matched by time stays as it was first measured; all else is written anew.
        """
        if not plan.arm_recipes:
            return []
        of, kept = tables.arm_recipes, []
        with self._write(alone=True) as connection:
            _keep_data(connection, facts, plan.recipe)
            for recipe in (plan.recipe, *(plan.recipe_of(arm) for arm in plan.arms)):
                _keep_recipe(connection, recipe)
            for found in plan.arm_recipes:
                row = rows.of_arm_recipe(found)
                same = [of.c[column.name] == row[column.name] for column in of.primary_key]
                held = connection.execute(ARM_RECIPES.where(*same)).first()
                if held is None:
                    connection.execute(insert(of).values(row))
                elif found.terms.match != "time" or found.terms.is_tuned:
                    connection.execute(update(of).where(*same).values(row))
                else:
                    found = rows.to_arm_recipe(held)
                kept.append(found)
        return kept

    @patient
    def keep_until_decided(
        self, recipe: Recipe, facts: DataDescription, baseline: str, most: int
    ) -> int | None:
        """Record that arms get seeds until they are decided, before the first run of one; how many
        seeds at most then stands. None where arms were planned otherwise before.
        """
        with self._write(alone=True) as connection:
            _keep_data(connection, facts, recipe)
            _keep_recipe(connection, recipe)
            of, base = tables.until_decided, (recipe.digest, facts.fingerprint)
            mine = (of.c.recipe_digest == base[0], of.c.fingerprint == base[1])
            query = select(of.c.most).where(*mine, of.c.baseline == baseline)
            held = connection.execute(query).scalar()
            if held is None and not _has_arms(connection, *base, baseline):
                connection.execute(insert(of).values((*base, baseline, most)))
                return most
            return held

    @patient
    def keep_evaluated(self, recipe: Recipe, facts: DataDescription, found: Evaluated) -> None:
        """Record what evaluations under a recipe predict."""
        of, key = tables.evaluated, (recipe.digest, facts.fingerprint)
        with self._write(alone=True) as connection:
            _keep_data(connection, facts, recipe)
            _keep_recipe(connection, recipe)
            mine = (of.c.recipe_digest == key[0], of.c.fingerprint == key[1])
            if connection.execute(select(of.c.n_bytes).where(*mine)).first() is None:
                connection.execute(insert(of).values((*key, found.n_tokens, found.n_bytes)))

    @patient
    def register(self, found: Sequence[tuple[Registration, Recipe]]) -> None:
        """Fix what comparisons under these recipes will be, all or none; the same once more changes
        nothing. Raises StudyError where a recipe has runs, or another preregistration.
        """
        with self._write(alone=True) as connection:
            for registration, recipe in found:
                _register(connection, registration, recipe)


def _has_arms(connection: Connection, digest: str, fingerprint: str, baseline: str) -> bool:
    """Whether another arm than the baseline has, or had, runs of a recipe, or of one made of it."""
    of = tables.arm_recipes
    made = select(of.c.digest).where(of.c.base_digest == digest, of.c.fingerprint == fingerprint)
    for table in (runs, tables.removed):
        mine = (table.c.fingerprint == fingerprint, table.c.variant != baseline)
        compared = (*mine, table.c.seed < FIRST_TUNING_SEED)
        ours = or_(table.c.recipe_digest == digest, table.c.recipe_digest.in_(made))
        if connection.execute(select(table.c.id).where(*compared, ours)).first() is not None:
            return True
    return False


def _retry(connection: Connection, ids: Sequence[int]) -> None:
    """Let those of these runs that failed wait again, and those that failed a proof, without what
    came of them.
    """
    of = tables.gates
    proofs = (of.c.run_id.in_(ids), of.c.name.in_(PROOFS), of.c.passed.is_(False))
    disproved = connection.execute(select(of.c.run_id).where(*proofs).distinct()).scalars().all()
    for table in OF_RUNS:
        connection.execute(delete(table).where(table.c.run_id.in_(disproved)))
    failed = runs.c.id.in_(ids) & (runs.c.status == Status.FAILED)
    again = update(runs).where(failed | runs.c.id.in_(disproved))
    connection.execute(again.values(**rows.WAITING, attempts=0))


def _register(connection: Connection, found: Registration, recipe: Recipe) -> None:
    trained = [recipe.of(arm) for arm in found.arms]
    of, alike = tables.registrations, _alike(connection, trained)
    query = select(of.c.digest).where(of.c.recipe_digest.in_(_alike(connection, [recipe])))
    row = {"recipe_digest": recipe.digest, "digest": found.digest, "made_at": rows.later(None)}
    _keep_recipe(connection, recipe)
    held = connection.execute(query).scalar()
    if held == found.digest:
        return
    if held is not None:
        raise StudyError(
            f"recipe {recipe.name} ({recipe.digest}) is preregistered already, as {held}: "
            "what is fixed stays; take another --study"
        )
    for table, verb in ((runs, "holds"), (tables.removed, "held")):
        mine = table.c.recipe_digest.in_(alike)
        if connection.execute(select(table.c.id).where(mine)).first() is not None:
            raise StudyError(
                f"the study {verb} runs of recipe {recipe.name} ({recipe.digest}): only what "
                "never had runs can be preregistered; take another --study"
            )
    connection.execute(insert(of).values(**row, document=found.model_dump()))


def _alike(connection: Connection, asked: Sequence[Recipe]) -> set[str]:
    """The digests of recipes here that may compute what one of these does."""
    found = {each.digest for each in asked}
    for row in connection.execute(select(recipes)):
        held = Recipe.model_validate(row.resolved)
        if any(may_agree(held, each) for each in asked):
            found.add(row.digest)
    return found


def free(connection: Connection, orphans: Sequence[Row], *, counts: bool = False) -> None:
    """Let these runs wait again; with all their attempts, unless these deaths count."""
    freed = update(runs).where(runs.c.id.in_([row.id for row in orphans]))
    connection.execute(freed.values(**rows.WAITING, **({} if counts else {"attempts": 0})))


def highest(connection: Connection) -> int:
    """The highest number that a run in this file has had, since none is given twice: people write
    them down. SQLite would give the last one again, so `remove` keeps it in the file's header.
    """
    held = connection.execute(select(func.max(runs.c.id))).scalar() or 0
    return max(held, connection.execute(text("PRAGMA user_version")).scalar_one())


def _keep(connection: Connection, table: Table, row: Mapping[str, object]) -> None:
    """Put a row there unless its primary key, one column, is."""
    (key,) = table.primary_key
    held = connection.execute(select(key).where(key == row[key.name])).first()
    if held is None:
        connection.execute(insert(table).values(**row))


def _keep_data(connection: Connection, facts: DataDescription, recipe: Recipe | None) -> None:
    """Put a description there; one by an older attnres is written anew."""
    data = recipe and recipe.data
    places = {name: getattr(data, name, None) for name in upgrade.PLACES}
    of, row = tables.data, asdict(facts) | places
    _keep(connection, of, row)
    mine = update(of).where(of.c.fingerprint == facts.fingerprint)
    connection.execute(mine.where(of.c.path.is_(None)).values(**places))
    connection.execute(mine.where(of.c.unigram_loss.is_(None)).values(**row))


def _keep_recipe(connection: Connection, recipe: Recipe) -> None:
    resolved = recipe.model_dump(mode="json", exclude={"train": {"parallel"}})  # runs say theirs
    row = {"digest": recipe.digest, "name": recipe.name, "resolved": resolved}
    _keep(connection, recipes, row)


def _run_ids(connection: Connection, specs: Sequence[RunSpec]) -> list[int]:
    """The numbers of the runs of these specs, which are made where there are none."""
    asked = {spec.recipe.digest: spec.recipe for spec in specs}
    for recipe in asked.values():
        _keep_recipe(connection, recipe)
        if not is_searched(recipe.name):  # what a search tried is now trained for its own sake
            mine = (recipes.c.digest == recipe.digest, recipes.c.name == searched_name(recipe.name))
            connection.execute(update(recipes).where(*mine).values(name=recipe.name))
    held, wanted = _held(connection, asked), {spec.identity: spec for spec in specs}
    created_at = _created_at(connection)
    fresh: list[dict[str, Any]] = [
        dict(zip(tables.IDENTITY, each, strict=True))
        | {"attempts": 0, "created_at": created_at, **rows.WAITING}
        | {"versions": spec.code.versions or None}
        for each, spec in wanted.items()
        if each not in held
    ]
    if fresh:
        if connection.dialect.name == "sqlite":
            fresh = [row | {"id": n} for n, row in enumerate(fresh, highest(connection) + 1)]
        connection.execute(insert(runs), fresh)
        held = _held(connection, asked)
    return [held[spec.identity] for spec in specs]


def _held(connection: Connection, digests: Collection[str]) -> dict[Identity, int]:
    """The numbers of the runs under recipes of these digests; of equal ones the first."""
    of = [runs.c[name] for name in tables.IDENTITY]
    query: Select[Any] = select(*of, runs.c.versions, runs.c.id).where(
        runs.c.recipe_digest.in_(digests)
    )
    found = connection.execute(query.order_by(runs.c.id.desc()))
    return {(*row[:4], rows.code_of(row)): row.id for row in found}


def _created_at(connection: Connection) -> str:
    """When runs that are planned now were: later than all that were planned before."""
    of = (runs.c.created_at, tables.removed.c.created_at)
    before = [connection.execute(select(func.max(column))).scalar() for column in of]
    return rows.later(max(filter(None, before), default=None))
