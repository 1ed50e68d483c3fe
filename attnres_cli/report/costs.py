"""What arms cost, as a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from attnres_cli.verdict.numbers import interval, plural

Bench = StepBench | DecodeBench
_NESTED = {
    "step_s": Spread._fields,
    "token_s": Spread._fields,
    "ratio": Spread._fields,
    "table_one": ("scheme", "here", "paper"),
}
"""Of a document, what CSV has as `step_s_median` and so on."""


def report_of(bench: Bench) -> Report:
    """Times, memory and counts of every arm; of generation its times."""
    if isinstance(bench, DecodeBench):
        what, tables, how = "ms per generated token", [_decode_table(bench)], _how_decoded(bench)
        arms = [_decoded(bench, arm) for arm in bench.arms]
        rows = [
            arm | {"batch_size": int(size)} | arm["batch_sizes"][size]
            for arm in arms
            for size in arm["batch_sizes"]
        ]
    else:
        what, how = "one training step", _how_stepped(bench)
        tables = [_step_table(bench), _count_table(bench)]
        rows = arms = [_stepped(bench, arm) for arm in bench.arms]
    conditions, records = bench.conditions, [_flat(row) for row in rows]
    taken = (
        f"median [quartiles] of {plural(conditions.rounds, 'round')} in which the arms take turns; "
        f"vs {conditions.baseline}: of each round's ratio"
    )
    return Report(
        title=f"recipe {conditions.recipe}: {what}",
        tables=tables,
        warnings=[f"wrong: {arm.variant}: {arm.wrong}" for arm in bench.arms if arm.wrong],
        notes=[f"{taken}; {how[0]}", *how[1:], *_where(conditions)],
        document=asdict(bench) | {"arms": arms},
        fields=list(records[0]),
        records=records,
    )


def _how_decoded(bench: DecodeBench) -> list[str]:
    how = "by compiled steps" if bench.conditions.compiled else "nothing compiled"
    return [
        f"{plural(bench.n_new, 'token')} after a prompt of {bench.n_prompt}, whose own pass is "
        f"taken off; one at a time, keys and values kept, {how}",
        "checked first: every token is the likeliest of the reference engine's, to rounding",
    ]


def _how_stepped(bench: StepBench) -> list[str]:
    start = "; start: the first pass, with compilation" if bench.conditions.compiled else ""
    return [
        f"a step of {bench.tokens_per_step:,} tokens is forward, backward, clip and optimiser; "
        f"memory: the most that is held at once in a step{start}",
        "checked first: loss and every gradient against the reference engine in fp32, with the "
        "design moved off its start",
        "extra: beyond standard, forward, per token, with every source read once at each site; "
        "copied meanwhile: bytes that a copy moves in the extra time per trained token",
        "I/O per sublayer in units of d_model, as arXiv 2603.15031 counts: here and, in brackets, "
        "by its Table 1 at 128 sublayers, 8 blocks of 16; mHC with 4 streams has 34 there",
    ]


def _where(conditions: Conditions) -> list[str]:
    shape = conditions.shape
    return [
        f"recipe {conditions.recipe} ({conditions.recipe_digest}): "
        f"{plural(shape['n_layers'], 'layer')}, width {shape['d_model']}, "
        f"{plural(shape['n_heads'], 'head')}, {_kinds(shape.get('attention', 'softmax'))}, "
        f"{_kinds(shape['mlp'])} {shape['d_ff']}, "
        f"sequences of {shape['seq_len']}, batch {shape['batch_size']}, "
        f"vocabulary {shape['vocab_size']}",
        f"computed with {conditions.computed}, engine {conditions.engine}, "
        f"on {conditions.device_name} "
        f"({conditions.device}), which copies {conditions.copy_speed / 1e9:.1f} GB/s",
        ", ".join(f"{name} {version}" for name, version in conditions.versions.items()),
    ]


def _kinds(found: object) -> str:
    """One kind of sublayer, or a pattern of them: `kda kda kda mla`."""
    return " ".join(found) if isinstance(found, list | tuple) else str(found)


def _table(title: str, names: Iterable[str], rows: Sequence[Sequence[str]]) -> Table:
    """A row per variant, of numbers."""
    return Table(title, [Column("variant", "code"), *map(Column, names)], rows)


def _step_table(bench: StepBench) -> Table:
    base, compiled = bench.conditions.baseline, bench.conditions.compiled
    rows = []
    for arm in bench.arms:
        time = spread(arm.seconds) if arm.seconds else None
        row = [
            arm.variant,
            "wrong" if arm.wrong is not None else _spread_text(time, 1000, 1),
            "baseline" if arm.variant == base else _spread_text(bench.versus(arm), 1, 3),
            f"{bench.tokens_per_step / time.median:,.0f}" if time else "-",
            _bytes(arm.peak_bytes) if arm.peak_bytes is not None else "-",
        ]
        start = "-" if arm.start_s is None else f"{arm.start_s:.1f} s"
        rows.append([*row, start] if compiled else row)
    names = ["ms/step", f"vs {base}", "tokens/s", "memory", *(["start"] if compiled else [])]
    return _table("", names, rows)


def _count_table(bench: StepBench) -> Table:
    rows = []
    for arm in bench.arms:
        extra_s = bench.extra_s_per_token(arm)
        rows.append(
            [
                arm.variant,
                f"{arm.n_params:,}",
                f"{arm.extra_flops:,}",
                f"{arm.extra_bytes:,}",
                "-" if extra_s is None else f"{1e9 * extra_s:,.0f} ns",
                "-" if extra_s is None else f"{extra_s * bench.conditions.copy_speed:,.0f}",
                f"{arm.io_per_sublayer:.2f} d",
                _paper_text(arm),
            ]
        )
    names = ("params", "extra FLOPs", "extra bytes", "extra time", "copied meanwhile")
    return _table("what it is made of", (*names, "I/O per sublayer", "the paper's"), rows)


def _paper_text(arm: ArmCost) -> str:
    if (table := arm.table_one) is None:
        return "no formula in the paper"
    groups = "" if table.groups is None else " at S={}, N={}".format(*table.groups)
    return f"{table.here:.2f} d{groups} [{table.paper:g} d]"


def _decode_table(bench: DecodeBench) -> Table:
    base, rows = bench.conditions.baseline, []
    for arm in bench.arms:
        row = [arm.variant]
        for size in bench.batch_sizes:
            times, versus = arm.seconds.get(size), bench.versus(arm, size)
            text = _spread_text(spread(times) if times else None, 1000, 2)
            row.append("wrong" if arm.wrong is not None else text)
            row.append("baseline" if arm.variant == base else _spread_text(versus, 1, 3))
        rows.append(row)
    sizes = bench.batch_sizes
    return _table("", [t for n in sizes for t in (f"batch {n}", f"batch {n} vs {base}")], rows)


def _stepped(bench: StepBench, arm: ArmCost) -> dict[str, Any]:
    time = spread(arm.seconds) if arm.seconds else None
    return asdict(arm) | {
        "table_one": arm.table_one and arm.table_one._asdict(),
        "step_s": time and time._asdict(),
        "ratio": _dict(bench.versus(arm)),
        "tokens_per_second": bench.tokens_per_step / time.median if time else None,
        "extra_s_per_token": bench.extra_s_per_token(arm),
    }


def _decoded(bench: DecodeBench, arm: DecodeArm) -> dict[str, Any]:
    sizes = {}
    for size in bench.batch_sizes:
        times = arm.seconds.get(size)
        sizes[str(size)] = {
            "token_s": _dict(spread(times) if times else None),
            "ratio": _dict(bench.versus(arm, size)),
            "seconds": times,
        }
    document = {"variant": arm.variant, "n_params": arm.n_params, "wrong": arm.wrong}
    return document | {"batch_sizes": sizes}


def _dict(value: Spread | None) -> dict[str, float] | None:
    return None if value is None else value._asdict()


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
    median, low, high = (scale * part for part in value)
    return interval(median, (low, high), f".{digits}f")


def _bytes(count: float) -> str:
    """1536 -> `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
