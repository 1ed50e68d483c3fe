"""`attnres report`: the verdict from the study alone, printed, written or drawn."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import typer

from attnres_cli.cli import options
from attnres_cli.config import complete
from attnres_cli.console import VERBOSE, be
from attnres_cli.errors import UsageError, unknown


def _read_against(text: str) -> str:
    known = _with_numbers("")
    if text not in known and not text.endswith(".json"):
        raise UsageError(unknown("--against", text, [*known, "FILE.json"]))
    return text


def _with_numbers(incomplete: str) -> list[str]:
    names = [options.PAPER, *complete.reports()]
    return [name for name in names if name.startswith(incomplete)]


@dataclass(frozen=True, kw_only=True)
class Reporting:
    """What `report` is asked."""

    variants: list[str] | None = options.specs(
        "Show only these arms. They are judged with all others."
    )
    study: str = options.STUDY
    recipes: list[str] | None = typer.Option(
        None,
        "--recipe",
        help="Recipe or search. Default: the newest recipe. Two recipes: side by side.",
    )
    baseline: str = options.BASELINE
    margin: str | None = options.MARGIN
    form: options.Format = options.one_of(*options.Format)
    output: Path | None = typer.Option(None, help="Write to this file.", show_default=False)
    figures: str | None = typer.Option(
        None,
        help="Folder for figures as SVG, or a name ending in .png, .pdf or .svg.",
        show_default=False,
    )
    against: str | None = typer.Option(
        None,
        help="Numbers beside yours: paper, a report that comes with the tool, or FILE.json, as "
        "--format json writes it.",
        parser=_read_against,
        autocompletion=_with_numbers,
        metavar="<str>",
        show_default=False,
    )
    scaling: bool = typer.Option(
        False, "--scaling", help="Compare the sizes of this recipe: laws, and what an arm is worth."
    )
    downstream: bool = typer.Option(
        False, "--downstream", help="Judge the answers of attnres evaluate."
    )
    preregister: str | None = typer.Option(
        None, help="YAML file that fixes a comparison before its first run."
    )
    code: str | None = typer.Option(
        None,
        help="Start of a code digest, from attnres runs. Default: the newest.",
        show_default=False,
    )
    notes: bool = typer.Option(
        False, "--notes", help="Print all caveats and what the numbers rest on."
    )
    plugin: list[str] | None = options.PLUGINS

    @property
    def recipe(self) -> str | None:
        """The first that is named; None for the newest."""
        return self.recipes[0] if self.recipes else None

    @property
    def is_page(self) -> bool:
        """Whether a page is written, or else tables."""
        return self.form is options.Format.HTML

    @property
    def codes(self) -> list[str]:
        """The starts of digests that are asked for."""
        return [] if self.code is None else [self.code]

    def refuse(self, why: str, *of: str) -> None:
        """Raise UsageError where one of these options was typed: `--margin is of losses`."""
        typed = {
            "--scaling": self.scaling,
            "--against": self.against,
            "--downstream": self.downstream,
            "--margin": self.margin,
            "--figures": self.figures,
            "--baseline": self.baseline != "standard",
            "--code": self.code,
            "--recipe": self.recipes,
            "--format": self.form is not options.Format.TABLE,
            "--output": self.output,
            "VARIANT": self.variants,
        }
        options.refuse({option: typed[option] for option in of}, why)


_OF_REPORTS = (
    *("VARIANT", "--recipe", "--baseline", "--margin", "--format", "--output", "--figures"),
    *("--against", "--scaling", "--downstream", "--code"),
)
"""What asks for a report."""


@options.takes(Reporting)
def report(asked: Reporting) -> None:
    """Print the verdict from the study alone, or write it, with figures; nothing is trained."""
    if asked.notes:
        be(VERBOSE)
    # NumPy's, read when it is imported: threads of small matrices wait for each other, ten times as
    # long as they compute where runs train beside
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from attnres_cli.cli import showing

    if asked.preregister is not None:
        asked.refuse("--preregister only fixes a plan: leave {} out", *_OF_REPORTS)
        showing.preregister(asked.preregister, asked.study)
    else:
        showing.write(asked)
