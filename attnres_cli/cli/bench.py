"""The command `attnres bench`: what arms cost on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from attnres_cli.cli import options
from attnres_cli.config.address import withhold
from attnres_cli.console import note, say
from attnres_cli.errors import SOME_FAILED, UsageError

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
        with options.keeping_nothing():
            return super().invoke(ctx)


HELP = (
    "Time training steps of every arm on this machine, or generation (bench decode); check prefill "
    "that is shared by ranks (bench prefill)."
)

app = typer.Typer(cls=_Steps, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True)
class Arms:
    """What is measured, and how it is printed."""

    variants: list[str] | None = options.specs(f"Arms. Default: {' '.join(DEFAULT_ARMS)}.")
    recipe: str = options.RECIPE
    override: list[str] | None = options.OVERRIDE
    form: options.Format = options.PRINTED
    plugin: list[str] | None = options.PLUGINS


@dataclass(frozen=True, kw_only=True)
class Timing(Arms):
    """What arms are timed by, in turn."""

    device: str = options.DEVICE
    engine: str = options.ENGINE
    baseline: str = options.BASELINE
    rounds: int = typer.Option(
        15, min=1, max=_MOST_ROUNDS, help="Rounds in which the arms take turns."
    )

    def plan(self, what: str, study: str | None = None) -> tuple[Plan, Tokens, str]:
        """The plan, its data, and the name of the baseline, which is first if it was not asked for;
        says what is timed. With a study, by as many threads as its runs of the recipe had.
        """
        from attnres_cli.config.recipe import load

        fixed = load(self.recipe, self.override or [])

        from attnres_cli.data import sources
        from attnres_cli.lab import grid
        from attnres_cli.lab.bench import runs_of
        from attnres_cli.verdict.numbers import plural

        fixed = grid.named(fixed)
        threads = None if study is None else grid.threads_of(runs_of(study, fixed))
        tokens = sources.load(fixed)
        (base,) = grid.resolve([self.baseline], fixed, tokens.vocab_size)
        arms = grid.resolve(self.variants or DEFAULT_ARMS, fixed, tokens.vocab_size)
        if base.variant not in {arm.variant for arm in arms}:
            note(f"the baseline {base.variant} is timed too: every ratio is to it")
            arms = (base, *arms)
        on = (self.device, 1, self.engine, threads)
        plan = grid.make(fixed, arms, (0,), tokens.fingerprint, *on)
        note(f"checking {plural(len(arms), 'arm')}, then {plural(self.rounds, 'round')} of {what}")
        return plan, tokens, base.variant

    def tell(self, found: StepBench | DecodeBench) -> None:
        """Print what was measured."""
        from attnres_cli.report.costs import report_of

        options.show(report_of(found), self.form)
        _end([arm.variant for arm in found.arms if arm.wrong], "wrong, and not timed")


@dataclass(frozen=True, kw_only=True)
class Stepping(Timing):
    """Where the ratios of step times go."""

    study: str | None = typer.Option(
        None,
        help="Keep the ratios in this study, whose report then has times.",
        callback=lambda study: study and withhold(study),
        show_default=False,
    )


@dataclass(frozen=True, kw_only=True)
class Decoding(Timing):
    """How much is generated."""

    batch: list[int] | None = typer.Option(
        None, min=1, help="Batch size. Repeatable. Default: 1 and 16."
    )
    n_new: int = typer.Option(32, "--tokens", min=1, help="Timed tokens per row.")


@dataclass(frozen=True, kw_only=True)
class Sharing(Arms):
    """How much is sent through ranks."""

    ranks: int = typer.Option(2, min=1, max=64, help="Processes that share the tokens.")
    n_tokens: int | None = typer.Option(
        None, "--tokens", min=1, help="Tokens in total. Default: model.seq_len."
    )
    chunk: int | None = typer.Option(
        None, min=1, help="Tokens at a time. Default: a quarter of the total."
    )


@app.command()
@options.takes(Stepping)
def step(asked: Stepping) -> None:
    """Time whole training steps of every arm, in turn, beside what each reads, writes and computes.

    An arm whose loss or gradients are not those of the plain formula is reported as wrong, and not
    timed. `attnres bench decode` times generation instead.
    """
    plan, tokens, base = asked.plan("training steps", asked.study)

    from attnres_cli.lab import bench

    found = bench.steps(plan, tokens, asked.rounds, base, note)
    if asked.study is not None:
        note(f"{bench.keep(found, asked.study)} of {len(found.arms)} ratios are kept in the study")
    asked.tell(found)


@app.command()
@options.takes(Decoding)
def decode(asked: Decoding) -> None:
    """Time generation by every arm, in turn: ms per token, beside the baseline's.

    Half of the recipe's positions are the prompt. --set train.compile=on compiles the steps.
    """
    if asked.engine == "compile":
        raise UsageError(
            "engine compile is for training: --set train.compile=on compiles generation"
        )
    plan, tokens, base = asked.plan("generation")
    sizes = tuple(dict.fromkeys(asked.batch or (1, 16)))

    from attnres_cli.lab import bench

    asked.tell(bench.decode(plan, tokens, asked.rounds, base, sizes, asked.n_new))


@app.command()
@options.takes(Sharing)
def prefill(asked: Sharing) -> None:
    """Send a sequence through every arm with its tokens in parts on ranks: whether the
    numbers are those of one process, in float64, and what the sources hold in memory.

    Mixing over depth stays with each token's rank; heads and channels are shared. On a CPU.
    """
    from attnres_cli.config.recipe import load

    fixed = load(asked.recipe, asked.override or [])

    from attnres_cli.lab import grid
    from attnres_cli.lab.prefill import prefill as run_ranks
    from attnres_cli.report.costs import prefill_of, wrong

    arms = grid.resolve(asked.variants or DEFAULT_ARMS, fixed, vocab_size=256)
    names = [arm.variant for arm in arms]
    found = run_ranks(fixed, names, asked.ranks, asked.n_tokens, asked.chunk)
    options.show(prefill_of(found), asked.form)
    _end(wrong(found), "wrong")


def _end(wrong: list[str], what: str) -> None:
    if wrong:
        say(f"{what}: {', '.join(wrong)}")
        raise typer.Exit(SOME_FAILED)
