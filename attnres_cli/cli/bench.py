"""The command `attnres bench`: what arms cost on this machine."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from attnres_cli.cli.options import (
    Baseline,
    Device,
    Engine,
    Format,
    Override,
    Plugins,
    PrintedFormat,
    RecipeName,
)
from attnres_cli.config import complete
from attnres_cli.console import note, say
from attnres_cli.errors import INTERRUPTED, SOME_FAILED, UsageError

if TYPE_CHECKING:
    from attnres_cli.data.tokens import Tokens
    from attnres_cli.nn.cost import DecodeBench, StepBench
    from attnres_cli.records.plan import Plan

DEFAULT_ARMS = ("standard", "attnres", "attnres:block_size=4", "denseformer")
_MOST_ROUNDS = 10_000


class _Steps(typer.core.TyperGroup):
    """A group whose command is `step` where none is named: `attnres bench standard attnres`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with `step` before them if they begin with no command."""
        named = args[:1] in (["step"], ["decode"], ["prefill"])
        return super().parse_args(ctx, args if named else ["step", *args])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C ends it in one line, as nothing is recorded anywhere."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            say("interrupted; nothing was kept")
            sys.exit(INTERRUPTED)


HELP = (
    "Time training steps of every arm on this machine, or generation (bench decode); check prefill "
    "that is shared by ranks (bench prefill)."
)

app = typer.Typer(cls=_Steps, pretty_exceptions_enable=False)

Variants = Annotated[
    list[str] | None,
    typer.Argument(help=f"Arms. Default: {' '.join(DEFAULT_ARMS)}.", autocompletion=complete.specs),
]
Rounds = Annotated[
    int, typer.Option(min=1, max=_MOST_ROUNDS, help="Rounds in which the arms take turns.")
]


@app.command()
def step(
    variants: Variants = None,
    recipe: RecipeName = "quick",
    override: Override = None,
    device: Device = "auto",
    engine: Engine = "auto",
    baseline: Baseline = "standard",
    rounds: Rounds = 15,
    form: PrintedFormat = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Time whole training steps of every arm, in turn, beside what each reads, writes and computes.

    An arm whose loss or gradients are not those of the plain formula is reported as wrong, and not
    timed. `attnres bench decode` times generation instead.
    """
    from attnres_cli.verdict.numbers import plural

    plan, tokens, base = _plan(variants, recipe, override, device, engine, baseline)

    from attnres_cli.lab import bench

    arms = plural(len(plan.arms), "arm")
    note(f"checking {arms}, then {plural(rounds, 'round')} of training steps")
    _show(bench.steps(plan, tokens, rounds, base, note), form)


@app.command()
def decode(
    variants: Variants = None,
    recipe: RecipeName = "quick",
    override: Override = None,
    device: Device = "auto",
    engine: Engine = "auto",
    baseline: Baseline = "standard",
    rounds: Rounds = 15,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Batch size. Repeatable. Default: 1 and 16.")
    ] = None,
    n_new: Annotated[int, typer.Option("--tokens", min=1, help="Timed tokens per row.")] = 32,
    form: PrintedFormat = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Time generation by every arm, in turn: ms per token, beside the baseline's.

    Half of the recipe's positions are the prompt. --set train.compile=on compiles the steps.
    """
    from attnres_cli.verdict.numbers import plural

    if engine == "compile":
        raise UsageError(
            "engine compile is for training: --set train.compile=on compiles generation"
        )
    plan, tokens, base = _plan(variants, recipe, override, device, engine, baseline)
    sizes = tuple(dict.fromkeys(batch or (1, 16)))

    from attnres_cli.lab import bench

    note(f"checking {plural(len(plan.arms), 'arm')}, then {plural(rounds, 'round')} of generation")
    _show(bench.decode(plan, tokens, rounds, base, sizes, n_new), form)


@app.command()
def prefill(
    variants: Variants = None,
    recipe: RecipeName = "quick",
    override: Override = None,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the tokens.")] = 2,
    n_tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Tokens in total. Default: model.seq_len.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(min=1, help="Tokens at a time. Default: a quarter of the total.")
    ] = None,
    form: PrintedFormat = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Send a sequence through every arm with its tokens in parts on ranks: whether the
    numbers are those of one process, in float64, and what the sources hold in memory.

    Mixing over depth stays with each token's rank; heads and channels are shared. On a CPU.
    """
    from attnres_cli.config.recipe import load

    fixed = load(recipe, override or [])

    from attnres_cli.lab import grid
    from attnres_cli.lab.prefill import prefill as run_ranks
    from attnres_cli.report import file_formats
    from attnres_cli.report.costs import prefill_of, wrong

    arms = grid.resolve(variants or DEFAULT_ARMS, fixed, vocab_size=256)
    names = [arm.variant for arm in arms]
    found = run_ranks(fixed, names, ranks, n_tokens, chunk)
    file_formats.show(prefill_of(found), form, sys.stdout)
    if off := wrong(found):
        say(f"wrong: {', '.join(off)}")
        raise typer.Exit(SOME_FAILED)


def _plan(
    specs: list[str] | None,
    recipe: str,
    override: list[str] | None,
    device: str,
    engine: str,
    baseline: str,
) -> tuple[Plan, Tokens, str]:
    """What is measured, and the name of the baseline, which is first if it was not asked for."""
    from attnres_cli.config.recipe import load

    fixed = load(recipe, override or [])

    from attnres_cli.data import sources
    from attnres_cli.lab import grid

    tokens = sources.load(fixed)
    (base,) = grid.resolve([baseline], fixed, tokens.vocab_size)
    arms = grid.resolve(specs or DEFAULT_ARMS, fixed, tokens.vocab_size)
    if base.variant not in {arm.variant for arm in arms}:
        note(f"the baseline {base.variant} is timed too: every ratio is to it")
        arms = (base, *arms)
    plan = grid.make(fixed, arms, (0,), tokens.fingerprint, device, 1, engine)
    return plan, tokens, base.variant


def _show(found: StepBench | DecodeBench, form: Format) -> None:
    from attnres_cli.report import file_formats
    from attnres_cli.report.costs import report_of

    file_formats.show(report_of(found), form, sys.stdout)
    if wrong := [arm.variant for arm in found.arms if arm.wrong]:
        say(f"wrong, and not timed: {', '.join(wrong)}")
        raise typer.Exit(SOME_FAILED)
