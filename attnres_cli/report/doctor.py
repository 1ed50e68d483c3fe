"""Whether a machine computes right, as a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from attnres_cli.records.ways import Tried, Way
from attnres_cli.report.table import Cell, Report, Table, columns

_NOTE = (
    "loss off, gradient off: the largest difference from plain torch in float32, "
    "as a part of it, over {}, compiled the second alone; right are at most 1e-3 in fp32 and 0.08 "
    "in bf16"
)


def report_of(
    machine: dict[str, str],
    problems: Sequence[str],
    found: Sequence[Tried],
    chosen: Mapping[str, Way],
    designs: Sequence[str],
) -> Report:
    """What was tried, what came of it, and what the machine is."""
    records = [
        asdict(one.way)
        | {"chosen": one.way in chosen.values(), "wrong": one.wrong}
        | {"loss_off": one.loss, "gradient_off": one.gradient}
        for one in found
    ]
    heads = columns(
        "engine:word", "precision:word", "compiled:word", "auto:word", "works:word", "loss off",
        "gradient off", "wrong:text",
    )  # fmt: skip
    rows = [_row(one, chosen) for one in found]
    facts = Table(
        "this machine", columns("what:word", "is:text"), [list(f) for f in machine.items()]
    )
    wrong = [one for one in found if one.wrong is not None]
    answer = "Every way to train computes right here."
    if wrong:
        taken = any(one.way in chosen.values() for one in wrong)
        answer = f"{len(wrong)} of {len(found)} ways to train do not compute right here" + (
            ", and one of these is what attnres takes: it will take the next instead."
            if taken
            else "; attnres takes none of them."
        )
    return Report(
        "Does this machine compute right?",
        [Table("ways to train, each in a process of its own", heads, rows, n_keys=3), facts],
        text=[answer],
        warnings=problems,
        notes=[_NOTE.format(", ".join(designs))],
        document={"machine": machine, "problems": list(problems), "ways": records},
        records=records,
    )


def _row(one: Tried, chosen: Mapping[str, Way]) -> list[str | Cell]:
    way = one.way
    taken = [what for what, each in chosen.items() if each == way]
    off = ["-" if x is None else f"{x:.1e}" for x in (one.loss, one.gradient)]
    works = Cell("yes", "good") if one.wrong is None else Cell("no", "bad")
    compiled = "CUDA graphs" if way.graphs else "yes" if way.compiled else "no"
    return [way.engine, way.precision, compiled, ", ".join(taken), works, *off, one.wrong or ""]
