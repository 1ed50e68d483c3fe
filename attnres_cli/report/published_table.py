"""Comparisons beside those of another report, kept as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnres_cli.config.shipped import report_texts
from attnres_cli.files import read_text
from attnres_cli.records.comparison_terms import stated
from attnres_cli.report.footnotes import UNIT
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.table import Report, but, joined, noted_once, tabled
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.fields import Field, Style, keys, record
from attnres_cli.verdict.numbers import interval, plural
from attnres_cli.verdict.published_table import (
    RULE,
    Again,
    Beside,
    OtherTable,
    again,
    are_same,
    beside,
    nearest,
    read,
)
from attnres_cli.verdict.rows import difference_text, n_seeds

_MOST_BYTES = 2**26
_MOST_NAMED = 3
_STYLES: dict[str, Style] = {
    "same sign": "good", "opposite sign": "bad", "no verdict here": "warning",
    "no verdict there": "warning", "baseline": "strong",
}  # fmt: skip


def _theirs(row: Beside) -> tuple[float, tuple[float, float] | None] | None:
    """The other table's difference with its interval."""
    theirs = row.theirs
    if theirs is None or theirs.difference is None:
        return None
    return theirs.difference.mean, theirs.interval


def _end(row: Beside, i: int) -> float | None:
    found = row.theirs.interval if row.theirs else None
    return found and found[i]


def _seeds(row: Beside, _: object) -> str:
    theirs = row.theirs.look.n if row.theirs and row.theirs.look else "-"
    return f"{theirs} / {n_seeds(row.arm)}"


_FIELDS: Sequence[Field[Beside, tuple[OtherTable, Comparison]]] = (
    Field("variant", lambda row, _: row.arm.variant, "variant", kind="code"),
    Field(
        "their_difference", lambda row, _: (_theirs(row) or (None,))[0], "theirs [interval]",
        lambda row, _: interval(*found, "+.4f") if (found := _theirs(row)) else "-",
    ),
    Field("their_low", lambda row, _: _end(row, 0)),
    Field("their_high", lambda row, _: _end(row, 1)),
    Field("their_verdict", lambda row, _: row.theirs and row.theirs.verdict),
    Field("their_seeds", lambda row, _: row.theirs and row.theirs.look and row.theirs.look.n),
    Field("difference", lambda row, _: row.arm.difference and row.arm.difference.mean),
    Field("ci_low", lambda row, _: row.arm.interval and row.arm.interval[0]),
    Field("ci_high", lambda row, _: row.arm.interval and row.arm.interval[1]),
    Field(title="yours [interval]", show=lambda row, _: difference_text(row.arm)),
    Field("verdict", lambda row, _: row.arm.verdict),
    Field("n_seeds", lambda row, _: n_seeds(row.arm), "seeds", _seeds, is_optional=True),
    Field(
        "beside", lambda row, _: row.said, "yours beside theirs", kind="word",
        style=lambda row: _STYLES.get(row.said, ""),
    ),
    Field("recipe_digest", lambda _, of: of[1].recipe_digest),
    Field("their_recipe_digest", lambda _, of: of[0].recipe_digest),
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
    parts = [
        Part(one.title, text=but(one.caveats), tables=one.tables, notes=one.notes) for one in report
    ]
    heading = "Do these differences agree with those of the other report?"
    return page(f"attnres: {report.title}", heading, [Section("Beside", "beside", parts)], study)


def _one(name: str, table: OtherTable, mine: Comparison, n_tables: int) -> Report:
    rows, title, both = beside(table, mine), labels.title(mine), again(table, mine)
    told, notes = qualifiers(mine, n_tables), _notes(name, table, mine, both)
    records = [record(_FIELDS, row, (table, mine)) for row in rows]
    heading = f"difference from {mine.baseline}, {UNIT}"
    return Report(
        title=f"{title}, beside {name}",
        caveats=told,
        tables=[tabled(heading, _FIELDS, rows, (table, mine))],
        notes=notes,
        document={
            "title": title,
            "qualified": told,
            "unit": UNIT,
            "theirs": {"title": table.title, "versions": table.versions},
            "terms": stated(mine.terms),
            "again": {"runs": len(both.gaps), "equal": both.n_equal},
            "arms": records,
            "notes": notes,
        },
        fields=keys(_FIELDS),
        records=records,
        more=(),
    )


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
