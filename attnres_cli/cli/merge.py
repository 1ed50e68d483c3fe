"""The command `runs merge`: several studies brought together."""

from __future__ import annotations

from pathlib import Path

import typer

from attnres_cli.cli.options import PRINTED, Format, opened, show
from attnres_cli.config import address
from attnres_cli.config.address import withhold
from attnres_cli.console import note
from attnres_cli.errors import UsageError


def merge(
    studies: list[str] = typer.Argument(help="Studies to read: SQLite files or PostgreSQL URLs."),
    into: str = typer.Option(help="Study that receives the runs. Created if missing."),
    form: Format = PRINTED,
) -> None:
    """Bring the runs of several studies into one, with curves, weights and checkpoints.

    Equal runs are there once. Two results of one run, computed by equal means, are listed, and then
    nothing is merged. Notes and tags come along; what a search is stays in its study, its runs come
    along.
    """
    from attnres_cli.lab import merging
    from attnres_cli.report.runs import merged_of
    from attnres_cli.store.store import Store

    names = [withhold(study) for study in studies]
    target = withhold(into)
    different = {name if address.is_url(name) else str(Path(name).resolve()) for name in names}
    if len(different | {target}) <= len(names) or str(Path(target).resolve()) in different:
        raise UsageError("each study is named once, and --into none of them")
    sources = [opened(name) for name in names]
    for name, source in zip(names, sources, strict=True):
        if source.without_files:
            note(f"study {name}: no weights and checkpoints, {source.without_files}")
    found = merging.merge(sources, Store.open(target, create=True))
    shown = [address.parted(name)[0] for name in names]
    show(merged_of(dict(zip(shown, found, strict=True))), form)
