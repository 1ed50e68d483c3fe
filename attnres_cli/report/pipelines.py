"""What a pipeline's hops send for a design, as a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnres_cli.nn.pipeline.plan import Planned
from attnres_cli.report.table import Column, Report, Table

_EMBEDDING = (0,)
_HOPS = (Column("hop", "word"), Column("after sublayer"), Column("whole"), Column("cached"))
_SUMS = ("total", "bytes", "peak hop", "cache of a rank", "without embedding", "paper")
_FIELDS = (
    "variant", "d_model", "stages", "virtual", "hop", "from_stage", "to_stage", "after_sublayer",
    "whole", "cached", "whole_bytes", "cached_bytes",
)  # fmt: skip


def report_of(designs: Sequence[Planned]) -> Report:
    """Each hop of each design, sent whole and sent cached, and the sums beside the paper's."""
    plan = designs[0].whole
    layers, width = plan.cuts.n_sublayers // 2, designs[0].d_model
    records = [record for each in designs for record in _hops(each)]
    shape = {"n_layers": layers, "d_model": width, "stages": plan.stages, "virtual": plan.virtual}
    return Report(
        f"pipeline: {layers} layers of width {width} in {plan.stages} stages of "
        f"{plan.virtual} virtual",
        [table for each in designs for table in _tables(each)],
        notes=_notes(designs),
        document=shape | {"designs": [_document(each) for each in designs]},
        fields=_FIELDS,
        records=records,
    )


def _tables(design: Planned) -> list[Table]:
    rows = [
        [
            f"{each['from_stage']} to {each['to_stage']}",
            str(each["after_sublayer"]),
            f"{each['whole']:g}",
            f"{each['cached']:g}",
        ]
        for each in _hops(design)
    ]
    sums = [
        [way, *("-" if value is None else f"{value:,g}" for value in of.values())]
        for way, of in _sums(design).items()
    ]
    columns = [Column("sent", "word"), *map(Column, _SUMS)]
    return [
        Table(f"{design.variant}: sent per token by each hop, in numbers / d_model", _HOPS, rows),
        Table(f"{design.variant}: in all per token", columns, sums),
    ]


def _hops(design: Planned) -> list[dict[str, Any]]:
    plan = design.whole
    both = zip(plan.hops(), design.cached.hops(), strict=True)
    return [
        {
            "variant": design.variant,
            "d_model": design.d_model,
            "stages": plan.stages,
            "virtual": plan.virtual,
            "hop": c,
            "from_stage": (c - 1) % plan.stages,
            "to_stage": c % plan.stages,
            "after_sublayer": plan.sublayers(c).start - 1,
            "whole": design.in_widths(whole),
            "cached": design.in_widths(cached),
            "whole_bytes": whole,
            "cached_bytes": cached,
        }
        for c, (whole, cached) in enumerate(both, 1)
    ]


def _sums(design: Planned) -> dict[str, Mapping[str, float | None]]:
    """By way, the values of _SUMS."""
    found: dict[str, Mapping[str, float | None]] = {}
    for plan, paper in zip((design.whole, design.cached), design.paper, strict=True):
        hops, ranks = plan.hops(), range(plan.stages)
        counted = [sum(hops), max(hops), max(map(plan.cache, ranks)), sum(plan.hops(_EMBEDDING))]
        total, *others = map(design.in_widths, counted)
        blocks = None if paper is None else float(paper)
        found[plan.way] = dict(zip(_SUMS, [total, sum(hops), *others, blocks], strict=True))
    return found


def _document(design: Planned) -> dict[str, Any]:
    return {
        "variant": design.variant,
        "n_params": design.n_params,
        "n_blocks": design.n_blocks,
        "sums": {
            way: {name.replace(" ", "_"): value for name, value in of.items()}
            for way, of in _sums(design).items()
        },
        "hops": _hops(design),
    }


def _notes(designs: Sequence[Planned]) -> list[str]:
    lines = [
        "one direction; backward sends as much, the gradient of each value once. Bytes are those "
        "of float32, in which under autocast too all is but outputs that are sources of their own",
        "cached: a hop leaves out what the receiving stage has had, in the chunk that it held "
        "last. cache of a rank: of the stage that keeps most, for each micro-batch under way; what "
        "is kept is not copied",
    ]
    if any(each.n_blocks is not None for each in designs):
        lines.append(
            "paper: Eq. 7 (whole) and Eq. 8 (cached) of arXiv 2603.15031, blocks alone. They count "
            "neither the embedding nor the running sum of a block that a cut divides. Eq. 8 counts "
            "blocks that the receiver made itself, so that what is sent is less"
        )
    own = "; ".join(f"{each.variant} {each.n_params:,}" for each in designs if each.n_params)
    if own:
        lines.append(
            f"beside the hops: parameters of the design are on every stage, and their gradients "
            f"are summed over the stages once a step ({own})"
        )
    return lines
