"""Which engine computes a history: chosen by device, type and compiler, or forced."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.engine_state import Engine

NAMES = ("auto", "reference", "eager", "compile", "triton")
"""What an engine can be asked for by."""

_TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Asked(threading.local):
    """The engine that a thread has asked for; a compiler guards on it."""

    def __init__(self) -> None:
        self.name = "auto"


_asked = _Asked()


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Histories that this thread starts inside are computed by this engine; `auto` chooses.

    A history keeps its engine: other threads may read it, or run its backward.

    Raises:
        ValueError: no engine has this name.

    """
    if name not in NAMES:
        raise ValueError(f"no engine '{name}': {', '.join(NAMES)}")
    before, _asked.name = _asked.name, name
    try:
        yield
    finally:
        _asked.name = before


def choose(v: Tensor) -> Engine:
    """The engine for a history whose first source is v.

    Under a compiler the list form or Triton's operators, which it takes whole; else the custom
    autograd, with Triton's kernels where there is a GPU.
    """
    name = _asked.name
    if name == "auto":
        name = "triton" if _suits_triton(v) else "eager"
    if name == "eager" and torch.compiler.is_compiling():
        name = "compile"  # its backward is Python, which a compiler would cut out of the graph
    if not v.numel():
        name = "compile"  # kernels and views of no tokens have no size to infer
    return _made(name)


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def interprets_triton() -> bool:
    """Whether Triton's kernels run in its interpreter, on any device, slowly."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _suits_triton(v: Tensor) -> bool:
    return v.is_cuda and v.dtype in _TRITON_TYPES and has_triton()


def _made(name: str) -> Engine:
    if name == "reference":
        from attnres_cli.nn.depthmix.reference import Reference

        return Reference()
    if name == "compile":
        from attnres_cli.nn.depthmix.unrolled import ListForm

        return ListForm()
    from attnres_cli.nn.depthmix import eager
    from attnres_cli.nn.depthmix.gather_autograd import Pull

    if name == "eager":
        return Pull(eager)
    from attnres_cli.nn.depthmix.fused import arithmetic

    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        from attnres_cli.nn.depthmix.compiled_autograd import Ports

        return Ports(arithmetic)
    return Pull(arithmetic)
