"""Tables for people: the plan, the verdict, the lists of variants and recipes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnres_cli.config.recipe import Recipe
from attnres_cli.console import mute
from attnres_cli.records.comparison_terms import SHARED
from attnres_cli.records.plan import TIMED_STEPS, Arm, Plan, n_tokens
from attnres_cli.report.export import (
    bits_per_byte,
    difference_text,
    facts_of,
    loss_text,
    verdict_text,
)
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.format import duration, plural

_STYLE = {"better": "green", "worse": "red", "blocked": "yellow", "baseline": "bold"}
_PIPE_WIDTH = 140  # where nobody looks, so that a log holds every column
WIDE = 130
"""Columns from which on tables have everything."""
_NARROWEST = 80


def console(stream: TextIO) -> Console:
    """A console on stdout or stderr; rich itself respects NO_COLOR and TERM=dumb.

    Where it is no terminal, tables are 140 columns wide unless COLUMNS says otherwise.
    """
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    out = _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    if out.width < _NARROWEST:  # a line that wraps loses less than a table whose columns are cut
        out.width = _NARROWEST
    return out


class _Console(Console):
    """A console that falls silent, and ends nothing, when its reader has gone."""

    def on_broken_pipe(self) -> None:
        """Print no more."""
        mute(self.file)


def print_comparison(comparison: Comparison, stream: TextIO | None = None) -> None:
    """The verdict table, on stdout unless a stream is given, with the facts it rests on below."""
    out = console(stream or sys.stdout)
    columns = _columns(wide=out.width >= WIDE, of_bytes=comparison.data.is_bytes)
    if comparison.terms != SHARED:
        columns.insert(1, ("its own", lambda arm: arm.own.text if arm.own else "-"))
    title = f"{labels.title(comparison)}: validation loss, nats per token (mean ± sd over seeds)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, _ in columns:
        is_text = name in ("variant", "verdict")
        table.add_column(
            name,
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            min_width=13 if is_text else None,
        )
    for arm in comparison.arms:
        style = "bold" if arm.verdict == "baseline" else None
        table.add_row(*(cell(arm) for _, cell in columns), style=style)
    out.print(table)
    for failure in comparison.failed:
        out.print(Text(f"failed: {failure.variant} seed {failure.seed}: {failure.error}"))
    for line in facts_of(comparison):
        out.print(Text(line, style="dim"))


def _columns(*, wide: bool, of_bytes: bool) -> list[tuple[str, Callable[[ArmResult], Text | str]]]:
    """Titles and cells; what a narrow terminal leaves out is in every other format."""
    columns: list[tuple[str, Callable[[ArmResult], Text | str]]] = [
        ("variant", lambda arm: arm.variant),
        ("val loss", loss_text),
        ("vs baseline [95 %]", difference_text),
        ("verdict", lambda arm: Text(verdict_text(arm), style=_STYLE.get(arm.verdict, ""))),
    ]
    if wide and of_bytes:
        columns.insert(2, ("bits/byte", _bits))
    if wide:
        columns += [
            ("n", lambda arm: str(len(arm.losses))),
            ("params", _params),
            ("ms/step", lambda arm: f"{1000 * arm.step_s:.1f}"),
        ]
    return columns


def _bits(arm: ArmResult) -> str:
    return f"{bits_per_byte(arm.mean):.4f}" if math.isfinite(arm.mean) else "-"


def _params(arm: ArmResult) -> str:
    return f"{arm.n_params:,}" + (f" ({arm.params_delta:+,})" if arm.params_delta else "")


def computing(plan: Plan) -> str:
    """How the runs of a plan are computed: `2 workers, 1 thread each, cpu fp32 eager, ...`."""
    settings = plan.settings
    hands = plural(len(plan.devices), "worker") + f", {plural(settings.threads, 'thread')} each"
    return (
        f"{hands}, {settings.numerics}, {settings.device_name}, depth mixing by {settings.engine}"
    )


def print_plan(plan: Plan, stream: TextIO, title: str = "") -> None:
    """What will be done: per arm its size and speed, in all the runs, FLOPs and time."""
    out = console(stream)
    table = Table(title=f"plan: recipe {plan.recipe.name}" + (title and f", {title}"))
    table.add_column("variant", overflow="fold")
    has_own = any(arm.recipe is not None for arm in plan.arms)
    names = ("params", "FLOPs/token", "ms/step", "to train")
    for name in ("its own", *names) if has_own else names:
        table.add_column(name, justify="right")
    by_variant: dict[str, list[Arm]] = {}
    for arm in plan.arms:
        by_variant.setdefault(arm.variant, []).append(arm)
    to_train = [arm.variant for arm, _ in plan.missing]
    for variant, arms in by_variant.items():
        arm, mine = arms[0], [own_text(plan.recipe_of(arm), plan.recipe) for arm in arms]
        speed = f"{1000 * arm.step_s:.1f}" if arm.step_s is not None else "-"
        left = f"{to_train.count(variant)} of {len(arms) * len(plan.seeds)}"
        between = f"{mine[0]} to {mine[-1]}" if len(arms) > 1 else mine[0]
        cells = (f"{arm.n_params:,}", f"{arm.flops_per_token:.3g}", speed, left)
        table.add_row(variant, *([between] if has_own else []), *cells)
    out.print(table)
    for line in _plan_lines(plan):
        out.print(Text(line))


def own_text(recipe: Recipe, shared: Recipe) -> str:
    """What an arm's recipe has of its own: `lr 0.0141, d_ff 87`; empty where it has nothing."""
    sizes = ("n_layers", "d_model", "n_heads")
    numbers = (
        *((name, getattr(recipe.model, name), getattr(shared.model, name)) for name in sizes),
        ("lr", recipe.optim.lr, shared.optim.lr),
        ("d_ff", recipe.model.shape(1).d_ff, shared.model.shape(1).d_ff),
        ("tokens", n_tokens(recipe), n_tokens(shared)),
    )
    return ", ".join(
        f"{name} {mine:,}" if isinstance(mine, int) else f"{name} {mine:g}"
        for name, mine, theirs in numbers
        if mine != theirs
    )


def _plan_lines(plan: Plan) -> list[str]:
    runs = len(plan.arms) * len(plan.seeds)
    steps = _range([plan.recipe_of(arm).steps for arm in plan.arms])
    tokens = _range([n_tokens(plan.recipe_of(arm)) for arm in plan.arms])
    arms = len({arm.variant for arm in plan.arms})
    rates = len(plan.arms) // arms
    grid = f"{rates} learning rates x " if rates > 1 else ""
    lines = [
        f"{runs} runs ({arms} arms x {grid}{len(plan.seeds)} seeds), {len(plan.missing)} to "
        f"train; each {steps} steps, {tokens} tokens; {plan.flops:.3g} FLOPs in all",
        computing(plan),
        *labels.remaining(plan.arm_recipes),
    ]
    if plan.missing and plan.settings.compiled:
        lines.append("compiling every arm: about a minute each the first time, seconds after that")
    if plan.missing:
        kept, written = _megabytes(plan.weights_bytes), _megabytes(plan.checkpoint_bytes)
        lines.append(f"disk: {kept} for final weights; while it trains up to {written} more")
        lines.append(_prediction(plan))
    return lines


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _megabytes(n_bytes: int) -> str:
    """20 MB, 1.3 GB; never 0."""
    return f"{n_bytes / 1e9:,.1f} GB" if n_bytes >= 1e9 else f"{max(1, round(n_bytes / 1e6))} MB"


def _prediction(plan: Plan) -> str:
    if plan.timed_sequences == 0:
        return f"no predicted time: on {plan.settings.device} one sequence alone takes too long"
    if plan.seconds is None:
        return "no predicted time: an arm could not be trained; its runs will say why"
    text = f"predicted time {duration(plan.seconds)}, from {TIMED_STEPS} training steps of each arm"
    batch_size = plan.recipe.train.batch_size
    if plan.timed_sequences < batch_size:
        text += f" ({plan.timed_sequences} of the batch's {batch_size} sequences)"
    eager = ", not compiled yet; a minute per arm is added" if plan.settings.compiled else ""
    return f"{text} timed just now, one arm at a time{eager}"
