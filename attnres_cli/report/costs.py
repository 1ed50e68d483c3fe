"""What arms cost, as a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attnres_cli.nn.cost import (
    ArmCost,
    Conditions,
    DecodeArm,
    DecodeBench,
    Spread,
    StepBench,
    spread,
)
from attnres_cli.report.table import Column, Report, Table
from attnres_cli.verdict.format import plural

Bench = StepBench | DecodeBench
NO_FORMULA = "no formula in the paper"
_NESTED = {
    "step_s": Spread._fields,
    "token_s": Spread._fields,
    "ratio": Spread._fields,
    "table_one": ("scheme", "here", "paper"),
}
"""Of a document, what CSV has as `step_s_median` and so on."""


def report_of(bench: Bench) -> Report:
    """Times, memory and counts of every arm; of generation its times."""
    conditions, name = bench.conditions, bench.conditions.recipe
    if isinstance(bench, DecodeBench):
        documents = [_decoded(bench, arm) for arm in bench.arms]
        tables = [_decode_table(bench)]
        records = [
            _flat(document | {"batch_size": int(size)} | document["batch_sizes"][size])
            for document in documents
            for size in document["batch_sizes"]
        ]
    else:
        documents = [_stepped(bench, arm) for arm in bench.arms]
        tables, records = [_step_table(bench), _count_table(bench)], [*map(_flat, documents)]
    what = "ms per generated token" if isinstance(bench, DecodeBench) else "one training step"
    return Report(
        title=f"recipe {name}: {what}",
        tables=tables,
        warnings=[f"wrong: {arm.variant}: {arm.wrong}" for arm in bench.arms if arm.wrong],
        notes=[*_how(bench), *_where(conditions)],
        document=asdict(bench) | {"arms": documents},
        fields=list(records[0]),
        records=records,
    )


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


def _step_table(bench: StepBench) -> Table:
    base, compiled = bench.conditions.baseline, bench.conditions.compiled
    names = ["ms/step", f"vs {base}", "tokens/s", "memory", *(["start"] if compiled else [])]
    rows = []
    for arm in bench.arms:
        time = spread(arm.seconds) if arm.seconds else None
        rows.append(
            [
                arm.variant,
                _spread_text(time, 1000, 1) if arm.wrong is None else "wrong",
                _versus_text(bench.versus(arm), arm.variant == base),
                f"{bench.tokens_per_step / time.median:,.0f}" if time else "-",
                _bytes(arm.peak_bytes) if arm.peak_bytes is not None else "-",
                *(["-" if arm.start_s is None else f"{arm.start_s:.1f} s"] if compiled else []),
            ]
        )
    return Table("", [Column("variant", "code"), *map(Column, names)], rows)


def _count_table(bench: StepBench) -> Table:
    names = ("params", "extra FLOPs", "extra bytes", "extra time", "copied meanwhile")
    rows = []
    for arm in bench.arms:
        extra_s = bench.extra_s_per_token(arm)
        copied = None if extra_s is None else extra_s * bench.conditions.copy_speed
        rows.append(
            [
                arm.variant,
                f"{arm.n_params:,}",
                f"{arm.extra_flops:,}",
                f"{arm.extra_bytes:,}",
                "-" if extra_s is None else f"{1e9 * extra_s:,.0f} ns",
                "-" if copied is None else f"{copied:,.0f}",
                f"{arm.io_per_sublayer:.2f} d",
                _paper_text(arm),
            ]
        )
    columns = [Column("variant", "code"), *map(Column, (*names, "I/O per sublayer", "the paper's"))]
    return Table("what it is made of", columns, rows)


def _paper_text(arm: ArmCost) -> str:
    if (table := arm.table_one) is None:
        return NO_FORMULA
    groups = "" if table.groups is None else " at S={}, N={}".format(*table.groups)
    return f"{table.here:.2f} d{groups} [{table.paper:g} d]"


def _decode_table(bench: DecodeBench) -> Table:
    base, rows = bench.conditions.baseline, []
    names = [
        name for size in bench.batch_sizes for name in (f"batch {size}", f"batch {size} vs {base}")
    ]
    for arm in bench.arms:
        row = [arm.variant]
        for size in bench.batch_sizes:
            times = arm.seconds.get(size)
            text = _spread_text(spread(times) if times else None, 1000, 2)
            row.append(text if arm.wrong is None else "wrong")
            row.append(_versus_text(bench.versus(arm, size), arm.variant == base))
        rows.append(row)
    return Table("", [Column("variant", "code"), *map(Column, names)], rows)


def _stepped(bench: StepBench, arm: ArmCost) -> dict[str, Any]:
    time, versus = spread(arm.seconds) if arm.seconds else None, bench.versus(arm)
    return asdict(arm) | {
        "table_one": None if arm.table_one is None else arm.table_one._asdict(),
        "step_s": None if time is None else time._asdict(),
        "ratio": None if versus is None else versus._asdict(),
        "tokens_per_second": bench.tokens_per_step / time.median if time else None,
        "extra_s_per_token": bench.extra_s_per_token(arm),
    }


def _decoded(bench: DecodeBench, arm: DecodeArm) -> dict[str, Any]:
    sizes = {}
    for size in bench.batch_sizes:
        times, versus = arm.seconds.get(size), bench.versus(arm, size)
        sizes[str(size)] = {
            "token_s": spread(times)._asdict() if times else None,
            "ratio": None if versus is None else versus._asdict(),
            "seconds": times,
        }
    document = {"variant": arm.variant, "n_params": arm.n_params, "wrong": arm.wrong}
    return document | {"batch_sizes": sizes}


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without its lists; always all columns."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if key in _NESTED:
            flat |= {f"{key}_{part}": (value or {}).get(part) for part in _NESTED[key]}
        elif key not in ("seconds", "disagreement", "batch_sizes"):
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
