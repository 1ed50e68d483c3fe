"""What `attnres search` does: plan, try shapes, confirm the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from optuna.storages import RDBStorage

from attnres_cli.config.as_typed import searched_name
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid, memory
from attnres_cli.lab.experiment import Experiment, Place, Watcher
from attnres_cli.lab.search import proposals, studies, trial_runner
from attnres_cli.lab.search.confirmation import confirm
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.request import Request
from attnres_cli.lab.search.screening import screen
from attnres_cli.lab.search.trial_runner import TimeModel, TrialRunner, predicted_s
from attnres_cli.records import doubts
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import RunRecord
from attnres_cli.records.search_records import Search, fresh_seeds
from attnres_cli.stats.optima import COMMON
from attnres_cli.store.optuna import Turn, asking, optuna_storage, turns
from attnres_cli.store.retry import retry_s
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
    points = chain(*request.points.values())
    arms = tuple(Arm(p.variant, p.n_params, p.flops_per_token, None, p.recipe) for p in points)
    held, names = Store.existing(place.study), (search.recipe, searched_name(search.recipe))
    before = [
        run
        for run in (held.runs(curves=False) if held else [])
        if run.recipe in names and run.fingerprint == data and run.code in search.codes
    ]
    on = (place.device, place.workers, place.engine, grid.threads_of(before))
    made = grid.make(request.largest.recipe, arms, (search.first_seed,), data, *on)
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
        for pick in (min, max):
            if left:
                p = pick(left, key=lambda point: (point.trunk.n_layers, point.n_params))
                ends[Arm(p.variant, p.n_params, p.flops_per_token, None, p.recipe)] = None
    return tuple(ends)


def run(request: Request, plan: Plan, place: Place, watcher: Watcher) -> int:
    """Do what the study lacks of a planned search, and return how many of its runs failed."""
    study, search = place.study, request.search
    store = Store.open(study, create=True)
    for other in studies.of_other_code(search, list(request.points), study):
        watcher.note(
            f"search {other}, the same by other code, stays: `attnres report --recipe {other}`"
        )
    experiment = Experiment(place, store, request.tokens, watcher)
    runner = TrialRunner(experiment, plan, search)
    with optuna_storage(study) as storage, turns(study) as alone:
        families = _families(request, storage, study, alone)
        if place.retry_failed:
            runner.retry(families)
        if runner.patiently(lambda: sum(family.n_left(search.n_trials) for family in families)):
            experiment.prepare(plan)
            watcher.note(TIMING)
            runner.step_s = timed(request, plan)
            watcher.text(lines(request, plan, runner.step_s))
        screen(runner, families)
        confirm(runner, families, request.n_confirmed, _fresh_seeds(search, store, study))
    return len(experiment.failed)


def timed(request: Request, plan: Plan) -> TimeModel:
    """How long each point takes, from a few steps trained now."""
    return trial_runner.timed(list(request.points.values()), plan, request.tokens)


def n_trials_of(request: Request) -> dict[str, int]:
    """How many trials each design gets: no more than it has points."""
    asked = request.search.n_trials
    return {spec: min(asked, len(points)) for spec, points in request.points.items()}


def seconds_of(request: Request, plan: Plan, step_s: TimeModel) -> float | None:
    """How long the training steps of the first look take; None where that cannot be timed."""
    trials = [(n, request.points[spec]) for spec, n in n_trials_of(request).items()]
    return predicted_s(trials, step_s, len(plan.devices))


def lines(request: Request, plan: Plan, step_s: TimeModel) -> list[str]:
    """What a search will try, and how long its first look takes at most."""
    search = request.search
    ranges = _ranges(list(chain(*request.points.values())))
    n_shapes = plural(request.n_shapes, "shape")
    tokens = [int(point.dimensions["tokens"]) for point in chain(*request.points.values())]
    seconds = seconds_of(request, plan, step_s)
    data, n_eval_tokens = request.tokens.description, request.recipe.train.eval_tokens
    return [
        f"search {search.name}: recipe {search.recipe}, --budget {search.budget}",
        f"space {search.space}: {n_shapes}, the same for every design, each within "
        f"{search.tolerance:.1%} of the budget:",
        *(f"  {name} {low}" + (f" to {high}" if high != low else "") for name, low, high in ranges),
        f"learning rate: {search.learning_rate}",
        *(
            f"{spec}: {plural(n_trials, 'trial')}; {request.samplers[spec][1]}"
            for spec, n_trials in n_trials_of(request).items()
        ),
        f"objective {', '.join(search.objectives)}; first look on seed {search.first_seed}"
        + _confirming(request),
        *of_data(data, request.recipe, tokens),
        *(f"warning: {doubt}" for doubt in doubts.of(data, max(tokens), n_eval_tokens)),
        computing(plan),
        *([plan.threads_by] if plan.threads_by else []),
        *([plan.workers_by] if plan.workers_by else []),
        *_memory(plan),
    ] + (
        []
        if seconds is None
        else [f"predicted time of the training steps of the first look: {duration(seconds)}"]
    )


def _memory(plan: Plan) -> list[str]:
    """What a training step holds, at the shallowest and the deepest shapes; not where unknown."""
    held = sorted(arm.memory.peak for arm in plan.arms if arm.memory is not None)
    if not held:
        return []
    ends = dict.fromkeys(map(megabytes, (held[0], held[-1])))
    return [f"memory of a training step, shallowest and deepest shapes: {' to '.join(ends)}"]


def _fresh_seeds(asked: Search, store: Store, study: str) -> tuple[int, ...]:
    """The seeds asked for now, and those that other commands have trained in the meantime."""
    (held,) = [each for each in studies.read(study) if each.name == asked.name]
    others = (*held.earlier_seeds, *held.confirm_seeds)
    search = replace(held, confirm_seeds=asked.confirm_seeds, earlier_seeds=others)
    runs = store.runs(curves=False)
    return fresh_seeds(search, {run.identity for run in runs if run.result is not None})


def _confirming(request: Request) -> str:
    """What follows the first look."""
    search, n = request.search, request.n_confirmed
    if not search.confirm_seeds:
        return ""
    shapes = "the best shape" if n == 1 else f"the {n} best shapes"
    of = "each design" if len(search.objectives) == 1 else "the front of each design"
    common = f", and the {COMMON} best of each two together, for all designs"
    seeds = ", ".join(map(str, search.confirm_seeds))
    shared = common if len(request.points) > 1 else ""
    return f"; {shapes} of {of}{shared}: then trained on seeds {seeds}"


def _families(request: Request, storage: RDBStorage, study: str, alone: Turn) -> list[Family]:
    """The search of each design, as the study holds it or begun now."""
    search, found = request.search, []
    for spec, points in request.points.items():
        kind, _ = request.samplers[spec]
        begin = partial(studies.open_study, storage, search, list(request.points), spec)
        held = asking(study, begin, retry_s())
        mapped, startup = proposals.Points(points), proposals.n_startup(kind, search.n_trials)
        held.sampler = proposals.Feasible(mapped, kind, int(search.name, 16), startup)
        found.append(Family(spec, mapped, held, storage, alone, startup))
        asking(study, partial(_keep_asked, request, found[-1]), retry_s())
    return found


def _keep_asked(request: Request, family: Family) -> None:
    """Record in Optuna's study what was asked for last; the sampler only if it has work to do."""
    search = request.search
    text = request.samplers[family.spec][1] if family.n_to_ask(search.n_trials) else ""
    with family.alone():
        studies.keep_asked(family.study, search, text)


def _ranges(points: Sequence[Point]) -> list[tuple[str, str, str]]:
    """(name, least, most) of what the points have."""
    values = {name: [float(point.dimensions[name]) for point in points] for name in _RANGES}
    values["params"] = [float(point.n_params) for point in points]
    return [(name, _number(min(held)), _number(max(held))) for name, held in values.items()]


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:.3g}"
