"""The command `attnres ablate`: train what is missing of a comparison, and judge it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli.cli.options import (
    Baseline,
    Device,
    DryRun,
    Engine,
    Format,
    FormatName,
    Matching,
    Override,
    Plugins,
    RecipeName,
    RetryFailed,
    Study,
    TuneLr,
    Workers,
    read_format,
    read_match,
    read_seeds,
    refuse_format,
)
from attnres_cli.cli.watcher import OnStderr
from attnres_cli.config import address, complete
from attnres_cli.console import say
from attnres_cli.errors import SOME_FAILED, UsageError

if TYPE_CHECKING:
    from attnres_cli.config.recipe import Recipe, Rung
    from attnres_cli.records.plan import Plan
    from attnres_cli.verdict.comparison import Comparison


def ablate(
    variants: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arms, as `standard attnres:block_size=4`. Default: the recipe's, or suite quick.",
            autocompletion=complete.specs,
        ),
    ] = None,
    suite: Annotated[
        str | None,
        typer.Option(
            help="A named set of arms, as table4 (attnres recipes lists them).",
            autocompletion=complete.suites,
        ),
    ] = None,
    recipe: RecipeName = "quick",
    seeds: Annotated[
        str, typer.Option(help="How many seeds, or which: 5, or 0,3,7; one alone: 7,")
    ] = "3",
    override: Override = None,
    match: Matching = "tokens",
    tune_lr: TuneLr = False,
    study: Study = address.DEFAULT,
    workers: Workers = None,
    device: Device = "auto",
    engine: Engine = "auto",
    baseline: Baseline = "standard",
    output: FormatName = Format.TABLE,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
    _plugin: Plugins = None,
) -> None:
    """Train every arm on every seed under one recipe; end with a verdict table.

    What the study holds already is not trained again: the same command goes on where it stopped.
    """
    from attnres_cli.config.recipe import load, rungs
    from attnres_cli.lab.comparing import Request, ablation
    from attnres_cli.lab.experiment import Place
    from attnres_cli.lab.grid import resolve

    form, quantity = read_format(output), read_match(match)
    if dry_run:
        refuse_format(form)
    if variants and suite is not None:
        raise UsageError("give either variants or --suite, not both")
    whole = load(recipe, override or [])
    specs, numbers, sizes = variants or _named(suite, whole), read_seeds(seeds), rungs(whole)
    for fixed in sizes[1:]:  # what does not fit one size is refused before another is trained
        resolve([baseline, *specs], fixed, vocab_size=256)
    place = Place(study, workers, device, engine, retry_failed)
    request = Request(specs, numbers, baseline, quantity, tune_lr, place)
    found: list[Comparison] = []
    failed = 0
    for number, fixed in enumerate(sizes, 1):
        if len(sizes) > 1:
            say(f"size {number} of {len(sizes)}: {_rung_text(whole.ladder[number - 1])}")
        one = ablation(request, fixed, OnStderr())
        plan, records = one.planned()
        if dry_run:
            _print_foreseen(list(one.foreseen(plan, records)))
            continue
        compared, n_failed = one.compared(plan)
        found, failed = [*found, *compared], failed + n_failed
    if dry_run:
        return
    show(found, form)
    if len(sizes) > 1:
        say(f"what each arm is worth over these sizes: attnres report --scaling --study {study}")
    if failed:
        say(f"failed runs: {failed}; the same command with --retry-failed trains them again")
        raise typer.Exit(SOME_FAILED)


def _print_foreseen(plans: Sequence[tuple[Plan, str]]) -> None:
    from attnres_cli.report.terminal import print_plan

    for plan, title in plans:
        print_plan(plan, sys.stdout, title)
    if len(plans) == 2:  # the learning rates are not known before they are tuned
        first, _ = plans[0]
        runs = len(first.arms) * len(first.seeds)
        sys.stdout.write(f"then {runs} runs at most, each arm at the rate chosen for it\n")


def _rung_text(rung: Rung) -> str:
    return ", ".join(f"{key}={value}" for key, value in rung)


def show(comparisons: Sequence[Comparison], form: Format, out: TextIO | None = None) -> None:
    """Print comparisons of one recipe, or of the sizes of its ladder, in any form except html."""
    from attnres_cli.report import comparison, formats

    formats.show(comparison.report_of(comparisons), form, out or sys.stdout)


def _named(suite: str | None, recipe: Recipe) -> list[str]:
    """The arms where none are typed."""
    from attnres_cli.config.recipe import suite as specs_of

    return list(specs_of(suite) if suite is not None else recipe.variants or specs_of("quick"))
