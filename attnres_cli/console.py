"""Standard output and error, made to outlive closed pipes and odd characters."""

from __future__ import annotations

import codecs
import gc
import io
import logging
import os
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NoReturn

_LONGEST_LINE = 1000
_LONG_S = 8.0
_SPELLED = {
    "\N{PLUS-MINUS SIGN}": "+/-", "\N{HORIZONTAL ELLIPSIS}": "...", "\N{RIGHTWARDS ARROW}": "->",
    "\N{LEFTWARDS ARROW}": "<-", "\N{BOX DRAWINGS LIGHT HORIZONTAL}": "-",
}  # fmt: skip


def mend() -> None:
    """Let no output fail for a character, as plus-minus in ASCII, or for a closed stream, and let
    no library put lines of its own between ours.
    """
    codecs.register_error("attnres", _spelled)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="attnres")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an encoding lacks: `+/-` for plus-minus."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_SPELLED.get(character, "?") for character in lacking), error.end


def mute(stream: IO[str]) -> None:
    """Send what a stream still holds, and all that follows, nowhere: its reader has gone. Else
    whoever flushes it next, as a worker's start does, would meet the broken pipe.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def harmless(text: str) -> str:
    r"""Text whose control characters are written out, as \x1b, so that a terminal, a browser and a
    spreadsheet show them and do nothing else; lines stay lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or _is_shown(c) else ascii(c)[1:-1] for c in text)


def _is_shown(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"  # as a narrow space


def leave(code: int, *, at_once: bool = False) -> NoReturn:
    """End the program; `at_once`, as somebody waits: Python would first take torch apart, which is
    seconds on a busy machine. But who debugs or profiles it has the last word.
    """
    gc.freeze()  # most of that time, as what is there is not searched for garbage once more
    if at_once and not _is_watched():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


@contextmanager
def uncollected() -> Iterator[None]:
    """Do something short that keeps most of what it makes, as imports and a long table do, without
    looking for garbage meanwhile: a fifth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _is_watched() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    tools = [monitoring.get_tool(number) for number in range(6)] if monitoring else []
    return any((sys.gettrace(), sys.getprofile(), *tools))


QUIET, USUAL, VERBOSE = -1, 0, 1
_loudness = USUAL


def be(loudness: int) -> None:
    """Let `note` be heard from USUAL on, `detail` only at VERBOSE."""
    global _loudness
    _loudness = loudness


def is_quiet() -> bool:
    """Whether nothing but results, warnings and errors is printed."""
    return _loudness == QUIET


def is_verbose() -> bool:
    """Whether everything is printed that there is to say."""
    return _loudness == VERBOSE


def note(message: str) -> None:
    """`say` what a command does, unless it is to be quiet."""
    if _loudness >= USUAL:
        say(message)


@contextmanager
def told_if_slow(words: str) -> Iterator[None]:
    """`note` the words, once what is done inside has taken a while."""
    timer = threading.Timer(_LONG_S, note, (words,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Progress:
    """`note`, every so often, how many bytes are done of something that takes long."""

    def __init__(self, words: str) -> None:
        self._words, self._done, self._next = words, 0, time.monotonic() + _LONG_S

    def add(self, n_bytes: int) -> None:
        """So many more are done."""
        self._done += n_bytes
        if time.monotonic() > self._next:
            note(f"{self._words}: {self._done / 1e6:,.0f} MB")
            self._next = time.monotonic() + _LONG_S


def warn(message: str) -> None:
    """`say` what a user should know before believing a result, also where it is to be quiet."""
    say(f"warning: {message}")


def detail(message: str) -> None:
    """`say` what only they want to hear who asked for it by --verbose."""
    if _loudness == VERBOSE:
        say(message)


def say(message: str) -> None:
    """`attnres: message` on stderr, in one line, whatever a file's name or content may hold."""
    line = harmless(" ".join(message[:_LONGEST_LINE].split("\n")))
    try:
        print(f"attnres: {line[:_LONGEST_LINE]}", file=sys.stderr, flush=True)  # noqa: T201
    except BrokenPipeError:
        mute(sys.stderr)
