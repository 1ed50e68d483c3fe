"""The verdict table of a page, with every difference drawn in its row: a forest plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnres_cli.report import comparison
from attnres_cli.report.figures.style import gaps
from attnres_cli.report.table import Cell, Column, Table
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.rows import STYLES

_CARD_ROWS = 8
_EDGE = 2.0  # percent of the column that stays free at each side
_DRAWN = "Drawn: mean and interval; small dots are seeds, the line is the baseline"


@dataclass(frozen=True)
class Bar(Cell):
    """A difference with its interval: places of `mean`, its `ends`, the single `seeds` and the
    baseline's `zero`, in percent of the column's width. Without a mean its text is shown.
    """

    zero: float = 0.0
    mean: float | None = None
    ends: Sequence[float] = ()
    seeds: Sequence[float] = ()


def with_bars(held: Comparison) -> Table:
    """The verdict table, with all differences drawn on one scale, but those far off it."""
    table, found = comparison.table_of(held), {gap.arm.variant: gap for gap in gaps(held)}
    near = [gap for gap in found.values() if not gap.is_far]
    ends = [end for gap in near for end in (gap.mean, *gap.ends, *gap.seeds)]
    if not ends:
        return table
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = (high - low) or 1.0

    def place(value: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (value - low) / room, 1)

    def bar(arm: ArmResult) -> Bar:
        gap, style = found.get(arm.variant), STYLES.get(arm.verdict, "")
        if gap is None:
            return Bar("", zero=place(0.0))
        if gap.is_far:
            return Bar(gap.arrow(2), style, place(0.0))
        places = [*map(place, gap.ends)], [*map(place, gap.seeds)]
        return Bar("", style, place(0.0), place(gap.mean), *places)

    titles = [column.title for column in table.columns]
    word = titles.index("verdict")
    rest = [word, *(i for i in range(1, len(titles)) if i != word)]
    scale = Column(f"{low:+.2g} to {high:+.2g}", "bar")
    heads = [table.columns[0], scale, *(table.columns[i] for i in rest)]
    pairs = zip(table.rows, held.arms, strict=True)
    rows = [[row[0], bar(arm), *(row[i] for i in rest)] for row, arm in pairs]
    return Table(f"{table.title}. {_DRAWN}", heads, rows)


def card(table: Table) -> Table:
    """The first arms of such a table, with their bars and words alone."""
    kept = 3 if table.columns[1].kind == "bar" else len(table.columns)
    rows = [row[:kept] for row in table.rows[:_CARD_ROWS]]
    more = len(table.rows) > len(rows)
    title = f"The first {len(rows)} of {len(table.rows)} arms" if more else "All arms"
    return Table(title, table.columns[:kept], rows)
