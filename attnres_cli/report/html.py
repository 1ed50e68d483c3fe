"""A report as one HTML file: nothing from elsewhere, figures and styles within it. Its script sorts
tables; without it nothing is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnres_cli import __version__
from attnres_cli.console import harmless
from attnres_cli.report.figures.drawing import Drawing, picture
from attnres_cli.report.table import MOST_CAVEATS, Report, Table, but, capital

RESTS_ON = "what it rests on"
"""Above folded notes."""


@dataclass(frozen=True)
class Part:
    """What stands under one heading of a section, folded behind `summary` if it has one."""

    title: str = ""
    figures: Sequence[Drawing] = ()
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    summary: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Section:
    """A section of a page. Links reach it by `#name`. A page of one `answer` begins with it and
    what it is `qualified` by. One of several begins with cards, which have the table `card` or the
    last figure; a section for which another answers (`is_rung`) has none.
    """

    title: str
    name: str
    parts: Sequence[Part] = ()
    answer: str = ""
    qualified: Sequence[str] = ()
    is_rung: bool = False
    card: Table | None = None

    @property
    def figures(self) -> list[Drawing]:
        """Those of all parts."""
        return [drawing for part in self.parts for drawing in part.figures]

    @property
    def shown(self) -> list[Part]:
        """The parts that have something."""
        parts = [replace(part, tables=[t for t in part.tables if t.rows]) for part in self.parts]
        return [part for part in parts if part.tables or part.figures or part.text or part.notes]


def section_of(report: Report, name: str, figures: Sequence[Drawing] = ()) -> Section:
    """A report as a section: its answer, or its text and caveats; figures, tables, notes."""
    answer = (report.document or {}).get("answer", "")
    parts = [
        Part(text=() if answer else [*report.text, *but(report.caveats)]),
        Part("Figures", figures=figures),
        Part(tables=report.tables),
        Part("Notes", notes=report.notes, summary=RESTS_ON),
    ]
    qualified = report.caveats if answer else ()
    return Section(capital(report.title), name, parts, answer, qualified)


def page_of(report: Report, study_name: str, figures: Sequence[Sequence[Drawing]] = ()) -> str:
    """A page of a report and those below it, each with its figures where there are any."""
    every = list(report)
    drawn = [*figures, *[()] * (len(every) - len(figures))]
    pairs = zip(every, drawn, strict=True)
    sections = [section_of(one, f"r{n}", of) for n, (one, of) in enumerate(pairs, 1)]
    return page(f"attnres: {report.title}", report.question, sections, study_name)


def page(title: str, heading: str, sections: Sequence[Section], study_name: str) -> str:
    """A whole page: all answers, then the sections. `title` is of the window, `heading` the one
    `h1`, `study_name` the study as anyone may see it.
    """
    files = Environment(
        loader=PackageLoader("attnres_cli.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: harmless(value) if type(value) is str else value,
        keep_trailing_newline=True,
    )
    files.filters |= {"prose": prose, "svg": svg, "capital": capital, "but": but}
    answers = [each for each in sections if each.answer or each.qualified]
    has_cards = len(answers) > 1
    if has_cards:
        answers = [each for each in answers if not each.is_rung]
    qualified = [each.qualified for each in answers]
    return files.get_template("page.html.j2").render(
        title=title,
        heading=heading,
        answers=answers,
        in_common=[line for line in qualified[0] if all(line in other for other in qualified)]
        if len(answers) > 1
        else [],
        has_cards=has_cards,
        most_caveats=MOST_CAVEATS,
        sections=sections,
        study=study_name,
        version=__version__,
    )


def prose(text: str) -> Markup:
    """Text as HTML, with what stands in backquotes as code."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(harmless(text))))
    return Markup(html)  # noqa: S704


def svg(drawing: Drawing, name: str) -> Markup:
    """A figure in its page: its title and caption are also read aloud in its place."""
    drawn = picture(drawing, ".svg").decode()
    drawn = drawn[drawn.index("<svg ") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, count=1, flags=re.DOTALL)
    # Every file numbers its parts from 1 on; in one page names must differ, and few are needed.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', drawn))
    drawn = re.sub(r'\bid="([^"]+)"', lambda match: match[0] if match[1] in used else "", drawn)
    drawn = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", drawn)
    begin = (
        f"<svg role='img' aria-labelledby='{name}-title {name}-told' "
        f"style='max-width:{drawing.figure.get_figwidth() * 96:.0f}px' "
    )
    told = (
        f"<title id='{name}-title'>{escape(drawing.title)}</title>"
        f"<desc id='{name}-told'>{escape(drawing.told)}</desc>"
    )
    end = drawn.index(">") + 1
    return Markup(drawn[:end].replace("<svg ", begin, 1) + told + drawn[end:])  # noqa: S704
