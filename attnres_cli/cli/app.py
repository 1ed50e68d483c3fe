"""The command line: parse, call one function, print. The one place where errors become messages.
Torch, sqlalchemy, scipy and all of ours but errors are imported inside commands, so that --help
answers at once.
"""

from __future__ import annotations

import sys
import traceback
import warnings

import typer

from attnres_cli import __version__, console
from attnres_cli.cli import (
    ablate,
    bench,
    designs,
    doctor,
    evaluate,
    init,
    plan,
    report,
    runs,
    search,
)
from attnres_cli.config.address import without_passwords
from attnres_cli.console import say, warn
from attnres_cli.errors import BAD_INPUT, DONE, INTERRUPTED, AttnresError, UsageError
from attnres_cli.lab.workers.signals import none_lost
from attnres_cli.records import machine

app = typer.Typer(
    name="attnres",
    help="Which residual connection should you train a Transformer with, and how sure can you be?",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for _command in (
    ablate.ablate, search.search, report.report, evaluate.evaluate, plan.plan, init.init,
    designs.variants, designs.check, designs.recipes, runs.verify, doctor.doctor,
):  # fmt: skip
    app.command()(_command)
app.add_typer(bench.app, name="bench", help=bench.HELP)
app.add_typer(runs.app, name="runs", help=runs.HELP)


_TRACEBACK = "--traceback"
_QUIET, _VERBOSE = ("-q", "--quiet"), ("-v", "--verbose")
_ANYWHERE = (_TRACEBACK, *_QUIET, *_VERBOSE)
"""Options of the root, whose place is before the command; typed anywhere they are moved there."""


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"attnres {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _asked: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
    _shows_all: bool = typer.Option(
        False, _TRACEBACK, help="Show the traceback of an error. Works anywhere in the command."
    ),
    quiet: bool = typer.Option(False, *_QUIET, help="Print only results, warnings and errors."),
    verbose: bool = typer.Option(
        False, *_VERBOSE, help="Print the whole plan, all caveats, and every run."
    ),
) -> None:
    """Find out which residual connection to train a Transformer with, and how sure you can be."""
    if quiet and verbose:
        raise UsageError("--quiet and --verbose: give one of them")
    console.be(verbose - quiet)


def _warn(message: Warning | str, *_where: object) -> None:
    warn(str(message))


def main() -> None:
    """The command `attnres`, as a program."""
    if machine.is_rank():
        from attnres_cli.lab.workers.ranks import as_rank

        console.leave(as_rank(run), at_once=True)
    code = run()
    console.leave(code, at_once=code == INTERRUPTED)


def run() -> int:
    """Do what is in `sys.argv`; the exit code. What a user can cause is one line on stderr."""
    warnings.showwarning = _warn  # type: ignore[assignment]
    console.mend()
    shows_all = _TRACEBACK in sys.argv
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)  # what follows is no option
    typed, rest = sys.argv[1:end], sys.argv[end:]
    first = [word for word in typed if word in _ANYWHERE]
    sys.argv[1:] = [*dict.fromkeys(first), *(w for w in typed if w not in _ANYWHERE), *rest]
    try:
        with none_lost():
            code = app(standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:  # as in `attnres report | head -1`: its reader has seen enough
        console.mute(sys.stdout)
        code = DONE
    except Exception as error:
        message = _words_of(error)
        if message is None:
            raise
        if shows_all:
            traceback.print_exception(error)
        if message:  # there is none where no command was given: the help is printed then
            say(without_passwords(message))
        code = error.exit_code if isinstance(error, AttnresError) else BAD_INPUT
    if code == INTERRUPTED:  # typer makes this of Ctrl-C
        say("interrupted; what is done is in the study, the same command goes on")
    return int(code or DONE)


def _usage(of: typer.Context) -> str:
    """`attnres runs note ID NOTE`: a command with its arguments."""
    taken = [one for one in of.command.params if one.param_type_name == "argument"]
    return " ".join([of.command_path, *(one.metavar or str(one.name).upper() for one in taken)])


def _words_of(error: Exception) -> str | None:
    """What a user who caused an error is told; None where nobody but us can have."""
    if isinstance(error, AttnresError):
        return str(error)
    if isinstance(error, typer.TyperException):
        message = str(getattr(error, "format_message", error.__str__)())
        if message.startswith("Missing argument"):
            return f"{message.removesuffix('.')}: {_usage(error.ctx)}"  # type: ignore[attr-defined]
        return message
    from attnres_cli.nn.residual import blamed

    if (told := blamed(error)) is not None:
        return told
    if isinstance(error, OSError) and error.errno is not None:  # else of a library, in its words
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""
        return f"{where}{error.strerror}"  # a file, folder or disk, wherever it was met
    return None
