"""The command line: parse, call one function, print. The one place where errors become messages.

Torch, sqlalchemy, scipy and all of ours but errors are imported inside commands, so that --help
answers at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from attnres_cli import __version__, cli_bench, cli_designs, cli_runs, complete, stdio
from attnres_cli.errors import AttnresError, UsageError
from attnres_cli.options import (
    Baseline,
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
    from attnres_cli.data import Tokens
    from attnres_cli.plan import Arm, Plan
    from attnres_cli.recipe import Recipe
    from attnres_cli.report.comparison import Comparison

DONE, INTERNAL, BAD_INPUT, SOME_FAILED, INTERRUPTED = 0, 1, 2, 3, 130
"""Exit codes."""

DEFAULT_STUDY = "attnres.db"

app = typer.Typer(
    name="attnres",
    help="Which residual connection should a Transformer be trained with, and how sure can one be?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # typer keeps it private


@app.command()
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
    seeds: Annotated[str, typer.Option(help="How many seeds, or which: 5, or 0,3,7.")] = "3",
    override: Override = None,
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
    from attnres_cli.recipe import load
    from attnres_cli.recipe import suite as specs_of
    from attnres_cli.report.comparison import compare
    from attnres_cli.report.progress import progress
    from attnres_cli.report.terminal import print_plan
    from attnres_cli.store import Store

    form = read_format(output)
    if variants and suite is not None:
        raise UsageError("give either variants or --suite, not both")
    fixed = load(recipe, override or [])
    named = specs_of(suite) if suite is not None else fixed.variants or specs_of("quick")
    specs = variants or list(named)
    numbers = read_seeds(seeds)
    tokens = data.load(fixed)
    (base,) = grid.resolve([baseline], fixed, tokens.vocab_size)
    arms = _arms(specs, base, fixed, tokens.vocab_size)
    plan = grid.make(fixed, arms, numbers, tokens.fingerprint, device, workers, engine)
    held = Store.held(study)
    grid.check_code(plan, held)
    if dry_run:
        plan = grid.without(plan, held)
        print_plan(_timed(plan, tokens), sys.stdout)
        return
    store = Store.open(study, create=True)
    records = store.plan(plan.specs, tokens.facts, retry_failed=retry_failed)
    plan = grid.without(plan, records)
    if plan.missing:
        plan = _timed(plan, tokens)
        print_plan(plan, sys.stderr)
        with progress(plan, records) as on_event:
            grid.run(plan, study, store, [record.id for record in records], on_event)
    mine = grid.belonging(plan, store.runs(recipe_digest=fixed.digest))
    comparison = compare(mine, tokens.facts, base.variant)
    _show(comparison, form)
    if comparison.failed:
        say(
            f"failed runs: {len(comparison.failed)}; the same command with --retry-failed trains "
            "them again"
        )
        raise typer.Exit(SOME_FAILED)


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

    if plan.missing:
        say("timing a few training steps of every arm")
    return grid.timed(plan, tokens)


@app.command()
def report(
    study: Study = DEFAULT_STUDY,
    recipe: Annotated[
        str | None, typer.Option(help="Name or digest. Default: the newest in the study.")
    ] = None,
    baseline: Baseline = "standard",
    output: FormatName = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Print the verdict from the study alone; nothing is trained."""
    from attnres_cli.report.comparison import compare
    from attnres_cli.report.select import choose
    from attnres_cli.store import Store

    form = read_format(output)
    store = Store.open(study, create=False)

    def canonical(spec: str, digest: str) -> str:
        from attnres_cli.variant import parse

        return str(parse(spec).at_depth(2 * store.recipe(digest).model.n_layers))

    chosen = choose(store.runs(), study, recipe, baseline, canonical)
    if chosen.others:
        say(f"the study also holds {chosen.others}: --recipe with what stands in brackets")
    _show(compare(chosen.records, store.data(chosen.fingerprint), chosen.baseline), form)


app.command()(cli_designs.variants)
app.command()(cli_designs.check)
app.command()(cli_designs.recipes)
app.command()(cli_runs.verify)
app.add_typer(cli_bench.app, name="bench", help=cli_bench.HELP)
app.add_typer(cli_runs.app, name="runs", help=cli_runs.HELP)


def _show(comparison: Comparison, form: Format) -> None:
    from attnres_cli.report import export, terminal

    if form is Format.TABLE:
        terminal.print_comparison(comparison)
        return
    write = {
        Format.JSON: export.to_json,
        Format.MARKDOWN: export.to_markdown,
        Format.CSV: export.to_csv,
    }
    sys.stdout.write(write[form](comparison).rstrip("\n") + "\n")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"attnres {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _asked: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Find out which residual connection a Transformer should be trained with, and how surely."""


def _warn(message: Warning | str, *_where: object) -> None:
    say(f"warning: {message}")


def main() -> None:
    """The command `attnres`. What a user can cause is one line on stderr and an exit code."""
    warnings.showwarning = _warn  # type: ignore[assignment]
    stdio.mend()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `attnres report | head -1`: its reader has seen enough
        stdio.mute(sys.stdout)
        code = DONE
    except AttnresError as error:
        say(str(error))
        code = BAD_INPUT
    except _USAGE_ERROR as error:
        message = str(getattr(error, "format_message", error.__str__)())
        if message:  # there is none where no command was given: the help is printed then
            say(message)
        code = BAD_INPUT
    if code == INTERRUPTED:  # typer makes this of Ctrl-C
        say("interrupted; what is done is in the study, the same command goes on")
    sys.exit(code)
