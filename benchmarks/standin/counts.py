"""What the stand-in has counted of a call, and the lines of Python that waited."""

from __future__ import annotations

import ctypes
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NAMES = (
    "launches", "cublas", "triton", "to_device", "pageable", "to_host", "on_device", "set", "waits",
    "replays",
)  # fmt: skip
"""In the order of cuda.c."""

ROOT = Path(__file__).resolve().parents[2]
_OURS = ("attnres_cli", "variants")


@dataclass
class Counted:
    """Calls to CUDA by NAMES, and how often each line waited, or copied what is not pinned."""

    calls: dict[str, int] = field(default_factory=dict)
    lines: Counter[str] = field(default_factory=Counter)


@contextmanager
def counting() -> Iterator[Counted]:
    """What is counted inside."""
    library, found = ctypes.CDLL(None), Counted()

    def note(what: bytes) -> None:
        files = ((Path(each.filename), each.lineno) for each in traceback.extract_stack())
        near = [
            f"{file.relative_to(ROOT).as_posix()}:{line}"
            for file, line in files
            if any(file.is_relative_to(ROOT / folder) for folder in _OURS)
        ]
        ours = near[-1] if near else "no line of ours"
        found.lines[f"{what.decode()} at {ours}"] += 1

    listener = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(note)
    library.standin_restart()
    library.standin_listen(listener)
    try:
        yield found
    finally:
        library.standin_listen(None)
        numbers = (ctypes.c_longlong * len(NAMES))()
        library.standin_counts(numbers)
        found.calls = dict(zip(NAMES, numbers, strict=True))


def counted(call: Callable[[], object]) -> Counted:
    """What a call does."""
    with counting() as found:
        call()
    return found
