"""The command `attnres ablate`: train what is missing of a comparison, and judge it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli import complete
from attnres_cli.errors import UsageError
from attnres_cli.options import (
    Baseline,
    Device,
    Engine,
    Format,
    FormatName,
    Matching,
    Override,
    Plugins,
    RecipeName,
    Study,
    TuneLr,
    read_format,
    read_match,
    read_seeds,
)
from attnres_cli.stdio import say

if TYPE_CHECKING:
    from attnres_cli.data import Tokens
    from attnres_cli.plan import Arm, Plan
    from attnres_cli.recipe import Recipe, Rung
    from attnres_cli.report.comparison import Comparison
    from attnres_cli.run import RunRecord
    from attnres_cli.store import Store

DEFAULT_STUDY = "attnres.db"
_SOME_FAILED = 3  # exit code, as in cli.py
_TUNING, _TUNED = "learning rates, on seeds kept for them", "each arm at its own learning rate"


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
    study: Study = DEFAULT_STUDY,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes. Default: one per GPU, or as many as pay.")
    ] = None,
    device: Device = "auto",
    engine: Engine = "auto",
    baseline: Baseline = "standard",
    output: FormatName = Format.TABLE,
    retry_failed: Annotated[bool, typer.Option(help="Train failed runs once more.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the plan and train nothing.")] = False,
    _plugin: Plugins = None,
) -> None:
    """Train every arm on every seed under one recipe; end with a verdict table.

    What the study holds already is not trained again: the same command goes on where it stopped.
    """
    from attnres_cli import ablate as grid
    from attnres_cli import data
    from attnres_cli import match as matching
    from attnres_cli.recipe import load, rungs
    from attnres_cli.report.registered import labelled
    from attnres_cli.store import Store

    form, quantity = read_format(output), read_match(match)
    if variants and suite is not None:
        raise UsageError("give either variants or --suite, not both")
    whole = load(recipe, override or [])
    specs, numbers, sizes = variants or _named(suite, whole), read_seeds(seeds), rungs(whole)
    for fixed in sizes[1:]:  # what does not fit one size is refused before another is trained
        grid.resolve([baseline, *specs], fixed, vocab_size=256)
    found: list[Comparison] = []
    failed = 0
    for number, fixed in enumerate(sizes, 1):
        if len(sizes) > 1:
            say(f"size {number} of {len(sizes)}: {_rung_text(whole.ladder[number - 1])}")
        tokens = data.load(fixed)
        (base,) = grid.resolve([baseline], fixed, tokens.vocab_size)
        arms = _arms(specs, base, fixed, tokens.vocab_size)
        shared = grid.make(fixed, arms, numbers, tokens.fingerprint, device, workers, engine)
        held = Store.existing(study, upgrade=not dry_run)
        own = held.arm_recipes(fixed.digest, tokens.fingerprint) if held else []
        plan = matching.matched(shared, quantity, base.variant, tokens, own, say)
        records = held.runs() if held else []
        grid.check_code(plan, records)
        if dry_run:
            _foresee(plan, records, tokens, tune_lr)
            continue
        store = Store.open(study, create=True)
        kept = store.keep_arm_recipes(plan, tokens.facts)  # of two commands one was first to time
        plan = matching.matched(shared, quantity, base.variant, tokens, kept, say)
        laboratory = _Laboratory(study, store, tokens, base.variant, retry_failed)
        compared = laboratory.compared(plan, tune_lr)
        found += labelled(compared, store.runs(), tokens.facts, store.registrations())
        failed += len(laboratory.failed)
    if dry_run:
        return
    show(found, form)
    if len(sizes) > 1:
        say(f"what each arm is worth over these sizes: attnres report --scaling --study {study}")
    if failed:
        say(f"failed runs: {failed}; the same command with --retry-failed trains them again")
        raise typer.Exit(_SOME_FAILED)


def _rung_text(rung: Rung) -> str:
    return ", ".join(f"{key}={value}" for key, value in rung)


def show(comparisons: Sequence[Comparison], form: Format, out: TextIO | None = None) -> None:
    """Print comparisons of one recipe, or of the sizes of its ladder, on stdout unless a stream is
    given; html is no form here.
    """
    from attnres_cli.report import export, latex, terminal

    out = out or sys.stdout
    if form is Format.TABLE:
        for comparison in comparisons:
            terminal.print_comparison(comparison, out)
        return
    write: dict[Format, Callable[..., str]] = {
        Format.JSON: export.to_json,
        Format.MARKDOWN: export.to_markdown,
        Format.CSV: export.to_csv,
        Format.LATEX: latex.to_latex,
    }
    out.write(write[form](*comparisons).rstrip("\n") + "\n")


def _named(suite: str | None, recipe: Recipe) -> list[str]:
    """The arms where none are typed."""
    from attnres_cli.recipe import suite as specs_of

    return list(specs_of(suite) if suite is not None else recipe.variants or specs_of("quick"))


def _arms(specs: Sequence[str], base: Arm, recipe: Recipe, vocab_size: int) -> tuple[Arm, ...]:
    """The arms of these specs and the baseline; says where they are not what was typed."""
    from attnres_cli import ablate as grid

    for spec, name in grid.renamed(specs, recipe):
        say(f"{spec} is {name} in a model of {2 * recipe.model.n_layers} sublayers")
    typed = grid.resolve(specs, recipe, vocab_size)
    if base.variant in {arm.variant for arm in typed}:
        return typed
    say(f"the baseline {base.variant} is trained too: every verdict is a difference from it")
    return (base, *typed)


def _timed(plan: Plan, tokens: Tokens) -> Plan:
    from attnres_cli import ablate as grid

    if any(arm.step_s is None for arm, _ in plan.missing):
        say("timing a few training steps of every arm")
    return grid.timed(plan, tokens)


def _foresee(plan: Plan, records: Sequence[RunRecord], tokens: Tokens, tune_lr: bool) -> None:
    """Print what would be trained, as far as it can be known before."""
    from attnres_cli import ablate as grid
    from attnres_cli import tune
    from attnres_cli.report.terminal import print_plan

    plan = _timed(grid.without(plan, records), tokens)
    print_plan(plan, sys.stdout)
    if not tune_lr:
        return
    print_plan(_timed(grid.without(tune.grid(plan), records), tokens), sys.stdout, _TUNING)
    tuned = tune.tuned(plan, records)
    if len(tuned.arms) == len(plan.arms):
        print_plan(_timed(grid.without(tuned, records), tokens), sys.stdout, _TUNED)
    else:
        runs = len(plan.arms) * len(plan.seeds)
        sys.stdout.write(f"then {runs} runs at most, each arm at the rate chosen for it\n")


@dataclass
class _Laboratory:
    """Trains plans and compares what came of them."""

    study: str
    store: Store
    tokens: Tokens
    baseline: str
    retry_failed: bool
    failed: set[int] = field(default_factory=set)  # run ids

    def compared(self, plan: Plan, tune_lr: bool) -> list[Comparison]:
        """The comparison of a plan, and the one at tuned learning rates if that is asked for."""
        from attnres_cli import tune
        from attnres_cli.report.terms import warnings

        plan = self._trained(plan)
        found = [self._judged(plan)]
        if not tune_lr:
            return found
        tuning = self._trained(tune.grid(plan), _TUNING)
        tuned = tune.tuned(plan, self._runs(tuning))
        self.store.keep_arm_recipes(tuned, self.tokens.facts)
        chosen = {arm.variant for arm in tuned.arms}
        for variant in [arm.variant for arm in plan.arms if arm.variant not in chosen]:
            say(f"{variant}: no learning rate of its own, its tuning runs have not all ended well")
        for line in warnings(tuned.arm_recipes):
            say(f"warning: {line}")
        if tuned.arms:
            found.append(self._judged(self._trained(tuned, _TUNED)))
        return found

    def _trained(self, plan: Plan, title: str = "") -> Plan:
        """Train what the study lacks of a plan; the plan, with its arms timed if need was."""
        from attnres_cli import ablate as grid
        from attnres_cli.report.progress import progress
        from attnres_cli.report.terminal import print_plan

        facts = self.tokens.facts
        records = self.store.plan(plan.specs, facts, retry_failed=self.retry_failed)
        plan = grid.without(plan, records)
        if plan.missing:
            plan = _timed(plan, self.tokens)
            print_plan(plan, sys.stderr, title)
            ids = [record.id for record in records]
            with progress(plan, records) as on_event:
                grid.run(plan, self.study, self.store, ids, on_event)
        self.failed |= {run.id for run in self._runs(plan) if run.status == "failed"}
        return plan

    def _runs(self, plan: Plan) -> list[RunRecord]:
        from attnres_cli import ablate as grid

        digests = sorted({digest for _, digest in plan.digests})
        records = [run for d in digests for run in self.store.runs(recipe_digest=d)]
        return grid.belonging(plan, records)

    def _judged(self, plan: Plan) -> Comparison:
        from attnres_cli.report.comparison import compare

        facts = self.tokens.facts
        return compare(self._runs(plan), facts, self.baseline, plan.terms, plan.arm_recipes)
