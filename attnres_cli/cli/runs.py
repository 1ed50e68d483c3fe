"""The commands `runs` (list, show, export, merge, note, tag, rm) and `verify`: run by run."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from attnres_cli.cli import options
from attnres_cli.cli.export import export
from attnres_cli.config import address
from attnres_cli.console import note, say, uncollected, warn
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

_TAG = re.compile(r"[^\W\d_][\w.-]{0,39}")
_LONGEST_NOTE = 500

app = typer.Typer(cls=_Runs, pretty_exceptions_enable=False)
app.command()(export)


@app.command()
def merge(
    studies: list[str] = typer.Argument(
        help="Studies to read: SQLite files or PostgreSQL URLs.", metavar="STUDY..."
    ),
    into: str = typer.Option(help="Study that receives the runs. Created if missing."),
    form: options.Format = options.PRINTED,
) -> None:
    """Bring the runs of several studies into one, with curves, weights and checkpoints.

    Equal runs are there once. Two results of one run, computed by equal means, are listed, and then
    nothing is merged. Notes and tags come along; what a search is stays in its study, its runs come
    along.
    """
    from attnres_cli.lab import merging
    from attnres_cli.report.runs import merged_of
    from attnres_cli.store.store import Store

    names = [address.withhold(study) for study in studies]
    target = address.withhold(into)
    different = {name if address.is_url(name) else str(Path(name).resolve()) for name in names}
    if len(different | {target}) <= len(names) or str(Path(target).resolve()) in different:
        raise UsageError("each study is named once, and --into none of them")
    sources = [options.opened(name) for name in names]
    for name, source in zip(names, sources, strict=True):
        if source.without_files:
            note(f"study {name}: no weights and checkpoints, {source.without_files}")
    found = merging.merge(sources, Store.open(target, create=True))
    shown = [address.parted(name)[0] for name in names]
    options.show(merged_of(dict(zip(shown, found, strict=True))), form)


@dataclass(frozen=True, kw_only=True)
class Listing(options.Filtered):
    """Which runs are listed."""

    form: options.Format = options.PRINTED


@app.command("list")
@options.takes(Listing)
@uncollected()
def list_runs(asked: Listing) -> None:
    """List the runs with status, progress and who runs them."""
    from attnres_cli.lab.run_listing import filtered, listed
    from attnres_cli.report.runs import list_of

    store = options.opened(asked.study)
    found = filtered(store.runs(curves=False, gates=False), asked.filters)
    options.show(list_of(listed(store, found)), asked.form)


@app.command("show")
def show_run(
    run: int = options.RUN, study: str = options.STUDY, form: options.Format = options.PRINTED
) -> None:
    """Print all about one run: what it is, where it stands, its curve, what is in its model."""
    from attnres_cli.lab.run_listing import chosen, listed
    from attnres_cli.report.runs import run_of

    store = options.opened(study)
    (record,) = chosen(store, study, [run])
    if record.result is not None:
        probed = replace(record.result, probes=store.probes([run])[run])
        record = replace(record, result=probed)
    for line in listed(store, [record]):
        options.show(run_of(line), form)


@app.command("note")
def write_note(
    run: int = options.RUN,
    words: str = typer.Argument(help='The note, in quotes. "" removes it.', metavar="NOTE"),
    study: str = options.STUDY,
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
    runs: list[int] = typer.Argument(
        min=1, max=options.MOST_ID, help="Numbers of runs.", metavar="ID..."
    ),
    tag: str = typer.Argument(help="One word.", metavar="TAG"),
    away: bool = typer.Option(False, "--remove", help="Remove the tag."),
    study: str = options.STUDY,
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
    run: int = options.RUN,
    tokens: str = typer.Option(help="Tokens in total, such as 2M."),
    retry_failed: bool = typer.Option(False, help="Train it again if it failed before."),
    study: str = options.STUDY,
    _plugin: list[str] | None = options.PLUGINS,
) -> None:
    """Train a finished run further, where its schedule allows that exactly, as a run of its own."""
    from attnres_cli.config.reading import parse_count
    from attnres_cli.lab import train_further as further
    from attnres_cli.lab.experiment import Place
    from attnres_cli.lab.run_listing import chosen, listed
    from attnres_cli.report.progress import OnStderr
    from attnres_cli.report.runs import list_of

    number = parse_count(int(tokens) if tokens.isdecimal() and len(tokens) < 17 else tokens)
    if not isinstance(number, int):
        raise UsageError(f"--tokens takes a number as 2M or 2000000, got {tokens[:40]!r}")
    store = options.opened(study)
    chosen(store, study, [run])
    found = further.extend(Place(study, retry_failed=retry_failed), run, number, OnStderr())
    options.show(list_of(listed(store, [found])), options.Format.TABLE)
    if found.result is None:
        say(f"run {found.id} failed: the same command with --retry-failed trains it again")
        raise typer.Exit(SOME_FAILED)


@dataclass(frozen=True, kw_only=True)
class Removing(options.Filtered):
    """Which runs are removed, and why."""

    runs: list[int] | None = typer.Argument(
        None, min=1, max=options.MOST_ID, help="Numbers of runs, or use filters.", metavar="[ID...]"
    )
    reason: str | None = typer.Option(
        None, help="Why. Reports then name the seeds as excluded.", show_default=False
    )
    yes: bool = typer.Option(False, "--yes", help="Remove without asking.")


@app.command()
@options.takes(Removing)
def rm(asked: Removing) -> None:
    """Remove runs, with their curves, weights and checkpoints; one that is running is refused.

    All of them are removed, or none; where filters choose them, after a question. `attnres ablate`
    would train them again. Reports go on to name those of recipes of which a run has begun to
    learn. Without a reason they keep the seed open; with one, they say the verdict with it too.
    """
    from attnres_cli.lab.run_listing import filtered

    typed, reason = asked.typed, asked.reason
    if bool(asked.runs) == bool(typed):
        raise UsageError(
            "runs rm takes the numbers of runs, or filters as --status failed, not both: attnres "
            "runs lists them"
        )
    if reason is not None and not reason.strip():
        raise UsageError("--reason takes words, as 'the disk was full'")
    store, records = _to_change(asked.study, asked.runs or [])
    if typed:
        records = filtered(store.runs(curves=False), asked.filters)
        if not records:
            raise UsageError("these filters leave no run: attnres runs lists them")
        given = [] if reason is None else ["--reason", reason]
        again = ["attnres", "runs", "rm", *typed, *given, *address.typed(asked.study), "--yes"]
        if not asked.yes and not _is_agreed(records, again):
            say("no run was removed")
            return
        if _states(filtered(store.runs(curves=False), asked.filters)) != _states(records):
            raise UsageError("runs have changed meanwhile, and none was removed: type it again")
    _remove(store, records, reason)


def _states(records: Sequence[RunRecord]) -> list[tuple[int, str]]:
    return [(record.id, record.status) for record in records]


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

    options.opened(study)
    store = Store.open(study, create=True)
    return store, chosen(store, study, list(dict.fromkeys(ids)))


def _remove(store: Store, records: Sequence[RunRecord], reason: str | None) -> None:
    """Remove them with their files, and say what reports go on to tell."""
    from attnres_cli.report.runs import named
    from attnres_cli.verdict.numbers import spans

    before = len(store.removed())
    store.remove([record.id for record in records], reason)
    for record in records:
        shutil.rmtree(store.folder_of(record), ignore_errors=True)
    with suppress(OSError):  # other runs' files are there, or it never was
        store.folder.rmdir()
    told = store.removed()[before:]
    say(f"removed: {spans(sorted(record.id for record in records))}")
    if told:
        how = "excluded for that reason" if reason else "missing until they are trained again"
        say(f"reports name {named(told)} as {how}")


@options.keeping_nothing()
def verify(
    run: int = options.RUN,
    study: str = options.STUDY,
    form: options.Format = options.PRINTED,
    _plugin: list[str] | None = options.PLUGINS,
) -> None:
    """Train a run once more from what the study holds, and say whether every bit is the same.

    The study is not changed. The exit code is 3 if the second training departs from the first by
    more than another processor or version of torch explains.
    """
    from attnres_cli.data import sources
    from attnres_cli.lab import verify as second
    from attnres_cli.lab.run_listing import chosen
    from attnres_cli.report.progress import progress
    from attnres_cli.report.runs import verification_of

    store = options.opened(study)
    (record,) = chosen(store, study, [run])
    recipe = store.recipe(record.recipe_digest, record.fingerprint)
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
    options.show(verification_of(found), form)
    if not (found.is_equal or found.agrees):
        raise typer.Exit(SOME_FAILED)
