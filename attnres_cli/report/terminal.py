"""Reports on a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

from attnres_cli.console import mute
from attnres_cli.report.table import Cell, Kind, Report, Table

_STYLE = {"good": "green", "bad": "red", "warning": "yellow", "strong": "bold"}
_LEAST: Mapping[str, int] = {"code": 13, "text": 13, "name": 18}
"""Columns in which codes and sentences are broken into lines, and names cut in their middle."""

_PIPE_WIDTH = 140  # where nobody looks, so that a log holds every column
_NARROWEST = 80


def console(stream: TextIO) -> Console:
    """A console on a stream, 140 columns wide unless it is a terminal or COLUMNS says otherwise."""
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


_COMMAND = re.compile(r": attnres (ablate|bench|evaluate|plan|report|runs|search) [^`]*$")


def print_report(report: Report, stream: TextIO) -> None:
    """Titles, tables, caveats, warnings and notes."""
    out = console(stream)
    for one in report:
        if one.title:
            out.print(Text(one.title, style="bold"))
        for text in one.text:  # a recipe keeps its lines, however narrow COLUMNS is
            out.print(Text(text), soft_wrap="\n" in text)
        for table in one.shown:
            _print_table(out, table)
        caveats = [f"! {line}" for line in one.caveats]
        for lines, style in ((caveats, "yellow"), (one.warnings, "yellow"), (one.notes, "dim")):
            for line in lines:  # a command at the end of a line is copied whole
                out.print(Text(line, style=style), soft_wrap=bool(_COMMAND.search(line)))


def _print_table(out: Console, table: Table) -> None:
    """The table, without its last optional columns if names would be broken, in several parts if
    it is still too wide with broken ones. Columns that fold get the spare room, names first.
    """
    heads = table.columns
    lengths = [[len(cell.text) for cell in row] for row in table.cells]
    most = [max(len(heads[i].title), *(row[i] for row in lengths), 0) for i in range(len(heads))]
    least = [min(_LEAST.get(heads[i].kind, width), width) for i, width in enumerate(most)]
    unbroken = [most[i] if heads[i].is_typed else width for i, width in enumerate(least)]
    columns = list(range(len(heads)))
    for i in reversed(range(len(heads))):
        if heads[i].is_optional and _room(unbroken, columns) > out.width:
            columns.remove(i)
    keys = columns[: table.n_keys]
    parts = [keys]
    for i in columns[table.n_keys :]:
        if parts[-1] != keys and _room(least, [*parts[-1], i]) > out.width:
            parts.append(keys)
        parts[-1] = [*parts[-1], i]
    if table.title:
        out.print(Text(table.title, style="italic"))
    for part in parts:
        spare, widths = max(0, out.width - _room(least, part)), {}
        for i in part:
            widths[i] = min(most[i], least[i] + spare)
            spare -= widths[i] - least[i]
        _print_part(out, table, widths)


def _room(widths: Sequence[int], columns: Sequence[int]) -> int:
    return 1 + sum(widths[i] + 2 for i in columns)


def _print_part(out: Console, table: Table, widths: Mapping[int, int]) -> None:
    """The columns of these widths, line by line: rich's own tables take 1 ms a row."""
    shown = [(table.columns[i].kind, width) for i, width in widths.items()]
    lines = _lines(out, [Cell(table.columns[i].title, "strong") for i in widths], shown)
    lines.append((f" {'─' * (sum(widths.values()) + 2 * len(widths) - 1)}", []))
    for row in table.cells:
        lines += _lines(out, [row[i] for i in widths], shown)
    parts, styles = [], {name: out.get_style(name) for name in _STYLE.values()}
    for line, styled in lines:  # a Text of them all would take as long as the rest of the table
        start = 0
        for style, begin, end in styled:
            parts += [Segment(line[start:begin]), Segment(line[begin:end], styles[style])]
            start = end
        parts.append(Segment(f"{line[start:]}\n"))
    out.print(Segments([*parts, Segment.line()]), soft_wrap=True)


Line = tuple[str, list[tuple[str, int, int]]]
"""A line of text, and of its parts the style, the first place and the one behind the last."""


def _lines(out: Console, row: Sequence[Cell], shown: Sequence[tuple[Kind, int]]) -> list[Line]:
    """A row, as many lines as its highest cell has."""
    parts = [_padded(out, cell.text, *each) for cell, each in zip(row, shown, strict=True)]
    is_styled, found = any(cell.style for cell in row), []
    for line in zip_longest(*parts):
        held = zip(line, shown, strict=True)
        texts = [" " * width if part is None else part for part, (_, width) in held]
        plain, styled, start = f" {'  '.join(texts)}", [], 1
        for cell, text in zip(row, texts, strict=True) if is_styled else ():
            styled += [(_STYLE[cell.style], start, start + len(text))] if cell.style else []
            start += len(text) + 2
        found.append((plain.rstrip(), styled))
    return found


@lru_cache(maxsize=4096)  # rows repeat recipes and designs, and breaking one takes 0.2 ms
def _padded(out: Console, text: str, kind: Kind, width: int) -> Sequence[str]:
    """The lines of a cell, as wide as its column."""
    blanks = [(line, " " * (width - cell_len(line))) for line in _broken(out, text, kind, width)]
    return [f"{blank}{line}" if kind == "number" else f"{line}{blank}" for line, blank in blanks]


def _broken(out: Console, text: str, kind: Kind, width: int) -> Sequence[str]:
    """The lines of a cell: a name is cut, codes and text are broken."""
    if kind == "name" and len(text) > width:  # `attnres:block…heads=16`
        return [f"{text[: width // 2]}…{text[len(text) - (width - 1 - width // 2) :]}"]
    if cell_len(text) <= width and "\n" not in text:
        return [text]
    return [line.plain for line in Text(text).wrap(out, width, overflow="fold")]
