"""What a page has beside its comparisons: what sizes say together, and the paper's numbers. Both
are pages of their own too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from attnres_cli.report import against, answer, scaling
from attnres_cli.report.figures import of_sizes
from attnres_cli.report.markup import code, document, figures, listed, part, section, table
from attnres_cli.verdict.chapter import Chapter
from attnres_cli.verdict.labels import capital, title
from attnres_cli.verdict.ladder import Ladder


def over_sizes(found: Ladder, name: str) -> str:
    """The part of a page about a ladder: its figure, what each arm is worth, the sizes, notes."""
    sizes, worth = (
        table(
            f"{capital(told)}.",
            head,
            ([f"<code>{escape(row[0])}</code>", *map(escape, row[1:])] for row in rows),
        )
        for told, head, rows in scaling.tables(found)
    )
    html = section("Figure", figures([of_sizes(found)], f"{name}-"))
    html += section("Fits", worth + listed(scaling.notes(found)))
    return part(scaling.title(found), html + section("The sizes", sizes), name)


def scaling_page(found: Ladder, study_name: str) -> str:
    """A page about a ladder alone."""
    comparison = found.rungs[0].comparison
    heading = f"What is a residual connection worth in the compute of {comparison.baseline}?"
    told = f"<p class='answer'>{code(answer.over_sizes(found))}</p>\n"
    return document(
        f"attnres: {scaling.title(found)}", heading, told + over_sizes(found, "s1"), study_name
    )


def beside_paper(
    chapters: Sequence[Chapter], titles: Sequence[str], paper: Mapping[str, Any], name: str
) -> str:
    """The part of a page with every comparison beside the paper, and notes; empty where the paper
    has no arm of any besides its baseline.
    """
    html, notes = "", dict[str, None]()
    for chapter, told in zip(chapters, titles, strict=True):
        comparison = chapter.comparison
        if against.is_known(comparison, paper):
            rows = [
                [f"<code>{escape(row.arm.variant)}</code>", *map(escape, against.cells(row))]
                for row in against.beside(comparison, paper)
            ]
            caption = f"{capital(told)}: differences from {comparison.baseline}, nats per token."
            html += table(caption, against.COLUMNS, rows, left=against.COLUMNS[-1:])
            notes |= dict.fromkeys(against.notes(comparison, paper))
    return part("beside the paper", html + listed(notes), name) if html else ""


def paper_page(chapters: Sequence[Chapter], paper: Mapping[str, Any]) -> str:
    """A page of one recipe's comparisons beside the paper alone.

    Raises:
        UsageError: the paper does not have the baseline.

    """
    comparisons = [chapter.comparison for chapter in chapters]
    for comparison in comparisons:
        against.beside(comparison, paper)
    titles = [title(comparison) for comparison in comparisons]
    first, baseline = chapters[0], comparisons[0].baseline
    html = beside_paper(chapters, titles, paper, "paper")
    why = answer.unanswerable(comparisons[0])
    if not html and not why:
        why = (
            f"The paper has none of these arms besides `{baseline}`: `attnres ablate --suite "
            "table4` trains those that it has."
        )
    html = (f"<p class='answer'>{code(why)}</p>\n" if why else "") + html
    heading = f"Do these differences from {baseline} agree with the paper's?"
    return document(f"attnres: {titles[0]}, beside the paper", heading, html, first.study_name)
