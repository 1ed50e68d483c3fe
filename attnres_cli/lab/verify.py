"""Training a recorded run once more, from what the study holds alone, and comparing every bit."""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import stdev

import torch

from attnres_cli.config.recipe import Recipe
from attnres_cli.config.sections import Pipeline
from attnres_cli.data.tokens import Tokens
from attnres_cli.errors import DataError, DeviceError, UsageError
from attnres_cli.lab.export import check_weights
from attnres_cli.lab.workers.provenance import code_of, made_with
from attnres_cli.lab.workers.ranks import together
from attnres_cli.records.code import Code
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import (
    Event,
    Point,
    RunRecord,
    RunResult,
    RunSpec,
    Settings,
    way_of,
    weights_file,
)
from attnres_cli.records.verification import Departure, Verification
from attnres_cli.train import group
from attnres_cli.train.checkpoint import Checkpoints, differing
from attnres_cli.train.device import devices, settings
from attnres_cli.train.keeper import Keeper, Stop
from attnres_cli.train.loop import pauses

_ROUNDED = 2e-2
"""How far losses may be apart, relative, that were rounded in another way at every step: 1e-7 of
the first step is 1e-2 after a hundred steps of recipe smoke, whose rate is high.
"""

_EARLY_STEPS = 10
_LEAST_RUNS = 3

Changed = tuple[tuple[str, str, str], ...]
Curve = tuple[Point, ...]


def plan(record: RunRecord, recipe: Recipe, tokens: Tokens) -> tuple[Plan, Changed]:
    """A plan that repeats one run as recorded, and what differs here from its provenance. Raises
    UsageError if the run has not ended, DataError for other data, DeviceError without its device.
    """
    result = record.result
    if result is None:
        raise UsageError(f"run {record.id} is {record.status}: only what has ended is verified")
    if tokens.fingerprint != record.fingerprint:
        python = record.versions.get("python", "unknown")
        raise DataError(
            f"run {record.id} was trained on data {record.fingerprint}, which are now "
            f"{tokens.fingerprint} (recorded with Python {python}): verify needs the same"
        )
    recipe = _shared_as(recipe, result.settings)
    device, settings = _here(record.id, recipe, result.settings)
    arm = Arm(record.variant, result.n_params, result.flops_per_token, result.step_s)
    one = Plan(recipe, (arm,), (record.seed,), (device,), settings, record.fingerprint)
    return one, _changed(record, one.specs[0], settings)


def retrain(
    record: RunRecord,
    plan: Plan,
    changed: Changed,
    tokens: Tokens,
    kept: Path,
    on_event: Callable[[Event | None], None],
    spread: float | None = None,
) -> Verification:
    """Train the run again and compare it with the record; nothing of the study is written.
    Final weights are compared where `kept`, the study's file of them, is there. `spread` is that of
    the arm's final losses over seeds. Raises UsageError where the file is damaged.
    """
    if kept.exists() and record.result is not None:
        check_weights(record.id, kept, record.result.weights_sha256)
    torch.set_num_threads(plan.settings.threads)

    def on_step(step: int, loss: float | None) -> None:
        on_event(Event(0, record.id, step, loss))

    with tempfile.TemporaryDirectory(prefix="attnres-verify-") as folder:
        again = Path(folder) / "run"
        keeper = Keeper(Checkpoints(again, {}), math.inf, Stop())
        on_event(Event(0, record.id))
        result = together(plan.specs[0], tokens, plan.settings, plan.devices[0], on_step, keeper)
        on_event(Event(0, record.id, result.steps, done=True, val_loss=result.val_loss))
        weights, tolerance = None, _tolerance(record.result, result)
        if kept.exists() and not tolerance:
            weights = tuple(differing(kept, again / weights_file(result.weights_sha256)))
    assert record.result is not None
    curves = _alike(plan.recipe, record.result.curve, result.curve)
    departure, early = departs(*curves, tolerance), _early(*curves)
    return Verification(record, result, departure, weights, changed, tolerance, early, spread)


def spread_of(record: RunRecord, records: Sequence[RunRecord]) -> float | None:
    """Standard deviation of the final losses of all runs that differ from this one in their seed
    alone; None of fewer than three.
    """
    ends = [
        other.result.val_loss
        for other in records
        if other.result is not None
        and math.isfinite(other.result.val_loss)
        and (other.variant, other.recipe_digest, other.fingerprint, other.code)
        == (record.variant, record.recipe_digest, record.fingerprint, record.code)
    ]
    return stdev(ends) if len(ends) >= _LEAST_RUNS else None


def _early(recorded: Curve, now: Curve) -> float:
    """The largest relative difference of losses in the first steps; infinite if one is missing."""
    found = [0.0]
    for ours, theirs in zip(recorded, now, strict=False):
        if ours.step > _EARLY_STEPS:
            break
        for one, other in zip(_losses(ours), _losses(theirs), strict=True):
            if (one is None) != (other is None):
                return math.inf
            if one is not None and other is not None and one != other:
                found.append(abs(one - other) / max(abs(one), abs(other)))
    return max(found)


def _tolerance(recorded: RunResult | None, now: RunResult) -> float:
    """Of losses that are not rounded alike."""
    same = recorded is not None and recorded.settings.way == now.settings.way
    return 0.0 if same else _ROUNDED


def _alike(recipe: Recipe, one: Curve, other: Curve) -> tuple[Curve, Curve]:
    """Two curves; of a run that was trained on from a shorter one, which has other points up to
    there, what can be compared with a second training: losses of the same steps.
    """
    planned = {0: True, **dict(pauses(recipe))}
    if all(planned.get(p.step, False) or (p.step in planned and p.val_loss is None) for p in one):
        return one, other
    of = [{(x.step, y.step): y for x, y in itertools.pairwise(curve)} for curve in (one, other)]
    pairs = [(point, of[1][key]) for key, point in of[0].items() if key in of[1]]
    pairs = [
        (x, y) if None not in (x.val_loss, y.val_loss) else (_trained(x), _trained(y))
        for x, y in pairs
    ]
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)


def _trained(point: Point) -> Point:
    return replace(point, val_loss=None)


def departs(
    recorded: tuple[Point, ...], now: tuple[Point, ...], tolerance: float = 0.0
) -> Departure | None:
    """Where two curves are first not the same, to a relative tolerance; where one ends early, its
    losses are None.
    """
    for ours, theirs in itertools.zip_longest(recorded, now):
        step = (ours or theirs).step
        before, after = _losses(ours), _losses(theirs)
        for what, one, other in zip(("training", "validation"), before, after, strict=True):
            if one != other and (
                one is None or other is None or not math.isclose(one, other, rel_tol=tolerance)
            ):
                return Departure(step, f"{what} loss", one, other)
    return None


def _losses(point: Point | None) -> tuple[float | None, float | None]:
    """Training and validation loss; None for nan, which the study does not hold."""
    found = (None, None) if point is None else (point.train_loss, point.val_loss)
    train_loss, val_loss = (None if loss is None or math.isnan(loss) else loss for loss in found)
    return train_loss, val_loss


def _shared_as(recipe: Recipe, recorded: Settings) -> Recipe:
    """The recipe with how ranks shared a recorded run, where this is a group of ranks: its digest
    does not see that, and the study may hold another cut of a pipeline.
    """
    if group.current() is None or recorded.ranks < 2:
        return recipe
    name, _, cut = recorded.shared.partition(" on ")[0].partition(" ")
    how: dict[str, object] = {"parallel": name}
    if cut:  # as `2x1 1f1b`, of stages x virtual
        sizes, _, schedule = cut.partition(" ")
        virtual = int(sizes.partition("x")[2])
        how["pipeline"] = Pipeline(virtual=virtual, schedule=schedule)
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=how)})


def _here(run_id: int, recipe: Recipe, recorded: Settings) -> tuple[str, Settings]:
    """A device of the recorded kind, and the recorded settings with its name, and how ranks share
    the run here.
    """
    try:
        device = devices(recorded.device)[0]
        found = settings(recipe, device, recorded.threads, 0.0, recorded.engine)
    except (DeviceError, UsageError) as error:
        raise DeviceError(
            f"run {run_id} was computed with {recorded.numerics}, depth mixing by "
            f"{recorded.engine}, on {recorded.device_name}, which this machine cannot: {error}"
        ) from error
    way = way_of(recorded.compiled_as, found.shared)
    return device, replace(recorded, device_name=found.device_name, way=way)


def _changed(record: RunRecord, spec: RunSpec, settings: Settings) -> Changed:
    assert record.result is not None
    was, now = Code.of(record.versions), code_of(spec.variant)
    before = asdict(record.result.settings) | dict(record.versions) | was.versions
    after = asdict(settings) | made_with(spec, settings)
    before, after = {"code": was.digest or "unknown"} | before, after | {"code": now.digest}
    pairs = ((name, str(before[name]), str(after.get(name, "none"))) for name in before)
    return tuple((name, old, new) for name, old, new in pairs if old != new)
