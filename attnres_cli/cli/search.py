"""The command `attnres search`: which shape a budget should have, for each design."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from attnres_cli.cli.launching import Job, Launch, Print, launched
from attnres_cli.cli.options import (
    Device,
    DryRun,
    Engine,
    Format,
    Override,
    Plugins,
    PrintedFormat,
    RecipeName,
    RetryFailed,
    Study,
    Workers,
    read_seeds,
)
from attnres_cli.config import address, complete
from attnres_cli.console import note, say, told_if_slow
from attnres_cli.errors import SOME_FAILED, UsageError, unknown

_N_FRESH = "3"
_GOALS = ("val_loss", "step_time", "params", "flops", "memory")
_DEFAULT_SUITE = "fig7"

Variants = Annotated[
    list[str] | None,
    typer.Argument(
        help="Designs to search shapes for. Default: standard attnres.",
        autocompletion=complete.specs,
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        help="Take designs and space from a suite, such as fig7.", autocompletion=complete.suites
    ),
]
Budget = Annotated[
    list[str] | None,
    typer.Option(
        help="What every shape costs: params=2M, flops=1e17, or both. Default: the recipe's."
    ),
]
Space = Annotated[
    list[str] | None,
    typer.Option(help="What to search: aspect=15..75,n_heads=2|4,n_blocks=2..16."),
]
Objective = Annotated[
    str,
    typer.Option(
        help="val_loss; a second: step_time, params or flops if the budget does not fix it, "
        "memory on a GPU."
    ),
]
Sampler = Annotated[str, typer.Option(help="auto, tpe, gp, nsga2, grid, brute or random.")]
Confirm = Annotated[
    int, typer.Option(min=0, max=1000, help="Number of best shapes of each design to confirm.")
]
FreshSeeds = Annotated[
    str | None,
    typer.Option(help="Fresh seeds that confirm: how many, or 5,6,7. Default: 3."),
]


def search(
    variants: Variants = None,
    suite: Suite = None,
    recipe: RecipeName = "quick",
    budget: Budget = None,
    space: Space = None,
    trials: Annotated[
        int, typer.Option(min=1, max=100_000, help="Trials of each design in total.")
    ] = 40,
    objective: Objective = "val_loss",
    sampler: Sampler = "auto",
    confirm: Confirm = 2,
    seeds: FreshSeeds = None,
    override: Override = None,
    study: Study = address.DEFAULT,
    workers: Workers = None,
    launch: Launch = None,
    job: Job = None,
    prints: Print = False,
    device: Device = "auto",
    engine: Engine = "auto",
    form: PrintedFormat = Format.TABLE,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    _plugin: Plugins = None,
) -> None:
    """Find the best shape under an exact budget, for each design, and confirm it on fresh seeds.

    Every trial is a run of the study: what it holds is not trained again, and the same command goes
    on where it stopped.
    """
    from attnres_cli.config.recipe import load
    from attnres_cli.config.shipped import about_suite
    from attnres_cli.config.shipped import suite as specs_of

    goals = _goals(objective)
    if variants and suite is not None:
        raise UsageError("give either variants or --suite, not both")
    specs = list(variants or specs_of(suite or _DEFAULT_SUITE))
    ranges = ",".join(space or []) or (about_suite(suite).get("space", "") if suite else "")
    loaded = load(recipe, override or [])

    from attnres_cli.lab import searching  # torch takes a second, and no mistake above it
    from attnres_cli.lab.experiment import Place
    from attnres_cli.lab.search.request import make
    from attnres_cli.lab.search.studies import read
    from attnres_cli.lab.search.trial_runner import timed
    from attnres_cli.report import file_formats
    from attnres_cli.report.plans import plan_of_search
    from attnres_cli.report.progress import OnStderr
    from attnres_cli.report.search import report_of
    from attnres_cli.store.store import Store
    from attnres_cli.verdict.optima import find

    fresh = _fresh(seeds, confirm)
    with told_if_slow("still listing the shapes of this budget; a narrower --space has fewer"):
        asked = specs, budget or [], ranges, goals
        request = make(loaded, *asked, trials, sampler, confirm, fresh)
    if not dry_run and launched(launch, study, workers, job, prints=prints):
        return
    place, watcher = Place(study, workers, device, engine, retry_failed), OnStderr()
    plan = searching.planned(request, place)
    if loaded.arms:
        note(
            f"recipe {loaded.name} has settings by design: a search takes none of them, but "
            f"optim.lr {loaded.optim.lr:g} for every design"
        )
    if dry_run:
        say(searching.TIMING)
        step_s = timed(request.points.values(), plan, request.tokens)
        lines = searching.lines(request, plan, step_s)
        seconds = searching.seconds_of(request, plan, step_s)
        planned = plan_of_search(request.search, lines, request.n_trials, plan, seconds)
        file_formats.show(planned, form, sys.stdout)
        return
    n_failed = searching.run(request, plan, place, watcher)
    (found,) = [each for each in read(study) if each.name == request.search.name]
    store, typed = Store.open(study, create=False), address.typed(study)
    words = ["attnres", "report", "--recipe", found.name, *typed, "--notes"]
    report = report_of(find(found, store.runs()), store.recipe, study)
    file_formats.glance(report, form, sys.stdout, f"Details: {shlex.join(words)}")
    if n_failed:
        listed = shlex.join(["attnres", "runs", "--status", "failed", *typed])
        again = "the same command with --retry-failed trains them again"
        say(f"failed runs: {n_failed}; `{listed}` lists them, {again}")
        raise typer.Exit(SOME_FAILED)


def _goals(text: str) -> tuple[str, ...]:
    """The objectives. Raises UsageError."""
    found = tuple(part.strip() for part in text.split(","))
    for goal in found:
        if goal not in _GOALS:
            raise UsageError("--objective: " + unknown("objective", goal, _GOALS))
    if found[0] != "val_loss" or len(found) > 2 or found[1:] == found[:1]:
        raise UsageError(
            f"--objective takes val_loss, or val_loss and one more as val_loss,params, got '{text}'"
        )
    return found


def _fresh(asked: str | None, n_confirmed: int) -> tuple[int, ...]:
    """Seeds 1, 2, 3 for `3`; those listed; none where nothing is confirmed. Raises UsageError."""
    if not n_confirmed:
        if asked is not None:
            raise UsageError("--confirm 0 confirms no shape: leave --seeds out")
        return ()
    from attnres_cli.lab.search.request import FIRST_SEED

    text = asked or _N_FRESH
    found = read_seeds(text)
    if "," not in text:
        return tuple(seed + FIRST_SEED + 1 for seed in found)
    if FIRST_SEED in found:
        raise UsageError(f"--seeds: seed {FIRST_SEED} is the first look's, it confirms nothing")
    return found
