"""Tables for people: the plan, the verdict, the lists of variants and recipes."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnres_cli.plan import Plan
from attnres_cli.report.comparison import ArmResult, Comparison
from attnres_cli.report.export import (
    bits_per_byte,
    difference_text,
    facts_of,
    loss_text,
    verdict_text,
)

_STYLE = {"better": "green", "worse": "red", "blocked": "yellow", "baseline": "bold"}
_PIPE_WIDTH = 120


def console(stream: TextIO) -> Console:
    """A console on stdout or stderr; rich itself respects NO_COLOR and TERM=dumb.

    Where nobody looks, tables are 120 columns wide unless COLUMNS says otherwise.
    """
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def print_comparison(comparison: Comparison) -> None:
    """The verdict table on stdout, with the facts it rests on below."""
    out = console(sys.stdout)
    table = Table(title=f"recipe {comparison.recipe}: validation loss, nats per byte token")
    table.add_column("variant", overflow="fold", min_width=12)
    for name in ("val loss", "bits/byte", f"vs {comparison.baseline} [95 %]"):
        table.add_column(name, justify="right")
    table.add_column("verdict", overflow="fold")
    for name in ("n", "params", "ms/step"):
        table.add_column(name, justify="right")
    for arm in comparison.arms:
        table.add_row(*_cells(arm), style="bold" if arm.verdict == "baseline" else None)
    out.print(table)
    for failure in comparison.failed:
        out.print(f"failed: {failure.variant} seed {failure.seed}: {failure.error}", markup=False)
    for line in facts_of(comparison):
        out.print(Text(line, style="dim"))


def _cells(arm: ArmResult) -> list[Text | str]:
    extra = f" ({arm.params_delta:+,})" if arm.params_delta else ""
    return [
        arm.variant,
        loss_text(arm),
        f"{bits_per_byte(arm.mean):.4f}",
        difference_text(arm),
        Text(verdict_text(arm), style=_STYLE.get(arm.verdict, "")),
        str(len(arm.losses)),
        f"{arm.n_params:,}{extra}",
        f"{1000 * arm.step_s:.1f}",
    ]


def print_plan(plan: Plan, stream: TextIO) -> None:
    """What will be done: per arm its size and speed, in all the runs, FLOPs and time."""
    out = console(stream)
    table = Table(title=f"plan: recipe {plan.recipe.name}")
    table.add_column("variant", overflow="fold")
    for name in ("params", "FLOPs/token", "ms/step", "to train"):
        table.add_column(name, justify="right")
    to_train = [arm.variant for arm, _ in plan.missing]
    for arm in plan.arms:
        speed = f"{1000 * arm.step_s:.1f}" if arm.step_s is not None else "-"
        left = f"{to_train.count(arm.variant)} of {len(plan.seeds)}"
        table.add_row(arm.variant, f"{arm.n_params:,}", f"{arm.flops_per_token:.3g}", speed, left)
    out.print(table)
    for line in _plan_lines(plan):
        out.print(Text(line))


def _plan_lines(plan: Plan) -> list[str]:
    recipe, settings = plan.recipe, plan.settings
    tokens = recipe.steps * recipe.tokens_per_step
    runs = len(plan.arms) * len(plan.seeds)
    lines = [
        f"{runs} runs ({len(plan.arms)} arms x {len(plan.seeds)} seeds), {len(plan.missing)} to "
        f"train; each {recipe.steps:,} steps, {tokens:,} tokens; {plan.flops:.3g} FLOPs in all",
        f"{len(plan.devices)} worker(s), {settings.threads} thread(s) each, {settings.numerics}, "
        f"{settings.device_name}",
    ]
    if plan.missing and plan.seconds is not None:
        lines.append(
            f"predicted time {duration(plan.seconds)}: from a few training steps of each arm, "
            "timed here one arm at a time"
        )
    return lines


def duration(seconds: float) -> str:
    """75 -> `1 min 15 s`; 7300 -> `2 h 2 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
