"""Reports on a terminal, and the plan of what will be trained."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

import rich.table
from rich import box
from rich.console import Console
from rich.text import Text

from attnres_cli.config.recipe import Recipe
from attnres_cli.console import mute
from attnres_cli.records.comparison_terms import Given
from attnres_cli.records.plan import TIMED_STEPS, Arm, Plan, n_tokens
from attnres_cli.report.table import Report, Table
from attnres_cli.verdict import labels
from attnres_cli.verdict.format import between, computing, duration, plural

_STYLE = {"good": "green", "bad": "red", "warning": "yellow", "strong": "bold"}
_LEAST_TEXT = 13  # columns in which names and sentences are broken into lines
_PIPE_WIDTH = 140  # where nobody looks, so that a log holds every column
_NARROWEST = 80


def console(stream: TextIO) -> Console:
    """A console on stdout or stderr; rich itself respects NO_COLOR and TERM=dumb. Where it is no
    terminal, tables are 140 columns wide unless COLUMNS says otherwise.
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


def print_report(report: Report, stream: TextIO) -> None:
    """Titles, tables, warnings and notes."""
    out = console(stream)
    for one in report:
        out.print(Text(one.title, style="bold")) if one.title else None
        for text in one.text:
            out.print(Text(text))
        for table in one.shown:
            _print_table(out, table)
        for line in one.warnings:
            out.print(Text(line, style="yellow"))
        for line in one.notes:
            out.print(Text(line, style="dim"))


def _print_table(out: Console, table: Table) -> None:
    """The table, without optional columns if it is too wide, in several parts if it still is."""
    widths = [_least_width(table, i) for i in range(len(table.columns))]
    columns = list(range(len(widths)))
    if _room(widths, columns) > out.width:
        columns = [i for i in columns if not table.columns[i].is_optional]
    keys, parts = columns[: table.n_keys], [columns[: table.n_keys]]
    for i in columns[table.n_keys :]:
        if parts[-1] != keys and _room(widths, [*parts[-1], i]) > out.width:
            parts.append(list(keys))
        parts[-1].append(i)
    for part in parts:
        spare = max(0, out.width - _room(widths, part))
        out.print(_rich(table, part, table.title if part is parts[0] else "", spare))


def _least_width(table: Table, i: int) -> int:
    """Of a column: words are never broken, text and names are."""
    column = table.columns[i]
    lengths = [len(column.title), *(len(row[i].text) for row in table.cells)]
    return min(max(lengths), _LEAST_TEXT if column.kind in ("code", "text") else max(lengths))


def _room(widths: Sequence[int], columns: Sequence[int]) -> int:
    return 1 + sum(widths[i] + 2 for i in columns)


def _rich(table: Table, columns: Sequence[int], title: str, spare: int) -> rich.table.Table:
    """Of some columns. Those that fold get the spare room, names first."""
    made = rich.table.Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for i in columns:
        column = table.columns[i]
        folds, least = column.kind in ("code", "text"), _least_width(table, i)
        if folds:
            longest = max([least, *(len(row[i].text) for row in table.cells)])
            given = min(spare, longest - least)
            least, spare = least + given, spare - given
        made.add_column(
            column.title,
            justify="right" if column.kind == "number" else "left",
            no_wrap=not folds,
            overflow="fold",
            width=least if folds else None,
        )
    for row in table.cells:
        made.add_row(*(Text(row[i].text, style=_STYLE.get(row[i].style, "")) for i in columns))
    return made


def print_plan(plan: Plan, stream: TextIO, title: str = "") -> None:
    """What will be done: per arm its size and speed, in all the runs, FLOPs and time."""
    out = console(stream)
    table = rich.table.Table(title=f"plan: recipe {plan.recipe.name}" + (title and f", {title}"))
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
        arm, mine = arms[0], [_own(arm, plan) for arm in arms]
        speed = f"{1000 * arm.step_s:.1f}" if arm.step_s is not None else "-"
        left = f"{to_train.count(variant)} of {len(arms) * len(plan.seeds)}"
        between = f"{mine[0]} to {mine[-1]}" if len(arms) > 1 else mine[0]
        cells = (f"{arm.n_params:,}", f"{arm.flops_per_token:.3g}", speed, left)
        table.add_row(variant, *([between] if has_own else []), *cells)
    out.print(table)
    for line in _plan_lines(plan):
        out.print(Text(line, style="yellow" if line.startswith("warning: ") else ""))


def _own(arm: Arm, plan: Plan) -> str:
    """What an arm's recipe has of its own; a learning rate that the recipe gives it too."""
    how = arm.how
    return how.text if isinstance(how, Given) else own_text(plan.recipe_of(arm), plan.recipe)


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
    steps = between([plan.recipe_of(arm).steps for arm in plan.arms])
    tokens = [n_tokens(plan.recipe_of(arm)) for arm in plan.arms]
    arms = len({arm.variant for arm in plan.arms})
    rates = len(plan.arms) // arms
    grid = f"{rates} learning rates x " if rates > 1 else ""
    each = f"{plural(steps, 'step')}, {plural(between(tokens), 'token')}"
    lines = [
        f"{plural(runs, 'run')} ({plural(arms, 'arm')} x {grid}{plural(len(plan.seeds), 'seed')}), "
        f"{len(plan.missing)} to train; each {each}; {plan.flops:.3g} FLOPs in all",
        *_going_on(plan),
        *(labels.of_data(plan.data, plan.recipe, tokens) if plan.data else []),
        computing(plan),
        *([plan.threads_by] if plan.threads_by else []),
        *([labels.whose_rates(plan.terms)] if plan.terms.by_design else []),
        *labels.remaining(plan.arm_recipes),
    ]
    if plan.missing and plan.settings.compiled:
        lines.append("compiling every arm: about a minute each the first time, seconds after that")
    if plan.missing:
        kept, written = _megabytes(plan.weights_bytes), _megabytes(plan.checkpoint_bytes)
        lines.append(f"disk: {kept} for final weights; while it trains up to {written} more")
        lines.append(_prediction(plan))
    return lines


def _going_on(plan: Plan) -> list[str]:
    """`1 of them goes on: attnres seed 0 from step 120`; none where all begin."""
    steps = [(arm, n, plan.begun.get(plan.spec(arm, n).identity)) for arm, n in plan.missing]
    begun = [f"{arm.variant} seed {n} from step {step:,}" for arm, n, step in steps if step]
    goes = "goes" if len(begun) == 1 else "go"
    return [f"{len(begun)} of them {goes} on: {', '.join(begun)}"] if begun else []


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
