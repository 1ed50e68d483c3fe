"""What is read from an open study: rows stay here, frozen dataclasses leave."""

from __future__ import annotations

import hashlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Row, Table, func, inspect, select

from attnres_cli.config import address
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.asked import Asked
from attnres_cli.records.comparison_terms import ArmRecipe
from attnres_cli.records.evaluated import Evaluated
from attnres_cli.records.items import Items
from attnres_cli.records.run import (
    DataDescription,
    Probe,
    Removed,
    RunRecord,
    Standing,
    Status,
    weights_file,
)
from attnres_cli.records.step_ratio import TimedArm
from attnres_cli.store import owner, postgres, queries, rows, sqlite, tables, upgrade
from attnres_cli.store.engine import readable, refusals
from attnres_cli.store.holding import Holding, holding
from attnres_cli.store.retry import patient, retry_s
from attnres_cli.store.tables import recipes, runs
from attnres_cli.store.waits import Stalls

if TYPE_CHECKING:
    from attnres_cli.records.preregister import Registration

T = TypeVar("T")


class Reader:
    """One study, open. Every transaction is short, and done whole or not at all. While a server is
    away, all but `beat` and `let_go` are tried again for patience_s seconds, then raise
    `AwayError`. `folder`, where its runs keep files on this machine, may not be there.
    """

    def __init__(self, engine: Engine, folder: Path, name: str) -> None:
        is_file = engine.dialect.name == "sqlite"
        self.folder = folder
        self.patience_s = retry_s()
        self._name, self._file = name, address.file_of(name).resolve() if is_file else None
        self._reading = engine if is_file else postgres.snapshots(engine)
        self._writing = sqlite.immediate(engine) if is_file else engine
        self._watch = owner.Watch()  # of the heartbeats that were seen
        self._stalls = None if is_file else Stalls(engine, name)
        weakref.finalize(self, engine.pool.dispose)

    @contextmanager
    def _read(self) -> Iterator[Connection]:
        """See the study at one moment. Raises StudyError."""
        unchanged = sqlite.unchanged(self._file) if self._file else nullcontext()
        with (
            self._explained(),
            readable(self._name),
            unchanged,
            self._reading.connect() as connection,
        ):
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What the database refuses, as a StudyError; a server that is silent is told of."""
        if self._stalls:
            self._stalls.ask()
        try:
            with (
                self._stalls.watched(self.patience_s) if self._stalls else nullcontext(),
                refusals(self._name, self._file and self._file.parent),
            ):
                yield
        except StudyError:
            self._watch = owner.Watch()  # no heartbeat could be seen: nobody is gone for that
            raise

    @patient
    def runs(
        self, *, ids: Sequence[int] | None = None, curves: bool = True, gates: bool = True
    ) -> list[RunRecord]:
        """Runs of the study, in the order of `ids` if given, else as planned; removed ones are left
        out. Without curves, which are most rows of a study, reading is ten times as fast; a list
        that judges no run does without gates too.
        """
        mine: list[ColumnElement[bool]] = [] if ids is None else [runs.c.id.in_(ids)]
        with self._read() as connection:
            found = queries.records(connection, *mine, curves=curves, gates=gates)
        by_id = {record.id: record for record in found}
        return found if ids is None else [by_id[n] for n in ids if n in by_id]

    @patient
    def removed(self) -> list[Removed]:
        """The runs that were removed once one of their table had begun, in order of removal."""
        with self._read() as connection:
            found = connection.execute(select(tables.removed).order_by(tables.removed.c.id))
            return [rows.to_removed(row) for row in found]

    @patient
    def probes(self, ids: Sequence[int], only: Sequence[str] = ()) -> dict[int, tuple[Probe, ...]]:
        """What was measured inside the models of these runs, by step; too much to be in `runs`. Of
        it only the fields of these names, if any are given.
        """
        from attnres_cli.store import arrays  # with numpy, which lists of runs need not wait for

        of = tables.probes
        query = select(of).where(of.c.run_id.in_(ids)).order_by(of.c.step)
        query = query.where(of.c.name.in_(only)) if only else query
        found: dict[int, dict[int, dict[str, Any]]] = {run_id: defaultdict(dict) for run_id in ids}
        with self._read() as connection:
            for row in connection.execute(query):
                found[row.run_id][row.step][row.name] = arrays.measured(row)
            return {
                run_id: tuple(Probe(step, **measured) for step, measured in steps.items())
                for run_id, steps in found.items()
            }

    @patient
    def _rows(
        self, of: Table, made: Callable[[Row[Any]], T], *where: ColumnElement[bool]
    ) -> list[T]:
        """What is made of rows of a table, by its key; nothing where the schema lacks the table."""
        with self._read() as connection:
            if upgrade.lacks(connection, of):
                return []
            query = select(of).where(*where).order_by(*of.primary_key)
            return [made(row) for row in connection.execute(query)]

    def items(self, ids: Sequence[int] | None = None) -> list[Items]:
        """What these runs, or all, have answered to items of tasks, by run and task."""
        from attnres_cli.store import arrays

        mine = [] if ids is None else [tables.items.c.run_id.in_(ids)]
        return self._rows(tables.items, arrays.to_items, *mine)

    def step_ratios(self, recipe_digest: str) -> list[TimedArm]:
        """How long steps of arms take under this recipe, as multiples of a baseline's."""
        of = tables.step_ratios
        return self._rows(of, rows.to_step_ratio, of.c.recipe_digest == recipe_digest)

    def until_decided(self, recipe_digest: str, fingerprint: str, baseline: str) -> int | None:
        """The most seeds of a table that grows until it is decided; None of any other."""
        of = tables.until_decided
        mine = (of.c.recipe_digest == recipe_digest, of.c.fingerprint == fingerprint)
        found = self._rows(of, lambda row: row.most, *mine, of.c.baseline == baseline)
        return found[0] if found else None

    def evaluated(self, recipe_digest: str, fingerprint: str) -> Evaluated | None:
        """What evaluations under a recipe predict; None where that is not known in bytes."""
        of = tables.evaluated
        mine = (of.c.recipe_digest == recipe_digest, of.c.fingerprint == fingerprint)
        found = self._rows(of, lambda row: Evaluated(**rows.shared(Evaluated, of, row)), *mine)
        return found[0] if found else None

    @patient
    def is_current(self) -> bool:
        """Whether this study is of the schema of now."""
        with self._read() as connection:
            return upgrade.is_current(connection)

    @patient
    def asked(self) -> list[Asked] | None:
        """The tables that were asked for; None where the schema is one that does not keep them."""
        with self._read() as connection:
            if upgrade.lacks(connection, tables.asked):
                return None
            return [rows.to_asked(row) for row in connection.execute(select(tables.asked))]

    @patient
    def statuses(self, ids: Sequence[int]) -> dict[int, Status]:
        """The status of each of these runs that is there: less to read than the runs."""
        query = select(runs.c.id, runs.c.status).where(runs.c.id.in_(ids))
        with self._read() as connection:
            return {row.id: Status(row.status) for row in connection.execute(query)}

    @patient
    def standings(self, ids: Sequence[int] | None = None) -> dict[int, Standing]:
        """Where runs stand at this moment, all of the study's if none are named."""
        mine = [] if ids is None else [runs.c.id.in_(ids)]
        with self._read() as connection:
            found = queries.every(connection, rows.STANDINGS.where(*mine))
            return {row.id: rows.to_standing(row) for row in found}

    @patient
    def owners(self, ids: Sequence[int]) -> dict[int, str]:
        """Which of these runs are running, and the process that runs each."""
        mine = (runs.c.id.in_(ids), runs.c.status == Status.RUNNING)
        with self._read() as connection:
            return dict(connection.execute(select(runs.c.id, runs.c.owner).where(*mine)).all())

    def owns(self, run_id: int) -> bool:
        """Whether this process is the one that runs that run."""
        return self.owners([run_id]).get(run_id) == owner.this_process()

    def folder_of(self, record: RunRecord) -> Path:
        """The folder of a run's files, named by more than its id: studies may share `folder`."""
        digest = hashlib.sha256(repr(record.identity[:4]).encode()).hexdigest()
        return self.folder / f"{record.id}-{digest[:8]}"

    def weights_of(self, record: RunRecord) -> Path:
        """Where the final weights of a run that has ended lie, if they are on this machine."""
        assert record.result is not None
        return self.folder_of(record) / weights_file(record.result.weights_sha256)

    @property
    def without_files(self) -> str:
        """What to say where the folder beside a study's file is not there; empty where it is."""
        if self._file is None or self.folder.is_dir():
            return ""
        return (
            f"the folder {self.folder} is not there: a study is copied together with it; bring it "
            "from where the runs were trained"
        )

    @patient
    def recipe(self, digest: str, fingerprint: str = "") -> Recipe:
        """The resolved recipe of that digest; with a fingerprint, of where these data lie."""
        query = select(recipes.c.resolved).where(recipes.c.digest == digest)
        with self._read() as connection:
            found = Recipe.model_validate(connection.execute(query).scalar_one())
            facts = queries.facts(connection, fingerprint) if fingerprint else None
        if facts is None or facts.path is None:
            return found
        places = {name: getattr(facts, name) for name in upgrade.PLACES}
        return found.model_copy(update={"data": found.data.model_copy(update=places)})

    @patient
    def recipes(self) -> dict[str, Recipe]:
        """All resolved recipes by digest, each by the name it has now, in order of their first run;
        those without runs last.
        """
        first = func.min(runs.c.id)
        query = select(recipes).outerjoin(runs).group_by(*recipes.primary_key)
        query = query.order_by(first.is_(None), first)
        with self._read() as connection:
            held = connection.execute(query).all()
            return {
                row.digest: Recipe.model_validate({**row.resolved, "name": row.name})
                for row in held
            }

    @patient
    def data(self, fingerprint: str) -> DataDescription:
        """What is known of the data with that fingerprint."""
        with self._read() as connection:
            return queries.facts(connection, fingerprint)

    @patient
    def arm_recipes(
        self, base_digest: str | None = None, fingerprint: str | None = None
    ) -> list[ArmRecipe]:
        """The recipes of single arms, all of the study's or those derived from one recipe."""
        of = tables.arm_recipes
        query = queries.ARM_RECIPES.order_by(of.c.matched, of.c.baseline, of.c.tuned, of.c.variant)
        if base_digest is not None:
            query = query.where(of.c.base_digest == base_digest, of.c.fingerprint == fingerprint)
        with self._read() as connection:
            return [rows.to_arm_recipe(row) for row in connection.execute(query)]

    @patient
    def registrations(self) -> list[Registration]:
        """All preregistrations of the study. Raises StudyError where one was changed since."""
        from attnres_cli.records.preregister import Registration

        with self._read() as connection:
            held = connection.execute(select(tables.registrations)).all()
            found = [Registration.model_validate(row.document) for row in held]
        for row, one in zip(held, found, strict=True):
            if (row.digest, row.recipe_digest) != (one.digest, one.recipe_digest):
                raise StudyError(
                    f"preregistration {row.digest} is not what was written: restore a copy of the "
                    "study"
                )
        return found

    @patient
    def holding(self) -> Holding:
        """All that the study holds, at one moment, for another study."""
        with self._read() as connection:
            return holding(connection, self._name)

    @patient
    def has_searches(self) -> bool:
        """Whether Optuna's tables, beside ours, hold a search."""
        with self._read() as connection:
            return queries.has_searches(connection)

    @patient
    def knows_optuna(self) -> bool:
        """Whether Optuna's tables are there, with searches or without."""
        with self._read() as connection:
            return inspect(connection).has_table("studies")
