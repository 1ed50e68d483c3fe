"""Scaling fits over a ladder, as a table, Markdown, CSV, JSON or LaTeX."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from attnres_cli.report import latex
from attnres_cli.report.answer import multiplier_text, trend_text
from attnres_cli.report.terminal import WIDE, console
from attnres_cli.verdict import recipe_order
from attnres_cli.verdict.ladder import Ladder, Rung, Scaled, compute, is_sound


def show(found: Ladder, form: str, out: TextIO) -> None:
    """Print a ladder into a stream; html is no form here."""
    if form == "table":
        _print(found, out)
        return
    write = {"json": _to_json, "csv": _to_csv, "markdown": _to_markdown, "latex": _to_latex}
    out.write(write[form](found))


_ROUGH_BELOW = 6  # seeds: a bootstrap of fewer has too few different resamples
_RUNGS = ("recipe", "layers", "width", "tokens", "FLOPs", "loss")
_ARMS = ("variant", "A", "alpha", "multiplier [95 %]", "one size left out", "in time", "trend")
_WORTH, _FIT = (0, 3, 4, 5), (0, 1, 2, 6)
"""Of the columns about arms, what stands in one table where there is no room for all."""

Part = tuple[str, Sequence[str], list[list[str]]]
"""A table: what it is of, its columns, its rows."""


def tables(found: Ladder) -> tuple[Part, Part]:
    """The sizes with the baseline's losses, and what each arm is worth; both as text."""
    baseline = found.rungs[0].comparison.baseline
    return (
        (f"the sizes, and the loss of {baseline}", _RUNGS, [_rung_cells(r) for r in found.rungs]),
        (
            f"what each arm is worth in the compute of {baseline}",
            _ARMS,
            [_arm_cells(arm) for arm in found.arms],
        ),
    )


def _rung_cells(rung: Rung) -> list[str]:
    base, model = rung.baseline, rung.recipe.model
    flops = f"{base.flops_per_token * base.tokens:.3g}"
    sizes = [str(model.n_layers), str(model.d_model), f"{base.tokens:,}"]
    return [rung.recipe.digest, *sizes, flops, f"{base.mean:.4f}"]


def _arm_cells(arm: Scaled) -> list[str]:
    cells = [arm.variant, f"{arm.law.a:.4g}", f"{arm.law.alpha:.4f}"]
    if arm.worth is None:
        cells += ["-", "-", "-"]
    else:
        left, time = arm.worth.left_out, arm.in_time
        ends = f"{left[0]:.3f} to {left[1]:.3f}" if left else "-"
        cells += [multiplier_text(arm.worth), ends, "-" if time is None else f"{time:.3f}"]
    return [*cells, "-" if arm.trend is None else trend_text(arm.trend)]


def notes(found: Ladder) -> list[str]:
    """What the numbers are, what they rest on, and what was left out."""
    first = found.rungs[0]
    lines = [
        f"L = A C^-alpha by least squares in logs of each arm's mean losses over {len(found.rungs)}"
        " sizes, C in PFLOP/s-days of training, by count"
        + (": through two points, so that nothing checks it" if len(found.rungs) == 2 else ""),
        f"multiplier: how much more compute {first.comparison.baseline} takes to the arm's loss at "
        "the largest size; interval by bootstrap over seeds, which does not hold the error of the "
        "law; in time: by FLOPs per second as measured there",
    ]
    differing = recipe_order.differing([rung.recipe for rung in found.rungs])
    lines.append(f"what differs between the sizes: {', '.join(differing)}")
    if any(arm.trend for arm in found.arms):
        lines.append(
            "trend: change of the difference per doubling of layers, mean over seeds [95 %]; "
            "whatever else differs between the sizes is in it"
        )
    if min(len(rung.baseline.losses) for rung in found.rungs) < _ROUGH_BELOW:
        lines.append(f"of fewer than {_ROUGH_BELOW} seeds that interval is too narrow")
    ends = [arm.worth.ci95 for arm in found.arms if arm.worth is not None and arm.worth.ci95]
    if any(math.isinf(high) for _, high in ends):
        lines.append(f"inf: with other seeds {first.comparison.baseline} might never reach it")
    for arm in found.arms:
        if arm.floor is not None:
            worth = f", multiplier {multiplier_text(arm.floor_worth)}" if arm.floor_worth else ""
            law = f"E {arm.floor.floor:.4f}, A {arm.floor.a:.4g}, alpha {arm.floor.alpha:.4f}"
            lines.append(f"with a floor, {arm.variant}: {law}{worth}")
    for reason in dict.fromkeys(arm.reason for arm in found.arms if arm.reason):
        named = ", ".join(arm.variant for arm in found.arms if arm.reason == reason)
        lines.append(f"no multiplier of {named}: {reason}")
    return lines + [f"left out: {text}" for text in found.left_out]


def title(found: Ladder) -> str:
    """`scaling of recipe grown, 4 sizes, never pooled`, with its label where it has one."""
    comparison = found.rungs[0].comparison
    label = f" [{found.registered}]" if found.registered else ""
    return f"scaling of recipe {comparison.recipe}, {len(found.rungs)} sizes, never pooled{label}"


def _print(found: Ladder, stream: TextIO) -> None:
    out = console(stream)
    out.print(Text(title(found), style="italic"))
    for name, columns, rows in tables(found):
        halves = [tuple(range(len(columns)))]
        if columns is _ARMS and out.width < WIDE:  # intervals would be broken over three lines
            halves = [_WORTH, _FIT]
        for half in halves:
            table = Table(
                title=name if half is halves[0] else None,
                title_justify="left",
                box=box.SIMPLE_HEAD,
                padding=(0, 1, 0, 0),
            )
            table.add_column(columns[0], overflow="fold", min_width=13)
            for i in half[1:]:
                table.add_column(columns[i], justify="right", no_wrap=True)
            for row in rows:
                table.add_row(*(row[i] for i in half))
            out.print(table)
    for line in notes(found):
        out.print(Text(line, style="dim"))


def _to_markdown(found: Ladder) -> str:
    lines = [f"### {title(found)[0].upper()}{title(found)[1:]}", ""]
    for _, names, rows in tables(found):
        lines += [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
        lines += [f"| {' | '.join(row)} |" for row in rows] + [""]
    return "\n".join([*lines, *(f"- {line}" for line in notes(found))]) + "\n"


def _to_latex(found: Ladder) -> str:
    sizes, arms = tables(found)
    return latex.document(
        latex.table(f"{title(found)}: {sizes[0]}.", sizes[1], sizes[2]),
        latex.table(f"{title(found)}: {arms[0]}.", arms[1], arms[2], notes(found)),
    )


def _to_json(found: Ladder) -> str:
    return json.dumps(_document(found), indent=2, allow_nan=False) + "\n"


def _document(found: Ladder) -> dict[str, Any]:
    comparison = found.rungs[0].comparison
    rungs = [
        {
            "recipe_digest": rung.recipe.digest,
            "n_layers": rung.recipe.model.n_layers,
            "d_model": rung.recipe.model.d_model,
            "arms": {
                arm.variant: {"compute": compute(arm), "tokens": arm.tokens, "mean": arm.mean}
                for arm in rung.comparison.arms
                if is_sound(arm)
            },
        }
        for rung in found.rungs
    ]
    head = {"title": title(found), "recipe": comparison.recipe, "baseline": comparison.baseline}
    head |= {"fingerprint": comparison.data.fingerprint, "compute_unit": "PFLOP/s-days"}
    arms = [_plain(asdict(arm)) for arm in found.arms]
    return head | {"rungs": rungs, "arms": arms, "notes": notes(found)}


def _plain(value: Any) -> Any:
    """Without infinities, which JSON has not: an interval's end may be one."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_CSV = (
    "variant", "a", "alpha", "rmse", "compute", "multiplier", "ci95_low", "ci95_high",
    "left_out_low", "left_out_high", "multiplier_in_time", "floor", "floor_a", "floor_alpha",
    "floor_multiplier", "trend", "trend_low", "trend_high", "n_sizes", "baseline", "recipe",
    "fingerprint", "registered",
)  # fmt: skip


def _to_csv(found: Ladder) -> str:
    text, comparison = io.StringIO(), found.rungs[0].comparison
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for arm in found.arms:
        law, worth, floor, trend = arm.law, arm.worth, arm.floor, arm.trend
        ends = (*((worth and worth.ci95) or (None, None)),)
        left = (*((worth and worth.left_out) or (None, None)),)
        above = (floor.floor, floor.a, floor.alpha) if floor else (None,) * 3
        over = (trend.mean, *trend.ci95) if trend else (None,) * 3
        writer.writerow(
            [arm.variant, law.a, law.alpha, law.rmse]
            + ([worth.compute, worth.value] if worth else [None, None])
            + [*ends, *left, arm.in_time, *above]
            + [arm.floor_worth.value if arm.floor_worth else None, *over, len(found.rungs)]
            + [comparison.baseline, comparison.recipe, comparison.data.fingerprint]
            + [found.registered]
        )
    return text.getvalue()
