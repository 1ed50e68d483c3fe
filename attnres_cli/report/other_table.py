"""Comparisons beside those of another report, kept as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnres_cli.config.shipped import report_texts
from attnres_cli.files import read_text
from attnres_cli.report.comparison import difference_text
from attnres_cli.report.facts import UNIT
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.table import Cell, Column, Report, Style, Table, but, joined, noted_once
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.format import interval, plural
from attnres_cli.verdict.other_table import (
    RULE,
    Again,
    Beside,
    OtherArm,
    OtherTable,
    again,
    are_same,
    beside,
    nearest,
    read,
)
from attnres_cli.verdict.qualified import n_read, qualifiers

_MOST_BYTES = 2**26
_MOST_NAMED = 3
_STYLES: dict[str, Style] = {
    "same sign": "good", "opposite sign": "bad", "no verdict here": "warning",
    "no verdict there": "warning", "baseline": "strong",
}  # fmt: skip
_COLUMNS = (
    Column("variant", "code"),
    Column("theirs [interval]"),
    Column("yours [interval]"),
    Column("seeds", is_optional=True),
    Column("yours beside theirs", "word"),
)
_FIELDS = (
    "variant", "their_difference", "their_low", "their_high", "their_verdict", "their_seeds",
    "difference", "ci_low", "ci_high", "verdict", "n_seeds", "beside", "recipe_digest",
    "their_recipe_digest",
)  # fmt: skip


def report_of(of: str, comparisons: Sequence[Comparison]) -> Report:
    """Each comparison beside the nearest of a report: one that comes with the tool, or a file.
    Raises UsageError where that has none.
    """
    texts = report_texts(of) or [read_text(Path(of), "--against", most=_MOST_BYTES)]
    tables = [table for text in texts for table in read(text, f"--against {of}")]
    name = Path(of).name
    each = [_one(name, nearest(tables, one), one, n_read(one, comparisons)) for one in comparisons]
    return joined(noted_once(each))


def to_html(report: Report, study: str) -> str:
    """The same as a page."""
    parts = [Part(one.title, text=one.text, tables=one.tables, notes=one.notes) for one in report]
    heading = "Do these differences agree with those of the other report?"
    return page(f"attnres: {report.title}", heading, [Section("Beside", "beside", parts)], study)


def _one(name: str, table: OtherTable, mine: Comparison, n_tables: int) -> Report:
    rows, title, both = beside(table, mine), labels.title(mine), again(table, mine)
    told, notes = qualifiers(mine, n_tables), _notes(name, table, mine, both)
    records = [_record(row, table, mine) for row in rows]
    return Report(
        title=f"{title}, beside {name}",
        text=but(told),
        tables=[Table(f"difference from {mine.baseline}, {UNIT}", _COLUMNS, _cells(rows))],
        notes=notes,
        document={
            "title": title,
            "qualified": told,
            "unit": UNIT,
            "theirs": {"title": table.title, "versions": table.versions},
            "terms": asdict(mine.terms),
            "again": {"runs": len(both.gaps), "equal": both.n_equal},
            "arms": records,
            "notes": notes,
        },
        fields=_FIELDS,
        records=records,
        more=(),
    )


def _cells(rows: Sequence[Beside]) -> list[list[str | Cell]]:
    return [
        [
            row.arm.variant,
            _text(row.theirs),
            difference_text(row.arm),
            f"{row.theirs.look.n if row.theirs and row.theirs.look else '-'} / "
            f"{len(row.arm.pairs) or len(row.arm.losses)}",
            Cell(row.said, _STYLES.get(row.said, "")),
        ]
        for row in rows
    ]


def _text(theirs: OtherArm | None) -> str:
    if theirs is None or theirs.difference is None:
        return "-"
    return interval(theirs.difference.mean, theirs.interval, "+.4f")


def _notes(name: str, table: OtherTable, mine: Comparison, both: Again) -> list[str]:
    is_recipe, is_data = are_same(table, mine)
    if is_recipe and is_data:
        how = "the same recipe and data as yours: values can be compared"
    else:
        other = [word for word, same in (("recipe", is_recipe), ("data", is_data)) if not same]
        how = f"another {' and other '.join(other)} than yours: signs and orders can be compared"
    return [
        f"theirs: {name}, {table.title}; data {table.data.source} ({table.data.fingerprint}); "
        f"{'; '.join(table.versions)}",
        how,
        *([_again_text(both, table, mine)] if both.gaps else []),
        RULE,
    ]


def _again_text(both: Again, table: OtherTable, mine: Comparison) -> str:
    """How many ended alike, how far apart the others are, and what is not the same there."""
    n, equal = len(both.gaps), both.n_equal
    head = f"{plural(n, 'run')} that both trained (one recipe, design, seed and data): "
    if equal == n:
        return f"{head}all ended with the same loss, bit for bit"
    parts = [f"{equal} ended with the same loss, bit for bit"]
    if both.n_diverged:
        parts.append(f"{both.n_diverged} diverged on one side alone")
    if apart := both.apart:
        parts.append(f"others are apart by {apart[0]:.4g} in the median, {apart[1]:.4g} at most")
    for what, theirs, yours in (
        ("computed with", table.settings, mine.settings),
        ("trained by", table.versions, mine.versions),
    ):
        if set(theirs) != set(yours):
            parts.append(f"{what}: theirs {', '.join(theirs)}; yours {', '.join(yours)}")
    if others := both.other_code:
        named = ", ".join(others) if len(others) <= _MOST_NAMED else plural(len(others), "design")
        parts.append(f"by other code: {named}")
    return head + "; ".join(parts)


def _record(row: Beside, table: OtherTable, mine: Comparison) -> dict[str, Any]:
    theirs, arm = row.theirs, row.arm
    their_low, their_high = (theirs.interval if theirs else None) or (None, None)
    low, high = arm.interval or (None, None)
    return {
        "variant": arm.variant,
        "their_difference": theirs.difference.mean if theirs and theirs.difference else None,
        "their_low": their_low,
        "their_high": their_high,
        "their_verdict": theirs.verdict if theirs else None,
        "their_seeds": theirs.look.n if theirs and theirs.look else None,
        "difference": arm.difference.mean if arm.difference else None,
        "ci_low": low,
        "ci_high": high,
        "verdict": arm.verdict,
        "n_seeds": len(arm.pairs) or len(arm.losses),
        "beside": row.said,
        "recipe_digest": mine.recipe_digest,
        "their_recipe_digest": table.recipe_digest,
    }
