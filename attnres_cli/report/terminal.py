"""Reports on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

import rich.table
from rich import box
from rich.console import Console
from rich.text import Text

from attnres_cli.console import mute
from attnres_cli.report.table import Report, Table

_STYLE = {"good": "green", "bad": "red", "warning": "yellow", "strong": "bold"}
_LEAST_TEXT = 13  # columns in which names and sentences are broken into lines
_PIPE_WIDTH = 140  # where nobody looks, so that a log holds every column
_NARROWEST = 80


def console(stream: TextIO) -> Console:
    """A console on stdout or stderr; rich itself respects NO_COLOR and TERM=dumb. Where it is no
    terminal, tables are 140 columns wide unless COLUMNS says otherwise.
    """
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    out = _Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    if out.width < _NARROWEST:  # a line that wraps loses less than a table whose columns are cut
        out.width = _NARROWEST
    return out


class _Console(Console):
    """A console that falls silent, and ends nothing, when its reader has gone."""

    def on_broken_pipe(self) -> None:
        """Print no more."""
        mute(self.file)


def print_report(report: Report, stream: TextIO) -> None:
    """Titles, tables, warnings and notes."""
    out = console(stream)
    for one in report:
        out.print(Text(one.title, style="bold")) if one.title else None
        for text in one.text:
            out.print(Text(text))
        for table in one.shown:
            _print_table(out, table)
        for line in one.warnings:
            out.print(Text(line, style="yellow"))
        for line in one.notes:
            out.print(Text(line, style="dim"))


def _print_table(out: Console, table: Table) -> None:
    """The table, without its last optional columns if names would be broken, in several parts if
    it is still too wide with broken ones.
    """
    widths = [_least_width(table, i) for i in range(len(table.columns))]
    columns = list(range(len(widths)))
    unbroken = [
        _most_width(table, i) if table.columns[i].kind == "code" else widths[i] for i in columns
    ]
    for i in [i for i in reversed(columns) if table.columns[i].is_optional]:
        if _room(unbroken, columns) > out.width:
            columns.remove(i)
    keys, parts = columns[: table.n_keys], [columns[: table.n_keys]]
    for i in columns[table.n_keys :]:
        if parts[-1] != keys and _room(widths, [*parts[-1], i]) > out.width:
            parts.append(list(keys))
        parts[-1].append(i)
    for part in parts:
        spare = max(0, out.width - _room(widths, part))
        out.print(_rich(table, part, table.title if part is parts[0] else "", spare))


def _least_width(table: Table, i: int) -> int:
    """Of a column: words are never broken, text and names are."""
    most = _most_width(table, i)
    return min(most, _LEAST_TEXT) if table.columns[i].kind in ("code", "text") else most


def _most_width(table: Table, i: int) -> int:
    """Of a column, with nothing broken."""
    return max(len(table.columns[i].title), *(len(row[i].text) for row in table.cells), 0)


def _room(widths: Sequence[int], columns: Sequence[int]) -> int:
    return 1 + sum(widths[i] + 2 for i in columns)


def _rich(table: Table, columns: Sequence[int], title: str, spare: int) -> rich.table.Table:
    """Of some columns. Those that fold get the spare room, names first."""
    made = rich.table.Table(
        title=title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for i in columns:
        column = table.columns[i]
        folds, least = column.kind in ("code", "text"), _least_width(table, i)
        if folds:
            longest = max([least, *(len(row[i].text) for row in table.cells)])
            given = min(spare, longest - least)
            least, spare = least + given, spare - given
        made.add_column(
            column.title,
            justify="right" if column.kind == "number" else "left",
            no_wrap=not folds,
            overflow="fold",
            width=least if folds else None,
        )
    for row in table.cells:
        made.add_row(*(Text(row[i].text, style=_STYLE.get(row[i].style, "")) for i in columns))
    return made
