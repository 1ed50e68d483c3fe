"""A report as a table on a terminal, Markdown, CSV, JSON or LaTeX; a page is in `html`."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from attnres_cli.console import harmless, is_verbose
from attnres_cli.errors import UsageError
from attnres_cli.report.table import Cell, Column, Report, Table, brief, but, capital, captioned
from attnres_cli.verdict.fields import picked

_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"


def show(report: Report, form: str, out: TextIO) -> None:
    """Print a report into a stream, as `table`, `markdown`, `csv`, `json` or `latex`."""
    if form == "table":
        from attnres_cli.report.terminal import print_report

        print_report(report, out)
        return
    write = {"markdown": to_markdown, "csv": to_csv, "json": to_json, "latex": to_latex}
    out.write(write[form](report).rstrip("\n") + "\n")


def glance(report: Report, form: str, out: TextIO, *more: str) -> None:
    """Print a report at a glance, or all of it under --verbose; `more` are commands that show the
    rest, for a reader on a terminal. Markdown and LaTeX are titles and tables; JSON and CSV always
    have everything.
    """
    if not is_verbose():
        report = brief(report, *more) if form == "table" else captioned(report)
    show(report, form, out)


def to_json(report: Report) -> str:
    """What scripts read. A number that is not finite is null."""
    document = _made(report.document)
    if document is None:  # then what it says, and the rows of its tables
        document = picked(report, "title text tables caveats warnings notes")
        document["tables"] = [{"title": each.title, "rows": _rows(each)} for each in report.shown]
    if report.more is not None:
        document = document | {"more": [other.document for other in report.more]}
    return json.dumps(plain(document), indent=2, allow_nan=False)


def _made(value: Any) -> Any:
    """What stands there, or what the function there makes."""
    return value() if callable(value) else value


def plain(value: Any) -> Any:
    """The same as JSON has it: lists for tuples, null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(table: Table) -> list[dict[str, str]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.cells]


def to_csv(report: Report) -> str:
    """A header and a line per record; without records the rows of the tables."""
    records = [record for one in report for record in _made(one.records)]
    if not records and not report.fields:
        records = [row for table in report.shown for row in _rows(table)]
    fields = report.fields or list(dict.fromkeys(name for each in records for name in each))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows({name: _in_csv(value) for name, value in each.items()} for each in records)
    return text.getvalue()


def _in_csv(value: Any) -> Any:
    """A value of a line; a text that a spreadsheet would compute is quoted as they do it."""
    if not isinstance(value, str):
        return None if value != value else value
    return re.sub(rf"^(?=[=+@-])(?!{_NUMBER}$)", "'", harmless(value))


def to_markdown(report: Report) -> str:
    """Headings, pipe tables and lists, one report after the other."""
    return "\n".join(_markdown(one) for one in report)


def _markdown(report: Report) -> str:
    lines = [f"### {_literal(capital(report.title))}", ""] if report.title else []
    lines += [part for text in report.text for part in (_literal(text), "")]
    for table in report.shown:
        lines += [f"**{_literal(capital(table.title))}**", ""] if table.title else []
        lines.append(_pipes([_literal(column.title) for column in table.columns]))
        lines.append(_pipes(["---:" if c.kind == "number" else "---" for c in table.columns]))
        for row in table.cells:
            lines.append(_pipes(list(map(_markdown_cell, row, table.columns))))
        lines.append("")
    lines += [f"- {_literal(line)}" for line in _below(report)]
    return "\n".join(lines) + "\n"


def _below(report: Report) -> list[str]:
    """The lines below a report's tables."""
    return [*but(report.caveats), *report.warnings, *report.notes]


def _markdown_cell(cell: Cell, column: Column) -> str:
    if column.is_typed and cell.text:
        return "<br>".join(f"`{line}`" for line in cell.text.split("\n"))
    text = _literal(cell.text)
    return f"**{text}**" if cell.style == "strong" else text


def _literal(text: str) -> str:
    """Text in which no name begins a tag; what stands in backquotes stays code."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text.replace("\n", " "))


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}",
})  # fmt: skip
_LONG = 28  # characters of a cell that would push a table over the margin
_FLOAT = r"""
\begin{{table}}
  \centering
  \caption{{{caption}}}
  \begin{{tabular}}{{@{{}}{columns}@{{}}}}
    \toprule
    {head} \\
    \midrule
{rows}
    \bottomrule
  \end{{tabular}}
{below}\end{{table}}
""".lstrip()


def to_latex(report: Report) -> str:
    """Floating tables, for a document that uses the package booktabs; notes below the last."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_latex(one) for one in report)


def _latex(report: Report) -> str:
    tables, said, found = report.shown, [report.title, *report.text], []
    for table in tables:
        notes = _below(report) if table is tables[-1] else []
        caption = ". ".join(capital(text.rstrip(".")) for text in (*said, table.title) if text)
        found.append(_floating(table, f"{caption}.", notes))
    return "\n".join(found)


def _floating(table: Table, caption: str, notes: list[str]) -> str:
    rows = [" & ".join(map(_latex_cell, row, table.columns)) for row in table.cells]
    rows = rows or [rf"\multicolumn{{{len(table.columns)}}}{{l}}{{no run has ended}}"]
    small = [r"  \par\medskip\raggedright\footnotesize"] if notes else []
    below = [*small, *(rf"  {escaped(note)}\par" for note in notes)]
    return _FLOAT.format(
        caption=escaped(caption),
        columns="".join(_alignment(table, i) for i in range(len(table.columns))),
        head=" & ".join(escaped(column.title) for column in table.columns),
        rows="\n".join(rf"    {row} \\" for row in rows),
        below="".join(f"{line}\n" for line in below),
    )


def _alignment(table: Table, i: int) -> str:
    kind = table.columns[i].kind
    is_long = kind == "text" and any(len(row[i].text) > _LONG for row in table.cells)
    return "r" if kind == "number" else r"p{0.3\linewidth}" if is_long else "l"


def _latex_cell(cell: Cell, column: Column) -> str:
    text = escaped(cell.text)
    if column.is_typed:
        return rf"\texttt{{{escaped(cell.text)}}}"
    if column.kind == "number":  # a hyphen is shorter than a minus
        text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return rf"\textbf{{{text}}}" if cell.style == "strong" else text


def escaped(text: str) -> str:
    """Text with every character that LaTeX takes for a command written out."""
    return text.translate(_LATEX)


def write(path: Path, content: bytes, option: str) -> None:
    """Make or replace a file in one step. Raises UsageError, naming `option`, if it cannot."""
    if not path.name:
        raise UsageError(f"{option} {path} is a folder: name a file in it")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from error
