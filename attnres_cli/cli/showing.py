"""What `attnres report` shows of a study: printed, written or drawn."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

import typer

from attnres_cli.cli.options import PAPER, Format, opened
from attnres_cli.cli.report import Reporting
from attnres_cli.config import address
from attnres_cli.config.address import without_passwords
from attnres_cli.config.as_typed import is_searched
from attnres_cli.console import note, say
from attnres_cli.errors import AwayError, StudyError
from attnres_cli.lab.search import studies
from attnres_cli.lab.study_view import Held
from attnres_cli.records.run import FIRST_TUNING_SEED, RunRecord
from attnres_cli.records.search_records import Search
from attnres_cli.report import file_formats
from attnres_cli.report.table import Report, joined
from attnres_cli.store.store import Store
from attnres_cli.verdict.ladder import Ladder
from attnres_cli.verdict.numbers import plural
from attnres_cli.verdict.optima import find
from attnres_cli.verdict.report_section import split
from attnres_cli.verdict.select import Choice

if TYPE_CHECKING:
    from attnres_cli.report.figures.drawing import Drawing
    from attnres_cli.stats.effects import Effect

Figures = Callable[[Any], Sequence[Sequence["Drawing"]]]
"""Draws those of each report with the module `figures.drawing`, which takes a second to import."""

_OTHERS = 3  # recipes that a report names besides its own
_OF_RECIPES = ("--scaling", "--against", "--downstream")


def preregister(path: str, study: str) -> None:
    """Write what the file says into the study, and say so. Raises as `parts.fix`."""
    from attnres_cli.cli.parts import fix

    for found, recipe in fix(path, study):
        typer.echo(
            f"preregistered {found.digest}: {plural(len(found.arms), 'arm')} x "
            f"{plural(len(found.seeds), 'seed')} under recipe {recipe.name} ({recipe.digest}) in "
            f"study {study}; reports label all else as exploratory"
        )


def write(asked: Reporting) -> None:
    """Print what is asked, or write it into a file and say so."""
    if asked.output is None:
        _Shown(asked, sys.stdout).show()
        return
    from attnres_cli.report.file_formats import write as keep

    out = StringIO()
    _Shown(asked, out).show()
    content = out.getvalue().encode()
    keep(asked.output, content, "--output")
    typer.echo(f"{asked.output}  {len(content):,} bytes")


class _Shown:
    """A report of a study into a stream."""

    def __init__(self, asked: Reporting, out: TextIO) -> None:
        self.asked, self.out = asked, out
        self.store = opened(asked.study)
        self.records = self.store.runs(curves=False)
        self.study_name = address.parted(asked.study)[0]

    def show(self) -> None:
        """Of two recipes, a search, or what one recipe or all are asked for."""
        asked, recipe, records = self.asked, self.asked.recipe, self.records
        searches = _searches(self.store, asked.study, records)
        if len(asked.recipes or ()) > 1:
            self._sides()
            return
        if searched := _asked_for(searches, recipe, records):
            asked.refuse(
                f"{{}} is of recipes, and {searched.name} is a search: --recipe names one that "
                "`attnres ablate` has trained",
                *_OF_RECIPES, "--code", "VARIANT",
            )  # fmt: skip
            self._search(searched)
            return
        if recipe is None:
            records = [record for record in records if not is_searched(record.recipe)]
        held = Held(self.store, asked.study, records, asked.margin, asked.variants or ())
        others, named = searches if recipe is None else [], (recipe, asked.baseline, asked.codes)
        if asked.downstream:
            of_losses = ("--margin", "--figures", "--against", "--scaling")
            asked.refuse("{} is of losses, --downstream of tasks", *of_losses)
            self._tasks(held, held.choose(*named))
        elif asked.scaling:
            asked.refuse("{} is of one size, --scaling of all: leave one out", "--against")
            self._ladders(held.ladders(held.choose(*named)))
        elif asked.is_page and asked.against is None:
            self._comparisons(held, held.every(*named), others)
        else:
            chosen = held.choose(*named)
            _say_others((*chosen.others, *(f"{each.name} (a search)" for each in others)))
            self._comparisons(held, [chosen], others)

    def _put(
        self,
        report: Callable[[], Report],
        page: Callable[[], str] | None = None,
        more: Sequence[str] = (),
        figures: Figures = lambda _: [],
    ) -> None:
        """Write the page if one is asked for, that of the report with its figures unless another is
        given; else the report at a glance and what to type for the rest of it.
        """
        if self.asked.is_page:
            self.out.write(page() if page else self._page_of(report(), figures))
            return
        typed = without_passwords(shlex.join(["attnres", *sys.argv[1:]]))
        more = [*more, f"Details: {typed} --notes"]
        more += [f"Page: {typed} --format html --output report.html"]
        file_formats.glance(report(), self.asked.form, self.out, *more)

    def _page_of(self, report: Report, figures: Figures = lambda _: []) -> str:
        from attnres_cli.report.figures import drawing
        from attnres_cli.report.html import page_of

        return page_of(report, self.study_name, figures(drawing))

    def _draw(self, **drawn: Any) -> None:
        """Draw all figures of these, as `save_figures` takes them, into files if they are asked
        for, and say which.
        """
        if self.asked.figures is None:
            return
        from attnres_cli.report.figures.drawing import save_figures

        paths = save_figures(self.asked.figures, **drawn)
        names = ", ".join(path.name for path in paths)
        note(f"figures in {paths[0].parent}: {names}" if paths else "no figures: no run has ended")

    def _sides(self) -> None:
        """Several recipes together."""
        from attnres_cli.cli.side_by_side import side_by_side

        held = Held(self.store, self.asked.study, self.records, arms=self.asked.variants or ())
        reports, texts = side_by_side(self.asked, held)
        self._draw(texts=texts)
        self._put(lambda: joined(reports), figures=lambda d: [d.of_texts(one) for one in texts])

    def _tasks(self, held: Held, chosen: Choice) -> None:
        """What tasks say of the arms of a recipe."""
        from attnres_cli.report.downstream import report_of

        self._put(lambda: report_of(held.downstream(chosen)))

    def _of_designs(self, search: Search) -> tuple[Report, list[Effect]]:
        """What a search over designs has found, and what each choice changed."""
        from attnres_cli.cli.search_designs import compared
        from attnres_cli.report import search_designs

        found = compared(search, self.store, self.asked.study, self.records)
        report = search_designs.report_of(search, self.records, found)
        return report, search_designs.effects_of(search)

    def _search_of_designs(self, search: Search) -> None:
        report, changed = self._of_designs(search)
        self._draw(effects=changed)
        self._put(lambda: report, figures=lambda d: [d.of_effects(changed)])

    def _search(self, search: Search) -> None:
        if search.designs is not None:
            self._search_of_designs(search)
            return
        from attnres_cli.report.search import report_of

        finding, known = find(search, self.records), self.store.recipe
        self._draw(findings=[finding])

        def page() -> str:
            from attnres_cli.report.search_page import to_html  # with matplotlib, as below

            return to_html(finding, known, self.asked.study)

        self._put(lambda: report_of(finding, known, self.asked.study), page)

    def _ladders(self, found: Sequence[Ladder]) -> None:
        """What the sizes of a recipe say together, on each of its terms."""
        from attnres_cli.report import scaling

        self._draw(ladders=found)
        report = partial(scaling.report_of, found)
        self._put(report, figures=lambda d: [d.of_sizes(each) for each in found])

    def _comparisons(self, held: Held, shown: Sequence[Choice], searches: Sequence[Search]) -> None:
        """The comparisons of one recipe or of several."""
        from attnres_cli.report import against
        from attnres_cli.report.answer import to_decide, unanswerable
        from attnres_cli.report.comparison import report_of

        asked = self.asked
        whole = asked.figures is not None or (asked.is_page and asked.against is None)
        chapters = [each for chosen in shown for each in held.chapters(chosen, whole=whole)]
        comparisons = held.kept([chapter.comparison for chapter in chapters])
        ladders = held.every_ladder(shown) if whole else []
        first, *others = comparisons = held.kept(comparisons)  # beside those of the ladders
        pairs = zip(chapters, comparisons, strict=True)
        chapters = [replace(chapter, comparison=one) for chapter, one in pairs]
        if asked.form is Format.CSV and (why := unanswerable(first)):
            say(why)  # lines of numbers do not
        shapes = [search for search in searches if search.designs is None]
        findings = [find(search, self.records) for search in shapes] if whole else []
        if asked.figures is not None:
            self._draw(chapters=split(chapters)[0], ladders=ladders, findings=findings)

        def page() -> str:
            from attnres_cli.report.page import to_html

            of_designs = [self._of_designs(each) for each in searches if each.designs is not None]
            return to_html(chapters, ladders, findings, held.store.recipe, of_designs)

        if asked.against is None:
            more = []
            if not others and asked.form is Format.TABLE:
                recipe = held.store.recipe(first.recipe_digest, first.data.fingerprint)
                margin = [] if asked.margin is None else ["--margin", asked.margin]
                more = to_decide(first, recipe, held.study, *margin)
            self._put(lambda: report_of(comparisons), page, more)
        elif asked.against == PAPER:
            self._put(lambda: against.report_of(comparisons))
        else:
            report = against.report_of_other(asked.against, comparisons)
            if asked.is_page:
                self.out.write(self._page_of(report))
            else:
                file_formats.show(report, asked.form, self.out)


def _say_others(found: Sequence[str]) -> None:
    """What else could be reported, a line each, which fits a terminal."""
    for each in found[:_OTHERS]:
        note(f"also in the study: --recipe {each}")
    if len(found) > _OTHERS:
        note(f"and {len(found) - _OTHERS} recipes more, which a page names (--format html)")


def _searches(store: Store, study: str, records: Sequence[RunRecord]) -> list[Search]:
    """The searches of the study; none where they cannot be read, which is said, if it has more."""
    if not store.has_searches():
        return []
    try:
        return studies.read(study)
    except StudyError as error:  # as of another Optuna
        if isinstance(error, AwayError) or all(is_searched(each.recipe) for each in records):
            raise
        say(f"{error}; reported without")
        return []


def _asked_for(
    searches: Sequence[Search], recipe: str | None, records: Sequence[RunRecord]
) -> Search | None:
    """The search of that name; without a name the newest, where the study holds nothing else."""
    if recipe is not None:
        return next((each for each in searches if each.name == recipe), None)
    only = all(is_searched(r.recipe) or r.seed >= FIRST_TUNING_SEED for r in records)
    return searches[-1] if searches and only else None
