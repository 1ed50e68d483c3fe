"""Runs for other tools: curves, final values, what is inside models, hyperparameters, in files of
TensorBoard, of Weights & Biases (offline), or of MLflow (SQLite).

DIR/quick/attnres:block_size=4/seed-0/events.out.tfevents.…; DIR/wandb/offline-run-…; DIR/mlflow.db
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, required
from attnres_cli.files import slug
from attnres_cli.lab.run_listing import settings_of
from attnres_cli.records.run import Probe, RunRecord, Status
from attnres_cli.store.store import Store

Scalars = tuple[int, dict[str, float]]
"""A step, and values by tag."""

_NO_NUMBERS = ("step", "mixing", "mixing_k", "mixing_v", "no_mixing", "added")
"""Of a probe, what is no row of numbers over depth."""

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
    "WANDB_ERROR_REPORTING": "false",
}  # fmt: skip
"""What keeps the tools from telling anybody, since these files are for this machine."""

_OVER_TOKENS = "over_tokens/"
_MOST_METRICS = 1000  # that MLflow takes at once
_MOST_PARAMS = 100


@dataclass(frozen=True)
class Exported:
    """An ended run as other tools want it. `name` is recipe/variant/seed-0; `ended_at` in seconds
    is the time of all that it tells, since the study keeps no other.
    """

    name: str
    record: RunRecord
    settings: Mapping[str, str | float | bool]
    probes: Sequence[Probe]
    ended_at: float

    @property
    def scalars(self) -> Iterator[Scalars]:
        """Losses over steps and over tokens (nats per token), probes over depth, final values."""
        return _scalars(self.record, self.probes)

    @property
    def by_step(self) -> list[Scalars]:
        """All values but those over tokens, by step."""
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for step, values in self.scalars:
            if kept := {k: v for k, v in values.items() if not k.startswith(_OVER_TOKENS)}:
                found[step] |= kept
        return sorted(found.items())


def write(store: Store, records: Sequence[RunRecord], folder: Path, tool: str) -> int:
    """Write those of these runs that have ended for a tool of WRITERS, and return how many.

    The records need their curves. The folder must be empty: a tool would take two runs for one.
    Raises UsageError where it is not, no run has ended, or the tool's package is not installed.
    """
    package, extra, writer = WRITERS[tool]
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    library = required(package, extra, f"--{tool}", UsageError)
    runs = exported(store, records)
    if not runs:
        raise UsageError(f"--{tool}: none of these runs has ended, there is nothing to draw")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--{tool} {folder} is not empty: name a new folder")
        writer(library, folder, runs)
    except OSError as error:
        raise UsageError(f"--{tool} {folder} cannot be written: {error.strerror}") from error
    return len(runs)


def exported(store: Store, records: Sequence[RunRecord]) -> list[Exported]:
    """Those of these runs that have ended."""
    ended = [record for record in records if record.result is not None]
    probes, times = store.probes([run.id for run in ended]), store.standings([r.id for r in ended])
    ended = [run for run in ended if run.id in times]  # others were removed just now
    recipes = {digest: store.recipe(digest) for digest in {run.recipe_digest for run in ended}}
    return [
        Exported(
            name,
            run,
            hyperparameters(run, recipes[run.recipe_digest]),
            probes[run.id],
            datetime.fromisoformat(str(times[run.id].finished_at)).timestamp(),
        )
        for run, name in zip(ended, names(ended), strict=True)
    ]


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


def hyperparameters(run: RunRecord, recipe: Recipe) -> dict[str, str | float | bool]:
    """Variant, seed, how it ended, and what the recipe sets, as `optim.lr`."""
    found: dict[str, str | float | bool] = {"variant": run.variant, "seed": run.seed}
    found["status"] = str(run.status)
    found |= {"recipe": run.recipe, "recipe_digest": run.recipe_digest, "data": run.fingerprint}
    _, own = settings_of(recipe)
    return found | {k: v for k, v in own.items() if isinstance(v, str | float | int)}


def _scalars(run: RunRecord, probes: Sequence[Probe]) -> Iterator[Scalars]:
    """Losses over steps and over tokens (nats per token), probes over depth, values at the end."""
    result = run.result
    assert result is not None
    per_step = result.tokens // result.steps if result.steps else 0
    for point in result.curve:
        losses = {"train_loss": point.train_loss, "val_loss": point.val_loss}
        known = {name: loss for name, loss in losses.items() if loss is not None}
        yield point.step, known
        yield point.step * per_step, {f"{_OVER_TOKENS}{name}": v for name, v in known.items()}
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


def _tensorboard(library: Any, folder: Path, runs: Sequence[Exported]) -> None:
    """A folder per run."""
    from torch.utils.tensorboard.summary import hparams

    for run in runs:
        at, path = run.ended_at, str(folder / run.name)
        writer = library.SummaryWriter(path, filename_suffix=".attnres")
        for summary in hparams(run.settings, {"final/val_loss": 0.0}):
            writer.file_writer.add_summary(summary, walltime=at)
        for step, values in run.scalars:
            for tag, value in values.items():
                writer.add_scalar(tag, value, step, walltime=at)
        writer.close()


def _wandb(library: Any, folder: Path, runs: Sequence[Exported]) -> None:
    """An offline run per run, in a project per recipe; nothing of the machine or its packages."""
    quiet = library.Settings(
        mode="offline", silent=True, console="off", disable_git=True, save_code=False,
        x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True,
        x_save_requirements=False,
    )  # fmt: skip
    for run in runs:
        record, (project, name) = run.record, run.name.split("/", 1)
        about = {"group": record.variant, "notes": record.note, "tags": list(record.tags)}
        made = library.init(
            project=project, name=name, config=dict(run.settings), dir=str(folder), settings=quiet,
            reinit="create_new", **about,
        )  # fmt: skip
        for step, values in run.by_step:
            made.log({**values, "_timestamp": run.ended_at}, step=step)
        made.finish()
    library.teardown()


def _mlflow(library: Any, folder: Path, runs: Sequence[Exported]) -> None:
    """A run per run in one SQLite file, in an experiment per recipe."""
    metric, param = library.entities.Metric, library.entities.Param
    folder = folder.absolute()
    client, experiments = library.MlflowClient(f"sqlite:///{folder / 'mlflow.db'}"), {}
    for run in runs:
        record, at, (title, name) = run.record, round(1000 * run.ended_at), run.name.split("/", 1)
        if title not in experiments:
            place = (folder / "artifacts" / title).as_uri()
            experiments[title] = client.create_experiment(title, artifact_location=place)
        tags = {"mlflow.note.content": record.note, "tags": " ".join(record.tags)}
        tags = {key: value for key, value in tags.items() if value}
        made = client.create_run(experiments[title], at, tags, name).info.run_id
        params = [param(key, str(value)) for key, value in run.settings.items()]
        metrics = [metric(k, v, at, step) for step, vs in run.by_step for k, v in vs.items()]
        for i in range(0, len(params), _MOST_PARAMS):
            client.log_batch(made, params=params[i : i + _MOST_PARAMS])
        for i in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(made, metrics=metrics[i : i + _MOST_METRICS])
        how = "FINISHED" if record.status is Status.COMPLETE else "FAILED"
        client.set_terminated(made, how, at)


WRITERS: dict[str, tuple[str, str, Callable[[Any, Path, Sequence[Exported]], None]]] = {
    "tensorboard": ("torch.utils.tensorboard", "tensorboard", _tensorboard),
    "wandb": ("wandb", "wandb", _wandb),
    "mlflow": ("mlflow", "mlflow", _mlflow),
}
"""By the name of a tool: the package to import, the extra that installs it, and what writes."""
