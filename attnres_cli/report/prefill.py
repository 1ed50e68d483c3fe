"""Prefill on ranks, as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from attnres_cli.nn.cost import PrefillArm, PrefillBench
from attnres_cli.report.table import Column, Report, Table

EQUAL = 1e-12
"""How far float64 may be off."""

_TOKENS, _WIDTH, _BLOCKS, _RANKS, _CHUNK, _BYTES = 2**17, 7168, 8, 8, 2**14, 2
"""The paper's case, in bf16; the width is that of its largest model."""


def wrong(bench: PrefillBench) -> list[str]:
    """The arms that are not what one process computes."""
    return [arm.variant for arm in bench.arms if not max(arm.off) <= EQUAL]


def report_of(bench: PrefillBench) -> Report:
    """How far each arm is off, and what its sources hold in the three ways; the paper's case."""
    ways = ("one process", f"each of {bench.ranks} ranks", f"in chunks of {bench.chunk}")
    names = ["off by", "in chunks", *ways, "by formula"]
    rows = [_row(arm) for arm in bench.arms]
    records = [asdict(arm) for arm in bench.arms]
    paper = ("one device", f"each of {_RANKS}", "in chunks of 16K")
    return Report(
        title=f"recipe {bench.recipe}: prefill of {bench.n_tokens:,} tokens on {bench.ranks} ranks",
        tables=[
            Table("", [Column("variant", "code"), *map(Column, names)], rows),
            Table(
                "128K tokens of width 7168 in bf16, 8 blocks",
                [Column("sources", "text"), *map(Column, paper)],
                _paper(),
            ),
        ],
        warnings=[f"wrong: {name} is not what one process computes" for name in wrong(bench)],
        notes=[
            "off by: the largest difference from one process, of outputs of unit size, in float64",
            "bytes: all of full width that a design carries from depth to depth, the most at once; "
            "by formula: (1 + blocks) tokens d_model 8 bytes",
            f"sent by each rank for each sublayer: {bench.sent:,} bytes, an all-reduce's",
            "ranks are processes of this machine (gloo); no times, as they share its cores",
        ],
        document=asdict(bench),
        fields=list(records[0]),
        records=records,
    )


def _row(arm: PrefillArm) -> list[str]:
    counted = ", ".join(f"{n:,}" for n in arm.counted) or "no formula"
    return [
        arm.variant, *(f"{off:.1e}" for off in arm.off), *(f"{n:,}" for n in arm.held), counted,
    ]  # fmt: skip


def _paper() -> Sequence[Sequence[str]]:
    def sizes(n: int) -> list[str]:
        counts = (_TOKENS, _TOKENS // _RANKS, _CHUNK // _RANKS)
        return [f"{n * tokens * _WIDTH * _BYTES / 1e9:.2f} GB" for tokens in counts]

    return [
        ["blocks alone, as the paper counts: 15, 1.9, under 0.3 GB", *sizes(_BLOCKS)],
        ["with the embedding, as here", *sizes(1 + _BLOCKS)],
    ]
