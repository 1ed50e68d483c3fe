"""A report as a table on a terminal, Markdown, CSV, JSON or LaTeX; a page is in `html`."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TextIO

from attnres_cli.console import harmless, is_verbose
from attnres_cli.report.table import (
    Cell,
    Column,
    Kind,
    Report,
    Table,
    brief,
    but,
    capital,
    captioned,
)


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
    document = report.document if report.document is not None else _plainly(report)
    if report.more is not None:
        document = document | {"more": [other.document for other in report.more]}
    return json.dumps(plain(document), indent=2, allow_nan=False)


def plain(value: Any) -> Any:
    """The same as JSON has it: lists for tuples, null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plainly(report: Report) -> dict[str, Any]:
    """A report that has no document of its own: what it says, and the rows of its tables."""
    tables = [{"title": table.title, "rows": _rows(table)} for table in report.shown]
    said = {"title": report.title, "text": report.text, "tables": tables}
    return said | {"caveats": report.caveats, "warnings": report.warnings, "notes": report.notes}


def _rows(table: Table) -> list[dict[str, str]]:
    titles = [column.title for column in table.columns]
    return [dict(zip(titles, (cell.text for cell in row), strict=True)) for row in table.cells]


def to_csv(report: Report) -> str:
    """One line per record; empty where there is no value, and for what is not a number."""
    if not report.fields:  # it has no records of its own: then its tables' rows
        rows = [row for table in report.shown for row in _rows(table)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        report = replace(report, records=rows, fields=names)
    text = io.StringIO()
    writer = csv.DictWriter(text, report.fields, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    for one in report:
        for record in one.records:
            writer.writerow({name: _in_csv(value) for name, value in record.items()})
    return text.getvalue()


def _in_csv(value: Any) -> Any:
    """A value of a line; a text that a spreadsheet would compute is quoted as they do it."""
    if not isinstance(value, str):
        return None if value != value else value
    value = harmless(value)
    return (
        f"'{value}" if value.startswith(("=", "+", "-", "@")) and not _is_number(value) else value
    )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def to_markdown(report: Report) -> str:
    """Headings, pipe tables and lists, one report after the other."""
    return "\n".join(_markdown(one) for one in report)


def _markdown(report: Report) -> str:
    lines = [f"### {_literal(capital(report.title))}", ""] if report.title else []
    lines += [part for text in report.text for part in (_literal(text), "")]
    for table in report.shown:
        lines += [f"**{_literal(capital(table.title))}**", ""] if table.title else []
        lines += [_pipes([_literal(column.title) for column in table.columns])]
        lines += [_pipes(["---:" if c.kind == "number" else "---" for c in table.columns])]
        for row in table.cells:
            pairs = zip(row, table.columns, strict=True)
            lines += [_pipes([_markdown_cell(cell, column.kind) for cell, column in pairs])]
        lines.append("")
    lines += [f"- {_literal(line)}" for line in _below(report)]
    return "\n".join(lines) + "\n"


def _below(report: Report) -> list[str]:
    """The lines below a report's tables."""
    return [*but(report.caveats), *report.warnings, *report.notes]


def _markdown_cell(cell: Cell, kind: Kind) -> str:
    if kind not in ("code", "name") or not cell.text:
        text = _literal(cell.text)
        return f"**{text}**" if cell.style == "strong" else text
    return "<br>".join(f"`{line}`" for line in cell.text.split("\n"))


def _literal(text: str) -> str:
    """Text in which no name begins a tag; what stands in backquotes stays code."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.split("\n")))


def _pipes(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
_LONG = 28  # characters of a cell that would push a table over the margin


def to_latex(report: Report) -> str:
    """Floating tables, for a document that uses the package booktabs; notes below the last."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_latex(one) for one in report)


def _latex(report: Report) -> str:
    tables, told, found = report.shown, [report.title, *report.text], []
    for table in tables:
        notes = _below(report) if table is tables[-1] else []
        caption = ". ".join(capital(text.rstrip(".")) for text in (*told, table.title) if text)
        found.append(_floating(table, f"{caption}.", notes))
    return "\n".join(found)


def _floating(table: Table, caption: str, notes: list[str]) -> str:
    columns = "".join(_alignment(table, i) for i in range(len(table.columns)))
    head = " & ".join(escaped(column.title) for column in table.columns)
    rows = [
        " & ".join(_latex_cell(*pair) for pair in zip(row, table.columns, strict=True))
        for row in table.cells
    ]
    rows = rows or [rf"\multicolumn{{{len(table.columns)}}}{{l}}{{no run has ended}}"]
    below = [r"  \par\medskip\raggedright\footnotesize"] if notes else []
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escaped(caption)}}}",
        rf"  \begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"    \toprule",
        rf"    {head} \\",
        r"    \midrule",
        *(rf"    {row} \\" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        *below,
        *(rf"  {escaped(note)}\par" for note in notes),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _alignment(table: Table, i: int) -> str:
    kind = table.columns[i].kind
    if kind == "number":
        return "r"
    is_long = kind == "text" and any(len(row[i].text) > _LONG for row in table.cells)
    return r"p{0.3\linewidth}" if is_long else "l"


def _latex_cell(cell: Cell, column: Column) -> str:
    if column.kind in ("code", "name"):
        return rf"\texttt{{{escaped(cell.text)}}}"
    text = escaped(cell.text)
    if column.kind == "number":  # a hyphen is shorter than a minus
        text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return rf"\textbf{{{text}}}" if cell.style == "strong" else text


def escaped(text: str) -> str:
    """Text with every character that LaTeX takes for a command written out."""
    return "".join(_LATEX.get(character, character) for character in text)
