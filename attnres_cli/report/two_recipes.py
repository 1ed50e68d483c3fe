"""Two recipes side by side, as a report and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnres_cli.config.as_typed import differing, settings
from attnres_cli.report.footnotes import UNIT
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.table import Column, Report, Table, flat
from attnres_cli.stats.pairs import mean_sd
from attnres_cli.stats.sequential import LEAST_SEEDS
from attnres_cli.verdict.numbers import interval
from attnres_cli.verdict.two_recipes import Row, Side

_NOTES = (
    f"B minus A: mean difference in {UNIT}, paired by seed; below 0 B has the lower loss. The "
    "intervals of all designs that are paired here hold together with 95 % probability for two "
    "recipes and seeds that were chosen beforehand and are looked at once: that is not known here, "
    "so no word is said",
    "one seed gives both recipes the same order of batches where the shape of a batch is the same, "
    "and the same initial weights where that of the model is; else pairing only costs freedom",
    f"an interval takes {LEAST_SEEDS} seeds in common",
)
_FIELDS = {
    "variant": "variant", "mean_a": "a.mean", "sd_a": "a.sd", "n_a": "a.n", "mean_b": "b.mean",
    "sd_b": "b.sd", "n_b": "b.n", "difference": "difference", "ci_low": "interval.0",
    "ci_high": "interval.1", "reason": "reason", "recipe_a": "recipe_a", "recipe_b": "recipe_b",
}  # fmt: skip


def report_of(first: Side, second: Side, rows: Sequence[Row]) -> Report:
    """The designs under both recipes."""
    sides = first, second
    columns = [Column("variant", "code"), *map(Column, ("A", "B", "B minus A [interval]"))]
    columns += [Column("n", "word"), Column("why no interval", "text")]
    digests = [side.recipe.digest for side in sides]
    documents = [_document(row) for row in rows]
    text = [*map(_named, "AB", sides), _differs(first, second)]
    return Report(
        title=f"recipes {' and '.join(map(_name, sides))} side by side",
        text=text,
        tables=[Table("validation loss, mean ± sd over seeds", columns, [*map(_cells, rows)])],
        notes=_NOTES,
        document={
            "recipes": [
                {"name": s.recipe.name, "digest": s.recipe.digest, "data": s.data.fingerprint}
                for s in sides
            ],
            "differ": {key: _values(key, sides) for key in _keys(first, second)},
            "unit": UNIT,
            "arms": documents,
            "notes": [*text, *_NOTES],
        },
        fields=_FIELDS,
        records=[
            flat(one | dict(zip(("recipe_a", "recipe_b"), digests, strict=True)), _FIELDS)
            for one in documents
        ],
    )


def to_html(report: Report, study: str) -> str:
    """The same as a page."""
    part = Part(text=report.text, tables=report.tables, notes=report.notes)
    heading = "What does the other recipe change for each design?"
    section = Section("Side by side", "sides", [part])
    return page(f"attnres: {report.title}", heading, [section], study)


def _name(side: Side) -> str:
    return f"{side.recipe.name} ({side.recipe.digest})"


def _named(letter: str, side: Side) -> str:
    return f"{letter}: recipe {_name(side)}, data {side.data.source} ({side.data.fingerprint})"


def _keys(first: Side, second: Side) -> list[str]:
    return differing([first.recipe, second.recipe])


def _values(key: str, sides: Sequence[Side]) -> list[Any]:
    return [settings(side.recipe).get(key) for side in sides]


def _differs(first: Side, second: Side) -> str:
    """`what differs: optim.lr 0.004 in A, 0.006 in B`."""
    parts = []
    for key in _keys(first, second):
        a, b = ("nothing" if v is None else v for v in _values(key, (first, second)))
        parts.append(f"{key} {a} in A, {b} in B")
    return f"what differs: {'; '.join(parts) or 'no setting'}"


def _cells(row: Row) -> list[str]:
    n = [len(each) for each in row.losses]
    difference = "-" if row.difference is None else interval(row.difference, row.interval, "+.4f")
    counts = str(n[0]) if n[0] == n[1] else f"{n[0]} and {n[1]}"
    return [row.variant, *map(_loss, row.losses), difference, counts, row.reason]


def _loss(losses: Mapping[int, float]) -> str:
    if not losses:
        return "-"
    mean, sd = mean_sd([*losses.values()])
    return "diverged" if mean != mean else f"{mean:.4f}" + ("" if sd is None else f" ± {sd:.4f}")


def _document(row: Row) -> dict[str, Any]:
    found = {}
    for name, losses in zip("ab", row.losses, strict=True):
        mean, sd = mean_sd([*losses.values()]) if losses else (None, None)
        found[name] = {"n": len(losses), "mean": mean, "sd": sd, "losses": losses}
    numbers = {"difference": row.difference, "interval": row.interval}
    return {"variant": row.variant} | found | numbers | {"reason": row.reason}
