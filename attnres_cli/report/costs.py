"""What arms cost, as a table, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attnres_cli.nn.cost import (
    ArmCost,
    Conditions,
    DecodeArm,
    DecodeBench,
    Spread,
    StepBench,
    spread,
)
from attnres_cli.report.terminal import console
from attnres_cli.verdict.format import plural

Bench = StepBench | DecodeBench
Rows = list[dict[str, str]]

FORMATS = ("table", "json", "markdown", "csv")

NO_FORMULA = "no formula in the paper"


def show(bench: Bench, form: str) -> None:
    """Print it on stdout in one of FORMATS."""
    if form == "table":
        _print(bench)
        return
    write = {"json": to_json, "markdown": to_markdown, "csv": to_csv}
    sys.stdout.write(write[form](bench))


def to_json(bench: Bench) -> str:
    """All there is, times round by round included."""
    document = asdict(bench) | {"arms": _documents(bench)}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def to_markdown(bench: Bench) -> str:
    """The tables, with the facts they rest on below."""
    lines = []
    for _, rows in _tables(bench):
        lines += [_pipes(list(rows[0])), _pipes(["---"] * len(rows[0]))]
        lines += [*(_pipes(list(row.values())) for row in rows), ""]
    return "\n".join([*lines, *(f"- {line}" for line in facts(bench))]) + "\n"


def to_csv(bench: Bench) -> str:
    """One line per arm, and for generation per batch size; empty where there is no value."""
    flat = []
    for document in _documents(bench):
        sizes: Mapping[str, Any] = document.pop("batch_sizes", {})
        flat += [_flat(document | {"batch_size": int(b)} | found) for b, found in sizes.items()]
        if isinstance(bench, StepBench):
            flat.append(_flat(document))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(flat[0]), lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def facts(bench: Bench) -> list[str]:
    """What the numbers are of: how they were taken, on what, and what is wrong."""
    conditions = bench.conditions
    wrong = [f"wrong: {arm.variant}: {arm.wrong}" for arm in bench.arms if arm.wrong]
    return [*wrong, *_how(bench), *_where(conditions)]


def _how(bench: Bench) -> list[str]:
    rounds, base = bench.conditions.rounds, bench.conditions.baseline
    taken = (
        f"median [quartiles] of {rounds} rounds in which the arms take turns; vs {base}: "
        "of each round's ratio"
    )
    if isinstance(bench, DecodeBench):
        return [
            f"{taken}; {bench.n_new} tokens after a prompt of {bench.n_prompt}, whose own pass is "
            "taken off; one at a time, keys and values kept, nothing compiled",
            "checked first: every token is the likeliest of the reference engine's, to rounding",
        ]
    start = "; start: the first pass, with compilation" if bench.conditions.compiled else ""
    return [
        f"{taken}; a step of {bench.tokens_per_step:,} tokens is forward, backward, clip and "
        f"optimiser; memory: the most that is held at once in a step{start}",
        "checked first: loss and every gradient against the reference engine in fp32, with the "
        "design moved off its start",
        "extra: beyond standard, forward, per token, with every source read once at each site; "
        "copied meanwhile: bytes that a copy moves in the extra time per trained token",
        "I/O per sublayer in units of d_model, as arXiv 2603.15031 counts: here and, in brackets, "
        "by its Table 1 at 128 sublayers, 8 blocks of 16; mHC with 4 streams has 34 there",
    ]


def _where(conditions: Conditions) -> list[str]:
    shape = conditions.shape
    versions = ", ".join(f"{name} {version}" for name, version in conditions.versions.items())
    return [
        f"recipe {conditions.recipe} ({conditions.recipe_digest}): {shape['n_layers']} layers, "
        f"width {shape['d_model']}, {shape['n_heads']} heads, {shape['mlp']} {shape['d_ff']}, "
        f"sequences of {shape['seq_len']}, batch {shape['batch_size']}, "
        f"vocabulary {shape['vocab_size']}",
        f"computed with {conditions.computed}, engine {conditions.engine}, "
        f"{plural(conditions.threads, 'thread')}, on {conditions.device_name} "
        f"({conditions.device}), which copies {conditions.copy_speed / 1e9:.1f} GB/s",
        versions,
    ]


def _print(bench: Bench) -> None:
    out = console(sys.stdout)
    for title, rows in _tables(bench):
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for name in rows[0]:
            left = name == "variant"
            table.add_column(name, justify="left" if left else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row.values()))
        out.print(table)
    for line in facts(bench):
        out.print(Text(line, style="yellow" if line.startswith("wrong: ") else "dim"))


def _tables(bench: Bench) -> list[tuple[str, Rows]]:
    name = bench.conditions.recipe
    if isinstance(bench, DecodeBench):
        return [(f"recipe {name}: ms per generated token", _decode_rows(bench))]
    return [
        (f"recipe {name}: one training step", _step_rows(bench)),
        ("what it is made of", _count_rows(bench)),
    ]


def _step_rows(bench: StepBench) -> Rows:
    base, rows = bench.conditions.baseline, []
    for arm in bench.arms:
        time = spread(arm.seconds) if arm.seconds else None
        peak, compiled = arm.peak_bytes, bench.conditions.compiled
        rows.append(
            {
                "variant": arm.variant,
                "ms/step": _spread_text(time, 1000, 1) if arm.wrong is None else "wrong",
                f"vs {base}": _versus_text(bench.versus(arm), arm.variant == base),
                "tokens/s": f"{bench.tokens_per_step / time.median:,.0f}" if time else "-",
                "memory": _bytes(peak) if peak is not None else "-",
            }
            | ({"start": _seconds(arm.start_s)} if compiled else {})
        )
    return rows


def _count_rows(bench: StepBench) -> Rows:
    rows = []
    for arm in bench.arms:
        extra_s = bench.extra_s_per_token(arm)
        copied = None if extra_s is None else extra_s * bench.conditions.copy_speed
        rows.append(
            {
                "variant": arm.variant,
                "params": f"{arm.n_params:,}",
                "extra FLOPs": f"{arm.extra_flops:,}",
                "extra bytes": f"{arm.extra_bytes:,}",
                "extra time": "-" if extra_s is None else f"{1e9 * extra_s:,.0f} ns",
                "copied meanwhile": "-" if copied is None else f"{copied:,.0f}",
                "I/O per sublayer": f"{arm.io_per_sublayer:.2f} d",
                "the paper's": _paper_text(arm),
            }
        )
    return rows


def _paper_text(arm: ArmCost) -> str:
    if (table := arm.table_one) is None:
        return NO_FORMULA
    groups = "" if table.groups is None else " at S={}, N={}".format(*table.groups)
    return f"{table.here:.2f} d{groups} [{table.paper:g} d]"


def _decode_rows(bench: DecodeBench) -> Rows:
    base, rows = bench.conditions.baseline, []
    for arm in bench.arms:
        row = {"variant": arm.variant}
        for size in bench.batch_sizes:
            times = arm.seconds.get(size)
            text = _spread_text(spread(times) if times else None, 1000, 2)
            row[f"batch {size}"] = text if arm.wrong is None else "wrong"
            row[f"batch {size} vs {base}"] = _versus_text(
                bench.versus(arm, size), arm.variant == base
            )
        rows.append(row)
    return rows


def _documents(bench: Bench) -> list[dict[str, Any]]:
    return _step_documents(bench) if isinstance(bench, StepBench) else _decode_documents(bench)


def _step_documents(bench: StepBench) -> list[dict[str, Any]]:
    documents = []
    for arm in bench.arms:
        time, versus = spread(arm.seconds) if arm.seconds else None, bench.versus(arm)
        documents.append(
            asdict(arm)
            | {"table_one": None if arm.table_one is None else arm.table_one._asdict()}
            | {
                "disagreement": _finite(arm.disagreement),
                "step_s": None if time is None else time._asdict(),
                "ratio": None if versus is None else versus._asdict(),
                "tokens_per_second": bench.tokens_per_step / time.median if time else None,
                "extra_s_per_token": bench.extra_s_per_token(arm),
            }
        )
    return documents


def _decode_documents(bench: DecodeBench) -> list[dict[str, Any]]:
    return [
        {
            "variant": arm.variant,
            "n_params": arm.n_params,
            "wrong": arm.wrong,
            "batch_sizes": {str(size): _decoded(bench, arm, size) for size in bench.batch_sizes},
        }
        for arm in bench.arms
    ]


def _decoded(bench: DecodeBench, arm: DecodeArm, size: int) -> dict[str, Any]:
    times, versus = arm.seconds.get(size), bench.versus(arm, size)
    return {
        "token_s": spread(times)._asdict() if times else None,
        "ratio": None if versus is None else versus._asdict(),
        "seconds": times,
    }


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without the lists, what is nested named as `step_s_median`; always all columns."""
    inner = {
        "step_s": Spread._fields,
        "token_s": Spread._fields,
        "ratio": Spread._fields,
        "table_one": ("scheme", "here", "paper"),
    }
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key in inner:
            flat |= {f"{key}_{part}": (value or {}).get(part) for part in inner[key]}
        elif key not in ("seconds", "disagreement"):
            flat[key] = value
    return flat


def _spread_text(value: Spread | None, scale: float, digits: int) -> str:
    if value is None:
        return "-"
    median, low, high = (f"{scale * part:.{digits}f}" for part in value)
    return f"{median} [{low}, {high}]"


def _versus_text(value: Spread | None, is_baseline: bool) -> str:
    return "baseline" if is_baseline else _spread_text(value, 1, 3)


def _bytes(count: int) -> str:
    """1536 -> `1.5 KiB`."""
    size, units = float(count), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def _finite(values: tuple[float, ...] | None) -> list[float | None] | None:
    return None if values is None else [x if math.isfinite(x) else None for x in values]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
