"""Runs as TensorBoard's event files: curves, final values, what is inside models, hyperparameters.

    DIR/quick/attnres:block_size=4/seed-0/events.out.tfevents.…

TensorFlow is not needed: an event file is a row of records, each a protocol buffer with its length
and checksums (tensorboard/compat/proto/event.proto).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import UsageError
from attnres_cli.records.run import Probe, RunRecord, Status
from attnres_cli.store.store import Store

Scalars = tuple[int, dict[str, float]]
"""A step, and values by tag."""

_SUCCESS, _FAILURE = 1, 2  # tensorboard/plugins/hparams/api.proto, Status
_NO_NUMBERS = ("step", "mixing", "no_mixing")
"""Of a probe, what is no row of numbers over depth."""


def write(store: Store, records: Sequence[RunRecord], folder: Path) -> list[Path]:
    """Write an event file for each of these runs that has ended; the files.

    All events of a run have the time at which it ended: the study keeps no other.

    Args:
        store: the study.
        records: runs of it, with their curves.
        folder: is made, and must be empty, or TensorBoard would draw two runs as one.

    Raises:
        UsageError: TensorBoard is not installed, no run has ended, or the folder cannot be used.

    """
    tensorboard = _tensorboard()
    ended = [record for record in records if record.result is not None]
    if not ended:
        raise UsageError("--tensorboard: none of these runs has ended, there is nothing to draw")
    probes, times = store.probes([run.id for run in ended]), store.standings([r.id for r in ended])
    ended = [run for run in ended if run.id in times]  # others were removed just now
    recipes = {digest: store.recipe(digest) for digest in {run.recipe_digest for run in ended}}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--tensorboard {folder} is not empty: name a new folder")
        for run, name in zip(ended, names(ended), strict=True):
            finished = datetime.fromisoformat(str(times[run.id].finished_at)).timestamp()
            path = folder / name / f"events.out.tfevents.{finished:.0f}.attnres"
            path.parent.mkdir(parents=True)
            with path.open("wb") as file:
                writer, recipe = tensorboard.RecordWriter(file), recipes[run.recipe_digest]
                for event in _events(tensorboard, run, recipe, probes[run.id], finished):
                    writer.write(event.SerializeToString())
            written.append(path)
    except OSError as error:
        raise UsageError(f"--tensorboard {folder} cannot be written: {error.strerror}") from error
    return written


def names(records: Iterable[RunRecord]) -> list[str]:
    """A folder for each: recipe, variant, seed. Where several recipes, or one on several data, have
    a name in common, digest and fingerprint stand behind it.
    """
    records, groups = list(records), defaultdict(set)
    for run in records:
        groups[run.recipe].add((run.recipe_digest, run.fingerprint))
    found = []
    for run in records:
        recipe = run.recipe.replace("/", "_")
        if len(groups[run.recipe]) > 1:
            recipe += f"-{run.recipe_digest}-{run.fingerprint[:8]}"
        found.append(f"{recipe}/{run.variant}/seed-{run.seed}")
    return found


def _events(
    tensorboard: SimpleNamespace,
    run: RunRecord,
    recipe: Recipe,
    probes: Sequence[Probe],
    finished: float,
) -> Iterator[Any]:
    """The file's version, hyperparameters, scalars, and how it ended."""
    Event, Summary, hparams = tensorboard.Event, tensorboard.Summary, tensorboard.hparams

    def session(tag: str, **content: Any) -> Any:
        about = tensorboard.metadata.create_summary_metadata(hparams.HParamsPluginData(**content))
        null = tensorboard.metadata.NULL_TENSOR
        summary = Summary(value=[Summary.Value(tag=tag, metadata=about, tensor=null)])
        return Event(wall_time=finished, summary=summary)

    yield Event(wall_time=finished, file_version="brain.Event:2")
    start = hparams.SessionStartInfo(start_time_secs=finished)
    for name, value in hyperparameters(run, recipe).items():
        kind = "bool_value" if isinstance(value, bool) else "number_value"
        setattr(start.hparams[name], "string_value" if isinstance(value, str) else kind, value)
    yield session(tensorboard.metadata.SESSION_START_INFO_TAG, session_start_info=start)
    for step, values in _scalars(run, probes):
        row = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        yield Event(wall_time=finished, step=step, summary=Summary(value=row))
    status = _FAILURE if run.status is Status.DIVERGED else _SUCCESS
    end = hparams.SessionEndInfo(status=status, end_time_secs=finished)
    yield session(tensorboard.metadata.SESSION_END_INFO_TAG, session_end_info=end)


def hyperparameters(run: RunRecord, recipe: Recipe) -> dict[str, str | float | bool]:
    """Variant, seed, and every value of the recipe, as `optim.lr`; what is unset is left out."""
    found: dict[str, str | float | bool] = {"variant": run.variant, "seed": run.seed}
    found |= {"recipe": run.recipe, "recipe_digest": run.recipe_digest, "data": run.fingerprint}
    for section, values in recipe.model_dump(mode="json").items():
        if isinstance(values, Mapping):
            plain = {k: v for k, v in values.items() if isinstance(v, str | float | int)}
            found |= {f"{section}.{key}": value for key, value in plain.items()}
    return found


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


def _tensorboard() -> SimpleNamespace:
    """What is used of the package, which only this needs."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams import plugin_data_pb2 as hparams
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise UsageError(
            f"--tensorboard needs the package tensorboard, which cannot be imported ({error}): "
            "pip install 'attnres-cli[tensorboard]'"
        ) from error
    return SimpleNamespace(
        Event=Event, Summary=Summary, metadata=metadata, hparams=hparams, RecordWriter=RecordWriter
    )
