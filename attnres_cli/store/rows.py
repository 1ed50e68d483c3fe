"""Between rows and the dataclasses of run.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Row as SqlRow

from attnres_cli.errors import StudyError
from attnres_cli.recipe import Recipe
from attnres_cli.run import (
    DataFacts,
    Point,
    RunRecord,
    RunResult,
    RunSpec,
    Settings,
    Standing,
    Status,
)
from attnres_cli.store import owner

Row = SqlRow[Any]

WAITING = {"status": Status.PENDING, "owner": None, "error": None}
"""What makes a run one that waits for a worker."""

LINES = ("floor", "zlib_bits", "xz_bits")
"""Reference lines of data that a study may have been made without."""

_SETTINGS = [field.name for field in fields(Settings)]
_PLAIN = [field.name for field in fields(RunResult) if field.name not in ("settings", "curve")]


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """A recipe as a row of attnres_recipes."""
    resolved = recipe.model_dump(mode="json")
    return {"digest": recipe.digest, "name": recipe.name, "resolved": resolved}


def of_data(facts: DataFacts) -> dict[str, Any]:
    """Facts as a row of attnres_data."""
    return asdict(facts)


def of_spec(spec: RunSpec) -> dict[str, Any]:
    """The identity of a run."""
    return {
        "recipe_digest": spec.recipe.digest,
        "variant": spec.variant,
        "seed": spec.seed,
        "fingerprint": spec.fingerprint,
    }


def of_result(result: RunResult) -> dict[str, Any]:
    """A result as columns of attnres_runs. SQL has no nan: a loss that is none is null."""
    values = {name: getattr(result, name) for name in _PLAIN} | asdict(result.settings)
    values["step"] = result.steps
    return {key: _null_if_nan(value) for key, value in values.items()}


def to_record(row: Row, points: Sequence[Point]) -> RunRecord:
    """A row of attnres_runs (with its recipe's name) and its curve."""
    try:
        status = Status(row.status)
    except ValueError as error:
        raise StudyError(f"run {row.id} is damaged ({error}): restore a copy of it") from error
    ended = status in (Status.COMPLETE, Status.DIVERGED)
    return RunRecord(
        id=row.id,
        recipe=row.recipe,
        recipe_digest=row.recipe_digest,
        variant=row.variant,
        seed=row.seed,
        fingerprint=row.fingerprint,
        status=status,
        error=row.error,
        result=_to_result(row, points) if ended else None,
        versions=row.versions or {},
    )


def to_standing(row: Row) -> Standing:
    """A row of attnres_runs, with what the kernel knows of its process."""
    is_known = row.owner is not None and owner.is_here(row.owner)
    values = {f.name: getattr(row, f.name) for f in fields(Standing) if hasattr(row, f.name)}
    alive = owner.is_alive(row.owner) if is_known else None
    return Standing(run_id=row.id, is_alive=alive, **values)


def to_point(row: Row) -> Point:
    """A row of attnres_curve."""
    return Point(row.step, row.train_loss, row.val_loss)


def _to_result(row: Row, points: Sequence[Point]) -> RunResult:
    values = {name: getattr(row, name) for name in _PLAIN}
    values["status"] = Status(row.status)
    for loss in ("val_loss", "initial_loss"):
        values[loss] = math.nan if values[loss] is None else values[loss]
    settings = Settings(**{name: getattr(row, name) for name in _SETTINGS})
    return RunResult(**values, settings=settings, curve=tuple(points))


def _null_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
