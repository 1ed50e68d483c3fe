"""What a pipeline's hops send for a design, as a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnres_cli.nn.pipeline.plan import Planned
from attnres_cli.report.table import Report, Table, columns, tabled
from attnres_cli.verdict.fields import Field, picked, record

_EMBEDDING = (0,)
_SUMS = ("total", "bytes", "peak hop", "cache of a rank", "without embedding", "paper")
_HOPS: Sequence[Field[dict[str, Any], Planned]] = (
    Field("variant", lambda _, of: of.variant),
    Field("d_model", lambda _, of: of.d_model),
    Field("stages", lambda _, of: of.whole.stages),
    Field("virtual", lambda _, of: of.whole.virtual),
    Field("hop", "", "hop", lambda hop, _: "{from_stage} to {to_stage}".format(**hop), "word"),
    Field("from_stage"),
    Field("to_stage"),
    Field("after_sublayer", title="after sublayer"),
    Field("whole", lambda hop, of: of.in_widths(hop["whole_bytes"]), "whole", "{:g}"),
    Field("cached", lambda hop, of: of.in_widths(hop["cached_bytes"]), "cached", "{:g}"),
    Field("whole_bytes"),
    Field("cached_bytes"),
)
_NOTES = (
    "one direction; backward sends as much, the gradient of each value once. Bytes are those "
    "of float32, in which under autocast too all is but outputs that are sources of their own",
    "cached: a hop leaves out what the receiving stage has had, in the chunk that it held "
    "last. cache of a rank: of the stage that keeps most, for each micro-batch under way; what "
    "is kept is not copied",
)
_PAPER = (
    "paper: Eq. 7 (whole) and Eq. 8 (cached) of arXiv 2603.15031, blocks alone. They count "
    "neither the embedding nor the running sum of a block that a cut divides. Eq. 8 counts "
    "blocks that the receiver made itself, so that what is sent is less"
)
_OWN = (
    "beside the hops: parameters of the design are on every stage, and their gradients "
    "are summed over the stages once a step ({})"
)


def report_of(designs: Sequence[Planned]) -> Report:
    """Each hop of each design, sent whole and sent cached, and the sums beside the paper's."""
    plan, width = designs[0].whole, designs[0].d_model
    layers = plan.cuts.n_sublayers // 2
    tables, records, documents = [], [], []
    for each in designs:
        hops, sums = _hops(each), _sums(each)
        records += [record(_HOPS, hop, each) for hop in hops]
        rows = [
            [way, *("-" if value is None else f"{value:,g}" for value in of.values())]
            for way, of in sums.items()
        ]
        title = f"{each.variant}: sent per token by each hop, in numbers / d_model"
        heads = columns("sent:word", *_SUMS)
        tables.append(tabled(title, _HOPS, hops, each))
        tables.append(Table(f"{each.variant}: in all per token", heads, rows))
        keyed = {way: {n.replace(" ", "_"): v for n, v in of.items()} for way, of in sums.items()}
        document = picked(each, "variant n_params n_blocks")
        documents.append(document | {"sums": keyed, "hops": records[-len(hops) :]})
    own = "; ".join(f"{each.variant} {each.n_params:,}" for each in designs if each.n_params)
    notes = [*_NOTES, *[_PAPER] * any(each.n_blocks is not None for each in designs)]
    shape = {"n_layers": layers, "d_model": width, **picked(plan, "stages virtual")}
    return Report(
        f"pipeline: {layers} layers of width {width} in {plan.stages} stages of "
        f"{plan.virtual} virtual",
        tables,
        notes=[*notes, *[_OWN.format(own)] * bool(own)],
        document=shape | {"designs": documents},
        records=records,
    )


def _hops(design: Planned) -> list[dict[str, Any]]:
    plan = design.whole
    both = zip(plan.hops(), design.cached.hops(), strict=True)
    return [
        {
            "hop": c,
            "from_stage": (c - 1) % plan.stages,
            "to_stage": c % plan.stages,
            "after_sublayer": plan.sublayers(c).start - 1,
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
