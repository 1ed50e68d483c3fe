"""Runs in other tools: curves, final values, what is inside models, hyperparameters, for
TensorBoard, Weights & Biases and MLflow. Ended runs go into a folder (`write`); those that train
are followed by live.py.

DIR/quick/attnres:block_size=4/seed-0/events.out.tfevents.…; DIR/wandb/offline-run-…; DIR/mlflow.db
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError, required
from attnres_cli.files import slug
from attnres_cli.lab.run_listing import settings_of
from attnres_cli.records.run import WAITS, Point, Probe, RunRecord, Status
from attnres_cli.store.store import Store

Scalars = tuple[int, Mapping[str, float]]
"""A step, and values by tag."""

_NO_NUMBERS = ("step", "mixing", "mixing_k", "mixing_v", "no_mixing", "added")
"""Of a probe, what is no row of numbers over depth."""

_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING",
    "WANDB_ERROR_REPORTING": "false",
}  # fmt: skip
"""What keeps the tools from telling anybody else."""

_OVER_TOKENS = "over_tokens/"
_RUN_TAG = "attnres.run"  # of a run in MLflow: its key
_MOST_METRICS = 1000  # that MLflow takes at once
_MOST_PARAMS = 100


@dataclass(frozen=True)
class Tracked:
    """A run as other tools know it. `name` is recipe/variant/seed-0."""

    name: str
    record: RunRecord
    settings: Mapping[str, str | float | bool]

    @property
    def key(self) -> str:
        """12 hex digits that are the same in every command, and of no run of another study."""
        run = self.record
        of = "\n".join(map(str, (*run.identity, run.created_at, run.id)))
        return hashlib.sha256(of.encode()).hexdigest()[:12]


class Board(Protocol):
    """One run in a tool. `known` are the tags and steps that it had there before."""

    known: set[tuple[str, int]]

    def add(self, rows: Iterable[Scalars], at: float) -> None:
        """Log rows of that time, in seconds since 1970."""

    def end(self, status: Status, at: float) -> None:
        """Close it; a run that still waits is to go on later."""


@dataclass(frozen=True)
class Tool:
    """What makes a board of a run that begins, or goes on, at a time; and what ends them all."""

    begin: Callable[[Tracked, float], Board]
    close: Callable[[], None] = lambda: None


def write(store: Store, records: Sequence[RunRecord], folder: Path, tool: str) -> int:
    """Write those of these runs that have ended for a tool of PACKAGES, and return how many.

    The records need their curves. The folder must be empty: a tool would take two runs for one.
    Raises UsageError where it is not, no run has ended, or the tool's package is not installed.
    """
    library = imported(tool, f"--{tool}")
    ended = [record for record in records if record.result is not None]
    probes, times = store.probes([run.id for run in ended]), store.standings([r.id for r in ended])
    ended = [run for run in ended if run.id in times]  # others were removed just now
    if not ended:
        raise UsageError(f"--{tool}: none of these runs has ended, there is nothing to draw")
    recipes = {digest: store.recipe(digest) for digest in {run.recipe_digest for run in ended}}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--{tool} {folder} is not empty: name a new folder")
        into = _in_folder(tool, library, folder)
        for run, name in zip(ended, names(ended), strict=True):
            at = datetime.fromisoformat(str(times[run.id].finished_at)).timestamp()
            settings = hyperparameters(run, recipes[run.recipe_digest])
            board = into.begin(Tracked(name, run, settings), at)
            board.add(of_result(run, probes[run.id]), at)
            board.end(run.status, at)
        into.close()
    except OSError as error:
        raise UsageError(f"--{tool} {folder} cannot be written: {error.strerror}") from error
    return len(ended)


def imported(tool: str, option: str) -> Any:
    """The package of a tool, kept from telling anybody. Raises UsageError where it is not there."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    return required(PACKAGES[tool], tool, option, UsageError)


def _in_folder(tool: str, library: Any, folder: Path) -> Tool:
    """The tool, all of whose files lie in a folder."""
    if tool == "tensorboard":
        return tensorboard(library, folder)
    if tool == "wandb":
        return wandb(library, mode="offline", dir=str(folder))
    folder = folder.absolute()
    return mlflow(library, f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts")


def names(records: Iterable[RunRecord]) -> list[str]:
    """A folder per run: recipe, variant, seed; with digest and fingerprint where names clash, and
    with the run's number where codes do.
    """
    records, groups = list(records), defaultdict(set)
    for run in records:
        groups[run.recipe].add((run.recipe_digest, run.fingerprint))
    found = []
    for run in records:
        recipe = slug(run.recipe)
        if len(groups[run.recipe]) > 1:
            recipe += f"-{run.recipe_digest}-{run.fingerprint[:8]}"
        found.append(f"{recipe}/{slug(run.variant)}/seed-{run.seed}")
    times = Counter(found)
    return [
        f"{name}-run-{run.id}" if times[name] > 1 else name
        for name, run in zip(found, records, strict=True)
    ]


def hyperparameters(run: RunRecord, recipe: Recipe) -> dict[str, str | float | bool]:
    """Variant, seed, how it ended if it has, and what the recipe sets, as `optim.lr`."""
    found: dict[str, str | float | bool] = {"variant": run.variant, "seed": run.seed}
    if run.status not in WAITS:
        found["status"] = str(run.status)
    found |= {"recipe": run.recipe, "recipe_digest": run.recipe_digest, "data": run.fingerprint}
    _, own = settings_of(recipe)
    return found | {k: v for k, v in own.items() if isinstance(v, str | float | int)}


def of_result(run: RunRecord, probes: Sequence[Probe]) -> Iterator[Scalars]:
    """Losses, probes over depth, and values at the end of an ended run."""
    result = run.result
    assert result is not None
    yield from of_curve(result.curve, result.tokens // result.steps if result.steps else 0)
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


def of_curve(curve: Sequence[Point], tokens_per_step: int) -> Iterator[Scalars]:
    """Losses over steps and over tokens, nats per token."""
    for point in curve:
        losses = {"train_loss": point.train_loss, "val_loss": point.val_loss}
        known = {name: loss for name, loss in losses.items() if loss is not None}
        yield point.step, known
        over_tokens = {f"{_OVER_TOKENS}{name}": loss for name, loss in known.items()}
        yield point.step * tokens_per_step, over_tokens


def _by_step(rows: Iterable[Scalars]) -> list[tuple[int, dict[str, float]]]:
    """All values but those over tokens, by step."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    for step, values in rows:
        if kept := {k: v for k, v in values.items() if not k.startswith(_OVER_TOKENS)}:
            found[step] |= kept
    return sorted(found.items())


class _Events:
    """A folder of TensorBoard. What an earlier command wrote there is not shown beside this."""

    def __init__(self, library: Any, folder: Path, run: Tracked, at: float) -> None:
        from torch.utils.tensorboard.summary import hparams

        self.known: set[tuple[str, int]] = set()
        path = str(folder / run.name)
        self._writer = library.SummaryWriter(path, filename_suffix=".attnres", purge_step=0)
        for summary in hparams(run.settings, {"final/val_loss": 0.0}):
            self._writer.file_writer.add_summary(summary, walltime=at)

    def add(self, rows: Iterable[Scalars], at: float) -> None:
        for step, values in rows:
            for tag, value in values.items():
                self._writer.add_scalar(tag, value, step, walltime=at)
        self._writer.flush()

    def end(self, status: Status, at: float) -> None:
        self._writer.close()


class _WandbRun:
    """A run of Weights & Biases, in a project per recipe if none is named. One of the same key
    takes the place of the run that is there; nothing is told of the machine or its packages.
    """

    def __init__(self, library: Any, how: Mapping[str, Any], run: Tracked, at: float) -> None:
        quiet = library.Settings(
            silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True,
            x_disable_meta=True, x_disable_machine_info=True, x_save_requirements=False,
            init_timeout=30,
        )  # fmt: skip
        record, (title, name) = run.record, run.name.split("/", 1)
        about = {"group": record.variant, "notes": record.note, "tags": list(record.tags)}
        self.known: set[tuple[str, int]] = set()
        self._run = library.init(
            **{"project": title, **how}, id=run.key, name=name, config=dict(run.settings),
            settings=quiet, reinit="create_new", **about,
        )  # fmt: skip
        self._run.define_metric("*", step_metric="step")  # its own must not go back

    def add(self, rows: Iterable[Scalars], at: float) -> None:
        for step, values in _by_step(rows):
            self._run.log({**values, "step": step, "_timestamp": at})

    def end(self, status: Status, at: float) -> None:
        self._run.finish(exit_code=int(status is not Status.COMPLETE))


class _MlflowRun:
    """A run of MLflow, in an experiment per recipe: the one of this key, if there is one."""

    def __init__(
        self, library: Any, client: Any, artifacts: Path | None, run: Tracked, at: float
    ) -> None:
        self._entities, self._client = library.entities, client
        title, name = run.name.split("/", 1)
        found = client.get_experiment_by_name(title)
        place = None if artifacts is None else (artifacts / title).as_uri()
        experiment = found.experiment_id if found else client.create_experiment(title, place)
        before = client.search_runs([experiment], f"tags.`{_RUN_TAG}` = '{run.key}'")
        if before:
            self._id, tags = before[0].info.run_id, before[0].data.metrics
            client.update_run(self._id, "RUNNING")
        else:
            about = {"mlflow.note.content": run.record.note, "tags": " ".join(run.record.tags)}
            about = {_RUN_TAG: run.key} | {key: value for key, value in about.items() if value}
            self._id, tags = client.create_run(experiment, _ms(at), about, name).info.run_id, {}
        metrics = [each for tag in tags for each in client.get_metric_history(self._id, tag)]
        self.known = {(each.key, each.step) for each in metrics}
        params = [self._entities.Param(key, str(value)) for key, value in run.settings.items()]
        for i in range(0, len(params), _MOST_PARAMS):
            client.log_batch(self._id, params=params[i : i + _MOST_PARAMS])

    def add(self, rows: Iterable[Scalars], at: float) -> None:
        metric = partial(self._entities.Metric, timestamp=_ms(at))
        metrics = [metric(k, v, step=s) for s, vs in _by_step(rows) for k, v in vs.items()]
        for i in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._id, metrics=metrics[i : i + _MOST_METRICS])

    def end(self, status: Status, at: float) -> None:
        ended = "FINISHED" if status is Status.COMPLETE else "FAILED"
        self._client.set_terminated(self._id, "KILLED" if status in WAITS else ended, _ms(at))


def _ms(at: float) -> int:
    return round(1000 * at)


def tensorboard(library: Any, folder: Path) -> Tool:
    """Event files in a folder, one folder per run."""
    return Tool(partial(_Events, library, folder))


def wandb(library: Any, **how: Any) -> Tool:
    """Runs of Weights & Biases; `how` are arguments of its `init`."""
    return Tool(partial(_WandbRun, library, how), library.teardown)


def mlflow(library: Any, uri: str | None, artifacts: Path | None = None) -> Tool:
    """Runs of MLflow on a server or in a database; None: where its own settings say."""
    return Tool(partial(_MlflowRun, library, library.MlflowClient(uri), artifacts))


PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""By the name of a tool, and of the extra that installs it: the package to import."""
