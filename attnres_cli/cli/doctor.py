"""The command `attnres doctor`: whether this machine computes right."""

from __future__ import annotations

import typer

from attnres_cli.cli import options
from attnres_cli.console import note
from attnres_cli.errors import SOME_FAILED


def doctor(
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:N. Default: the first GPU."),
    form: options.Format = options.PRINTED,
) -> None:
    """Check every engine and precision on this machine against plain torch.

    The exit code is 3 where what attnres takes does not compute right.
    """
    from attnres_cli.lab import doctor as found
    from attnres_cli.report.doctor import report_of
    from attnres_cli.train.device import devices

    first = devices(device)[0]
    ways, chosen = found.ways(first), found.chosen(first)
    note(f"trying {len(ways)} ways to train on {first}; what is compiled takes a minute")
    results = list(found.examine(ways))
    facts = found.machine(first), found.problems(first)
    options.show(report_of(*facts, results, chosen, found.DESIGNS), form)
    if any(one.wrong is not None and one.way in chosen.values() for one in results):
        raise typer.Exit(SOME_FAILED)
