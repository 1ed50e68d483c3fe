"""What there is: variants and recipes, as lists and one by one."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from attnres_cli import recipe as recipes
from attnres_cli.report.terminal import console


def print_variants(known: Mapping[str, Any]) -> None:
    """One line per design: its name and its equation."""
    out = console(sys.stdout)
    table = Table(title="variants (attnres variants NAME tells all about one)")
    table.add_column("name", no_wrap=True)
    table.add_column("equation", overflow="fold")
    for name, cls in known.items():
        table.add_row(name, Text(_first_line(_documentation(cls)).removeprefix(f"{name}: ")))
    out.print(table)


def print_variant(name: str, cls: Any, options: Mapping[str, Any]) -> None:
    """A design's own page: its module's docstring, and its options with types and defaults."""
    out = console(sys.stdout)
    out.print(Text(_documentation(cls).strip()))
    if not options:
        return
    table = Table(title=f"options, as in attnres ablate {name}:option=value", title_justify="left")
    for column in ("option", "takes", "default"):
        table.add_column(column)
    for option in options.values():
        table.add_row(option.name, option.allowed(), option.default_text())
    out.print(table)


def print_recipes() -> None:
    """The shipped recipes and suites with what they are for."""
    out = console(sys.stdout)
    table = Table(title="recipes (attnres recipes NAME prints one)")
    table.add_column("name", no_wrap=True)
    table.add_column("purpose", overflow="fold")
    for name in recipes.names():
        table.add_row(name, recipes.load(name).description)
    out.print(table)
    suites = Table(title="suites (attnres ablate --suite NAME)")
    suites.add_column("name", no_wrap=True)
    suites.add_column("variants", overflow="fold")
    for name in recipes.suite_names():
        suites.add_row(name, "  ".join(recipes.suite(name)))
    out.print(suites)


def print_recipe(name: str, overrides: Sequence[str]) -> None:
    """A recipe's text as it is written, and what follows from it."""
    out = console(sys.stdout)
    loaded = recipes.load(name, overrides)
    shape = loaded.model.shape(vocab_size=256)
    tokens = loaded.steps * loaded.tokens_per_step
    out.print(Text(recipes.text_of(name).rstrip()))
    if overrides:
        out.print(Text("with " + " ".join(f"--set {override}" for override in overrides)))
    out.print(
        Text(
            f"\ndigest {loaded.digest}: {shape.n_params():,} parameters of the trunk with 256 byte "
            f"tokens (d_ff {shape.d_ff}, d_head {shape.d_head}); {loaded.steps:,} steps of "
            f"{loaded.tokens_per_step:,} tokens, {tokens:,} in all; "
            f"{3 * shape.flops_per_token() * tokens:.3g} training FLOPs per run of standard"
        )
    )


def _documentation(cls: Any) -> str:
    return inspect.getdoc(inspect.getmodule(cls)) or inspect.getdoc(cls) or ""


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
