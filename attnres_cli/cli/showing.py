"""What `attnres report` shows of a study: printed, written or drawn."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

from attnres_cli.cli.options import PAPER, Format
from attnres_cli.config import address
from attnres_cli.config.address import without_passwords
from attnres_cli.console import note, say
from attnres_cli.errors import UsageError
from attnres_cli.lab.study_view import Held
from attnres_cli.records.search_records import Search
from attnres_cli.report import file_formats
from attnres_cli.report.table import Report
from attnres_cli.store.store import Store
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.optima import Finding, find
from attnres_cli.verdict.report_section import Chapter, split
from attnres_cli.verdict.select import Choice

_OTHERS = 3  # recipes that a report names besides its own


def _show(report: Report, form: Format, out: TextIO, more: Sequence[str] = ()) -> None:
    """Print a report at a glance, and what to type for the rest of it."""
    typed = without_passwords(shlex.join(["attnres", *sys.argv[1:]]))
    page = f"Page: {typed} --format html --output report.html"
    file_formats.glance(report, form, out, *more, f"Details: {typed} --notes", page)


def _show_or_page(
    report: Report, study: str, form: Format, out: TextIO, show: Callable[..., None] = _show
) -> None:
    """Print a report, or write its page."""
    if form is Format.HTML:
        from attnres_cli.report.html import page_of

        out.write(page_of(report, address.parted(study)[0]))
    else:
        show(report, form, out)


def show_sides(
    held: Held, recipes: Sequence[str], codes: Sequence[str], form: Format, out: TextIO
) -> None:
    """Print or write two recipes side by side. Raises UsageError where more are named."""
    from attnres_cli.report.two_recipes import report_of

    if len(recipes) > 2:
        raise UsageError(f"--recipe takes one or two recipes, got {len(recipes)}")
    _show_or_page(report_of(*held.sides(recipes, codes)), held.study, form, out)


def show_tasks(held: Held, chosen: Choice, form: Format, out: TextIO) -> None:
    """Print or write what tasks say of the arms of a recipe."""
    from attnres_cli.report.downstream import report_of

    _show_or_page(report_of(held.downstream(chosen)), held.study, form, out)


def show_search(
    search: Search, store: Store, study: str, form: Format, figures: str | None, out: TextIO
) -> None:
    """Print, write or draw a search."""
    from attnres_cli.report.search import report_of

    finding = find(search, store.runs(curves=False))
    if figures is not None:
        _draw(figures, findings=[finding])
    if form is Format.HTML:
        from attnres_cli.report.search_page import to_html

        out.write(to_html([finding], store.recipe, study))
    else:
        _show(report_of(finding, store.recipe, study), form, out)


def say_others(found: Sequence[str]) -> None:
    """What else could be reported, a line each, which fits a terminal."""
    for each in found[:_OTHERS]:
        note(f"also in the study: --recipe {each}")
    if len(found) > _OTHERS:
        note(f"and {len(found) - _OTHERS} recipes more, which a page names (--format html)")


def show_comparisons(
    held: Held,
    shown: Sequence[Choice],
    searches: Sequence[Search],
    form: Format,
    figures: str | None,
    against: str | None,
    out: TextIO,
) -> None:
    """Print, write or draw the comparisons of one recipe or of several."""
    from attnres_cli.report import against as beside
    from attnres_cli.report.answer import to_decide, unanswerable
    from attnres_cli.report.comparison import report_of

    is_page = form is Format.HTML
    whole = figures is not None or (is_page and against is None)
    chapters = [each for chosen in shown for each in held.chapters(chosen, whole=whole)]
    comparisons = [chapter.comparison for chapter in chapters]
    if form is Format.CSV and (why := unanswerable(comparisons[0])):
        say(why)  # lines of numbers do not
    ladders = held.every_ladder(shown) if whole else []
    runs = held.store.runs(curves=False) if whole and searches else []
    findings = [find(search, runs) for search in searches] if whole else []
    if figures is not None:
        _draw(figures, split(chapters)[0], ladders, findings)
    if against == PAPER:
        _show_or_page(beside.report_of(comparisons), held.study, form, out)
    elif against is not None:
        report = beside.report_of_other(against, comparisons)
        _show_or_page(report, held.study, form, out, file_formats.show)
    elif is_page:
        from attnres_cli.report.page import to_html

        out.write(to_html(chapters, ladders, findings, held.store.recipe))
    else:
        (first, *others), more = comparisons, []
        if not others and form is Format.TABLE:
            more = to_decide(first, held.store.recipe(first.recipe_digest), held.study)
        _show(report_of(comparisons), form, out, more)


def show_ladders(
    found: Sequence[Ladder], study: str, form: Format, figures: str | None, out: TextIO
) -> None:
    """Print, write or draw what the sizes of a recipe say together, on each of its terms."""
    from attnres_cli.report import scaling

    if figures is not None:
        _draw(figures, ladders=found)
    if form is Format.HTML:
        from attnres_cli.report.figures.drawing import of_sizes
        from attnres_cli.report.html import page_of

        figures_of = [of_sizes(each) for each in found]
        out.write(page_of(scaling.report_of(found), address.parted(study)[0], figures_of))
    else:
        _show(scaling.report_of(found), form, out)


def _draw(
    where: str,
    chapters: Sequence[Chapter] = (),
    ladders: Sequence[Ladder] = (),
    findings: Sequence[Finding] = (),
) -> None:
    """Draw all figures of these into files, and say which."""
    from attnres_cli.report.figures.drawing import save_figures

    paths = save_figures(where, chapters, ladders, findings)
    names = ", ".join(path.name for path in paths)
    note(f"figures in {paths[0].parent}: {names}" if paths else "no figures: no run has ended")
