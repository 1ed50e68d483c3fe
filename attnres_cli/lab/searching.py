"""What `attnres search` does: plan, try shapes, confirm the best."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TextIO

from optuna.storages import RDBStorage

from attnres_cli.console import say
from attnres_cli.errors import UsageError
from attnres_cli.lab import grid
from attnres_cli.lab.search import proposals, studies
from attnres_cli.lab.search.families import Family
from attnres_cli.lab.search.points import Point
from attnres_cli.lab.search.request import Wanted
from attnres_cli.lab.search.screening import first_look
from attnres_cli.lab.search.time_model import Speed, predicted_s, speeds
from attnres_cli.lab.search.trial_runner import Laboratory
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.search_records import Search, fresh_seeds
from attnres_cli.report.progress import seeking
from attnres_cli.report.terminal import computing
from attnres_cli.stats.optima import COMMON
from attnres_cli.store.optuna import Turn, asking, optuna_storage, turns
from attnres_cli.store.retry import retry_s
from attnres_cli.store.store import Store
from attnres_cli.verdict.format import duration, plural


def planned(wanted: Wanted, device: str, workers: int | None, engine: str) -> Plan:
    """Where the runs of a search are computed, as the largest of them wants it; it has no arms yet.

    Raises:
        DeviceError: no such device here, or the engine does not run on it.
        UsageError: no such engine, or the recipe's `compile` contradicts it; memory is a goal, and
            not measured there.

    """
    largest = wanted.largest
    arms = tuple(
        Arm(point.variant, point.n_params, point.flops_per_token, None, point.recipe)
        for points in wanted.points.values()
        for point in points
    )
    fingerprint = wanted.tokens.fingerprint
    made = grid.make(
        largest.recipe, arms, (wanted.search.first_seed,), fingerprint, device, workers, engine
    )
    if "memory" in wanted.search.objectives and "cpu" in made.devices:
        raise UsageError(
            "--objective memory: on a CPU the peak is that of the whole process, with the "
            "interpreter and what it trained before; take step_time, or a GPU"
        )
    return replace(made, recipe=wanted.recipe)


def run(wanted: Wanted, plan: Plan, study: str, *, retry_failed: bool = False) -> int:
    """Do what the study lacks of a search; how many runs of it failed.

    Args:
        wanted: the search, with its points.
        plan: where its runs are computed.
        study: path or URL.
        retry_failed: whether its runs that failed before are trained once more.

    Raises:
        StudyError: the study cannot be used.
        VariantError: the study's runs of a user's own design were made by other code.

    """
    store = Store.open(study, create=True)
    grid.check_code(plan, store.runs())
    with optuna_storage(study) as storage, turns(study) as alone:
        families = _families(wanted, storage, study, alone)
        laboratory = _laboratory(wanted, plan, store, study)
        if retry_failed:
            laboratory.retry(families)
        _foretell(wanted, families, laboratory)
        first_look(laboratory, families)
        seeds = _fresh_seeds(wanted.search, store, study)
        laboratory.confirm(families, wanted.n_confirmed, seeds)
    return len(laboratory.failed)


def _fresh_seeds(asked: Search, store: Store, study: str) -> tuple[int, ...]:
    """The seeds that were asked for now, and those that another command has trained, which may have
    asked since.
    """
    (held,) = [each for each in studies.read(study) if each.name == asked.name]
    others = (*held.earlier_seeds, *held.confirm_seeds)
    search = replace(held, confirm_seeds=asked.confirm_seeds, earlier_seeds=others)
    runs = store.runs(curves=False)
    return fresh_seeds(search, {run.identity for run in runs if run.result is not None})


def _foretell(wanted: Wanted, families: Sequence[Family], laboratory: Laboratory) -> None:
    """Tell on stderr what is to be done, and for how long."""

    def n_left() -> int:
        return sum(family.n_left(wanted.search.n_trials) for family in families)

    if laboratory.patiently(n_left):
        say("timing a few training steps of the shallowest and the deepest shape of each design")
        plan = laboratory.plan
        laboratory.step_s = speeds(list(wanted.points.values()), plan, wanted.tokens)
        print_search(wanted, plan, laboratory.step_s, sys.stderr)


def _laboratory(wanted: Wanted, plan: Plan, store: Store, study: str) -> Laboratory:
    """Where the search is done; nothing is timed yet."""
    search = wanted.search
    return Laboratory(
        study=study,
        store=store,
        tokens=wanted.tokens,
        plan=plan,
        objectives=search.objectives,
        n_trials=search.n_trials,
        first_seed=search.first_seed,
        progress=seeking,
        step_s=_no_speed,
        note=say,
    )


def print_search(wanted: Wanted, plan: Plan, speed: Speed, stream: TextIO) -> None:
    """Print what a search will try, and how long its first look takes at most.

    Args:
        wanted: the search, with its points.
        plan: where its runs are computed.
        speed: seconds per step of a point, None where that is not known.
        stream: where to.

    """
    search = wanted.search
    n_shapes = plural(wanted.n_shapes, "shape")
    stream.write(f"search {search.name}: recipe {search.recipe}, --budget {search.budget}\n")
    stream.write(f"space {search.space}: {n_shapes}, the same for every design, ")
    stream.write(f"each within {search.tolerance:.1%} of the budget:\n")
    for name, low, high in _ranges(list(chain(*wanted.points.values()))):
        stream.write(f"  {name} {low}" + (f" to {high}\n" if high != low else "\n"))
    stream.write(f"{search.absent}\n" if search.absent else "")
    stream.write(f"learning rate: {search.learning_rate}\n")
    for spec, points in wanted.points.items():
        n_runs = min(search.n_trials, len(points))
        stream.write(f"{spec}: {plural(n_runs, 'trial')}; {wanted.samplers[spec][1]}\n")
    stream.write(f"objective {', '.join(search.objectives)}; first look on seed ")
    stream.write(f"{search.first_seed}{_confirming(wanted)}\n{computing(plan)}\n")
    trials = [(min(search.n_trials, len(points)), points) for points in wanted.points.values()]
    seconds = predicted_s(trials, speed, len(plan.devices))
    if seconds is not None:
        text = f"predicted time of the training steps of the first look: {duration(seconds)}"
        stream.write(f"{text}\n")


def _confirming(wanted: Wanted) -> str:
    """What follows the first look."""
    search, n = wanted.search, wanted.n_confirmed
    if not search.confirm_seeds:
        return ""
    shapes = "the best shape" if n == 1 else f"the {n} best shapes"
    of = "each design" if len(search.objectives) == 1 else "the front of each design"
    common = f", and the {COMMON} best of each two together, for all designs"
    seeds = ", ".join(map(str, search.confirm_seeds))
    shared = common if len(wanted.points) > 1 else ""
    return f"; {shapes} of {of}{shared}: then trained on seeds {seeds}"


def _families(wanted: Wanted, storage: RDBStorage, study: str, alone: Turn) -> list[Family]:
    """The search of each design, as the study holds it or begun now."""
    search, found = wanted.search, []
    for spec, points in wanted.points.items():
        kind, _ = wanted.samplers[spec]
        begin = partial(studies.open_study, storage, search, list(wanted.points), spec)
        held = asking(study, begin, retry_s())
        mapped, startup = proposals.Points(points), proposals.n_startup(kind, search.n_trials)
        held.sampler = proposals.Feasible(mapped, kind, int(search.name, 16), startup)
        found.append(Family(spec, mapped, held, storage, alone, startup))
        asking(study, partial(_keep_asked, wanted, found[-1]), retry_s())
    return found


def _keep_asked(wanted: Wanted, family: Family) -> None:
    """Let Optuna's study of a design say what was asked for last; the sampler if it has anything
    to propose.
    """
    search = wanted.search
    text = wanted.samplers[family.spec][1] if family.n_to_ask(search.n_trials) else ""
    with family.alone():
        studies.keep_asked(family.study, search, text)


def _no_speed(_point: Point) -> None:
    """Nothing was timed."""


def _ranges(points: Sequence[Point]) -> list[tuple[str, str, str]]:
    """(name, least, most) of what the points have."""
    names = ("n_layers", "d_model", "n_heads", "d_ff", "aspect", "heads_per_layer", "lr", "tokens")
    found = []
    for name in names:
        values = [float(point.dimensions[name]) for point in points]
        found.append((name, values))
    found.append(("params", [float(point.n_params) for point in points]))
    return [(name, _number(min(values)), _number(max(values))) for name, values in found]


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:.3g}"
