"""The command `runs export`: weights of one run, or curves of many for other tools."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnres_cli import console
from attnres_cli.cli.options import (
    MOST_ID,
    Plugins,
    RunNote,
    RunRecipe,
    RunStatus,
    RunTag,
    RunVariant,
    Study,
)
from attnres_cli.config import address
from attnres_cli.errors import UsageError, installing

if TYPE_CHECKING:
    from attnres_cli.records.run import RunRecord
    from attnres_cli.store.store import Store


def _into(what: str) -> Any:
    """The option of a folder for other tools."""
    return typer.Option(help=f"Folder to make, with {what} of ID, or of all.", show_default=False)


_SHOWN_BY = {
    "tensorboard": "tensorboard --logdir {0}",
    "wandb": "wandb sync {0}/wandb/offline-run-*",
    "mlflow": "mlflow server --backend-store-uri sqlite:///{0}/mlflow.db",
}
"""What shows a folder in each tool."""

_LOADED_BY_HF = (
    "from transformers import AutoModelForCausalLM; "
    "model = AutoModelForCausalLM.from_pretrained({0!r}, trust_remote_code=True)"
)


def export(
    run: Annotated[
        int | None,
        typer.Argument(
            min=1,
            max=MOST_ID,
            help="Number of the run, from `attnres runs`.",
            metavar="[ID]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder to create. Default: run-ID.", show_default=False)
    ] = None,
    to: Annotated[
        Literal["hf"] | None,
        typer.Option(help="Export format: hf for Hugging Face transformers.", show_default=False),
    ] = None,
    tensorboard: Annotated[Path | None, _into("TensorBoard's event files")] = None,
    wandb: Annotated[Path | None, _into("offline runs of Weights & Biases")] = None,
    mlflow: Annotated[Path | None, _into("a database of MLflow")] = None,
    study: Study = address.DEFAULT,
    status: RunStatus = None,
    variant: RunVariant = None,
    recipe: RunRecipe = None,
    tag: RunTag = None,
    note: RunNote = None,
    _plugin: Plugins = None,
) -> None:
    """Write the final weights of a run and its configuration into a folder, to use elsewhere, and a
    plugin's source; or curves, probes and final values of many runs for another tool.
    """
    from attnres_cli.lab.export import export as write
    from attnres_cli.lab.run_listing import Filter, chosen
    from attnres_cli.store.store import Store

    asked = Filter(status, variant, recipe, tag, note)
    given = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    into = [(tool, folder) for tool, folder in given.items() if folder is not None]
    weights = {"--output": output, "--to": to}
    only = [option for option, value in weights.items() if value is not None]
    _check_export(run, only, [tool for tool, _ in into], asked.typed)
    store = Store.open(study, create=False)
    for tool, folder in into:
        filtered = asked.of(store.runs(curves=False)) if run is None else []
        ids = [record.id for record in filtered] if run is None else [run]
        _export_events(store, chosen(store, study, ids), folder, tool)
        return
    assert run is not None
    (record,) = chosen(store, study, [run])
    folder = output if output is not None else Path(f"run-{run}")
    written = write(store, record, folder, to_hf=to == "hf")
    for file in written.files:
        typer.echo(f"{file}  {file.stat().st_size:,} bytes")
    if written.no_tokenizer:
        console.note(f"no tokenizer is among them: {written.no_tokenizer}")
    if to == "hf":
        if find_spec("transformers") is None:
            console.note(f"transformers is not here: {installing('hf')}")
        typer.echo(_LOADED_BY_HF.format(str(folder)))
        return
    asked_for = ", plugin=True" if written.has_plugin else ""
    typer.echo(f"from attnres_cli import load; model = load({str(folder)!r}{asked_for})")


def _check_export(
    run: int | None, only: Sequence[str], tools: Sequence[str], filters: Sequence[str]
) -> None:
    """Refuse what does not go together. Raises UsageError."""
    if not tools and run is None:
        raise UsageError(
            "runs export takes the number of a run (attnres runs lists them), or --tensorboard, "
            "--wandb or --mlflow DIR for all of them"
        )
    if not tools and filters:
        raise UsageError(
            f"{filters[0]} chooses runs for --tensorboard, --wandb or --mlflow DIR; ID names one "
            "to export"
        )
    if len(tools) > 1:
        raise UsageError(f"give --{tools[0]} or --{tools[1]}, one after the other")
    if tools and only:
        raise UsageError(f"{only[0]} is for the weights of one run: give it or --{tools[0]}")
    if run is not None and filters:
        raise UsageError(f"give ID or {filters[0]}, not both")


def _export_events(store: Store, records: Sequence[RunRecord], folder: Path, tool: str) -> None:
    from attnres_cli.lab.trackers import write
    from attnres_cli.verdict.numbers import plural

    written = write(store, records, folder, tool)
    left_out = len(records) - written
    more = f", {left_out} not ended" if left_out else ""
    typer.echo(f"{folder}  {plural(written, 'run')}{more}")
    place = folder.absolute() if tool == "mlflow" else folder
    typer.echo(_SHOWN_BY[tool].format(shlex.quote(str(place))))
