"""What can go wrong by a user's hand. Caught once, in cli.py: one line on stderr, exit code 2.

AttnresError
  RecipeError     a recipe, suite or --set that cannot be meant
  VariantError    an unknown variant or option, or options that exclude each other
  DataError       tokens that are missing, too few, or not those the study holds
  StudyError      a database that cannot be opened, or holds something else
    NoStudyError  there is none yet
    AwayError     its server is not there at this moment
  ExportError     a folder that is no export of a run, or is damaged
  DeviceError     a device that this machine does not have, or with too little memory
  WorkersError    processes that are ended by others before they have trained anything
  TorchError      a torch that the package does not work with
  UsageError      any other argument on the command line

What only we can cause is no AttnresError: it shows its traceback.

Exit codes stand here too, for every command; 1 is Python's own, after a traceback.
"""

from __future__ import annotations

import difflib
import importlib
import re
import shlex
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

DONE = 0
BAD_INPUT = 2
"""Most AttnresErrors, or a command line that cannot be parsed."""

SOME_FAILED = 3
"""The command did its work, and some of it came to nothing good: a run failed, a proof of a design
does not hold, an arm of a benchmark is wrong, a run trained once more departs from the first, no
worker process lasts.
"""

INTERRUPTED = 130
"""By Ctrl-C."""


class AttnresError(Exception):
    """Base of all errors that a user can cause; `str(error)` is one line that says what to do."""

    exit_code = BAD_INPUT


class RecipeError(AttnresError):
    """A recipe, suite or override that cannot be meant."""


class VariantError(AttnresError):
    """An unknown variant or option, a value out of range, or options that exclude each other."""


class ProofError(AttnresError):
    """A design that passes on what it is to predict, or whose numbers do not repeat."""


class DataError(AttnresError):
    """Tokens that are missing, too few, or not those that the study was made with."""


class StudyError(AttnresError):
    """A study that cannot be opened, read or written."""


class NoStudyError(StudyError):
    """No study, or one without runs, where one is only to be read."""


class AwayError(StudyError):
    """The server did not answer, or hung up: it may be there again in a moment. `is_up`: it
    answered, but takes no connection or cannot do this just now.
    """

    def __init__(self, words: str, *, is_up: bool = False) -> None:
        super().__init__(words)
        self.is_up = is_up


class ExportError(AttnresError, ValueError):
    """A folder that is no export of a run, or is damaged."""


class DeviceError(AttnresError):
    """A device that this machine does not have, or that has too little memory."""


class TorchError(AttnresError):
    """A torch without a private name that the package uses."""


class WorkersError(AttnresError):
    """Worker processes that die again and again before they begin a run."""

    exit_code = SOME_FAILED


class UsageError(AttnresError):
    """Any other argument on the command line that cannot be meant."""


_NAMES_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")


def last_line(error: str | None) -> str:
    """The line of a traceback that names the error; CUDA's go on with advice below it."""
    lines = (error or "unknown").strip().splitlines()
    named = [line for line in lines if _NAMES_ERROR.match(line)]
    return (named or lines)[-1]


_MOST_KNOWN = 40  # names in an error: all designs or settings, not all digests of a study


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """`unknown recipe 'quik': did you mean 'quick'? Known: quick, smoke`, for any kind of name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f": did you mean '{near[0]}'?" if near else "."
    if (more := len(names) - _MOST_KNOWN) > 0:
        names = [*names[:_MOST_KNOWN], f"and {more} more"]
    return f"unknown {what} '{name}'{hint} Known: {', '.join(names) or 'none'}"


def required(package: str, extra: str, what: str, error: type[AttnresError]) -> Any:
    """The package, imported; `error` with the command that installs it where it cannot be."""
    try:
        return importlib.import_module(package)
    except ImportError as reason:
        raise error(
            f"{what} needs the package {extra}, which cannot be imported ({reason}): "
            f"{installing(extra)}"
        ) from reason


def installing(extra: str) -> str:
    """The command that installs an extra from any folder: the package is on no index, so it names
    the clone, or where a wheel was installed the extra's own packages.
    """
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    named = re.compile(rf"(.+?) ?; extra == \"{extra}\"")
    found = map(named.fullmatch, metadata.requires("attnres-cli") or ())
    return " ".join(["pip install", *(shlex.quote(each[1]) for each in found if each)])
