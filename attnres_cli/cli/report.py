"""`attnres report`: the verdict from the study alone, printed, written or drawn."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli.cli.options import Baseline, Format, Margin, Plugins, Study, one_of, word
from attnres_cli.config import address, complete
from attnres_cli.console import note, say
from attnres_cli.errors import AwayError, StudyError, UsageError

if TYPE_CHECKING:
    from attnres_cli.lab.held import Held
    from attnres_cli.records.run import RunRecord
    from attnres_cli.records.search_records import Search
    from attnres_cli.store.store import Store
    from attnres_cli.verdict.chapter import Chapter
    from attnres_cli.verdict.ladder import Ladder
    from attnres_cli.verdict.optima import Finding
    from attnres_cli.verdict.select import Choice

_OTHERS = 3  # recipes that a report names besides its own


Rows = Annotated[
    list[str] | None,
    typer.Argument(
        help="Arms whose rows are shown, judged with all others. Default: all.",
        autocompletion=complete.specs,
    ),
]
Recipes = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        help="Name or digest, or name of a search. Default: the newest recipe. Two: side by side.",
    ),
]
AnyFormat = Annotated[Format, one_of(*Format)]
Output = Annotated[
    Path | None, typer.Option(help="File to write instead of printing.", show_default=False)
]
Figures = Annotated[
    str | None,
    typer.Option(
        help="Folder to draw figures into, as SVG; or folder/name.png, .pdf or .svg.",
        show_default=False,
    ),
]
Against = Annotated[
    str | None, word("--against", "paper: its numbers beside yours, in the same format.", ["paper"])
]
Scaling = Annotated[
    bool,
    typer.Option("--scaling", help="Fits over the sizes of this recipe: what an arm is worth."),
]
Tasks = Annotated[
    bool, typer.Option("--downstream", help="What tasks say of every arm: see attnres evaluate.")
]
Preregister = Annotated[
    str | None, typer.Option(help="YAML file that fixes a comparison before its first run.")
]
CodeDigest = Annotated[
    str | None,
    typer.Option(
        help="Start of a digest of code, as attnres runs has it. Default: the newest runs'.",
        show_default=False,
    ),
]


def report(
    variants: Rows = None,
    study: Study = address.DEFAULT,
    recipes: Recipes = None,
    baseline: Baseline = "standard",
    margin: Margin = None,
    form: AnyFormat = Format.TABLE,
    output: Output = None,
    figures: Figures = None,
    against: Against = None,
    scaling: Scaling = False,
    downstream: Tasks = False,
    preregister: Preregister = None,
    code: CodeDigest = None,
    _plugin: Plugins = None,
) -> None:
    """Print the verdict from the study alone, or write it, with figures; nothing is trained."""
    from attnres_cli.lab.held import Held
    from attnres_cli.records.search_records import is_searched
    from attnres_cli.store.store import Store

    if preregister is not None:
        _preregister(preregister, study)
        return
    store = Store.open(study, create=False)
    records = store.runs(curves=False)
    searches = _searches(store, study, records)
    out: TextIO = sys.stdout if output is None else StringIO()
    names, codes = recipes or [], [] if code is None else [code]
    recipe = names[0] if names else None
    of_recipe = {"--scaling": scaling, "--against": against, "--downstream": downstream}
    if len(names) > 1:
        of_one = {"--margin": margin, "--figures": figures, "--baseline": baseline != "standard"}
        _refuse(of_recipe | of_one, "is of one recipe, and several are named: leave it out")
        held = Held(store, study, records, arms=variants or ())
        _show_sides(held, names, codes, form, out)
        _keep(out, output)
        return
    if searched := _asked_for(searches, recipe, records):
        _refuse(
            of_recipe | {"--code": code, "VARIANT": variants},
            f"is of recipes, and {searched.name} is a search: --recipe names one that "
            "`attnres ablate` has trained",
        )
        _show_search(searched, store, study, form, figures, out)
        _keep(out, output)
        return
    if recipe is None:
        records = [record for record in records if not is_searched(record.recipe)]
    held = Held(store, study, records, margin, variants or ())
    others, asked = searches if recipe is None else [], (recipe, baseline, codes)
    if downstream:
        of_losses = {"--margin": margin, "--figures": figures, "--against": against}
        _refuse(of_losses | {"--scaling": scaling}, "is of losses, --downstream of tasks")
        _show_tasks(held, held.choose(*asked), form, out)
    elif scaling:
        _show_ladder(held.ladder(held.choose(*asked)), study, form, figures, out)
    elif form is Format.HTML and against is None:
        _show_comparisons(held, held.every(*asked), others, form, figures, against, out)
    else:
        chosen = held.choose(*asked)
        _say_others((*chosen.others, *(f"{each.name} (a search)" for each in others)))
        _show_comparisons(held, [chosen], others, form, figures, against, out)
    _keep(out, output)


def _refuse(typed: Mapping[str, object], why: str) -> None:
    """Raise UsageError where one of these options was typed."""
    for option in [name for name, value in typed.items() if value]:
        raise UsageError(f"{option} {why}")


def _show_sides(
    held: Held, recipes: Sequence[str], codes: Sequence[str], form: Format, out: TextIO
) -> None:
    """Print or write two recipes side by side. Raises UsageError where more are named."""
    from attnres_cli.report import formats, sides

    if len(recipes) > 2:
        raise UsageError(f"--recipe takes one or two recipes, got {len(recipes)}")
    report = sides.report_of(*held.sides(recipes, codes))
    if form is Format.HTML:
        out.write(sides.to_html(report, address.parted(held.study)[0]))
    else:
        formats.show(report, form, out)


def _show_tasks(held: Held, chosen: Choice, form: Format, out: TextIO) -> None:
    """Print or write what tasks say of the arms of a recipe."""
    from attnres_cli.report import downstream, formats

    report = downstream.report_of(held.downstream(chosen))
    if form is Format.HTML:
        out.write(downstream.to_html(report, address.parted(held.study)[0]))
    else:
        formats.show(report, form, out)


def _preregister(path: str, study: str) -> None:
    """Write what the file says into the study, and say so. Raises as `parts.fix`."""
    from attnres_cli.cli.parts import fix
    from attnres_cli.verdict.format import plural

    for found, recipe in fix(path, study):
        sys.stdout.write(
            f"preregistered {found.digest}: {plural(len(found.arms), 'arm')} x "
            f"{plural(len(found.seeds), 'seed')} under "
            f"recipe {recipe.name} ({recipe.digest}) in study {study}; reports label all else as "
            "exploratory\n"
        )


def _keep(out: TextIO, output: Path | None) -> None:
    """Write what was not printed into its file, and say so."""
    if output is not None and isinstance(out, StringIO):
        from attnres_cli.report.files import write

        content = out.getvalue().encode()
        write(output, content, "--output")
        typer.echo(f"{output}  {len(content):,} bytes")


def _searches(store: Store, study: str, records: Sequence[RunRecord]) -> list[Search]:
    """The searches of the study; none where they cannot be read, which is said, if it has more."""
    from attnres_cli.lab.search.studies import read
    from attnres_cli.records.search_records import is_searched

    if not store.has_searches():
        return []
    try:
        return read(study)
    except StudyError as error:  # as of another Optuna
        if isinstance(error, AwayError) or all(is_searched(each.recipe) for each in records):
            raise
        say(f"{error}; reported without")
        return []


def _asked_for(
    searches: Sequence[Search], recipe: str | None, records: Sequence[RunRecord]
) -> Search | None:
    """The search of that name; without a name the newest, where the study holds nothing else."""
    from attnres_cli.records.search_records import is_searched

    if recipe is not None:
        return next((each for each in searches if each.name == recipe), None)
    return searches[-1] if searches and all(is_searched(r.recipe) for r in records) else None


def _show_search(
    search: Search, store: Store, study: str, form: Format, figures: str | None, out: TextIO
) -> None:
    from attnres_cli.report import formats
    from attnres_cli.report.search import report_of
    from attnres_cli.verdict.optima import find

    finding = find(search, store.runs(curves=False))
    if figures is not None:
        _draw(figures, findings=[finding])
    if form is Format.HTML:
        from attnres_cli.report.search_page import to_html

        out.write(to_html([finding], store.recipe, study))
    else:
        formats.show(report_of(finding, store.recipe, study), form, out)


def _say_others(others: Sequence[str]) -> None:
    """What else could be reported, a line each, which fits a terminal."""
    for each in others[:_OTHERS]:
        note(f"also in the study: --recipe {each}")
    if len(others) > _OTHERS:
        note(f"and {len(others) - _OTHERS} recipes more, which a page names (--format html)")


def _show_comparisons(
    held: Held,
    shown: Sequence[Choice],
    searches: Sequence[Search],
    form: Format,
    figures: str | None,
    against: str | None,
    out: TextIO,
) -> None:
    """Print, write or draw the comparisons of one recipe or of several."""
    from attnres_cli.report import formats
    from attnres_cli.report.against import report_of as beside_paper
    from attnres_cli.report.answer import unanswerable
    from attnres_cli.report.comparison import report_of
    from attnres_cli.verdict.chapter import split
    from attnres_cli.verdict.optima import find

    is_page = form is Format.HTML
    whole = figures is not None or (is_page and against is None)
    chapters = [each for chosen in shown for each in held.chapters(chosen, whole=whole)]
    comparisons = [chapter.comparison for chapter in chapters]
    if form is Format.CSV and (why := unanswerable(comparisons[0])):
        say(why)  # lines of numbers do not
    ladders = held.ladders(shown) if whole else []
    runs = held.store.runs(curves=False) if whole and searches else []
    findings = [find(search, runs) for search in searches] if whole else []
    if figures is not None:
        _draw(figures, split(chapters)[0], ladders, findings)
    if is_page:
        from attnres_cli.report import page

        if against is not None:
            out.write(page.paper_page(chapters))
        else:
            out.write(page.to_html(chapters, ladders, findings, held.store.recipe))
    elif against is not None:
        formats.show(beside_paper(comparisons), form, out)
    else:
        formats.show(report_of(comparisons), form, out)


def _show_ladder(found: Ladder, study: str, form: Format, figures: str | None, out: TextIO) -> None:
    if figures is not None:
        _draw(figures, ladders=[found])
    if form is Format.HTML:
        from attnres_cli.report.page import scaling_page

        out.write(scaling_page(found, address.parted(study)[0]))
    else:
        from attnres_cli.report import formats, scaling

        formats.show(scaling.report_of(found), form, out)


def _draw(
    where: str,
    chapters: Sequence[Chapter] = (),
    ladders: Sequence[Ladder] = (),
    findings: Sequence[Finding] = (),
) -> None:
    """Draw all figures of these into files, and say which."""
    from attnres_cli.report.files import save_figures

    paths = save_figures(where, chapters, ladders, findings)
    names = ", ".join(path.name for path in paths)
    note(f"figures in {paths[0].parent}: {names}" if paths else "no figures: no run has ended")
