"""The command `attnres ablate`: train what is missing of a comparison, and judge it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from attnres_cli.cli.launching import Job, Launch, Print, launched
from attnres_cli.cli.options import (
    Baseline,
    Device,
    DryRun,
    Engine,
    Format,
    Margin,
    Override,
    Plugins,
    PrintedFormat,
    RecipeName,
    RetryFailed,
    Study,
    Workers,
    read_seeds,
    word,
)
from attnres_cli.config import address, complete
from attnres_cli.console import note, say, told_if_slow
from attnres_cli.errors import SOME_FAILED, UsageError
from attnres_cli.records.comparison_terms import MATCHES, Match

if TYPE_CHECKING:
    from attnres_cli.config.recipe import Recipe
    from attnres_cli.verdict.comparison import Comparison


Arms = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arms to compare. Default: the recipe's, or standard attnres.",
        autocompletion=complete.specs,
    ),
]
Suites = Annotated[
    list[str] | None,
    typer.Option(
        "--suite",
        help="A named set of arms, such as table4. Repeatable; attnres recipes lists them.",
        autocompletion=complete.suites,
    ),
]
Seeds = Annotated[str, typer.Option(help="How many seeds (5), or which (0,3,7, or 7, for one).")]
InCommon = Annotated[
    Match,
    word(
        "--match",
        "What the arms have equal: tokens, params or flops (by MLP width), or time (by tokens).",
        MATCHES,
    ),
]
TuneLr = Annotated[
    bool,
    typer.Option(
        "--tune-lr", help="Tune each arm first, and compare the arms at their own settings."
    ),
]
PlanFile = Annotated[
    str | None,
    typer.Option(
        "--plan",
        help="YAML file, or a name such as reference, that fixes recipes, arms and seeds.",
        autocompletion=complete.plans,
        show_default=False,
    ),
]
InProcess = Annotated[
    bool,
    typer.Option("--in-process", help="Train in this process, for breakpoints and profilers."),
]


def ablate(
    variants: Arms = None,
    suites: Suites = None,
    recipe: RecipeName = "quick",
    seeds: Seeds = "7",
    override: Override = None,
    match: InCommon = "tokens",
    tune_lr: TuneLr = False,
    plan: PlanFile = None,
    study: Study = address.DEFAULT,
    workers: Workers = None,
    launch: Launch = None,
    job: Job = None,
    prints: Print = False,
    device: Device = "auto",
    engine: Engine = "auto",
    baseline: Baseline = "standard",
    margin: Margin = None,
    form: PrintedFormat = Format.TABLE,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    in_process: InProcess = False,
    _plugin: Plugins = None,
) -> None:
    """Train every arm on every seed under one recipe; end with a verdict table.

    What the study holds already is not trained again: the same command goes on where it stopped.
    """
    from attnres_cli.config.recipe import load
    from attnres_cli.config.shipped import suite as specs_of

    if variants and suites:
        raise UsageError("give either variants or --suite, not both")
    whole = load(recipe, override or [], say)
    sizes = _sizes(whole, tune_lr=tune_lr)
    of_suites = [spec for suite in suites or () for spec in specs_of(suite)]
    named = of_suites or whole.variants or specs_of("quick")
    here = _hands(workers, launch, in_process=in_process)
    numbers = read_seeds(seeds)

    from attnres_cli.cli import parts  # torch takes a second, and no mistake above it
    from attnres_cli.lab.comparing import Request
    from attnres_cli.lab.experiment import Place
    from attnres_cli.report import comparison, file_formats
    from attnres_cli.report.answer import to_decide
    from attnres_cli.report.table import joined

    place = Place(study, here, device, engine, retry_failed, in_process)
    request = Request(variants or named, numbers, baseline, match, tune_lr, place, margin)
    if plan is None:
        with told_if_slow(parts.PLANNING):
            todo = parts.of_sizes(request, whole, sizes, all_here=launch is None)
    else:
        typed: dict[str, object] = {
            "VARIANT": variants,
            "--suite": suites,
            "--set": override,
            "--margin": margin,
        }
        typed |= {"--recipe": recipe != "quick", "--seeds": seeds != "7", "--tune-lr": tune_lr}
        typed |= {"--match": match != "tokens", "--baseline": baseline != "standard"}
        with told_if_slow(parts.PLANNING):
            todo = parts.of_plan(plan, typed, place)
    if not dry_run and launched(launch, study, workers, job, prints=prints):
        return
    if dry_run:
        file_formats.show(joined(parts.foreseen(todo)), form, sys.stdout)
        return
    if plan is not None:
        parts.fix(plan, study)
    found, failed = parts.trained(todo)
    more = to_decide(found[0], whole, study) if len(found) == 1 and plan is None else []
    more += _details(found, study)
    file_formats.glance(comparison.report_of(found), form, sys.stdout, *more)
    if plan is None:
        _keep_rates(whole, sizes, [one for one in found if one.terms.is_tuned], study)
    if len(sizes) > 1:
        note(f"what each arm is worth over these sizes: attnres report --scaling --study {study}")
    if failed:
        say(f"failed runs: {failed}; the same command with --retry-failed trains them again")
        raise typer.Exit(SOME_FAILED)


def _details(found: Sequence[Comparison], study: str) -> list[str]:
    """The commands that show all that there is of these comparisons."""
    (first, *others), words = found, ["attnres", "report", *address.typed(study)]
    alike = all(one.recipe_digest == first.recipe_digest for one in others)
    words += ["--recipe", first.recipe_digest if alike else first.recipe]
    words += [] if first.baseline == "standard" else ["--baseline", first.baseline]
    typed = shlex.join(words)
    return [f"Details: {typed} --notes", f"Page: {typed} --format html --output report.html"]


def _hands(workers: int | None, launch: str | None, *, in_process: bool) -> int | None:
    """How many workers to start on this machine, None for as many as pay. Raises UsageError."""
    if in_process and workers not in (None, 1):
        raise UsageError(f"--in-process starts no worker: leave --workers {workers} out")
    if in_process and launch is not None:
        raise UsageError(f"--in-process trains here: leave --launch {launch} out")
    return 1 if in_process else workers


def _sizes(whole: Recipe, *, tune_lr: bool) -> list[Recipe]:
    """The recipe of each size, all with one learning rate where it is to be tuned."""
    from attnres_cli.config.recipe import rungs

    sizes = rungs(whole)
    if not (tune_lr and any(size.arms for size in sizes)):
        return sizes
    note(f"--tune-lr: the settings by design of recipe {whole.name} are left out")
    return [size.at_rate(size.optim.lr) for size in sizes]


def _keep_rates(
    whole: Recipe, sizes: Sequence[Recipe], tuned: Sequence[Comparison], study: str
) -> None:
    """Write the settings that were found, if any, into a recipe, and say how to use it."""
    from attnres_cli.lab import by_design

    if not tuned or any(one.base is None for one in tuned):
        return
    path, terms = by_design.write(whole, sizes, tuned, study), tuned[0].terms
    words = ["attnres", "ablate", "--recipe", str(path), *address.typed(study)]
    words += [] if terms.match == "tokens" else ["--match", terms.match]
    words += [] if tuned[0].baseline == "standard" else ["--baseline", tuned[0].baseline]
    note(f"settings by design written to {path}: {shlex.join(words)}")
