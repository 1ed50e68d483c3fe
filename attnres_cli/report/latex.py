"""A comparison as LaTeX: a booktabs table, with what it is of in the caption."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from attnres_cli.report.export import word_text
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import ArmResult, Comparison
from attnres_cli.verdict.labels import capital

_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip
_HEAD = (
    "Variant", "Val.\\ loss", "Difference [95\\,\\%]", "Verdict", "Seeds", "Parameters", "ms/step",
)  # fmt: skip


def to_latex(*comparisons: Comparison) -> str:
    """A floating table per comparison, for a document that uses the package booktabs."""
    return document(*(_table(comparison) for comparison in comparisons))


def document(*tables: str) -> str:
    """Floating tables, one after the other, below what they need."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(tables)


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
    left: Sequence[str] = (),
) -> str:
    """A floating table of plain text: names on the left, numbers on the right.

    Args:
        caption: what it is of.
        head: a title per column.
        rows: their cells.
        notes: lines that stand below the table.
        left: titles of columns besides the first that hold words.

    """
    names = [escaped(name) for name in head]
    cells = [
        [rf"\texttt{{{escaped(first)}}}", *(_number(cell) for cell in rest)]
        for first, *rest in rows
    ]
    columns = "l" + "".join("l" if name in left else "r" for name in head[1:])
    return _floating(escaped(capital(caption)), columns, names, cells, notes)


def _table(comparison: Comparison) -> str:
    rows = [_cells(arm) for arm in comparison.arms]
    return _floating(_caption(comparison), "lrrlrrr", _HEAD, rows)


def _floating(
    caption: str,
    columns: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    notes: Sequence[str] = (),
) -> str:
    body = [" & ".join(row) + r" \\" for row in rows]
    body = body or [rf"\multicolumn{{{len(head)}}}{{l}}{{no run has ended}} \\"]
    below = [r"  \par\medskip\raggedright\footnotesize"] if notes else []
    below += [rf"  {escaped(note)}\par" for note in notes]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"    \toprule",
        "    " + " & ".join(head) + r" \\",
        r"    \midrule",
        *(f"    {row}" for row in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        *below,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _cells(arm: ArmResult) -> list[str]:
    own = f" ({escaped(arm.own.text)})" if arm.own is not None else ""
    spread = f" $\\pm$ {arm.sd:.4f}" if arm.sd is not None else ""
    loss = "diverged" if math.isnan(arm.mean) else f"{arm.mean:.4f}{spread}"
    difference = "--"
    if arm.difference is not None:
        mean, (low, high) = arm.difference.mean, arm.difference.ci95
        difference = f"${mean:+.4f}$ $[{low:+.4f}, {high:+.4f}]$"
    return [
        f"\\texttt{{{escaped(arm.variant)}}}{own}",
        loss,
        difference,
        escaped(word_text(arm)),
        str(len(arm.losses)),
        f"{arm.n_params:,}",
        f"{1000 * arm.step_s:.1f}",
    ]


def _caption(comparison: Comparison) -> str:
    title = labels.title(comparison)
    tokens = f" {labels.tokens(comparison)};" if comparison.arms else ""
    of = f"{capital(title)} ({comparison.recipe_digest});{tokens}"
    gated = "; ".join(f"{arm.variant} ({arm.reason})" for arm in comparison.arms if arm.reason)
    told = [
        f"{of} validation loss in nats per token, mean ± standard deviation over seeds; difference "
        f"from {comparison.baseline}, paired by seed, with its 95 % t interval; verdicts by the "
        "paired t test at p < 0.05 after Holm's correction.",
        f"Blocked: {gated}." if gated else "",
        _failed(comparison),
        "; ".join(comparison.versions) + "." if comparison.versions else "",
    ]
    return escaped(" ".join(text for text in told if text))


def _failed(comparison: Comparison) -> str:
    runs = ", ".join(f"{found.variant} seed {found.seed}" for found in comparison.failed)
    return f"Failed: {runs}." if runs else ""


def _number(text: str) -> str:
    """A cell with its minus signs as such: a hyphen is shorter."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped(text))


def escaped(text: str) -> str:
    """Text with every character that LaTeX takes for a command written out."""
    return "".join(_ESCAPED.get(character, character) for character in text)
