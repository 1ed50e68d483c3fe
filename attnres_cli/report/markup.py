"""What pages are built of: a document, sections, tables and figures, as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from attnres_cli import __version__
from attnres_cli.verdict.labels import capital

if TYPE_CHECKING:
    from attnres_cli.report.figures import Drawing

Cells = Sequence[str]
"""Of a table's row, already HTML."""


def document(title: str, heading: str, body: str, study_name: str) -> str:
    """A whole page: one file, no script, nothing from elsewhere.

    Args:
        title: of the window.
        heading: the page's one `h1`.
        body: what stands below it, already HTML.
        study_name: the study as anyone may see it.

    """
    style = (files("attnres_cli.report") / "page.css").read_text(encoding="utf-8")
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(heading)}</h1>\n{body}"
        f"</main>\n<footer><p>Made by attnres {__version__} from the study "
        f"{escape(study_name)}.</p></footer>\n</body>\n</html>\n"
    )


def part(title: str, html: str, name: str) -> str:
    """A part of a page, with its heading; links reach it by `#name`."""
    return f"<section id='{name}'>\n<h2>{escape(capital(title))}</h2>\n{html}</section>\n"


def section(title: str, html: str) -> str:
    """A section of a part."""
    return f"<h3>{escape(title)}</h3>\n{html}\n"


def code(text: str) -> str:
    """Text as HTML, with what stands in backquotes as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def listed(lines: Iterable[str]) -> str:
    """A list of lines of text."""
    return f"<ul>{''.join(f'<li>{code(line)}</li>' for line in lines)}</ul>\n"


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Cells],
    *,
    prose: bool = False,
    left: Sequence[str] = (),
) -> str:
    """A table whose first column names its rows; it scrolls by itself where it is too wide.

    Args:
        caption: text, read aloud too.
        head: a title per column.
        rows: their cells.
        prose: whether cells hold text that may take several lines.
        left: titles of columns besides the first that hold words.

    """
    aligned = [" class='word'" if name in left else "" for name in head]
    columns = "".join(
        f"<th scope='col'{kind}>{escape(name)}</th>"
        for name, kind in zip(head, aligned, strict=True)
    )
    body = "".join(
        f"<tr><th scope='row'>{first}</th>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(rest, aligned[1:], strict=True))
        + "</tr>\n"
        for first, *rest in rows
    )
    kind = " class='prose'" if prose else ""
    return (
        f"<div class='wide' role='group' aria-label='{escape(caption, quote=True)}' tabindex='0'>"
        f"<table{kind}><caption><span>{code(caption)}</span></caption>\n"
        f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def figures(drawings: Iterable[Drawing], prefix: str) -> str:
    """Figures beside each other as far as there is room; empty of none."""
    drawn = "".join(_figure(drawing, prefix) for drawing in drawings)
    return f"<div class='figures'>{drawn}</div>" if drawn else ""


def _figure(drawing: Drawing, prefix: str) -> str:
    """A figure in its page: its title and caption are also read aloud in its place."""
    from attnres_cli.report.figures import picture

    svg = picture(drawing, ".svg").decode()
    name = prefix + drawing.name
    svg = svg[svg.index("<svg ") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    # Every file numbers its parts from 1 on; in one page names must differ, and few are needed.
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg))
    svg = re.sub(r'\bid="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)
    svg = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    open_tag = (
        f"<svg role='img' aria-labelledby='{name}-title {name}-told' "
        f"style='max-width:{drawing.figure.get_figwidth() * 96:.0f}px' "
    )
    told = (
        f"<title id='{name}-title'>{escape(drawing.title)}</title>"
        f"<desc id='{name}-told'>{escape(drawing.caption)}</desc>"
    )
    svg = svg.replace("<svg ", open_tag, 1)
    end = svg.index(">") + 1
    return (
        f"<figure id='{name}'><h4>{escape(drawing.title)}</h4>\n{svg[:end]}{told}{svg[end:]}"
        f"<figcaption>{code(drawing.caption)}</figcaption></figure>\n"
    )
