"""A run as lists show it: where it stands, its recipe, and what sets it apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import RunRecord, Standing

Record = dict[str, Any]

_RESULT = (
    "val_loss", "initial_loss", "tokens", "step_s", "tokens_per_second", "train_s", "peak_bytes",
    "n_params", "flops_per_token",
)  # fmt: skip


@dataclass(frozen=True)
class Listed:
    """A run of a study.

    Attributes:
        settings: all that decides about it, by section.key; derived sizes as they are.
        own: those in which it differs from the recipe of its name.
        differs: the same as --set takes them, `optim.lr=0.02 train.tokens=2000`.
        base: the recipe of its name, in words: as shipped, or as its first run here had it.
    """

    record: RunRecord
    standing: Standing
    recipe: Recipe
    settings: Mapping[str, Any]
    own: Mapping[str, Any]
    differs: str
    base: str


def varying(runs: Sequence[Listed]) -> list[str]:
    """The settings, by section.key, in which these runs differ from each other or their recipes."""
    found = dict.fromkeys(key for run in runs for key in run.settings)
    own = {key for run in runs for key in run.own}
    return [key for key in found if key in own or len({r.settings.get(key) for r in runs}) > 1]


def as_records(runs: Sequence[Listed]) -> list[Record]:
    """A record per run, all of the same keys: what it is, the settings that are `varying`, where it
    stands and what came of it. Values are numbers and text; a loss is nan where a run diverged, and
    None stands for what there is none of.
    """
    columns = varying(runs)
    return [_record(run, columns) for run in runs]


def _record(run: Listed, columns: Sequence[str]) -> Record:
    record, result = run.record, run.record.result
    return {
        "run": record.id,
        "recipe": record.recipe,
        "recipe_digest": record.recipe_digest,
        "differs": run.differs,
        "variant": record.variant,
        "seed": record.seed,
        "data": record.fingerprint,
        "code": record.code,
        **{key: run.settings.get(key) for key in columns},
        "note": record.note,
        "tags": " ".join(record.tags),
        "origin": record.origin,
        "status": str(record.status),
        "error": record.error,
        **{key: value for key, value in vars(run.standing).items() if key != "run_id"},
        "steps": run.recipe.steps,
        **{name: getattr(result, name) if result else None for name in _RESULT},
    }
