"""The verdict table of a page, with every difference drawn in its row: a forest plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attnres_cli.report import comparison
from attnres_cli.report.figures.style import in_sight
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
    table = comparison.table_of(held)
    drawn = [arm for arm in held.arms if arm.difference is not None]
    far = in_sight([_mean(arm) for arm in drawn]) if drawn else 0.0
    near = [arm for arm in drawn if abs(_mean(arm)) <= far]
    ends = [end for arm in near for end in (_mean(arm), *(arm.interval or ()), *_seeds(arm, held))]
    if not ends:
        return table
    low, high = min(0.0, *ends), max(0.0, *ends)
    room = (high - low) or 1.0

    def place(value: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (value - low) / room, 1)

    titles = [column.title for column in table.columns]
    word = titles.index("verdict")
    rest = [i for i in range(1, len(titles)) if i != word]
    scale = Column(f"{low:+.2g} to {high:+.2g}", "bar")
    columns = [table.columns[0], scale, *(table.columns[i] for i in (word, *rest))]
    rows = [
        [
            row[0],
            _bar(arm, held, place) if arm in near else _far_off(arm, place(0.0)),
            *(row[i] for i in (word, *rest)),
        ]
        for row, arm in zip(table.rows, held.arms, strict=True)
    ]
    return Table(f"{table.title}. {_DRAWN}", columns, rows)


def _mean(arm: ArmResult) -> float:
    assert arm.difference is not None
    return arm.difference.mean


def _seeds(arm: ArmResult, held: Comparison) -> list[float]:
    """The differences of single seeds."""
    assert held.base is not None
    return [arm.losses[seed] - held.base.losses[seed] for seed in arm.pairs]


def _bar(arm: ArmResult, held: Comparison, place: Callable[[float], float]) -> Bar:
    style, ends = STYLES.get(arm.verdict, ""), [*map(place, arm.interval or ())]
    seeds = [*map(place, _seeds(arm, held))]
    return Bar("", style, place(0.0), place(_mean(arm)), ends, seeds)


def _far_off(arm: ArmResult, zero: float) -> Bar:
    if arm.difference is None:
        return Bar("", zero=zero)
    side = "\N{RIGHTWARDS ARROW}" if _mean(arm) > 0 else "\N{LEFTWARDS ARROW}"
    return Bar(f"{_mean(arm):+.2g} {side}", STYLES.get(arm.verdict, ""), zero)


def card(table: Table) -> Table:
    """The first arms of such a table, with their bars and words alone."""
    kept = 3 if table.columns[1].kind == "bar" else len(table.columns)
    rows = [row[:kept] for row in table.rows[:_CARD_ROWS]]
    more = len(table.rows) > len(rows)
    title = f"The first {len(rows)} of {len(table.rows)} arms" if more else "All arms"
    return Table(title, table.columns[:kept], rows)
