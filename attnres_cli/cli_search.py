"""The command `attnres search`: which shape a budget should have, for each design."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

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
    refuse_format,
)
from attnres_cli.stdio import say

if TYPE_CHECKING:
    from attnres_cli.recipe import Recipe

_N_FRESH = "3"
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
        list[str] | None,
        typer.Option(
            help="What is searched, as aspect=15..75,n_heads=2|4,n_blocks=2..16.",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Of each design, in all.")] = 40,
    objective: Annotated[
        str,
        typer.Option(
            help="val_loss; a second: step_time, params or flops if the budget does not fix it, "
            "memory on a GPU."
        ),
    ] = "val_loss",
    sampler: Annotated[
        str, typer.Option(help="auto, tpe, gp, nsga2, grid, brute or random.")
    ] = "auto",
    pruner: Annotated[
        str,
        typer.Option(
            help="End poor trials early, within a design: none, median, hyperband:until=0.5."
        ),
    ] = "none",
    confirm: Annotated[
        int, typer.Option(min=0, help="How many best shapes of each design to confirm.")
    ] = 2,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Fresh seeds that confirm, beside earlier ones: how many, or 5,6,7. Default: 3."
        ),
    ] = None,
    override: Override = None,
    study: Study = _DEFAULT_STUDY,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. Default: one per GPU, or as many as pay.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    output: FormatName = Format.TABLE,
    retry_failed: Annotated[bool, typer.Option(help="Train failed runs once more.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the plan and train nothing.")] = False,
    _plugin: Plugins = None,
) -> None:
    """Find the best shape under an exact budget, for each design, and confirm it on fresh seeds.

    Every trial is a run of the study: what it holds is not trained again, and the same command goes
    on where it stopped.
    """
    from attnres_cli.recipe import load
    from attnres_cli.report.search import show
    from attnres_cli.search import read
    from attnres_cli.search.speeds import speeds
    from attnres_cli.search.wanted import Asked, make
    from attnres_cli.searching import planned, print_search, run
    from attnres_cli.store import Store

    form, goals, fresh = read_format(output), _goals(objective), _fresh(seeds, confirm)
    if dry_run:
        refuse_format(form)
    if trials < 1:
        raise UsageError(f"--trials must be at least 1, got {trials}")
    if variants and suite is not None:
        raise UsageError("give either variants or --suite, not both")
    fixed, specs, ranges = _asked(
        load(recipe, override or []), variants, suite, ",".join(space or [])
    )
    asked = Asked(specs, budget or [], ranges, goals, trials, sampler, pruner, confirm, fresh)
    wanted = make(fixed, asked)
    plan = planned(wanted, device, workers, engine)
    if dry_run:
        speed = speeds(list(wanted.points.values()), plan, wanted.tokens)
        print_search(wanted, plan, speed, sys.stdout)
        return
    n_failed = run(wanted, plan, study, retry_failed=retry_failed)
    (found,) = [each for each in read(study) if each.name == wanted.search.name]
    store = Store.open(study, create=False)
    show(found, store.runs(), form, sys.stdout, store.recipe, study)
    if n_failed:
        again = "the same command with --retry-failed trains them again"
        say(f"failed runs: {n_failed}; `attnres runs` lists them, {again}")
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


def _fresh(asked: str | None, n_confirmed: int) -> tuple[int, ...]:
    """Seeds 1, 2, 3 for `3`; those listed; none where nothing is confirmed. Raises UsageError."""
    if not n_confirmed:
        if asked is not None:
            raise UsageError("--confirm 0 confirms no shape: leave --seeds out")
        return ()
    from attnres_cli.search.wanted import FIRST_SEED

    text = asked or _N_FRESH
    found = read_seeds(text)
    if "," not in text:
        return tuple(seed + FIRST_SEED + 1 for seed in found)
    if FIRST_SEED in found:
        raise UsageError(f"--seeds: seed {FIRST_SEED} is the first look's, it confirms nothing")
    return found


def _asked(
    recipe: Recipe, variants: Sequence[str] | None, suite: str | None, space: str
) -> tuple[Recipe, list[str], str]:
    """The recipe, designs and space, with those of the suite where none are typed."""
    from attnres_cli.recipe import suite as specs_of
    from attnres_cli.recipe import suite_space

    specs = list(variants or specs_of(suite or _DEFAULT_SUITE))
    return recipe, specs, space or (suite_space(suite) if suite else "")
