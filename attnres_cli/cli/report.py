"""`attnres report`: the verdict from the study alone, printed, written or drawn."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli.cli.options import PAPER, Baseline, Format, Margin, Plugins, Study, one_of
from attnres_cli.config import address, complete
from attnres_cli.console import VERBOSE, be, say
from attnres_cli.errors import AwayError, StudyError, UsageError, unknown

if TYPE_CHECKING:
    from attnres_cli.records.run import RunRecord
    from attnres_cli.records.search_records import Search
    from attnres_cli.store.store import Store

Rows = Annotated[
    list[str] | None,
    typer.Argument(
        help="Show only these arms. They are judged with all others.",
        autocompletion=complete.specs,
    ),
]
Recipes = Annotated[
    list[str] | None,
    typer.Option(
        "--recipe",
        help="Recipe or search. Default: the newest recipe. Two recipes: side by side.",
    ),
]
AnyFormat = Annotated[Format, one_of(*Format)]
Output = Annotated[Path | None, typer.Option(help="Write to this file.", show_default=False)]
Figures = Annotated[
    str | None,
    typer.Option(
        help="Folder for figures as SVG, or a name ending in .png, .pdf or .svg.",
        show_default=False,
    ),
]


def _read_against(text: str) -> str:
    known = _with_numbers("")
    if text not in known and not text.endswith(".json"):
        raise UsageError(unknown("--against", text, [*known, "FILE.json"]))
    return text


def _with_numbers(incomplete: str) -> list[str]:
    names = [PAPER, *complete.reports("")]
    return [name for name in names if name.startswith(incomplete)]


Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help="Numbers beside yours: paper, a report that comes with the tool, or FILE.json, as "
        "--format json writes it.",
        parser=_read_against,
        autocompletion=_with_numbers,
        metavar="<str>",
        show_default=False,
    ),
]
Scaling = Annotated[
    bool,
    typer.Option(
        "--scaling", help="Compare the sizes of this recipe: laws, and what an arm is worth."
    ),
]
Tasks = Annotated[bool, typer.Option("--downstream", help="Judge the answers of attnres evaluate.")]
Preregister = Annotated[
    str | None, typer.Option(help="YAML file that fixes a comparison before its first run.")
]
Notes = Annotated[
    bool, typer.Option("--notes", help="Print all caveats and what the numbers rest on.")
]
CodeDigest = Annotated[
    str | None,
    typer.Option(
        help="Start of a code digest, from attnres runs. Default: the newest.",
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
    notes: Notes = False,
    _plugin: Plugins = None,
) -> None:
    """Print the verdict from the study alone, or write it, with figures; nothing is trained."""
    from attnres_cli.cli import showing
    from attnres_cli.config.as_typed import is_searched
    from attnres_cli.lab.study_view import Held
    from attnres_cli.store.store import Store

    if notes:
        be(VERBOSE)
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
        showing.show_sides(held, names, codes, form, out)
        _keep(out, output)
        return
    if searched := _asked_for(searches, recipe, records):
        _refuse(
            of_recipe | {"--code": code, "VARIANT": variants},
            f"is of recipes, and {searched.name} is a search: --recipe names one that "
            "`attnres ablate` has trained",
        )
        showing.show_search(searched, store, study, form, figures, out)
        _keep(out, output)
        return
    if recipe is None:
        records = [record for record in records if not is_searched(record.recipe)]
    held = Held(store, study, records, margin, variants or ())
    others, asked = searches if recipe is None else [], (recipe, baseline, codes)
    if downstream:
        of_losses = {"--margin": margin, "--figures": figures, "--against": against}
        _refuse(of_losses | {"--scaling": scaling}, "is of losses, --downstream of tasks")
        showing.show_tasks(held, held.choose(*asked), form, out)
    elif scaling:
        showing.show_ladders(held.ladders(held.choose(*asked)), study, form, figures, out)
    elif form is Format.HTML and against is None:
        showing.show_comparisons(held, held.every(*asked), others, form, figures, against, out)
    else:
        chosen = held.choose(*asked)
        showing.say_others((*chosen.others, *(f"{each.name} (a search)" for each in others)))
        showing.show_comparisons(held, [chosen], others, form, figures, against, out)
    _keep(out, output)


def _refuse(typed: Mapping[str, object], why: str) -> None:
    """Raise UsageError where one of these options was typed."""
    for option in [name for name, value in typed.items() if value]:
        raise UsageError(f"{option} {why}")


def _preregister(path: str, study: str) -> None:
    """Write what the file says into the study, and say so. Raises as `parts.fix`."""
    from attnres_cli.cli.parts import fix
    from attnres_cli.verdict.numbers import plural

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
        from attnres_cli.report.file_formats import write

        content = out.getvalue().encode()
        write(output, content, "--output")
        typer.echo(f"{output}  {len(content):,} bytes")


def _searches(store: Store, study: str, records: Sequence[RunRecord]) -> list[Search]:
    """The searches of the study; none where they cannot be read, which is said, if it has more."""
    from attnres_cli.config.as_typed import is_searched
    from attnres_cli.lab.search.studies import read

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
    from attnres_cli.config.as_typed import is_searched

    if recipe is not None:
        return next((each for each in searches if each.name == recipe), None)
    return searches[-1] if searches and all(is_searched(r.recipe) for r in records) else None
