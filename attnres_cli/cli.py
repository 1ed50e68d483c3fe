"""The command line: parse, call one function, print. The one place where errors become messages.

Torch, sqlalchemy, scipy and all of ours but errors are imported inside commands, so that --help
answers at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from attnres_cli import __version__, cli_ablate, cli_bench, cli_designs, cli_runs, stdio
from attnres_cli.errors import AttnresError
from attnres_cli.options import (
    AnyFormatName,
    Baseline,
    Figures,
    Format,
    Output,
    Plugins,
    Study,
    read_format,
)
from attnres_cli.stdio import say

if TYPE_CHECKING:
    from attnres_cli.report.chapter import Chapter
    from attnres_cli.report.comparison import Comparison
    from attnres_cli.run import RunRecord
    from attnres_cli.store import Store

DONE, INTERNAL, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""

app = typer.Typer(
    name="attnres",
    help="Which residual connection should a Transformer be trained with, and how sure can one be?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # typer keeps it private


app.command()(cli_ablate.ablate)


@app.command()
def report(
    study: Study = cli_ablate.DEFAULT_STUDY,
    recipe: Annotated[
        str | None, typer.Option(help="Name or digest. Default: the newest in the study.")
    ] = None,
    baseline: Baseline = "standard",
    form_name: AnyFormatName = Format.TABLE,
    output: Output = None,
    figures: Figures = None,
    _plugin: Plugins = None,
) -> None:
    """Print the verdict from the study alone, or write it, with figures; nothing is trained."""
    from attnres_cli.report.comparison import compare
    from attnres_cli.report.select import choose, told
    from attnres_cli.store import Store

    form = read_format(form_name, tuple(Format))
    store = Store.open(study, create=False)

    def canonical(spec: str, digest: str) -> str:
        from attnres_cli.variant import parse

        return str(parse(spec).at_depth(2 * store.recipe(digest).model.n_layers))

    records, own = store.runs(), store.arm_recipes()
    chosen = choose(records, study, recipe, baseline, canonical, own)
    if chosen.others:
        say(f"the study also holds {chosen.others}: --recipe with what stands in brackets")
    facts = store.data(chosen.fingerprint)
    compared = told(chosen, records, own)
    found = [compare(runs, facts, chosen.baseline, terms, mine) for runs, terms, mine in compared]
    chapters = []
    if figures is not None or form is Format.HTML:
        runs_of = [runs for runs, _, _ in compared]
        chapters = [
            _chapter(one, runs, store, study) for one, runs in zip(found, runs_of, strict=True)
        ]
    if figures is not None:
        _draw(chapters, figures)
    _write(found, chapters, form, output)


def _chapter(
    comparison: Comparison, runs: Sequence[RunRecord], store: Store, study: str
) -> Chapter:
    """A comparison with all that figures and pages show of its runs."""
    from attnres_cli.report.chapter import Chapter

    measured = store.probes([run.id for run in runs])
    last = {number: probes[-1] for number, probes in measured.items() if probes}
    digests = {run.recipe_digest for run in runs} | {comparison.recipe_digest}
    recipes = {digest: store.recipe(digest) for digest in digests}
    return Chapter(comparison, tuple(runs), last, recipes, study)


def _draw(chapters: Sequence[Chapter], where: str) -> None:
    from attnres_cli.report.files import save_figures

    written = save_figures(chapters, where)
    names = ", ".join(path.name for path in written)
    say(f"figures in {written[0].parent}: {names}" if written else "no figures: no run has ended")


def _write(
    found: Sequence[Comparison], chapters: Sequence[Chapter], form: Format, output: Path | None
) -> None:
    """Print comparisons, or the page of their chapters; with a path write it and say so."""
    from io import StringIO

    out: TextIO = sys.stdout if output is None else StringIO()
    if form is Format.HTML:
        from attnres_cli.report.page import to_html

        out.write(to_html(chapters))
    else:
        cli_ablate.show(found, form, out)
    if output is not None and isinstance(out, StringIO):
        from attnres_cli.report.files import write

        content = out.getvalue().encode()
        write(output, content, "--output")
        typer.echo(f"{output}  {len(content):,} bytes")


app.command()(cli_designs.variants)
app.command()(cli_designs.check)
app.command()(cli_designs.recipes)
app.command()(cli_runs.verify)
app.add_typer(cli_bench.app, name="bench", help=cli_bench.HELP)
app.add_typer(cli_runs.app, name="runs", help=cli_runs.HELP)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"attnres {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _asked: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Find out which residual connection a Transformer should be trained with, and how surely."""


def _warn(message: Warning | str, *_where: object) -> None:
    say(f"warning: {message}")


def main() -> None:
    """The command `attnres`. What a user can cause is one line on stderr and an exit code."""
    warnings.showwarning = _warn  # type: ignore[assignment]
    stdio.mend()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `attnres report | head -1`: its reader has seen enough
        stdio.mute(sys.stdout)
        code = DONE
    except AttnresError as error:
        say(str(error))
        code = BAD_INPUT
    except _USAGE_ERROR as error:
        message = str(getattr(error, "format_message", error.__str__)())
        if message:  # there is none where no command was given: the help is printed then
            say(message)
        code = BAD_INPUT
    if code == INTERRUPTED:  # typer makes this of Ctrl-C
        say("interrupted; what is done is in the study, the same command goes on")
    sys.exit(code)
