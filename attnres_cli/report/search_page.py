"""A search as part of a page, as a page of its own, and as figures in files."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from attnres_cli.config import address
from attnres_cli.records.search_records import Search
from attnres_cli.report import markup
from attnres_cli.report.figures import picture
from attnres_cli.report.figures.search import drawings
from attnres_cli.report.files import places, write
from attnres_cli.report.search import heading, table_of
from attnres_cli.report.search_commands import RecipeOf, commands
from attnres_cli.report.search_words import LOWEST, answer, failures, notes, question, title
from attnres_cli.verdict.optima import Finding
from attnres_cli.verdict.shape_results import Optimum

_WORDS = ("best", "front", "options")


def to_html(findings: Sequence[Finding], known: RecipeOf | None, study: str) -> str:
    """A page of one search or several.

    Args:
        findings: one or more.
        known: gives the study's recipe of a digest.
        study: the file or URL, as it was typed.

    """
    heads = [question(finding) for finding in findings]
    answers = "".join(
        f"<p class='answer'>{markup.code(answer(finding))}</p>\n" for finding in findings
    )
    parts = [part(each, known, study, number) for number, each in enumerate(findings, 1)]
    return markup.document(
        f"attnres: {title(findings[0].search)}",
        heads[0] if len(findings) == 1 else f"{len(findings)} searches of shapes",
        answers + "".join(parts),
        address.parted(study)[0],
    )


def save_figures(findings: Sequence[Finding], where: str) -> list[Path]:
    """Draw all figures of all searches into files, `search-shapes.svg` and so on; their paths.

    The name of a search stands in those of its files where there are several searches.

    Raises:
        UsageError: as `files.places` and `files.write`.

    """
    folder, begin, suffix = places(where)
    written = []
    for finding in findings:
        of = f"search-{finding.search.name}-" if len(findings) > 1 else "search-"
        for drawing in drawings(finding):
            path = folder / f"{begin}{of}{drawing.name}{suffix}"
            write(path, picture(drawing, suffix), "--figures")
            written.append(path)
    return written


def of_page(finding: Finding, name: str) -> str:
    """The answer of a search at the beginning of a page that has its part under that name."""
    lead = f"<strong><a href='#{name}'>{escape(title(finding.search))}</a>.</strong> "
    return f"<p class='answer'>{lead}{markup.code(answer(finding))}</p>\n"


def part(finding: Finding, known: RecipeOf | None, study: str, number: int) -> str:
    """A search as a part of any page: tables, figures, what they rest on, how to reproduce.

    Args:
        finding: of the search.
        known: gives the study's recipe of a digest.
        study: the file or URL, as it was typed.
        number: of the part on its page; its names begin with `s` and the number.

    """
    failed = [
        (f"<code>{escape(variant)}</code>", escape(shape), escape(error))
        for variant, shape, error in failures(finding)
    ]
    drawn = markup.figures(drawings(finding), f"s{number}-")
    typed = [
        (escape(name), f"<code>{escape(words)}</code>")
        for name, words in commands(finding, known, study)
    ]
    told = (
        "What trains the best shape of a variant again, on all seeds, in a study of its own; and "
        "what trains runs that are missing, in this one."
    )
    html = [
        *(_table(one, finding.search) for one in finding.optima),
        markup.section("Figures", drawn) if drawn else "",
        markup.section(
            "Failed runs",
            markup.table(
                "Runs that came to nothing: first looks, and of fresh seeds.",
                ("variant", "shape", "error"),
                failed,
                left=("shape", "error"),
            ),
        )
        if failed
        else "",
        markup.section("What this rests on", markup.listed(notes(finding))),
        markup.section("Reproduce", markup.table(told, ("what", "command"), typed, prose=True))
        if typed
        else "",
    ]
    return markup.part(title(finding.search), "".join(html), f"s{number}")


def _table(one: Optimum, search: Search) -> str:
    name, (head, rows) = one.family.variant, table_of(one, search)
    if not rows:
        return f"<p>No trial of <code>{escape(name)}</code> is complete.</p>\n"
    caption = f"{heading(one, search)}; 95 % t interval over fresh seeds."
    escaped = [[_cell(cell) for cell in row] for row in rows]
    return markup.section(name, markup.table(caption, head, escaped, left=_WORDS))


def _cell(text: str) -> str:
    return f"<strong>{text}</strong>" if text == LOWEST else escape(text)
