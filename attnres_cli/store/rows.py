"""Between rows of the study and the dataclasses of `records`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
from sqlalchemy import Row as SqlRow

from attnres_cli.records.comparison_terms import ArmRecipe, Matched, Terms, Tuned
from attnres_cli.records.gates import MEANING
from attnres_cli.records.run import (
    Gate,
    Point,
    Probe,
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

_SETTINGS = [field.name for field in fields(Settings)]
_TABLES = ("settings", "curve", "probes")
_PLAIN = [field.name for field in fields(RunResult) if field.name not in _TABLES]
_TEXT = "no_mixing"  # the one thing of a probe that is no number


def of_spec(spec: RunSpec) -> dict[str, Any]:
    """The identity of a run."""
    return {
        "recipe_digest": spec.recipe.digest,
        "variant": spec.variant,
        "seed": spec.seed,
        "fingerprint": spec.fingerprint,
    }


def of_result(result: RunResult) -> dict[str, Any]:
    """A result as columns of attnres_runs."""
    values = {name: getattr(result, name) for name in _PLAIN} | asdict(result.settings)
    return without_nan(values | {"step": result.steps})


def of_probe(run_id: int, probe: Probe) -> list[dict[str, Any]]:
    """Rows of attnres_probes: one for each thing that was measured, none for what was not."""
    found = []
    for name, value in vars(probe).items():
        if name == "step" or not value:
            continue
        array = np.frombuffer(value.encode(), np.uint8) if name == _TEXT else np.array(value, "<f4")
        shape = [] if name == _TEXT else list(array.shape)
        row = {"run_id": run_id, "step": probe.step, "name": name, "shape": shape}
        found.append(row | {"data": array.tobytes()})
    return found


def to_probe(step: int, measured: Sequence[Row]) -> Probe:
    """The rows of one run and step."""
    return Probe(step, **{row.name: _measured(row) for row in measured})


def _measured(row: Row) -> Any:
    """The text, numbers or rows of numbers."""
    if row.name == _TEXT:
        return row.data.decode()
    array = np.frombuffer(row.data, "<f4").reshape(row.shape)
    return tuple(tuple(each) if array.ndim > 1 else each for each in array.tolist())


def of_arm_recipe(found: ArmRecipe) -> dict[str, Any]:
    """An arm's recipe as a row of attnres_arm_recipes."""
    return {
        "base_digest": found.base_digest,
        "fingerprint": found.fingerprint,
        "variant": found.variant,
        "matched": found.terms.match,
        "baseline": found.terms.baseline,
        "tuned": found.terms.is_tuned,
        "digest": found.digest,
        "how": asdict(found.how),
    }


def to_arm_recipe(row: Row) -> ArmRecipe:
    """A row of attnres_arm_recipes."""
    held: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.how.items()}
    return ArmRecipe(
        base_digest=row.base_digest,
        fingerprint=row.fingerprint,
        terms=Terms(row.matched, row.baseline, row.tuned),
        variant=row.variant,
        digest=row.digest,
        how=Tuned(**held) if row.tuned else Matched(**held),
    )


def to_gate(row: Row) -> Gate:
    """A row of attnres_gates."""
    return Gate(row.name, row.passed, row.value, row.low, row.high)


def to_record(row: Row, points: Sequence[Point], gates: Sequence[Gate] = ()) -> RunRecord:
    """A row of attnres_runs (with its recipe's name), its curve and its gates."""
    status = Status(row.status)
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
        gates=tuple(sorted(gates, key=lambda gate: list(MEANING).index(gate.name))),
    )


def to_standing(row: Row) -> Standing:
    """A row of attnres_runs, with what the kernel knows of its process."""
    is_known = row.owner is not None and owner.is_here(row.owner)
    values = {f.name: getattr(row, f.name) for f in fields(Standing) if hasattr(row, f.name)}
    alive = owner.is_alive(row.owner) if is_known else None
    return Standing(run_id=row.id, is_alive=alive, **values)


def _to_result(row: Row, points: Sequence[Point]) -> RunResult:
    values = {name: getattr(row, name) for name in _PLAIN} | {"status": Status(row.status)}
    for loss in ("val_loss", "initial_loss"):
        values[loss] = math.nan if values[loss] is None else values[loss]
    settings = Settings(**{name: getattr(row, name) for name in _SETTINGS})
    return RunResult(**values, settings=settings, curve=tuple(points))


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """SQLite has no nan, PostgreSQL has: a loss that is none is null in both."""

    def is_nan(value: object) -> bool:
        return isinstance(value, float) and math.isnan(value)

    return {key: None if is_nan(value) else value for key, value in values.items()}
