"""Reports on a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from attnres_cli.console import mute
from attnres_cli.report.table import Cell, Kind, Report, Table

_STYLE = {"good": "green", "bad": "red", "warning": "yellow", "strong": "bold"}
_LEAST: Mapping[str, int] = {"code": 13, "text": 13, "name": 18}
"""Columns in which codes and sentences are broken into lines, and names cut in their middle."""

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
    """Titles, tables, caveats, warnings and notes."""
    out = console(stream)
    for one in report:
        out.print(Text(one.title, style="bold")) if one.title else None
        for text in one.text:
            out.print(Text(text))
        for table in one.shown:
            _print_table(out, table)
        for line in one.caveats:
            out.print(Text(f"! {line}", style="yellow"))
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
        _most_width(table, i) if table.columns[i].kind in ("code", "name") else widths[i]
        for i in columns
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
        out.print(Text(table.title, style="italic")) if part is parts[0] and table.title else None
        _print_part(out, table, part, spare)


def _least_width(table: Table, i: int) -> int:
    """Of a column: words are never broken, text and names are."""
    most, kind = _most_width(table, i), table.columns[i].kind
    return min(most, _LEAST.get(kind, most))


def _most_width(table: Table, i: int) -> int:
    """Of a column, with nothing broken."""
    return max(len(table.columns[i].title), *(len(row[i].text) for row in table.cells), 0)


def _room(widths: Sequence[int], columns: Sequence[int]) -> int:
    return 1 + sum(widths[i] + 2 for i in columns)


def _print_part(out: Console, table: Table, columns: Sequence[int], spare: int) -> None:
    """Some columns, line by line: rich's own tables take 1 ms a row. Those that fold get the spare
    room, names first.
    """
    widths = []
    for i in columns:
        least, most = _least_width(table, i), _most_width(table, i)
        widths.append(least + min(spare, most - least))
        spare -= widths[-1] - least
    shown = [(table.columns[i].kind, width) for i, width in zip(columns, widths, strict=True)]
    heads = [Cell(table.columns[i].title, "strong") for i in columns]
    lines = _lines(out, heads, shown)
    lines.append((f" {'─' * (sum(widths) + 2 * len(widths) - 1)}", []))
    for row in table.cells:
        lines += _lines(out, [row[i] for i in columns], shown)
    whole, start = Text("".join(f"{line}\n" for line, _ in lines)), 0  # one, as each takes 0.1 ms
    for line, styled in lines:
        for style, begin, end in styled:
            whole.stylize(style, start + begin, min(start + end, start + len(line)))
        start += len(line) + 1
    out.print(whole, soft_wrap=True)


Line = tuple[str, list[tuple[str, int, int]]]
"""A line of text, and of its parts the style, the first place and the one behind the last."""


def _lines(out: Console, row: Sequence[Cell], shown: Sequence[tuple[Kind, int]]) -> list[Line]:
    """A row, as many lines as its highest cell has."""
    parts = [_broken(out, cell.text, *each) for cell, each in zip(row, shown, strict=True)]
    found = []
    for line in zip_longest(*parts, fillvalue=""):
        plain, styled = "", []
        for part, cell, (kind, width) in zip(line, row, shown, strict=True):
            blank = " " * (width - cell_len(part))
            plain += "  " if plain else " "
            start = len(plain)
            plain += f"{blank}{part}" if kind == "number" else f"{part}{blank}"
            styled += [(_STYLE[cell.style], start, len(plain))] if cell.style else []
        found.append((plain.rstrip(), styled))
    return found


@lru_cache(maxsize=4096)  # rows repeat recipes and designs, and breaking one takes 0.2 ms
def _broken(out: Console, text: str, kind: Kind, width: int) -> Sequence[str]:
    """The lines of a cell: a name is cut, codes and text are broken."""
    if kind == "name":
        return [_cut(text, width)]
    if cell_len(text) <= width and "\n" not in text:
        return [text]
    return [line.plain for line in Text(text).wrap(out, width, overflow="fold")]


def _cut(name: str, room: int) -> str:
    """A name without its middle where it is too long: `attnres:block…heads=16`."""
    if len(name) <= room:
        return name
    return f"{name[: room // 2]}…{name[len(name) - (room - 1 - room // 2) :]}"
