"""The command `attnres init`: begin a recipe of one's own."""

from __future__ import annotations

import shlex

import typer

from attnres_cli.errors import UsageError


def init(
    data: str = typer.Argument(help="File or folder with text or tokens.", metavar="DATA"),
    output: str | None = typer.Option(
        None, help="Recipe to write. Default: NAME.yaml here, after the data.", metavar="FILE"
    ),
    override: list[str] | None = typer.Option(
        None, "--set", help="Change a key of its data: data.column=body. Repeatable."
    ),
) -> None:
    """Write a commented recipe for your own data."""
    from attnres_cli.files import path_of, slug, write_new
    from attnres_cli.lab.recipe_from_data import duplicates_noted, recipe_text

    folder = path_of(data, "the data").resolve()
    file = path_of(output or f"{slug(folder.stem)}.yaml", "--output")
    if file.suffix not in (".yaml", ".yml") or not str(file).isprintable():
        raise UsageError(f"--output takes the name of a .yaml file, got {str(file)!r}")
    if file.resolve().is_relative_to(folder):
        raise UsageError(f"{file} would lie among its own data: --output another folder's FILE")
    if file.exists():
        raise UsageError(f"{file} is there already: --output names another, or move it")
    text = recipe_text(data, shlex.quote(str(file)), override or ())
    write_new(file, text)
    for line in duplicates_noted(text):
        typer.echo(f"note: {line}")
    typer.echo(f"wrote {file}: change it, then")
    for more in (" --dry-run", ""):
        typer.echo(f"  attnres ablate --recipe {shlex.quote(str(file))}{more}")
