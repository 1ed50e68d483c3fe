"""The commands `runs` (list, show, export, merge, note, tag, rm) and `verify`: run by run."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from attnres_cli.cli.export import export
from attnres_cli.cli.merge import merge
from attnres_cli.cli.options import (
    MOST_ID,
    Format,
    Plugins,
    PrintedFormat,
    RunNote,
    RunRecipe,
    RunStatus,
    RunTag,
    RunVariant,
    Study,
)
from attnres_cli.config import address
from attnres_cli.console import say, warn
from attnres_cli.errors import SOME_FAILED, UsageError

if TYPE_CHECKING:
    from attnres_cli.records.run import RunRecord
    from attnres_cli.store.store import Store


class _Runs(typer.core.TyperGroup):
    """A group whose command is `list` where none is named: `attnres runs --status failed`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with `list` before them if they begin with an option, or are none."""
        bare = not args or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if bare else args)


HELP = "List the runs of a study, show, export, merge, note or forget some."

_RunId = Annotated[
    int,
    typer.Argument(
        min=1, max=MOST_ID, help="Number of the run, from `attnres runs`.", metavar="ID"
    ),
]
_RunIds = Annotated[
    list[int], typer.Argument(min=1, max=MOST_ID, help="Numbers of runs.", metavar="ID...")
]

_TAG = re.compile(r"[^\W\d_][\w.-]{0,39}")
_LONGEST_NOTE = 500

app = typer.Typer(cls=_Runs, pretty_exceptions_enable=False)
app.command()(export)
app.command()(merge)


@app.command("list")
def list_runs(
    study: Study = address.DEFAULT,
    status: RunStatus = None,
    variant: RunVariant = None,
    recipe: RunRecipe = None,
    tag: RunTag = None,
    note: RunNote = None,
    form: PrintedFormat = Format.TABLE,
) -> None:
    """List the runs with status, progress and who runs them."""
    from attnres_cli.lab.run_listing import Filter, listed
    from attnres_cli.report import file_formats
    from attnres_cli.report.runs import list_of
    from attnres_cli.store.store import Store

    store = Store.open(study, create=False)
    chosen = Filter(status, variant, recipe, tag, note).of(store.runs(curves=False))
    file_formats.show(list_of(listed(store, chosen)), form, sys.stdout)


@app.command()
def show(
    run: _RunId,
    study: Study = address.DEFAULT,
    form: PrintedFormat = Format.TABLE,
) -> None:
    """Print all about one run: what it is, where it stands, its curve, what is in its model."""
    from attnres_cli.lab.run_listing import chosen, listed
    from attnres_cli.report import file_formats
    from attnres_cli.report.runs import run_of
    from attnres_cli.store.store import Store

    store = Store.open(study, create=False)
    (record,) = chosen(store, study, [run])
    if record.result is not None:
        probed = replace(record.result, probes=store.probes([run])[run])
        record = replace(record, result=probed)
    for line in listed(store, [record]):
        file_formats.show(run_of(line), form, sys.stdout)


@app.command("note")
def write_note(
    run: _RunId,
    words: Annotated[
        str, typer.Argument(help='The note, in quotes. "" removes it.', metavar="NOTE")
    ],
    study: Study = address.DEFAULT,
) -> None:
    """Write down what is to be known of a run: lists and reports show it."""
    if not words.isprintable() or len(words) > _LONGEST_NOTE:
        raise UsageError(
            f"a note is one line of at most {_LONGEST_NOTE} characters that can be printed, got "
            f"{len(words)} characters: {words[:40]!r}"
        )
    store, _ = _to_change(study, [run])
    store.note(run, words.strip())
    typer.echo(f"run {run}: {words.strip() or 'no note'}")


@app.command("tag")
def write_tag(
    runs: _RunIds,
    tag: Annotated[str, typer.Argument(help="One word.", metavar="TAG")],
    away: Annotated[bool, typer.Option("--remove", help="Remove the tag.")] = False,
    study: Study = address.DEFAULT,
) -> None:
    """Give runs a tag, by which `runs`, `runs export` and `runs rm` find them."""
    if not _TAG.fullmatch(tag):
        raise UsageError(
            f"expected a tag after the numbers, a letter and then at most 39 letters, digits, '.', "
            f"'_' or '-', got {tag[:40]!r}: attnres runs tag {runs[0]} baseline"
        )
    from attnres_cli.verdict.numbers import plural

    store, found = _to_change(study, runs)
    n = store.tag([record.id for record in found], tag, away=away)
    typer.echo(f"{plural(n, 'run')} {'no longer tagged' if away else 'tagged'} {tag}")


@app.command()
def extend(
    run: _RunId,
    tokens: Annotated[str, typer.Option(help="Tokens in total, such as 2M.")],
    study: Study = address.DEFAULT,
    _plugin: Plugins = None,
) -> None:
    """Train a finished run further, where its schedule allows that exactly, as a run of its own."""
    from attnres_cli.config.sections import parse_count
    from attnres_cli.lab import train_further as further
    from attnres_cli.lab.experiment import Place
    from attnres_cli.lab.run_listing import chosen, listed
    from attnres_cli.report import file_formats
    from attnres_cli.report.progress import OnStderr
    from attnres_cli.report.runs import list_of
    from attnres_cli.store.store import Store

    number = parse_count(int(tokens) if tokens.isdecimal() and len(tokens) < 17 else tokens)
    if not isinstance(number, int):
        raise UsageError(f"--tokens takes a number as 2M or 2000000, got {tokens[:40]!r}")
    store = Store.open(study, create=False)
    chosen(store, study, [run])
    found = further.extend(Place(study), run, number, OnStderr())
    file_formats.show(list_of(listed(store, [found])), Format.TABLE, sys.stdout)
    if found.result is None:
        raise typer.Exit(SOME_FAILED)


@app.command()
def rm(
    runs: Annotated[
        list[int] | None,
        typer.Argument(
            min=1, max=MOST_ID, help="Numbers of runs, or use filters.", metavar="[ID...]"
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(help="Why. Reports then name the seeds as excluded.", show_default=False),
    ] = None,
    status: RunStatus = None,
    variant: RunVariant = None,
    recipe: RunRecipe = None,
    tag: RunTag = None,
    note: RunNote = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove without asking.")] = False,
    study: Study = address.DEFAULT,
) -> None:
    """Remove runs, with their curves, weights and checkpoints; one that is running is refused.

    All of them are removed, or none; where filters choose them, after a question. `attnres ablate`
    would train them again. Reports go on to name those of recipes of which a run has ended; without
    a reason they keep the seed open.
    """
    from attnres_cli.lab.run_listing import Filter

    asked = Filter(status, variant, recipe, tag, note)
    if bool(runs) == bool(asked.typed):
        raise UsageError(
            "runs rm takes the numbers of runs, or filters as --status failed, not both: attnres "
            "runs lists them"
        )
    if reason is not None and not reason.strip():
        raise UsageError("--reason takes words, as 'the disk was full'")
    store, records = _to_change(study, runs or [])
    if not runs:
        records = asked.of(store.runs(curves=False))
        if not records:
            raise UsageError("these filters leave no run: attnres runs lists them")
        given = [] if reason is None else ["--reason", reason]
        again = ["attnres", "runs", "rm", *asked.typed, *given, *address.typed(study), "--yes"]
        if not yes and not _is_agreed(records, again):
            say("no run was removed")
            return
    _remove(store, records, reason)


def _is_agreed(records: Sequence[RunRecord], again: Sequence[str]) -> bool:
    """Whether whoever types wants these removed. Raises UsageError where nobody can be asked."""
    from attnres_cli.verdict.numbers import plural

    counts = Counter(str(record.status) for record in records)
    of = ", ".join(f"{n} {status}" for status, n in counts.items())
    what = f"{plural(len(records), 'run')} ({of})"
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"this removes {what}: to go ahead, {shlex.join(again)}")
    return typer.confirm(f"remove {what}?", err=True)


def _to_change(study: str, ids: Sequence[int]) -> tuple[Store, list[RunRecord]]:
    """A study, which is not made, to be written to, and its runs of these numbers."""
    from attnres_cli.lab.run_listing import chosen
    from attnres_cli.store.store import Store

    Store.open(study, create=False)
    store = Store.open(study, create=True)
    return store, chosen(store, study, list(dict.fromkeys(ids)))


def _remove(store: Store, records: Sequence[RunRecord], reason: str | None) -> None:
    """Remove them with their files, and say what reports go on to tell."""
    before = len(store.removed())
    store.remove([record.id for record in records], reason)
    for record in records:
        shutil.rmtree(store.folder_of(record), ignore_errors=True)
    with suppress(OSError):  # other runs' files are there, or it never was
        store.folder.rmdir()
    told = store.removed()[before:]
    say(f"removed: {', '.join(str(record.id) for record in records)}")
    if told:
        named = ", ".join(f"{gone.variant} seed {gone.seed}" for gone in told)
        how = "excluded for that reason" if reason else "missing, until they are trained again"
        say(f"reports go on to name {named}: {how}")


def verify(
    run: _RunId,
    study: Study = address.DEFAULT,
    form: PrintedFormat = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Train a run once more from what the study holds, and say whether every bit is the same.

    The study is not changed. The exit code is 3 if the second training departs from the first by
    more than another processor or version of torch explains.
    """
    from attnres_cli.data import sources
    from attnres_cli.lab import verify as second
    from attnres_cli.lab.run_listing import chosen
    from attnres_cli.report import file_formats
    from attnres_cli.report.progress import progress
    from attnres_cli.report.runs import verification_of
    from attnres_cli.store.store import Store

    store = Store.open(study, create=False)
    (record,) = chosen(store, study, [run])
    recipe = store.recipe(record.recipe_digest)
    tokens = sources.load(recipe)
    plan, changed = second.plan(record, recipe, tokens)
    for name, old, new in changed:
        say(f"changed since run {run}: {name}: {old}, now {new}")
    if store.without_files:
        warn(f"weights are not compared, {store.without_files}")
    with progress(1, plan.seconds, plan.settings) as display:
        display.know(record, recipe, recipe, plan.arms[0].flops_per_token)
        spread = second.spread_of(record, store.runs(curves=False))
        kept = store.weights_of(record)
        found = second.retrain(record, plan, changed, tokens, kept, display, spread)
    file_formats.show(verification_of(found), form, sys.stdout)
    if not (found.is_equal or found.agrees):
        raise typer.Exit(SOME_FAILED)
