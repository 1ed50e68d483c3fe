"""The command `attnres ablate`: train what is missing of a comparison, and judge it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from attnres_cli.cli import options
from attnres_cli.cli.launching import launched
from attnres_cli.config import address, complete
from attnres_cli.console import note, say, told_if_slow
from attnres_cli.errors import SOME_FAILED, UsageError
from attnres_cli.records.comparison_terms import MATCHES, Match

if TYPE_CHECKING:
    from attnres_cli.config.recipe import Recipe
    from attnres_cli.records.assumed import Gpus
    from attnres_cli.verdict.comparison import Comparison


@dataclass(frozen=True, kw_only=True)
class Comparing(options.Training):
    """What `ablate` is asked."""

    variants: list[str] | None = options.specs(
        "Arms to compare. Default: the recipe's, or standard attnres."
    )
    suites: list[str] | None = typer.Option(
        None,
        "--suite",
        help="A named set of arms, such as table4. Repeatable; attnres recipes lists them.",
        autocompletion=complete.suites,
    )
    recipes: list[str] | None = typer.Option(
        None,
        "--recipe",
        help="Name of a recipe, or path to a YAML file. Default: quick. Repeatable: several texts "
        "are compared each by itself, and one table says whether they agree.",
        autocompletion=complete.recipes,
        show_default=False,
    )
    seeds: str = typer.Option("7", help="How many seeds (5), or which (0,3,7, or 7, for one).")
    until: str | None = options.word(
        None,
        "--until",
        "decided: each arm gets seeds one by one until it has its verdict.",
        ("decided",),
    )
    most: int | None = typer.Option(
        None,
        min=5,
        max=1000,
        help="With --until: the most seeds of an arm. Default: 26.",
        show_default=False,
    )
    match: Match = options.word(
        "tokens",
        "--match",
        "What the arms have equal: tokens, params or flops (by MLP width), or time (by tokens).",
        MATCHES,
    )
    tune_lr: bool = typer.Option(
        False, "--tune-lr", help="Tune each arm first, and compare the arms at their own settings."
    )
    plan: str | None = typer.Option(
        None,
        help="YAML file, or a name such as reference, that fixes recipes, arms and seeds.",
        autocompletion=complete.plans,
        show_default=False,
    )
    baseline: str = options.BASELINE
    margin: str | None = options.MARGIN
    assume: str | None = typer.Option(
        None,
        help="With --dry-run: predict for GPUs that are not here: h100, h200, a100, 4090, 8xh100.",
        show_default=False,
    )
    in_process: bool = typer.Option(
        False, "--in-process", help="Train in this process, for breakpoints and profilers."
    )

    @property
    def hands(self) -> int | None:
        """How many workers to start on this machine, None for as many as pay. Raises UsageError."""
        if not self.in_process:
            return self.workers
        if self.workers not in (None, 1):
            raise UsageError(f"--in-process starts no worker: leave --workers {self.workers} out")
        if self.launch is not None:
            raise UsageError(f"--in-process trains here: leave --launch {self.launch} out")
        return 1

    @property
    def gpus(self) -> Gpus | None:
        """The GPUs to plan for; None for those of this machine. Raises UsageError."""
        if self.assume is None:
            return None
        if not self.dry_run:
            raise UsageError(f"--assume {self.assume} is for --dry-run: type it too")
        refused = {"--device": self.device != "auto", "--launch": self.launch}
        options.refuse(refused, "--assume says on what: leave {} out")
        from attnres_cli.records.assumed import read

        return read(self.assume)

    @property
    def first_seeds(self) -> tuple[int, ...]:
        """The seeds of the plan; of one that grows, the first. Raises UsageError."""
        if self.until is None:
            options.refuse({"--most": self.most}, "{} is for --until decided: type it too")
            return options.read_seeds(self.seeds)
        from attnres_cli.records.preregister import LEAST_SEEDS

        options.refuse({"--seeds": self.seeds != "7"}, "--until chooses the seeds: leave {} out")
        return tuple(range(LEAST_SEEDS))

    def loaded(self) -> list[Recipe]:
        """The recipes, as they are changed. Raises UsageError where two are one."""
        from attnres_cli.config.recipe import load

        found = [load(name, self.override or [], say) for name in self.recipes or ["quick"]]
        if len({(recipe.digest, recipe.data) for recipe in found}) < len(found):
            raise UsageError("--recipe: two of them are the same recipe: type it once")
        return found

    def sizes(self, whole: Recipe) -> list[Recipe]:
        """The recipe of each size."""
        from attnres_cli.config.recipe import rungs

        sizes = rungs(whole)
        if self.tune_lr and any(size.arms for size in sizes):
            note(
                "--tune-lr: three learning rates around that of each design that recipe "
                f"{whole.name} has settings for; --set optim.lr={sizes[0].optim.lr:g} drops those"
            )
        return sizes

    def specs(self, whole: Recipe) -> list[str]:
        """The arms, as typed. Raises UsageError and RecipeError."""
        from attnres_cli.config.shipped import suite

        named = [spec for each in self.suites or () for spec in suite(each)]
        return list(self.variants or named or whole.variants or suite("quick"))

    def check_plan(self) -> None:
        """Raise UsageError where something was typed that a plan says."""
        typed = {
            "VARIANT": self.variants,
            "--suite": self.suites,
            "--set": self.override,
            "--margin": self.margin,
            "--recipe": self.recipes,
            "--seeds": self.seeds != "7",
            "--tune-lr": self.tune_lr,
            "--match": self.match != "tokens",
            "--baseline": self.baseline != "standard",
            "--until": self.until,
        }
        options.refuse(typed, "--plan says what is compared, and how: leave {} out")


@options.takes(Comparing)
def ablate(asked: Comparing) -> None:
    """Train every arm on every seed under one recipe; end with a verdict table.

    What the study holds already is not trained again: the same command goes on where it stopped.
    """
    if asked.variants and asked.suites:
        raise UsageError("give either variants or --suite, not both")
    wholes = asked.loaded()
    sizes = [asked.sizes(whole) for whole in wholes]
    specs, seeds = asked.specs(wholes[0]), asked.first_seeds
    hands, gpus = asked.hands, asked.gpus

    from attnres_cli.cli import parts  # torch takes a second, and no mistake above it
    from attnres_cli.lab.comparing import Request
    from attnres_cli.lab.until_decided import Until
    from attnres_cli.train.device import assuming

    place = asked.place(hands, in_process=asked.in_process)
    with told_if_slow(parts.PLANNING):
        if asked.plan is None:
            terms = (asked.baseline, asked.match, asked.tune_lr, place, asked.margin)
            request = Request(specs, seeds, *terms, Until(asked.most) if asked.until else None)
            of_each = [
                parts.of_sizes(
                    request, whole, rungs, all_here=asked.launch is None and whole is wholes[0]
                )
                for whole, rungs in zip(wholes, sizes, strict=True)
            ]
            todo = parts.of_recipes(of_each)
        else:
            asked.check_plan()
            todo = parts.of_plan(asked.plan, place)
    if asked.dry_run:
        with assuming(gpus):
            options.show(parts.foreseen(todo), asked.form)
    elif not launched(asked, parts.recipes_of(todo)):
        if asked.plan is not None:
            parts.fix(asked.plan, asked.study)
        ended, failed = parts.trained(todo)
        _tell(asked, [one for part in ended for one in part], wholes[0])
        if asked.plan is None:
            of_recipe = {id(part.recipe): found for part, found in zip(todo, ended, strict=True)}
            for whole, rungs in zip(wholes, sizes, strict=True):
                of_sizes = [of_recipe[id(size)] for size in rungs]
                _settings(asked, of_sizes, whole)
                _over_sizes(asked, of_sizes, rungs)
        if failed:
            say(f"failed runs: {failed}; the same command with --retry-failed trains them again")
            raise typer.Exit(SOME_FAILED)


def _tell(asked: Comparing, found: Sequence[Comparison], whole: Recipe) -> None:
    """Print the verdicts, that over all texts last, and the commands that go on from them."""
    from attnres_cli.report import comparison, file_formats, texts
    from attnres_cli.report.answer import to_decide
    from attnres_cli.report.table import joined

    (first, *others), study, is_planned = found, asked.study, asked.plan is not None
    margin = [] if asked.margin is None else ["--margin", asked.margin]
    more = [] if others or is_planned else to_decide(first, whole, study, *margin)
    over = [] if asked.form is options.Format.CSV else texts.reports_of(found)  # other columns
    named = dict.fromkeys(f"{one.recipe_digest}@{one.data.fingerprint}" for one in found)

    def typed(*recipes: str) -> str:
        words = [word for name in recipes for word in ("--recipe", name)]
        base = _baseline(first)
        of_one = [] if len(recipes) > 1 else [*base, *margin]
        return shlex.join(["attnres", "report", *address.typed(study), *words, *of_one])

    if len(asked.recipes or ()) > 1:
        more += [f"Details: {typed(name)} --notes" for name in named]
        if over and first.baseline == "standard":
            more += [f"Page: {typed(*named)} --format html --output report.html"]
    else:
        alike = [first.recipe] if len({one.recipe for one in found}) == 1 else []
        shown = typed(*([first.recipe_digest] if len(named) == 1 else alike))
        more += [f"Details: {shown} --notes", f"Page: {shown} --format html --output report.html"]
    report = joined([*comparison.report_of(found), *over])
    file_formats.glance(report, asked.form, sys.stdout, *more)


def _baseline(of: Comparison) -> list[str]:
    """As it is typed, where it is not the default."""
    return [] if of.baseline == "standard" else ["--baseline", of.baseline]


def _settings(asked: Comparing, of_sizes: Sequence[Sequence[Comparison]], whole: Recipe) -> None:
    """Write the recipe with the settings that were found by design, if they were sought."""
    if not asked.tune_lr:
        return
    found = [next((each for each in one if each.terms.is_tuned), None) for one in of_sizes]
    tuned = [one for one in found if one is not None]
    if not tuned or any(one.base is None for one in tuned):
        return
    from attnres_cli.config.as_typed import plugins_typed
    from attnres_cli.lab import by_design

    match = [] if asked.match == "tokens" else ["--match", asked.match]
    path = by_design.write(whole, found, asked.study)
    words = ["attnres", "ablate", "--recipe", str(path), *address.typed(asked.study), *match]
    words += ["--margin", asked.margin] if asked.margin else []
    words += plugins_typed(arm.variant for arm in tuned[0].arms)
    note(f"settings by design written to {path}: {shlex.join([*words, *_baseline(tuned[0])])}")


def _over_sizes(
    asked: Comparing, of_sizes: Sequence[Sequence[Comparison]], sizes: Sequence[Recipe]
) -> None:
    """Say what becomes of every arm from size to size, on the terms of the last comparison."""
    if len(sizes) == 1:
        return
    from attnres_cli.errors import StudyError
    from attnres_cli.report.answer import courses
    from attnres_cli.report.scaling import one_rate
    from attnres_cli.verdict.ladder import Rung, ladder

    terms = of_sizes[-1][-1].terms
    rungs = [
        Rung(size, one)
        for size, found in zip(sizes, of_sizes, strict=True)
        for one in found
        if one.terms == terms
    ]
    if asked.form is options.Format.TABLE and rungs:
        with suppress(StudyError):  # of one size alone there are runs
            over = ladder(rungs)
            for line in [*courses(over), *(f"! {caveat}" for caveat in one_rate(over))]:
                typer.echo(line)
    last = of_sizes[-1][-1]
    words = ["attnres", "report", "--scaling", "--recipe", last.recipe]
    words += [*address.typed(asked.study), *_baseline(last)]
    note(f"what each arm is worth over these sizes: {shlex.join(words)}")
