"""`attnres report`: the verdict from the study alone, printed, written or drawn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli import cli_ablate, cli_preregister
from attnres_cli.options import (
    Against,
    AnyFormatName,
    Baseline,
    Figures,
    Format,
    Output,
    Plugins,
    Preregister,
    Scaling,
    Study,
    read_against,
    read_format,
)
from attnres_cli.stdio import say

if TYPE_CHECKING:
    from attnres_cli.report.chapter import Chapter
    from attnres_cli.report.select import Choice
    from attnres_cli.run import RunRecord
    from attnres_cli.store import Store


def report(
    study: Study = cli_ablate.DEFAULT_STUDY,
    recipe: Annotated[
        str | None, typer.Option(help="Name or digest. Default: the newest in the study.")
    ] = None,
    baseline: Baseline = "standard",
    form_name: AnyFormatName = Format.TABLE,
    output: Output = None,
    figures: Figures = None,
    against: Against = None,
    scaling: Scaling = False,
    preregister: Preregister = None,
    _plugin: Plugins = None,
) -> None:
    """Print the verdict from the study alone, or write it, with figures; nothing is trained."""
    from attnres_cli.report.select import choose
    from attnres_cli.store import Store

    form = read_format(form_name, tuple(Format))
    read_against(against)
    if preregister is not None:
        cli_preregister.keep(preregister, study)
        return
    store = Store.open(study, create=False)
    records = store.runs(curves=False)

    def canonical(spec: str, digest: str) -> str:
        from attnres_cli.variant import parse

        return str(parse(spec).at_depth(2 * store.recipe(digest).model.n_layers))

    chosen = choose(records, study, recipe, baseline, canonical, store.arm_recipes())
    if chosen.others:
        say(f"the study also holds {chosen.others}: --recipe with what stands in brackets")
    out: TextIO = sys.stdout if output is None else StringIO()
    if scaling:
        _show_scaling(store, records, chosen, form, out)
    else:
        chapters = _chapters(store, records, chosen, study)
        if figures is not None or form is Format.HTML:
            chapters = [_seen(chapter, store) for chapter in chapters]
        if figures is not None:
            _draw(chapters, figures)
        _show(chapters, form, against, out)
    if output is not None and isinstance(out, StringIO):
        from attnres_cli.report.files import write

        content = out.getvalue().encode()
        write(output, content, "--output")
        typer.echo(f"{output}  {len(content):,} bytes")


def _chapters(
    store: Store, records: Sequence[RunRecord], chosen: Choice, study: str
) -> list[Chapter]:
    """The comparisons of a recipe, the preregistered one first, each with its runs."""
    from attnres_cli.report.chapter import chapter
    from attnres_cli.report.comparison import compare
    from attnres_cli.report.registered import labelled
    from attnres_cli.report.select import told

    facts, own = store.data(chosen.fingerprint), store.arm_recipes()
    found = [
        compare(runs, facts, chosen.baseline, terms, mine)
        for runs, terms, mine in told(chosen, records, own)
    ]
    found = labelled(found, records, facts, store.registrations())
    return [chapter(one, records, study) for one in found]


def _seen(chapter: Chapter, store: Store) -> Chapter:
    """A chapter with what pages and figures show besides: curves, recipes, the last probes."""
    ids = [run.id for run in chapter.runs]
    measured = store.probes(ids)
    last = {number: probes[-1] for number, probes in measured.items() if probes}
    digests = {run.recipe_digest for run in chapter.runs} | {chapter.comparison.recipe_digest}
    recipes = {digest: store.recipe(digest) for digest in digests}
    return replace(chapter, runs=store.runs(ids=ids), probes=last, recipes=recipes)


def _draw(chapters: Sequence[Chapter], where: str) -> None:
    from attnres_cli.report.files import save_figures

    written = save_figures(chapters, where)
    names = ", ".join(path.name for path in written)
    say(f"figures in {written[0].parent}: {names}" if written else "no figures: no run has ended")


def _show(chapters: Sequence[Chapter], form: Format, against: str | None, out: TextIO) -> None:
    found = [chapter.comparison for chapter in chapters]
    if against is not None:
        from attnres_cli.recipe import paper
        from attnres_cli.report.against import show

        show(found, form, paper(), out)
    elif form is Format.HTML:
        from attnres_cli.report.page import to_html

        out.write(to_html(chapters))
    else:
        cli_ablate.show(found, form, out)


def _show_scaling(
    store: Store, records: Sequence[RunRecord], chosen: Choice, form: Format, out: TextIO
) -> None:
    from attnres_cli.report.ladder import ladder
    from attnres_cli.report.registered import EXPLORATORY
    from attnres_cli.report.scaling import show

    name, facts = chosen.records[-1].recipe, store.data(chosen.fingerprint)
    own = store.arm_recipes()
    sizes = ladder(records, name, facts, chosen.baseline, store.recipe, own)
    label = EXPLORATORY if store.registrations() else ""
    show(replace(sizes, registered=label), form, out)
