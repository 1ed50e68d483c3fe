"""The recipes and suites there are, and one recipe with what follows from it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from attnres_cli.config import recipe as recipes
from attnres_cli.report.terminal import console


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
        text = Text(f"{recipes.suite_description(name)}\n")
        suites.add_row(name, text.append("  ".join(recipes.suite(name)), style="dim"))
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
