"""What is shown, before it has a format: a report, its tables, and the same as plain values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast, get_args

from attnres_cli.console import harmless
from attnres_cli.verdict.fields import Field, Of, Row
from attnres_cli.verdict.fields import Kind as Kind
from attnres_cli.verdict.fields import Style as Style

Key = TypeVar("Key")
Value = TypeVar("Value")

MOST_CAVEATS = 3


@dataclass(frozen=True)
class Column:
    """A column of a table; `is_optional` if a terminal that is too narrow leaves it out.

    `kind`: `code` is typed somewhere (a digest, a command), so is a `name`, which a narrow terminal
    cuts in its middle; `word` stays on one line, `text` may take several; a `number` stands on the
    right; a `bar` is drawn, on a page alone.
    """

    title: str
    kind: Kind = "number"
    is_optional: bool = False

    @property
    def is_typed(self) -> bool:
        """Whether its cells are code."""
        return self.kind in ("code", "name")


def columns(*titles: str) -> list[Column]:
    """Columns of numbers; of another kind where that stands after a colon: `variant:code`."""
    kinds: tuple[str, ...] = get_args(Kind)
    ends = [title.rpartition(":") for title in titles]
    return [
        Column(title, cast("Kind", kind)) if kind in kinds else Column(whole)
        for whole, (title, _, kind) in zip(titles, ends, strict=True)
    ]


@dataclass(frozen=True)
class Cell:
    """A cell's text, and what it is as good or bad news."""

    text: str
    style: Style = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", harmless(self.text))


@dataclass(frozen=True)
class Table:
    """A table of text; its first `n_keys` columns name a row."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]
    n_keys: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", harmless(self.title))

    @cached_property
    def cells(self) -> list[list[Cell]]:
        """The rows, all of cells."""
        return [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in self.rows]


def tabled(
    title: str, fields: Sequence[Field[Row, Of]], rows: Sequence[Row], of: Of, n_keys: int = 1
) -> Table:
    """The fields of these rows that are shown, as a table."""
    shown = [field for field in fields if field.title and field.applies(of)]
    heads = [Column(field.title, field.kind, field.is_optional) for field in shown]
    cells = [[_cell(field, row, of) for field in shown] for row in rows]
    return Table(title, heads, cells, n_keys)


def _cell(field: Field[Row, Of], row: Row, of: Of) -> Cell:
    style = field.style.get(field.value(row, of), "") if field.style else ""
    return Cell(field.text(row, of), style)


@dataclass(frozen=True)
class Report:
    """All that a command says of one thing, for every format.

    Attributes:
        text: sentences before the tables.
        caveats: what they must be read with, what weighs most first.
        tables: those to be `shown`.
        warnings: lines below the tables that call for action, then `notes`: what numbers rest on.
        document: what JSON writes; numbers that are not finite become null.
        fields: the columns of CSV, all keys of `records` unless said; what one lacks is empty.
        records: the lines of CSV. They and the document may be functions, called if it is written.
        more: reports below this one, in JSON under `more`; None where there are never any.
        question: what a page of it is headed by.
    """

    title: str
    tables: Sequence[Table] = ()
    text: Sequence[str] = ()
    caveats: Sequence[str] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    document: Any = None
    fields: Collection[str] = ()
    records: Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]] = ()
    more: Sequence[Report] | None = None
    question: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", harmless(self.title))
        for name in ("text", "caveats", "warnings", "notes"):
            object.__setattr__(self, name, tuple(harmless(each) for each in getattr(self, name)))

    @property
    def shown(self) -> list[Table]:
        """The tables with rows, and the first."""
        return [table for i, table in enumerate(self.tables) if table.rows or i == 0]

    def __iter__(self) -> Iterator[Report]:
        """The report itself, then those below it."""
        yield self
        yield from self.more or ()


def joined(reports: Sequence[Report]) -> Report:
    """One report of one or more, which says no note twice."""
    said: set[str] = set()
    shorter = []
    for report in reports:
        new = [note for note in report.notes if note not in said]
        rest = ["the rest as above"] if len(new) < len(report.notes) else []
        shorter.append(replace(report, notes=[*new, *rest]))
        said.update(new)
    first, *more = shorter
    return replace(first, more=more)


def brief(report: Report, *more: str) -> Report:
    """The report at a glance: its weightiest caveats, no notes; `more` says where the rest is."""
    cut = _each(report, lambda one: replace(one, caveats=one.caveats[:MOST_CAVEATS], notes=()))
    return replace(cut, more=[*(cut.more or ()), Report("", notes=more)])


def captioned(report: Report) -> Report:
    """Titles and tables only, as for a paper; text stays where a report compares nothing."""

    def cut(one: Report) -> Report:
        has_rows = any(len(table.rows) > 1 for table in one.tables)
        return replace(one, text=() if has_rows else one.text, caveats=(), notes=())

    return _each(report, cut)


def _each(report: Report, change: Callable[[Report], Report]) -> Report:
    return replace(change(report), more=report.more and [change(one) for one in report.more])


def but(qualified: Sequence[str]) -> list[str]:
    """What qualifies an answer, as it stands below it."""
    return [f"But: {line}" for line in qualified]


def capital(text: str) -> str:
    """Text as a sentence begins."""
    return text[:1].upper() + text[1:]


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in the order of its first."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
