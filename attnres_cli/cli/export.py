"""The command `runs export`: weights of one run, or curves of many for other tools."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import typer

from attnres_cli.cli.options import MOST_ID, PLUGINS, Filtered, opened, takes
from attnres_cli.console import note
from attnres_cli.errors import UsageError, installing

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


def _into(what: str) -> Any:
    """The option of a folder for other tools."""
    words = f"Folder to make, with {what} of ID, or of all."
    return typer.Option(None, help=words, show_default=False)


@dataclass(frozen=True, kw_only=True)
class Exporting(Filtered):
    """What is exported, and where to."""

    run: int | None = typer.Argument(
        None,
        min=1,
        max=MOST_ID,
        help="Number of the run, from `attnres runs`.",
        metavar="[ID]",
        show_default=False,
    )
    output: Path | None = typer.Option(
        None, help="Folder to create. Default: run-ID.", show_default=False
    )
    to: Literal["hf"] | None = typer.Option(
        None, help="Export format: hf for Hugging Face transformers.", show_default=False
    )
    tensorboard: Path | None = _into("TensorBoard's event files")
    wandb: Path | None = _into("offline runs of Weights & Biases")
    mlflow: Path | None = _into("a database of MLflow")
    plugin: list[str] | None = PLUGINS

    def check(self, tools: list[str]) -> None:
        """Refuse what does not go together. Raises UsageError."""
        typed, run = self.typed, self.run
        if not tools and run is None:
            raise UsageError(
                "runs export takes the number of a run (attnres runs lists them), or "
                "--tensorboard, --wandb or --mlflow DIR for all of them"
            )
        if not tools and typed:
            raise UsageError(
                f"{typed[0]} chooses runs for --tensorboard, --wandb or --mlflow DIR; ID names "
                "one to export"
            )
        if len(tools) > 1:
            raise UsageError(f"give --{tools[0]} or --{tools[1]}, one after the other")
        for option, value in (("--output", self.output), ("--to", self.to)):
            if tools and value is not None:
                raise UsageError(f"{option} is for the weights of one run: give it or --{tools[0]}")
        if run is not None and typed:
            raise UsageError(f"give ID or {typed[0]}, not both")


@takes(Exporting)
def export(asked: Exporting) -> None:
    """Write the final weights of a run and its configuration into a folder, to use elsewhere, and a
    plugin's source; or curves, probes and final values of many runs for another tool.
    """
    given = {tool: getattr(asked, tool) for tool in _SHOWN_BY}
    into = {tool: folder for tool, folder in given.items() if folder is not None}
    asked.check(list(into))
    if asked.run is not None and not into:
        _export_weights(asked, asked.run)
    for tool, folder in into.items():
        _export_events(asked, folder, tool)


def _export_weights(asked: Exporting, run: int) -> None:
    from attnres_cli.lab.export import export as write
    from attnres_cli.lab.run_listing import chosen

    store = opened(asked.study)
    (record,) = chosen(store, asked.study, [run])
    folder, to_hf = asked.output or Path(f"run-{run}"), asked.to == "hf"
    written = write(store, record, folder, to_hf=to_hf)
    for file in written.files:
        typer.echo(f"{file}  {file.stat().st_size:,} bytes")
    if store.recipe(record.recipe_digest).data.documents == "isolated":
        note(
            "trained with data.documents=isolated: the exported model takes a row as one document; "
            "give it one document per row"
        )
    if written.no_tokenizer:
        note(f"no tokenizer is among them: {written.no_tokenizer}")
    if to_hf:
        if find_spec("transformers") is None:
            note(f"transformers is not here: {installing('hf')}")
        typer.echo(_LOADED_BY_HF.format(str(folder)))
        return
    asked_for = ", plugin=True" if written.has_plugin else ""
    typer.echo(f"from attnres_cli import load; model = load({str(folder)!r}{asked_for})")


def _export_events(asked: Exporting, folder: Path, tool: str) -> None:
    from attnres_cli.lab.run_listing import chosen, filtered
    from attnres_cli.lab.trackers import write
    from attnres_cli.verdict.numbers import plural

    store, ids = opened(asked.study), [] if asked.run is None else [asked.run]
    if asked.run is None:
        ids = [record.id for record in filtered(store.runs(curves=False), asked.filters)]
    records = chosen(store, asked.study, ids)
    written = write(store, records, folder, tool)
    left_out = len(records) - written
    more = f", {left_out} not ended" if left_out else ""
    typer.echo(f"{folder}  {plural(written, 'run')}{more}")
    place = folder.absolute() if tool == "mlflow" else folder
    typer.echo(_SHOWN_BY[tool].format(shlex.quote(str(place))))
