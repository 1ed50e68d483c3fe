"""What `attnres search` does: plan, try shapes, confirm the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from optuna.storages import RDBStorage

from attnres_cli.config.as_typed import searched_name
from attnres_cli.data.sources import beginning
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid, memory
from attnres_cli.lab.experiment import Experiment, Place, Watcher
from attnres_cli.lab.search import proposals, studies
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.request import Request
from attnres_cli.lab.search.trial_runner import TimeModel, TrialRunner, arm_of, predicted_s, timed
from attnres_cli.records import doubts
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Search, fresh_seeds
from attnres_cli.stats.optima import COMMON
from attnres_cli.store.optuna import Turn, asking, optuna_storage, turns
from attnres_cli.store.store import Store
from attnres_cli.verdict.labels import of_data
from attnres_cli.verdict.numbers import computing, duration, megabytes, plural

TIMING = "timing a few training steps of the shallowest and the deepest shape of each design"

_RANGES = ("n_layers", "d_model", "n_heads", "d_ff", "aspect", "heads_per_layer", "lr", "tokens")


def planned(request: Request, place: Place) -> Plan:
    """Where the runs of a search are computed, as its largest run wants it. Its arms are shapes at
    the ends of what is searched, weighed. Raises DeviceError where one of them cannot fit.
    """
    search, data = request.search, request.tokens.fingerprint
    held, names = Store.existing(place.study), (search.recipe, searched_name(search.recipe))
    before = [
        run
        for run in (held.runs(curves=False) if held else [])
        if run.recipe in names and run.fingerprint == data and run.code in search.codes
    ]
    largest = max(request.every, key=lambda point: point.flops)
    arms = tuple(map(arm_of, request.every))
    threads = grid.threads_of(before, held)
    on = (place.device, place.workers, place.engine, threads)
    made = grid.make(largest.recipe, arms, (search.first_seed,), data, *on)
    if "memory" in search.objectives and "cpu" in made.devices:
        raise UsageError(
            "--objective memory: on a CPU the peak is that of the whole process, with the "
            "interpreter and what it trained before; take step_time, or a GPU"
        )
    made = replace(made, arms=_ends(request, before))
    found = memory.fitted(made, request.tokens, None)  # refuses what cannot fit
    if place.workers is None and (found.settings.device == "cpu" or len(search.objectives) == 1):
        made = replace(made, devices=found.devices, workers_by=found.workers_by)
    return replace(made, recipe=request.recipe, arms=found.arms)


def _ends(request: Request, held: Sequence[RunRecord]) -> tuple[Arm, ...]:
    """The shallowest and the deepest shape of each design, among those not trained yet."""
    ended = {(run.recipe_digest, run.variant) for run in held if run.result is not None}
    ends: dict[Arm, None] = {}
    for points in request.points.values():
        left = [p for p in points if not ended or (p.recipe.digest, p.variant) not in ended]
        for pick in (min, max) if left else ():
            end = pick(left, key=lambda point: (point.trunk.n_layers, point.n_params))
            ends[arm_of(end)] = None
    return tuple(ends)


def run(request: Request, plan: Plan, place: Place, watcher: Watcher) -> int:
    """Do what the study lacks of a planned search, and return how many of its runs failed."""
    study, search = place.study, request.search
    store = Store.open(study, create=True)
    for line in studies.of_other_code(search, list(request.points), study):
        watcher.note(line)
    experiment = Experiment(place, store, request.tokens, watcher)
    with optuna_storage(study) as storage, turns(study) as alone:
        families = [_family(request, spec, storage, study, alone) for spec in request.points]
        runner = TrialRunner(experiment, plan, search, families)
        if place.retry_failed:
            runner.retry()
        if any(family.n_left(search.n_trials) for family in families):
            experiment.prepare(plan)
            watcher.note(TIMING)
            runner.step_s = timed(request.points.values(), plan, request.tokens)
            watcher.text(lines(request, plan, runner.step_s))
        runner.screen()
        runner.confirm(request.n_confirmed, _fresh_seeds(search, store, study))
    return len(experiment.failed)


def _family(request: Request, spec: str, storage: RDBStorage, study: str, alone: Turn) -> Family:
    """The search of a design, as the study holds it or begun now."""
    search, (kind, told) = request.search, request.samplers[spec]
    begin = partial(studies.open_study, storage, search, list(request.points), spec)
    held, points = asking(study, begin), proposals.Points(request.points[spec])
    n_startup = proposals.n_startup(kind, search.n_trials)
    held.sampler = proposals.Feasible(points, kind, int(search.name, 16), n_startup)
    family = Family(spec, points, held, storage, alone, n_startup, study)
    family.keep_asked(search, told)
    return family


def _fresh_seeds(asked: Search, store: Store, study: str) -> tuple[int, ...]:
    """The seeds asked for now, and those that other commands have trained in the meantime."""
    (held,) = [each for each in studies.read(study) if each.name == asked.name]
    others = (*held.earlier_seeds, *held.confirm_seeds)
    search = replace(held, confirm_seeds=asked.confirm_seeds, earlier_seeds=others)
    runs = store.runs(curves=False)
    return fresh_seeds(search, {run.identity for run in runs if run.result is not None})


def seconds_of(request: Request, plan: Plan, step_s: TimeModel) -> float | None:
    """How long the training steps of the first look take; None where that cannot be timed."""
    trials = [(n, request.points[spec]) for spec, n in request.n_trials.items()]
    return predicted_s(trials, step_s, len(plan.devices))


def lines(request: Request, plan: Plan, step_s: TimeModel) -> list[str]:
    """What a search will try, and how long its first look takes at most."""
    search, tokens = request.search, [int(p.dimensions["tokens"]) for p in request.every]
    data, n_eval_tokens = request.tokens.description, request.recipe.train.eval_tokens
    begins = beginning(request.recipe.data, request.tokens)
    n_shapes = plural(len({point.trunk for point in request.every}), "shape")
    told = [
        f"search {search.name}: recipe {search.recipe}, --budget {search.budget}",
        f"space {search.space}: {n_shapes}, the same for every design, each within "
        f"{search.tolerance:.1%} of the budget:",
        *_ranges(request),
        f"learning rate: {search.learning_rate}",
    ]
    for spec, n_trials in request.n_trials.items():
        told.append(f"{spec}: {plural(n_trials, 'trial')}; {request.samplers[spec][1]}")
    objectives = ", ".join(search.objectives)
    told += [
        f"objective {objectives}; first look on seed {search.first_seed}{_confirming(request)}",
        *of_data(data, request.recipe, tokens),
        *([f"training text begins {begins}"] if begins else []),
        *(f"warning: {doubt}" for doubt in doubts.of(data, max(tokens), n_eval_tokens)),
        computing(plan),
        *filter(None, (plan.threads_by, plan.workers_by)),
    ]
    if peaks := sorted(arm.memory.peak for arm in plan.arms if arm.memory is not None):
        held = " to ".join(dict.fromkeys(map(megabytes, (peaks[0], peaks[-1]))))
        told.append(f"memory of a training step, shallowest and deepest shapes: {held}")
    if (seconds := seconds_of(request, plan, step_s)) is not None:
        time = duration(seconds)
        told.append(f"predicted time of the training steps of the first look: {time}")
    return told


def _ranges(request: Request) -> list[str]:
    """What the points have, from the least to the most."""
    columns = {name: [float(p.dimensions[name]) for p in request.every] for name in _RANGES}
    columns["params"] = [float(point.n_params) for point in request.every]
    told = []
    for name, values in columns.items():
        ends = [f"{v:,.0f}" if v == int(v) else f"{v:.3g}" for v in (min(values), max(values))]
        told.append(f"  {name} {' to '.join(dict.fromkeys(ends))}")
    return told


def _confirming(request: Request) -> str:
    """What follows the first look."""
    search, n = request.search, request.n_confirmed
    if not search.confirm_seeds:
        return ""
    shapes = "the best shape" if n == 1 else f"the {n} best shapes"
    of = "each design" if len(search.objectives) == 1 else "the front of each design"
    common = f", and the {COMMON} best of each two together, for all designs"
    seeds = ", ".join(map(str, search.confirm_seeds))
    return f"; {shapes} of {of}{common * (len(request.points) > 1)}: then trained on seeds {seeds}"
