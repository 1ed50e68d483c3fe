"""What several commands take: options and arguments with their help, and how they are read."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import typer

from attnres_cli.config import address, complete
from attnres_cli.console import say
from attnres_cli.errors import INTERRUPTED, UsageError, unknown

if TYPE_CHECKING:
    from attnres_cli.lab.experiment import Place
    from attnres_cli.report.table import Report
    from attnres_cli.store.store import Store

_TEXT = "<str>"
_TAKES_FILE = {".db": "--study", ".yaml": "--recipe", ".yml": "--recipe", ".py": "--plugin"}
_MOST_SEEDS = 1000
PAPER = "paper"  # of --against
MOST_ID = 2**31 - 1  # of a run: of a column of a database
MOST_WORKERS = 1024  # of one command; a study on a server takes any number of commands
_FIRST_TUNING_SEED = 1_000_000  # as in run.py, which takes pydantic to import


def _add_plugins(paths: list[str] | None) -> list[str] | None:
    """Load plugins before anything else of the command is looked at."""
    if paths:
        from attnres_cli.nn.residual import add_plugin

        for path in paths:
            add_plugin(path)
    return paths


PLUGINS = typer.Option(
    None,
    "--plugin",
    help="Python file with a design of your own. Repeatable; or ATTNRES_PLUGINS.",
    callback=_add_plugins,
    is_eager=True,
)
RECIPE = typer.Option(
    "quick", help="Name of a recipe, or path to a YAML file.", autocompletion=complete.recipes
)
OVERRIDE = typer.Option(
    None, "--set", help="Change a key of the recipe: train.tokens=2M. Repeatable."
)
STUDY = typer.Option(
    address.DEFAULT,
    help="SQLite file that holds all runs, or postgresql+psycopg://user@host/database.",
    callback=address.withhold,
)
RUN = typer.Argument(
    min=1, max=MOST_ID, help="Number of the run, from `attnres runs`.", metavar="ID"
)
DEVICE = typer.Option("auto", help="auto, cpu, cuda or cuda:N.")
ENGINE = typer.Option(
    "auto", help="Depth mixing engine: auto, reference, eager, compile or triton."
)
BASELINE = typer.Option(
    "standard", help="The arm to compare the others with.", autocompletion=complete.specs
)
SIZES = typer.Option(None, "--shape", help="Sizes to count with: n_layers=16,d_model=1024.")
MARGIN = typer.Option(
    None,
    help="Largest difference that does not matter: nats per token (0.01) or compute (1.05x).",
    show_default=False,
)


def no_file(word: str) -> str:
    """A design as it was typed. Raises UsageError for a file, which an option takes."""
    if (option := _TAKES_FILE.get(Path(word).suffix)) is not None:
        raise UsageError(f"'{word}' is a file, not a design: {option} {word}")
    return word


def _no_files(typed: list[str] | None) -> list[str] | None:
    return None if typed is None else [*map(no_file, typed)]


def specs(meaning: str) -> Any:
    """The argument that takes designs."""
    return typer.Argument(None, help=meaning, autocompletion=complete.specs, callback=_no_files)


def word(default: str | None, option: str, meaning: str, known: Sequence[str]) -> Any:
    """An option that takes one of these words; others are refused with the nearest of them."""

    def read(text: str) -> str:
        if text not in known:
            raise UsageError(unknown(option, text, known))
        return text

    return typer.Option(default, option, help=meaning, parser=read, metavar=_TEXT)


class Format(StrEnum):
    """What results are printed as."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    LATEX = "latex"
    HTML = "html"


def one_of(*allowed: Format) -> Any:
    """The option --format with these formats."""

    def read(text: str) -> Format:
        if text in allowed:
            return Format(text)
        if text in (Format.LATEX, Format.HTML):
            raise UsageError(f"--format {text}: `attnres report --format {text}` prints it")
        raise UsageError(unknown("format", text, allowed))

    names = f"{', '.join(allowed[:-1])} or {allowed[-1]}."
    return typer.Option(Format.TABLE, "--format", help=names, parser=read, metavar=_TEXT)


PRINTED = one_of(Format.TABLE, Format.JSON, Format.MARKDOWN, Format.CSV)


def read_shape(text: str | None) -> dict[str, int]:
    """{n_layers: 16, d_model: 1024} for `n_layers=16`. Raises UsageError."""
    sizes = {"n_layers": 8, "d_model": 1024}
    most = {"n_layers": 200, "d_model": 2**17}  # a drawing of more layers takes minutes
    for part in text.split(",") if text is not None else ():
        name, _, value = part.strip().partition("=")
        if name not in sizes:
            raise UsageError(f"--shape: {unknown('size', name, sizes)}")
        if not (re.fullmatch(r"[1-9][0-9]{0,6}", value) and int(value) <= most[name]):
            raise UsageError(
                f"--shape takes whole numbers, as n_layers=16, {name} up to {most[name]}, got "
                f"'{part}'"
            )
        sizes[name] = int(value)
    return sizes


def read_seeds(text: str, begin: int = 0) -> tuple[int, ...]:
    """Three seeds from `begin` up for `3`; those listed for `0,3,7`; seed 7 alone for `7,`. Raises
    UsageError.
    """
    if not re.fullmatch(r"-?[0-9]{1,18}(,-?[0-9]{1,18})*,?", text):
        raise UsageError(
            f"--seeds takes a number, a list as 0,3,7, or one seed as 7, (with its comma), "
            f"got '{text}'"
        )
    numbers = tuple(int(part) for part in text.removesuffix(",").split(","))
    if "," in text:
        if len(set(numbers)) < len(numbers) or min(numbers) < 0:
            raise UsageError(f"--seeds takes different seeds from 0 up, got '{text}'")
        if max(numbers) >= _FIRST_TUNING_SEED:
            raise UsageError(
                f"--seeds: those from {_FIRST_TUNING_SEED} up are kept for --tune-lr, got '{text}'"
            )
        return numbers
    if not 1 <= numbers[0] <= _MOST_SEEDS:
        raise UsageError(f"--seeds must be at least 1, at most {_MOST_SEEDS}, got {numbers[0]}")
    return tuple(range(begin, begin + numbers[0]))


def refuse(typed: Mapping[str, object], why: str) -> None:
    """Raise UsageError, with its name in `why`, for the first option here that was typed."""
    for option in [name for name, value in typed.items() if value]:
        raise UsageError(why.format(option))


def show(report: Report, form: Format) -> None:
    """Print a report whole."""
    from attnres_cli.report import file_formats

    file_formats.show(report, form, sys.stdout)


def opened(study: str) -> Store:
    """A study that is only read. Raises StudyError where there is none."""
    from attnres_cli.store.store import Store

    return Store.open(study, create=False)


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Do what is recorded nowhere: Ctrl-C ends the command in one line that says so."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted; nothing was kept")
        sys.exit(INTERRUPTED)


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a command that trains is asked: what to change of a recipe, and where."""

    override: list[str] | None = OVERRIDE
    study: str = STUDY
    workers: int | None = typer.Option(
        None,
        min=1,
        max=MOST_WORKERS,
        help="Number of processes. Default: what the machine has room for.",
    )
    launch: str | None = word(
        None,
        "--launch",
        "Train on a cluster, slurm or ray: --workers N jobs, each a worker of the study.",
        ("slurm", "ray"),
    )
    job: list[str] | None = typer.Option(
        None,
        help="Resources of each job: time=4:00:00 (sbatch) or num_gpus=1 (Ray). Repeatable.",
        show_default=False,
    )
    prints: bool = typer.Option(
        False, "--print", help="With --launch slurm: print the batch script and submit nothing."
    )
    device: str = DEVICE
    engine: str = ENGINE
    form: Format = PRINTED
    log: list[str] | None = typer.Option(
        None,
        help="Show runs while they train: tensorboard:DIR, wandb[:PROJECT] or mlflow[:URI]. "
        "Repeatable.",
        show_default=False,
    )
    retry_failed: bool = typer.Option(False, help="Train failed runs again.")
    retry_before: str = typer.Option("", "--retry-failed-before", hidden=True)  # of --launch
    dry_run: bool = typer.Option(False, help="Print the plan and train nothing.")
    plugin: list[str] | None = PLUGINS

    def place(self, workers: int | None, *, in_process: bool = False) -> Place:
        """Where runs are recorded and computed."""
        from attnres_cli.lab.experiment import Place
        from attnres_cli.lab.live import Log

        where = self.study, workers, self.device, self.engine
        log, again = Log(self.log or ()), self.retry_failed or self.retry_before != ""
        return Place(*where, again, in_process, log, self.retry_before)


@dataclass(frozen=True, kw_only=True)
class Filtered:
    """Which runs of a study a command is about; all, where nothing is asked."""

    status: str | None = typer.Option(
        None, help="Only runs that are pending, running, complete, diverged or failed."
    )
    variant: str | None = typer.Option(
        None, help="Only runs of this variant.", autocompletion=complete.specs
    )
    recipe: str | None = typer.Option(
        None, help="Only runs of this recipe: name, or start of a digest."
    )
    tag: str | None = typer.Option(None, help="Only runs with this tag.")
    note: str | None = typer.Option(None, help="Only runs whose note contains this.")
    study: str = STUDY

    @property
    def filters(self) -> dict[str, str]:
        """What runs must be, by name of the option."""
        names = ("status", "variant", "recipe", "tag", "note")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def typed(self) -> list[str]:
        """The same as words of a command."""
        return [word for name, value in self.filters.items() for word in (f"--{name}", value)]


Asked = TypeVar("Asked")


def takes(asked: type[Asked]) -> Callable[[Callable[[Asked], None]], Callable[..., None]]:
    """Make a function a command: an argument or option for each field of the dataclass that it is
    given, those of its own before those that other commands have too.
    """
    hints = get_type_hints(asked, include_extras=True)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=getattr(asked, name, inspect.Parameter.empty),
            annotation=hints[name],
        )
        for name in sorted(hints, key=lambda name: name not in asked.__annotations__)
    ]

    def decorate(function: Callable[[Asked], None]) -> Callable[..., None]:
        @wraps(function)
        def command(**typed: Any) -> None:
            function(asked(**typed))

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = hints
        return command

    return decorate
