"""Runs as TensorBoard's event files: curves, final values, what is inside models, hyperparameters.

DIR/quick/attnres:block_size=4/seed-0/events.out.tfevents.…
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, required
from attnres_cli.files import slug
from attnres_cli.lab.listing import derived
from attnres_cli.records.run import Probe, RunRecord
from attnres_cli.store.store import Store

Scalars = tuple[int, dict[str, float]]
"""A step, and values by tag."""

_NO_NUMBERS = ("step", "mixing", "no_mixing")
"""Of a probe, what is no row of numbers over depth."""


def write(store: Store, records: Sequence[RunRecord], folder: Path) -> int:
    """Write an event file for each of these runs that has ended, and return how many were written.

    All events of a run have the time at which it ended, since the study keeps no other. The records
    need their curves. The folder must be empty, or TensorBoard would draw two runs as one. Raises
    UsageError where it is not, no run has ended, or TensorBoard is not installed.
    """
    library = required("torch.utils.tensorboard", "tensorboard", "--tensorboard", UsageError)
    ended = [record for record in records if record.result is not None]
    if not ended:
        raise UsageError("--tensorboard: none of these runs has ended, there is nothing to draw")
    probes, times = store.probes([run.id for run in ended]), store.standings([r.id for r in ended])
    ended = [run for run in ended if run.id in times]  # others were removed just now
    recipes = {digest: store.recipe(digest) for digest in {run.recipe_digest for run in ended}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--tensorboard {folder} is not empty: name a new folder")
        for run, name in zip(ended, names(ended), strict=True):
            ended_at = datetime.fromisoformat(str(times[run.id].finished_at)).timestamp()
            recipe = recipes[run.recipe_digest]
            writer = library.SummaryWriter(str(folder / name), filename_suffix=".attnres")
            _write(writer, run, recipe, probes[run.id], ended_at)
    except OSError as error:
        raise UsageError(f"--tensorboard {folder} cannot be written: {error.strerror}") from error
    return len(ended)


def names(records: Iterable[RunRecord]) -> list[str]:
    """A folder per run: recipe, variant, seed; with digest and fingerprint where names clash."""
    records, groups = list(records), defaultdict(set)
    for run in records:
        groups[run.recipe].add((run.recipe_digest, run.fingerprint))
    found = []
    for run in records:
        recipe = slug(run.recipe)
        if len(groups[run.recipe]) > 1:
            recipe += f"-{run.recipe_digest}-{run.fingerprint[:8]}"
        found.append(f"{recipe}/{slug(run.variant)}/seed-{run.seed}")
    return found


def _write(
    writer: Any, run: RunRecord, recipe: Recipe, probes: Sequence[Probe], ended_at: float
) -> None:
    """Hyperparameters, then scalars."""
    from torch.utils.tensorboard.summary import hparams

    for summary in hparams(hyperparameters(run, recipe), {"final/val_loss": 0.0}):
        writer.file_writer.add_summary(summary, walltime=ended_at)
    for step, values in _scalars(run, probes):
        for tag, value in values.items():
            writer.add_scalar(tag, value, step, walltime=ended_at)
    writer.close()


def hyperparameters(run: RunRecord, recipe: Recipe) -> dict[str, str | float | bool]:
    """Variant, seed, how it ended, and what the recipe sets, as `optim.lr`."""
    found: dict[str, str | float | bool] = {"variant": run.variant, "seed": run.seed}
    found["status"] = str(run.status)
    found |= {"recipe": run.recipe, "recipe_digest": run.recipe_digest, "data": run.fingerprint}
    return found | {k: v for k, v in derived(recipe).items() if isinstance(v, str | float | int)}


def _scalars(run: RunRecord, probes: Sequence[Probe]) -> Iterator[Scalars]:
    """Losses over steps and over tokens (nats per token), probes over depth, values at the end."""
    result = run.result
    assert result is not None
    per_step = result.tokens // result.steps if result.steps else 0
    for point in result.curve:
        losses = {"train_loss": point.train_loss, "val_loss": point.val_loss}
        known = {name: loss for name, loss in losses.items() if loss is not None}
        yield point.step, known
        yield point.step * per_step, {f"over_tokens/{name}": v for name, v in known.items()}
    for probe in probes:
        rows = {name: row for name, row in vars(probe).items() if name not in _NO_NUMBERS and row}
        yield (
            probe.step,
            {f"{name}/{i:02}": v for name, row in rows.items() for i, v in enumerate(row)},
        )
    yield (
        result.steps,
        {
            "final/val_loss": result.val_loss,  # nan where the run diverged
            "final/tokens": result.tokens,
            "final/parameters": result.n_params,
            "final/flops_per_token": result.flops_per_token,
            "final/step_ms": 1000 * result.step_s,
            "final/tokens_per_second": result.tokens_per_second,
            "final/train_s": result.train_s,
            "final/peak_mib": result.peak_bytes / 2**20,
        },
    )
