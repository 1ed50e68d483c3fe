"""The commands `runs` (list, show, export, rm) and `verify`: what a study holds, run by run."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from attnres_cli.cli.options import Format, Plugins, PrintedFormat, RunFormat, Study
from attnres_cli.config import address, complete
from attnres_cli.console import say
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


HELP = "List the runs of a study; show one, export its weights, or forget some: show, export, rm."

_RunId = Annotated[int, typer.Argument(help="Its number, as the list has it.", metavar="ID")]
_Status = Annotated[
    str | None, typer.Option(help="pending, running, complete, diverged or failed.")
]
_Variant = Annotated[
    str | None,
    typer.Option(help="A variant as the list has it.", autocompletion=complete.specs),
]
_Recipe = Annotated[str | None, typer.Option(help="Name, or start of a digest.")]

app = typer.Typer(cls=_Runs, pretty_exceptions_enable=False)


@app.command("list")
def list_runs(
    study: Study = address.DEFAULT,
    status: _Status = None,
    variant: _Variant = None,
    recipe: _Recipe = None,
    form: PrintedFormat = Format.TABLE,
) -> None:
    """List the runs with status, progress and who runs them."""
    from attnres_cli.lab.listing import Filter, listed
    from attnres_cli.report import formats
    from attnres_cli.report.runs import list_of
    from attnres_cli.store.store import Store

    store = Store.open(study, create=False)
    chosen = Filter(status, variant, recipe).of(store.runs(curves=False))
    formats.show(list_of(listed(store, chosen)), form, sys.stdout)


@app.command()
def show(
    run: _RunId,
    study: Study = address.DEFAULT,
    form: RunFormat = Format.TABLE,
) -> None:
    """Print all about one run: what it is, where it stands, its curve, what is in its model."""
    from attnres_cli.lab.listing import chosen, listed
    from attnres_cli.report import formats
    from attnres_cli.report.runs import run_of
    from attnres_cli.store.store import Store

    store = Store.open(study, create=False)
    (record,) = chosen(store, study, [run])
    if record.result is not None:
        probed = replace(record.result, probes=store.probes([run])[run])
        record = replace(record, result=probed)
    for line in listed(store, [record]):
        formats.show(run_of(line), form, sys.stdout)


@app.command()
def export(
    run: Annotated[
        int | None,
        typer.Argument(help="Its number, as the list has it.", metavar="[ID]", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to make. Default: run-ID.", show_default=False)
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            help="Folder to make, with TensorBoard's event files of ID, or of all runs.",
            show_default=False,
        ),
    ] = None,
    study: Study = address.DEFAULT,
    status: _Status = None,
    variant: _Variant = None,
    recipe: _Recipe = None,
) -> None:
    """Write the final weights of a run and its configuration into a folder, to use elsewhere; or
    curves, probes and final values of many runs for TensorBoard.
    """
    from attnres_cli.lab.export import FILES
    from attnres_cli.lab.export import export as write
    from attnres_cli.lab.listing import Filter, chosen
    from attnres_cli.store.store import Store

    asked = Filter(status, variant, recipe)
    _check_export(run, output, tensorboard, asked.typed)
    store = Store.open(study, create=False)
    if tensorboard is not None:
        filtered = asked.of(store.runs(curves=False)) if run is None else []
        ids = [record.id for record in filtered] if run is None else [run]
        _export_events(store, chosen(store, study, ids), tensorboard)
        return
    assert run is not None
    (record,) = chosen(store, study, [run])
    folder = output if output is not None else Path(f"run-{run}")
    write(store, record, folder)
    for name in FILES:
        typer.echo(f"{folder / name}  {(folder / name).stat().st_size:,} bytes")
    typer.echo(f"from attnres_cli import load; model = load({str(folder)!r})")


def _check_export(
    run: int | None, output: Path | None, tensorboard: Path | None, filters: Sequence[str]
) -> None:
    """Refuse what does not go together. Raises UsageError."""
    if tensorboard is None and run is None:
        raise UsageError(
            "runs export takes the number of a run (attnres runs lists them), or --tensorboard DIR "
            "for all of them"
        )
    if tensorboard is None and filters:
        raise UsageError(f"{filters[0]} chooses runs for --tensorboard DIR; ID names one to export")
    if tensorboard is not None and output is not None:
        raise UsageError("--output is for the weights of one run: give it or --tensorboard")
    if run is not None and filters:
        raise UsageError(f"give ID or {filters[0]}, not both")


def _export_events(store: Store, records: Sequence[RunRecord], folder: Path) -> None:
    from attnres_cli.lab.events import write

    written = write(store, records, folder)
    left_out = len(records) - written
    typer.echo(f"{folder}  {written} runs" + (f", {left_out} not ended" if left_out else ""))
    typer.echo(f"tensorboard --logdir {shlex.quote(str(folder))}")


@app.command()
def rm(
    runs: Annotated[list[int], typer.Argument(help="Their numbers.", metavar="ID...")],
    reason: Annotated[
        str | None,
        typer.Option(help="Why, which reports say: their seeds are excluded.", show_default=False),
    ] = None,
    study: Study = address.DEFAULT,
) -> None:
    """Remove runs, with their curves, weights and checkpoints; one that is running is refused.

    All of them are removed, or none. `attnres ablate` would train them again. Reports go on to name
    those of recipes of which a run has ended; without a reason they keep the seed open.
    """
    from attnres_cli.lab.listing import chosen
    from attnres_cli.store.store import Store

    Store.open(study, create=False)  # rm makes no study
    store = Store.open(study, create=True)
    ids = list(dict.fromkeys(runs))
    records = chosen(store, study, ids)
    if reason is not None and not reason.strip():
        raise UsageError("--reason takes words, as 'the disk was full'")
    before = len(store.removed())
    store.remove(ids, reason)
    for record in records:
        shutil.rmtree(store.folder_of(record), ignore_errors=True)
    with suppress(OSError):  # other runs' files are there, or it never was
        store.folder.rmdir()
    told = store.removed()[before:]
    say(f"removed: {', '.join(str(run_id) for run_id in ids)}")
    if told:
        named = ", ".join(f"{gone.variant} seed {gone.seed}" for gone in told)
        how = "excluded for that reason" if reason else "missing, until they are trained again"
        say(f"reports go on to name {named}: {how}")


def verify(
    run: _RunId,
    study: Study = address.DEFAULT,
    form: RunFormat = Format.TABLE,
    _plugin: Plugins = None,
) -> None:
    """Train a run once more from what the study holds, and say whether every bit is the same.

    The study is not changed. The exit code is 3 where the second training departs from the first.
    """
    from attnres_cli.data import sources
    from attnres_cli.lab import verify as second
    from attnres_cli.lab.listing import chosen
    from attnres_cli.report import formats
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
    with progress(1, plan.seconds, plan.settings) as display:
        display.know(record, recipe, recipe, plan.arms[0].flops_per_token)
        found = second.retrain(record, plan, changed, tokens, store.weights_of(record), display)
    formats.show(verification_of(found), form, sys.stdout)
    if not found.is_equal:
        raise typer.Exit(SOME_FAILED)
