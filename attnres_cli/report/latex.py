"""A comparison as LaTeX: a booktabs table, with what it is of in the caption."""

from __future__ import annotations

import math

from attnres_cli.report import terms
from attnres_cli.report.comparison import ArmResult, Comparison
from attnres_cli.report.export import word_text

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
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_table(each) for each in comparisons)


def _table(comparison: Comparison) -> str:
    rows = [" & ".join(_cells(arm)) + r" \\" for arm in comparison.arms]
    rows = rows or [rf"\multicolumn{{{len(_HEAD)}}}{{l}}{{no run has ended}} \\"]
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_caption(comparison)}}}",
        r"  \begin{tabular}{@{}lrrlrrr@{}}",
        r"    \toprule",
        "    " + " & ".join(_HEAD) + r" \\",
        r"    \midrule",
        *(f"    {row}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
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
    title = terms.title(comparison)
    tokens = f" {terms.tokens(comparison)};" if comparison.arms else ""
    versions = "; ".join(comparison.versions)
    return escaped(
        f"{title[0].upper()}{title[1:]} ({comparison.recipe_digest});{tokens} validation loss in "
        "nats per token, mean ± standard deviation over seeds; difference from "
        f"{comparison.baseline}, paired by seed, with its 95 % t interval; verdicts by the paired "
        f"t test at p < 0.05 after Holm's correction. {versions}."
    )


def escaped(text: str) -> str:
    """Text with every character that LaTeX takes for a command written out."""
    return "".join(_ESCAPED.get(character, character) for character in text)
