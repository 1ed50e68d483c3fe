"""The command `attnres search`: which shape a budget should have, for each design."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from attnres_cli.cli.launching import launched
from attnres_cli.cli.options import RECIPE, Training, opened, read_seeds, show, specs, takes
from attnres_cli.config import address, complete
from attnres_cli.console import note, say, told_if_slow
from attnres_cli.errors import SOME_FAILED, UsageError, unknown

if TYPE_CHECKING:
    from attnres_cli.lab.search.request import Request
    from attnres_cli.records.plan import Plan

_N_FRESH = "3"
_GOALS = ("val_loss", "step_time", "params", "flops", "memory")
_DEFAULT_SUITE = "fig7"


@dataclass(frozen=True, kw_only=True)
class Searching(Training):
    """What `search` is asked."""

    variants: list[str] | None = specs("Designs to search shapes for. Default: standard attnres.")
    suite: str | None = typer.Option(
        None,
        help="Take designs and space from a suite, such as fig7.",
        autocompletion=complete.suites,
    )
    recipe: str = RECIPE
    designs: str | None = typer.Option(
        None,
        help="Search designs instead of shapes: all, or 'attnres:norm=*,heads=1|4;+vres|+x0'.",
        show_default=False,
    )
    budget: list[str] | None = typer.Option(
        None,
        help="What every shape costs: params=2M, flops=1e17, or both. Default: the recipe's. With "
        "--designs what they have equal: params, flops or tokens.",
        show_default=False,
    )
    space: list[str] | None = typer.Option(
        None, help="What to search: aspect=15..75,n_heads=2|4,n_blocks=2..16.", show_default=False
    )
    trials: int = typer.Option(
        40, min=1, max=100_000, help="Trials of each design in total; with --designs designs."
    )
    objective: str = typer.Option(
        "val_loss",
        help="val_loss; a second: step_time, params or flops if the budget does not fix it, "
        "memory on a GPU. With --designs also time: val_loss at equal time.",
    )
    sampler: str = typer.Option(
        "auto", help="auto, tpe, gp, nsga2, grid, brute or random; of designs tpe."
    )
    confirm: int = typer.Option(
        2,
        min=0,
        max=1000,
        help="Number of best shapes of each design to confirm, or of best designs.",
    )
    seeds: str | None = typer.Option(
        None, help="Fresh seeds that confirm: how many, or 5,6,7. Default: 3; of designs 7."
    )

    def designs_and_space(self) -> tuple[list[str], str]:
        """Both as typed, or as a suite has them. Raises UsageError and RecipeError."""
        from attnres_cli.config.shipped import about_suite
        from attnres_cli.config.shipped import suite as specs_of

        if self.variants and self.suite is not None:
            raise UsageError("give either variants or --suite, not both")
        of_suite = about_suite(self.suite).get("space", "") if self.suite else ""
        designs = self.variants or specs_of(self.suite or _DEFAULT_SUITE)
        return list(designs), ",".join(self.space or []) or of_suite


@takes(Searching)
def search(asked: Searching) -> None:
    """Find the best shape under an exact budget, for each design, and confirm it on fresh seeds.

    With --designs: find the best design at equal cost instead.

    Every trial is a run of the study: what it holds is not trained again, and the same command goes
    on where it stopped.
    """
    if asked.designs is not None:
        from attnres_cli.cli.search_designs import search_designs

        search_designs(asked)
        return
    from attnres_cli.config.recipe import load

    goals, (specs, ranges) = _goals(asked.objective), asked.designs_and_space()
    loaded = load(asked.recipe, asked.override or [])

    from attnres_cli.lab import searching  # torch takes a second, and no mistake above it
    from attnres_cli.lab.search.request import make
    from attnres_cli.report.progress import OnStderr

    confirmed = asked.confirm, _fresh(asked.seeds, asked.confirm)
    with told_if_slow("still listing the shapes of this budget; a narrower --space has fewer"):
        typed = specs, asked.budget or [], ranges, goals, asked.trials, asked.sampler
        request = make(loaded, *typed, *confirmed)
    if not asked.dry_run and launched(asked):
        return
    place = asked.place(asked.workers)
    plan = searching.planned(request, place)
    if loaded.arms:
        note(
            f"recipe {loaded.name} has settings by design: a search takes none of them, but "
            f"optim.lr {loaded.optim.lr:g} for every design"
        )
    if asked.dry_run:
        _foresee(asked, request, plan)
        return
    n_failed = searching.run(request, plan, place, OnStderr())
    _tell(asked, request.search.name)
    if n_failed:
        failed = ["attnres", "runs", "--status", "failed", *address.typed(asked.study)]
        again = "the same command with --retry-failed trains them again"
        say(f"failed runs: {n_failed}; `{shlex.join(failed)}` lists them, {again}")
        raise typer.Exit(SOME_FAILED)


def _foresee(asked: Searching, request: Request, plan: Plan) -> None:
    """Print what a search would train."""
    from attnres_cli.lab import searching
    from attnres_cli.lab.search.trial_runner import timed
    from attnres_cli.report.plans import plan_of_search

    say(searching.TIMING)
    step_s = timed(request.points.values(), plan, request.tokens)
    lines = searching.lines(request, plan, step_s)
    seconds = searching.seconds_of(request, plan, step_s)
    show(plan_of_search(request.search, lines, request.n_trials, plan, seconds), asked.form)


def _tell(asked: Searching, name: str) -> None:
    """Print what a search has found."""
    from attnres_cli.lab.search.studies import read
    from attnres_cli.report import file_formats
    from attnres_cli.report.search import report_of
    from attnres_cli.verdict.optima import find

    store = opened(asked.study)
    (found,) = [each for each in read(asked.study) if each.name == name]
    words = ["attnres", "report", "--recipe", name, *address.typed(asked.study), "--notes"]
    report = report_of(find(found, store.runs()), store.recipe, asked.study)
    file_formats.glance(report, asked.form, sys.stdout, f"Details: {shlex.join(words)}")


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

    found = read_seeds(asked or _N_FRESH, FIRST_SEED + 1)
    if FIRST_SEED in found:
        raise UsageError(f"--seeds: seed {FIRST_SEED} is the first look's, it confirms nothing")
    return found
