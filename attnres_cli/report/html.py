"""A report as one HTML file: no script, nothing from elsewhere, figures and styles within it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from attnres_cli import __version__
from attnres_cli.console import harmless
from attnres_cli.report.figures.drawing import Drawing, picture
from attnres_cli.report.table import Table, but, capital

_MOST_ANSWERS = 6  # of a page that begins with all that they must be read with


@dataclass(frozen=True)
class Part:
    """What stands under one heading of a section; behind `summary`, if it has one, to be opened.
    Tables without rows are left out, and so is a part without anything.
    """

    title: str = ""
    figures: Sequence[Drawing] = ()
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    summary: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class Section:
    """A section of a page. Links reach it by `#name`. Its `answer` stands at the page's beginning,
    with what it is `qualified` by, and a link if it `is_linked`; on a page of many answers in the
    section too, and there alone if another section answers for it (`is_rung`). Without parts it
    has its answer alone.
    """

    title: str
    name: str
    parts: Sequence[Part] = ()
    answer: str = ""
    is_linked: bool = False
    qualified: Sequence[str] = ()
    is_rung: bool = False

    @property
    def shown(self) -> list[Part]:
        """The parts that have something."""
        parts = [replace(part, tables=[t for t in part.tables if t.rows]) for part in self.parts]
        return [part for part in parts if part.tables or part.figures or part.text or part.notes]


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
    is_long = len(answers) > _MOST_ANSWERS
    if is_long:
        answers = [each for each in answers if not each.is_rung]
    css = files.get_template("page.css").render()
    return files.get_template("page.html.j2").render(
        title=title,
        heading=heading,
        answers=answers,
        in_common=_in_common(answers) if is_long else [],
        is_long=is_long,
        sections=sections,
        study=study_name,
        version=__version__,
        css=_markup(css),
    )


def _in_common(answers: Sequence[Section]) -> list[str]:
    """What qualifies every one of them."""
    first, *others = [each.qualified for each in answers]
    return [line for line in first if all(line in other for other in others)]


def _markup(text: str) -> Markup:
    return Markup(text)  # noqa: S704


def prose(text: str) -> Markup:
    """Text as HTML, with what stands in backquotes as code."""
    return _markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(harmless(text)))))


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
        f"<desc id='{name}-told'>{escape(drawing.caption)}</desc>"
    )
    end = drawn.index(">") + 1
    return _markup(drawn[:end].replace("<svg ", begin, 1) + told + drawn[end:])
