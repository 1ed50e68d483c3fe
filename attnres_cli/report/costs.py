"""What arms cost, as a report: of training steps, of generation, of prefill on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.nn.cost import (
    ArmCost,
    Conditions,
    DecodeArm,
    DecodeBench,
    PrefillArm,
    PrefillBench,
    Spread,
    StepBench,
    spread,
)  # fmt: skip
from attnres_cli.report.table import Report, Table, columns
from attnres_cli.verdict.fields import picked
from attnres_cli.verdict.numbers import interval, plural

EQUAL = 1e-12
"""How far prefill in float64 may be off."""
_SPREAD = "{0}_median={0}.median {0}_low={0}.low {0}_high={0}.high "
_STEPS = (
    "variant n_params extra_flops extra_bytes io_per_sublayer table_one_scheme=table_one.scheme "
    "table_one_here=table_one.here table_one_paper=table_one.paper wrong start_s peak_bytes "
    f"{_SPREAD.format('step_s')}{_SPREAD.format('ratio')}tokens_per_second extra_s_per_token"
)
_DECODES = f"variant n_params wrong batch_size {_SPREAD.format('token_s')}{_SPREAD.format('ratio')}"
_STEP_NOTES = (
    "checked first: loss and every gradient against the reference engine in fp32, with the "
    "design moved off its start",
    "extra: beyond standard, forward, per token, with every source read once at each site; "
    "copied meanwhile: bytes that a copy moves in the extra time per trained token",
    "I/O per sublayer in units of d_model, as arXiv 2603.15031 counts: here and, in brackets, "
    "by its Table 1 at 128 sublayers, 8 blocks of 16; mHC with 4 streams has 34 there",
)
_PREFILL_NOTES = (
    "off by: the largest difference from one process, of outputs of unit size, in float64",
    "bytes: all of full width that a design carries from depth to depth, the most at once; "
    "by formula: (1 + blocks) tokens d_model 8 bytes",
    "sent by each rank for each sublayer: {:,} bytes, an all-reduce's",
    "ranks are processes of this machine (gloo); no times, as they share its cores",
)


def report_of(bench: StepBench | DecodeBench) -> Report:
    """Times, memory and counts of every arm; of generation its times."""
    conditions = bench.conditions
    if isinstance(bench, DecodeBench):
        what, tables, names = "ms per generated token", [_decode_table(bench)], _DECODES
        arms = [_decoded(bench, arm) for arm in bench.arms]
        rows = [
            arm | {"batch_size": int(size)} | found
            for arm in arms
            for size, found in arm["batch_sizes"].items()
        ]
        how = "by compiled steps" if conditions.compiled else "nothing compiled"
        notes = [
            f"{plural(bench.n_new, 'token')} after a prompt of {bench.n_prompt}, whose own pass is "
            f"taken off; one at a time, keys and values kept, {how}",
            "checked first: every token is the likeliest of the reference engine's, to rounding",
        ]
    else:
        what, names = "one training step", _STEPS
        tables = [_step_table(bench), _count_table(bench)]
        rows = arms = [_stepped(bench, arm) for arm in bench.arms]
        start = "; start: the first pass, with compilation" if conditions.compiled else ""
        notes = [
            f"a step of {bench.tokens_per_step:,} tokens is forward, backward, clip and optimiser; "
            f"memory: the most that is held at once in a step{start}",
            *_STEP_NOTES,
        ]
    notes[0] = (
        f"median [quartiles] of {plural(conditions.rounds, 'round')} in which the arms take turns; "
        f"vs {conditions.baseline}: of each round's ratio; {notes[0]}"
    )
    return Report(
        title=f"recipe {conditions.recipe}: {what}",
        tables=tables,
        warnings=[f"wrong: {arm.variant}: {arm.wrong}" for arm in bench.arms if arm.wrong],
        notes=[*notes, *_where(conditions)],
        document=asdict(bench) | {"arms": arms},
        records=[picked(row, names) for row in rows],
    )


def _where(conditions: Conditions) -> list[str]:
    shape = conditions.shape
    return [
        f"recipe {conditions.recipe} ({conditions.recipe_digest}): "
        f"{plural(shape['n_layers'], 'layer')}, width {shape['d_model']}, "
        f"{plural(shape['n_heads'], 'head')}, {_kinds(shape.get('attention', 'softmax'))}, "
        f"{_kinds(shape['mlp'])} {shape['d_ff']}, sequences of {shape['seq_len']}, "
        f"batch {shape['batch_size']}, vocabulary {shape['vocab_size']}",
        f"computed with {conditions.computed}, engine {conditions.engine}, "
        f"on {conditions.device_name} ({conditions.device}), which copies "
        f"{conditions.copy_speed / 1e9:.1f} GB/s",
        ", ".join(f"{name} {version}" for name, version in conditions.versions.items()),
    ]


def _kinds(found: object) -> str:
    """One kind of sublayer, or a pattern of them: `kda kda kda mla`."""
    return " ".join(found) if isinstance(found, list | tuple) else str(found)


def _step_table(bench: StepBench) -> Table:
    base, compiled = bench.conditions.baseline, bench.conditions.compiled
    rows = []
    for arm in bench.arms:
        time = spread(arm.seconds) if arm.seconds else None
        start = "-" if arm.start_s is None else f"{arm.start_s:.1f} s"
        rows.append([
            arm.variant,
            "wrong" if arm.wrong is not None else _spread_text(time, 1000, 1),
            "baseline" if arm.variant == base else _spread_text(bench.versus(arm), 1, 3),
            f"{bench.tokens_per_step / time.median:,.0f}" if time else "-",
            _bytes(arm.peak_bytes) if arm.peak_bytes is not None else "-",
            *[start] * compiled,
        ])  # fmt: skip
    heads = ("variant:code", "ms/step", f"vs {base}", "tokens/s", "memory", *["start"] * compiled)
    return Table("", columns(*heads), rows)


def _count_table(bench: StepBench) -> Table:
    rows = []
    for arm in bench.arms:
        extra_s, table = bench.extra_s_per_token(arm), arm.table_one
        paper = "no formula in the paper"
        if table is not None:
            groups = "" if table.groups is None else " at S={}, N={}".format(*table.groups)
            paper = f"{table.here:.2f} d{groups} [{table.paper:g} d]"
        rows.append([
            arm.variant,
            *(f"{n:,}" for n in (arm.n_params, arm.extra_flops, arm.extra_bytes)),
            "-" if extra_s is None else f"{1e9 * extra_s:,.0f} ns",
            "-" if extra_s is None else f"{extra_s * bench.conditions.copy_speed:,.0f}",
            f"{arm.io_per_sublayer:.2f} d",
            paper,
        ])  # fmt: skip
    heads = columns(
        "variant:code", "params", "extra FLOPs", "extra bytes", "extra time", "copied meanwhile",
        "I/O per sublayer", "the paper's",
    )  # fmt: skip
    return Table("what it is made of", heads, rows)


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
    heads = [head for n in bench.batch_sizes for head in (f"batch {n}", f"batch {n} vs {base}")]
    return Table("", columns("variant:code", *heads), rows)


def _stepped(bench: StepBench, arm: ArmCost) -> dict[str, Any]:
    time = spread(arm.seconds) if arm.seconds else None
    return asdict(arm) | {
        "table_one": arm.table_one and arm.table_one._asdict(),
        "step_s": _dict(time),
        "ratio": _dict(bench.versus(arm)),
        "tokens_per_second": bench.tokens_per_step / time.median if time else None,
        "extra_s_per_token": bench.extra_s_per_token(arm),
    }


def _decoded(bench: DecodeBench, arm: DecodeArm) -> dict[str, Any]:
    sizes = {}
    for size in bench.batch_sizes:
        times = arm.seconds.get(size)
        time, ratio = _dict(spread(times) if times else None), _dict(bench.versus(arm, size))
        sizes[str(size)] = {"token_s": time, "ratio": ratio, "seconds": times}
    return picked(arm, "variant n_params wrong") | {"batch_sizes": sizes}


def _dict(value: Spread | None) -> dict[str, float] | None:
    return None if value is None else value._asdict()


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


def wrong(bench: PrefillBench) -> list[str]:
    """The arms of which prefill on ranks is not what one process computes."""
    return [arm.variant for arm in bench.arms if not max(arm.off) <= EQUAL]


def prefill_of(bench: PrefillBench) -> Report:
    """How far each arm is off, and what its sources hold in the three ways; the paper's case."""
    ways = ("one process", f"each of {bench.ranks} ranks", f"in chunks of {bench.chunk}")
    rows, records = [_prefill_row(arm) for arm in bench.arms], [asdict(arm) for arm in bench.arms]
    heads = columns("variant:code", "off by", "in chunks", *ways, "by formula")
    paper = columns("sources:text", "one device", "each of 8", "in chunks of 16K")
    case = "128K tokens of width 7168 in bf16, 8 blocks"
    return Report(
        title=f"recipe {bench.recipe}: prefill of {bench.n_tokens:,} tokens on {bench.ranks} ranks",
        tables=[Table("", heads, rows), Table(case, paper, _paper_rows())],
        warnings=[f"wrong: {name} is not what one process computes" for name in wrong(bench)],
        notes=[note.format(bench.sent) for note in _PREFILL_NOTES],
        document=asdict(bench),
        records=records,
    )


def _prefill_row(arm: PrefillArm) -> list[str]:
    counted = ", ".join(f"{n:,}" for n in arm.counted) or "no formula"
    off, held = [f"{off:.1e}" for off in arm.off], [f"{n:,}" for n in arm.held]
    return [arm.variant, *off, *held, counted]


def _paper_rows() -> Sequence[Sequence[str]]:
    """The paper's case, 128K tokens on 8 ranks, in bf16; the width is its largest model's."""
    tokens, ranks, chunk, blocks = 2**17, 8, 2**14, 8

    def sizes(sources: int) -> list[str]:
        counts = (tokens, tokens // ranks, chunk // ranks)
        return [f"{sources * n * 7168 * 2 / 1e9:.2f} GB" for n in counts]

    return [
        ["blocks alone, as the paper counts: 15, 1.9, under 0.3 GB", *sizes(blocks)],
        ["with the embedding, as here", *sizes(1 + blocks)],
    ]
