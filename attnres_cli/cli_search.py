"""The command `attnres search`: which shape a budget should have, for each design."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli import complete
from attnres_cli.errors import SOME_FAILED, UsageError, unknown
from attnres_cli.options import (
    Device,
    Engine,
    Format,
    FormatName,
    Override,
    Plugins,
    RecipeName,
    Study,
    read_format,
    read_seeds,
)
from attnres_cli.stdio import say

if TYPE_CHECKING:
    from attnres_cli.plan import Plan
    from attnres_cli.recipe import Recipe
    from attnres_cli.search.points import Point
    from attnres_cli.search.pruning import Pruning
    from attnres_cli.search.wanted import Wanted

_FIRST_SEED = 0
_DEFAULT_STUDY = "attnres.db"
_GOALS = ("val_loss", "step_time", "params", "flops", "memory")
_DEFAULT_SUITE = "fig7"


def search(
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            help="Designs, each searched for its own best shape. Default: standard attnres.",
            autocompletion=complete.specs,
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(help="Designs and space of a suite, as fig7.", autocompletion=complete.suites),
    ] = None,
    recipe: RecipeName = "quick",
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="What every shape costs: params=2M, flops=1e17, or both. Default: the recipe's.",
            show_default=False,
        ),
    ] = None,
    space: Annotated[
        str, typer.Option(help="What is searched, as aspect=15..75,n_heads=2|4,n_blocks=2..16.")
    ] = "",
    trials: Annotated[int, typer.Option(help="Of each design, in all.")] = 40,
    objective: Annotated[
        str, typer.Option(help="val_loss; a second: step_time, params, flops or memory.")
    ] = "val_loss",
    sampler: Annotated[
        str, typer.Option(help="auto, tpe, gp, nsga2, grid, brute or random.")
    ] = "auto",
    pruner: Annotated[
        str,
        typer.Option(help="none, median or hyperband: end poor trials early, within a design."),
    ] = "none",
    confirm: Annotated[
        int, typer.Option(min=0, help="How many best shapes of each design to confirm.")
    ] = 2,
    seeds: Annotated[
        str, typer.Option(help="Fresh seeds that confirm: how many, or which: 3, or 5,6,7.")
    ] = "3",
    override: Override = None,
    study: Study = _DEFAULT_STUDY,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. Default: one per GPU, or as many as pay.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    output: FormatName = Format.TABLE,
    dry_run: Annotated[bool, typer.Option(help="Print the plan and train nothing.")] = False,
    _plugin: Plugins = None,
) -> None:
    """Find the best shape under an exact budget, for each design, and confirm it on fresh seeds.

    Every trial is a run of the study: what it holds is not trained again, and the same command goes
    on where it stopped.
    """
    from attnres_cli.recipe import load
    from attnres_cli.report.search import show
    from attnres_cli.search import proposals, pruning, read
    from attnres_cli.search.speeds import speeds
    from attnres_cli.search.wanted import make
    from attnres_cli.store import Store

    form, goals, fresh = read_format(output), _goals(objective), _fresh(seeds) if confirm else ()
    if trials < 1:
        raise UsageError(f"--trials must be at least 1, got {trials}")
    if variants and suite is not None:
        raise UsageError("give either variants or --suite, not both")
    fixed, specs, ranges = _asked(load(recipe, override or []), variants, suite, space)
    prunes = pruning.asked(pruner, fixed, goals)
    wanted = make(fixed, specs, budget or [], ranges, goals, _FIRST_SEED, fresh, trials)
    samplers = {
        spec: proposals.chosen(sampler, len(points), trials, len(goals))
        for spec, points in wanted.points.items()
    }
    plan = _plan(wanted, device, workers, engine)
    if dry_run:
        speed = speeds(list(wanted.points.values()), plan, wanted.tokens)
        _print_plan(wanted, samplers, prunes, plan, confirm, speed, sys.stdout)
        return
    n_failed = _run(wanted, samplers, prunes, plan, study, confirm)
    (found,) = [each for each in read(study) if each.name == wanted.search.name]
    store = Store.open(study, create=False)
    show(found, store.runs(), form, sys.stdout, store.recipe, study)
    if n_failed:
        say(f"failed runs: {n_failed}; `attnres runs` lists them")
        raise typer.Exit(SOME_FAILED)


def _goals(text: str) -> tuple[str, ...]:
    """The objectives. Raises UsageError."""
    found = tuple(part.strip() for part in text.split(","))
    for goal in found:
        if goal not in _GOALS:
            raise UsageError("--objective: " + unknown("objective", goal, _GOALS))
    if found[0] != "val_loss" or len(found) > 2 or len(set(found)) < len(found):
        raise UsageError(
            f"--objective takes val_loss, or val_loss and one more as val_loss,params, got '{text}'"
        )
    return found


def _fresh(text: str) -> tuple[int, ...]:
    """Seeds 1, 2, 3 for `3`; those listed. Raises UsageError."""
    found = read_seeds(text)
    if "," not in text:
        return tuple(seed + _FIRST_SEED + 1 for seed in found)
    if _FIRST_SEED in found:
        raise UsageError(f"--seeds: seed {_FIRST_SEED} is the first look's, it confirms nothing")
    return found


def _asked(
    recipe: Recipe, variants: Sequence[str] | None, suite: str | None, space: str
) -> tuple[Recipe, list[str], str]:
    """The recipe, designs and space, with those of the suite where none are typed."""
    from attnres_cli.recipe import suite as specs_of
    from attnres_cli.recipe import suite_space

    specs = list(variants or specs_of(suite or _DEFAULT_SUITE))
    return recipe, specs, space or (suite_space(suite) if suite else "")


def _plan(wanted: Wanted, device: str, workers: int | None, engine: str) -> Plan:
    """Where runs are computed, as the largest of them wants it; it has no arms yet."""
    from attnres_cli import ablate
    from attnres_cli.plan import Arm

    largest = wanted.largest
    arms = tuple(
        Arm(point.variant, point.n_params, point.flops_per_token, None, point.recipe)
        for points in wanted.points.values()
        for point in points
    )
    fingerprint = wanted.tokens.fingerprint
    made = ablate.make(largest.recipe, arms, (_FIRST_SEED,), fingerprint, device, workers, engine)
    return replace(made, recipe=wanted.recipe)


def _run(
    wanted: Wanted,
    samplers: Mapping[str, tuple[str, str]],
    prunes: Pruning | None,
    plan: Plan,
    study: str,
    k: int,
) -> int:
    """Do what the study lacks of a search; how many runs of it failed."""
    from attnres_cli import ablate
    from attnres_cli.report.progress import seeking
    from attnres_cli.search import families as of
    from attnres_cli.search import loop, proposals, studies
    from attnres_cli.search.speeds import speeds
    from attnres_cli.store import Store
    from attnres_cli.store.optuna import optuna_storage

    search, variants = wanted.search, list(wanted.points)
    store = Store.open(study, create=True)
    ablate.check_code(plan, store.runs())
    storage = optuna_storage(study)
    families = []
    for spec, points in wanted.points.items():
        kind, text = samplers[spec]
        found = studies.open_study(storage, search, variants, spec)
        studies.keep_asked(found, search, text, prunes.text if prunes else "")
        mapped, startup = proposals.Points(points), proposals.n_startup(kind, search.n_trials)
        seed = int(search.name, 16)
        found.sampler = proposals.Feasible(mapped, kind, seed, startup)
        ends = prunes.make() if prunes else None
        families.append(of.Family(spec, mapped, found, storage, startup, ends))
    speed: Callable[[Point], float | None] = _no_speed
    if any(family.lacks(search.n_trials) for family in families):
        say("timing a few training steps of the shallowest and the deepest shape of each design")
        speed = speeds(list(wanted.points.values()), plan, wanted.tokens)
        _print_plan(wanted, samplers, prunes, plan, k, speed, sys.stderr)
    laboratory = loop.Laboratory(
        study=study,
        store=store,
        tokens=wanted.tokens,
        plan=plan,
        objectives=search.objectives,
        n_trials=search.n_trials,
        first_seed=search.first_seed,
        progress=seeking,
        step_s=speed,
        note=say,
        pruning=prunes,
    )
    try:
        laboratory.look(families)
        laboratory.confirm(families, k, search.confirm_seeds)
    finally:
        storage.remove_session()
        storage.engine.dispose()
    return len(laboratory.failed)


def _no_speed(_point: Point) -> None:
    """Nothing was timed."""


def _print_plan(
    wanted: Wanted,
    samplers: Mapping[str, tuple[str, str]],
    prunes: Pruning | None,
    plan: Plan,
    k: int,
    speed: Callable[[Point], float | None],
    stream: TextIO,
) -> None:
    """What a search will try, and how long its first look takes at most."""
    from attnres_cli.report.shapes import plural
    from attnres_cli.report.terminal import duration

    search, settings = wanted.search, plan.settings
    stream.write(f"search {search.name}: recipe {search.recipe}, --budget {search.budget}\n")
    every = [point for points in wanted.points.values() for point in points]
    n_shapes = plural(wanted.n_shapes, "shape")
    stream.write(f"space {search.space}: {n_shapes}, the same for every design, ")
    stream.write(f"each within {search.tolerance:.1%} of the budget:\n")
    for name, low, high in _ranges(every):
        stream.write(f"  {name} {low}" + (f" to {high}\n" if high != low else "\n"))
    stream.write(f"{search.absent}\n" if search.absent else "")
    stream.write(f"learning rate: {search.learning_rate}\n")
    seconds: float | None = 0.0
    for spec, points in wanted.points.items():
        n_runs = min(search.n_trials, len(points))
        took = [speed(point) for point in points]
        stream.write(f"{spec}: {plural(n_runs, 'trial')}; {samplers[spec][1]}\n")
        if seconds is not None and None not in took:
            each = [t * p.steps for t, p in zip(took, points, strict=True) if t is not None]
            seconds += n_runs * sum(each) / len(each)
        else:
            seconds = None
    if prunes:
        stream.write(f"pruner {prunes.text}\n")
    stream.write(f"objective {', '.join(search.objectives)}; first look on seed {_FIRST_SEED}")
    if search.confirm_seeds:
        stream.write(f"; the {k} best shapes of each design are then trained for all designs ")
        stream.write(f"on seeds {', '.join(map(str, search.confirm_seeds))}")
    stream.write(
        f"\n{len(plan.devices)} worker(s), {settings.threads} thread(s) each, {settings.numerics}, "
        f"{settings.device_name}, depth mixing by {settings.engine}\n"
    )
    if seconds is not None:
        text = duration(seconds / len(plan.devices))
        stream.write(f"predicted time of the training steps of the first look: {text}\n")


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
