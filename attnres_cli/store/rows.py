"""Between rows of the study and the dataclasses of `records`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any

from sqlalchemy import Row as SqlRow
from sqlalchemy import Table, select

from attnres_cli.config.reading import as_tuples
from attnres_cli.files import check_name
from attnres_cli.records.asked import Asked
from attnres_cli.records.code import Code
from attnres_cli.records.comparison_terms import ArmRecipe, Given, Matched, Terms, Trial, Tuned
from attnres_cli.records.gates import DOUBTS, MEANING, PROOFS
from attnres_cli.records.run import (
    ENDED,
    DataDescription,
    Gate,
    Point,
    Removed,
    RunRecord,
    RunResult,
    Settings,
    Standing,
    Status,
)
from attnres_cli.records.step_ratio import TimedArm
from attnres_cli.store import owner
from attnres_cli.store.tables import (
    IDENTITY,
    arm_recipes,
    asked,
    data,
    gates,
    removed,
    runs,
    step_ratios,
)

Row = SqlRow[Any]

_MAY_LACK = {"val_loss", "initial_loss", "weights_sha256"}  # of what has ended
_LOSSES = {float, int, type(None)}
_TIMES = ("created_at", "started_at", "finished_at", "heartbeat_at")

WAITING = {"status": Status.PENDING, "owner": None, "error": None}
"""What makes a run one that waits for a worker."""


def now() -> str:
    """The time as the study holds it: UTC, ISO 8601, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def later(than: str | None) -> str:
    """The time in microseconds, later than another one, whatever the clocks of two machines say. As
    texts, times are in order, those of whole seconds among them.
    """
    moment = datetime.now(UTC)
    if than is not None:
        moment = max(moment, datetime.fromisoformat(than) + timedelta(microseconds=1))
    return moment.isoformat(timespec="microseconds")


def code_of(row: Row) -> str:
    """The digest of a run's code, as it is told from the run's versions."""
    return Code.of(row.versions or {}).digest or row.code or ""


def of_removed(row: Row, reason: str | None) -> dict[str, Any]:
    """What is kept of a row of attnres_runs that is removed now, as a row of attnres_removed."""
    kept = {name: getattr(row, name) for name in (*IDENTITY, "created_at", "status", "val_loss")}
    return kept | {"versions": row.versions, "removed_at": now(), "reason": reason}


def to_removed(row: Row) -> Removed:
    """A row of attnres_removed."""
    values = shared(Removed, removed, row) | {"status": Status(row.status), "code": code_of(row)}
    return Removed(**(values | {"val_loss": _or_nan(row.val_loss)}))


def to_step_ratio(row: Row) -> TimedArm:
    """A row of attnres_step_ratios."""
    return TimedArm(**shared(TimedArm, step_ratios, row))


def to_asked(row: Row) -> Asked:
    """A row of attnres_asked."""
    return Asked(**shared(Asked, asked, row))


def shared(kind: Any, table: Table, found: object) -> dict[str, Any]:
    """The fields of a dataclass that are columns of a table, of an object or row that has them."""
    names, read = columns(kind, table)
    values = sound(table, dict(zip(names, read(found), strict=True)))
    if "variant" in values:
        check_name(values["variant"], "variant")
    return values


def sound(table: Table, row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table as it is. Raises ValueError for a value that its column cannot have."""
    if wrong := _wrong(table, tuple(row), tuple(map(type, row.values()))):
        raise ValueError(f"{table.name}.{wrong} holds {row[wrong]!r}")
    return row


@cache
def columns(kind: Any, table: Table) -> tuple[tuple[str, ...], attrgetter[tuple[Any, ...]]]:
    """The names of those that are fields of the dataclass, two or more, and what reads them."""
    names = {field.name for field in fields(kind)}
    found = tuple(name for name in _types(table) if name in names)
    return found, attrgetter(*found)


@cache  # thousands of rows have the same few types; SQLite puts anything into any column
def _wrong(table: Table, names: tuple[str, ...], held: tuple[type, ...]) -> str:
    """The first column that cannot have a value of such a type; empty where all can."""
    types = _types(table)
    pairs = zip(names, held, strict=True)
    return next((name for name, one in pairs if not issubclass(one, types[name])), "")


@cache
def _types(table: Table) -> dict[str, tuple[type, ...]]:
    """What each column of a table may hold."""
    found = {}
    for column in table.c:
        of = column.type.python_type
        types = (int, float) if of is float else (dict, list) if of is dict else (of,)
        found[column.name] = (*types, type(None)) if column.nullable else types
    return found


def to_point(step: Any, train_loss: Any, val_loss: Any) -> Point:
    """A row of attnres_curve."""
    if type(step) is not int or not {type(train_loss), type(val_loss)} <= _LOSSES:
        raise ValueError(f"attnres_curve holds {step!r}, {train_loss!r}, {val_loss!r}")
    return Point(step, train_loss, val_loss)


def to_gate(row: Row) -> Gate:
    """A row of attnres_gates."""
    return Gate(**shared(Gate, gates, row))


def to_facts(row: Row) -> DataDescription:
    """A row of attnres_data."""
    return DataDescription(**shared(DataDescription, data, row))


def of_result(result: RunResult) -> dict[str, Any]:
    """A result as columns of attnres_runs."""
    values = shared(RunResult, runs, result) | asdict(result.settings)
    wrong = [text for name, text in result.proofs if text and name in PROOFS]
    return without_nan(values | {"step": result.steps, "error": "; ".join(wrong) or None})


def of_arm_recipe(found: ArmRecipe) -> dict[str, Any]:
    """An arm's recipe as a row of attnres_arm_recipes."""
    terms, how = found.terms, asdict(found.how)
    by = {"matched": terms.match, "baseline": terms.baseline, "tuned": terms.is_tuned}
    return shared(ArmRecipe, arm_recipes, found) | by | {"how": how}


def to_arm_recipe(row: Row) -> ArmRecipe:
    """A row of attnres_arm_recipes (with the shared recipe's name)."""
    held: dict[str, Any] = as_tuples(row.how)
    given = Given(**held) if "is_own" in held else None
    if held.get("given") is not None:
        given = held["given"] = Given(**held["given"])
    if "second" in held:
        held["second"] = tuple(Trial(**each) for each in held["second"])
    how = Tuned(**held) if row.tuned else given if "is_own" in held else Matched(**held)
    terms = Terms(row.matched, row.baseline, row.tuned, by_design=given is not None)
    values = shared(ArmRecipe, arm_recipes, row)
    return ArmRecipe(**(values | {"terms": terms, "how": how, "recipe": row.recipe}))


def to_record(row: Row, points: Sequence[Point], gates: Sequence[Gate] = ()) -> RunRecord:
    """A row of attnres_runs (with its recipe's name), its curve and its gates."""
    status = Status(row.status)
    ended = status in ENDED
    values = shared(RunRecord, runs, row) | {"status": status, "versions": row.versions or {}}
    if not all(isinstance(each, str) for each in values["versions"].values()):
        raise ValueError(f"attnres_runs.versions holds {values['versions']!r}")
    tags = tuple(check_name(tag, "tag") for tag in row.tags or ())
    values |= {"code": code_of(row), "note": row.note or "", "tags": tags}
    values |= {"origin": row.origin or ""}
    gates = sorted(gates, key=lambda gate: list(MEANING).index(gate.name))
    return RunRecord(
        **values,
        recipe=check_name(row.recipe, "recipe"),
        result=_to_result(row, points, gates) if ended else None,
        gates=tuple(gates),
    )


def to_standing(row: Row) -> Standing:
    """A row of attnres_runs, with what the kernel knows of its process."""
    alive = None if row.owner is None else owner.is_alive(row.owner)
    values = shared(Standing, runs, row)
    for name in _TIMES:
        datetime.fromisoformat(values[name] or row.created_at)
    return Standing(run_id=row.id, is_alive=alive, **values)


def _to_result(row: Row, points: Sequence[Point], gates: Sequence[Gate]) -> RunResult:
    values = shared(RunResult, runs, row) | {"status": Status(row.status)}
    if missing := [
        name for name, value in values.items() if value is None and name not in _MAY_LACK
    ]:
        raise ValueError(f"run {row.id} has ended without {missing[0]}")
    for loss in ("val_loss", "initial_loss"):
        values[loss] = _or_nan(values[loss])
    found = shared(Settings, runs, row)
    settings = Settings(**found | {"way": found["way"] or ""})
    if None in vars(settings).values():
        raise ValueError(f"run {row.id} has ended, nobody knows how it was computed")
    proofs = tuple(
        (gate.name, "" if gate.passed else row.error or gate.name)
        for gate in gates
        if gate.name in PROOFS + DOUBTS
    )
    return RunResult(**values, settings=settings, curve=tuple(points), proofs=proofs)


def _or_nan(loss: float | None) -> float:
    return math.nan if loss is None else loss


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """SQLite has no nan, PostgreSQL has: a loss that is none is null in both."""

    def is_nan(value: object) -> bool:
        return isinstance(value, float) and math.isnan(value)

    return {key: None if is_nan(value) else value for key, value in values.items()}


STANDINGS = select(runs.c.id, *(runs.c[name] for name in columns(Standing, runs)[0]))
"""Of attnres_runs what `to_standing` reads."""
