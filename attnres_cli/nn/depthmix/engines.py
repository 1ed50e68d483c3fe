"""Which engine computes a history: chosen by device, type and compiler, or forced."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import threading
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from attnres_cli.nn.depthmix.compiled_autograd import CompiledGather
from attnres_cli.nn.depthmix.eager import Eager
from attnres_cli.nn.depthmix.gather_autograd import Gather
from attnres_cli.nn.depthmix.reference import Reference
from attnres_cli.nn.depthmix.scoring import EngineState, Scoring
from attnres_cli.nn.depthmix.unrolled import Unrolled

NAMES = ("auto", "reference", "eager", "compile", "triton")
"""What an engine can be asked for by."""

_TRITON_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Engine(Protocol):
    """What history.py asks of an engine, which keeps no state of its own."""

    def append(self, state: EngineState, v: Tensor) -> EngineState:
        """The state with the source v (B, T, D) and the engine's record of it."""

    def read(
        self, state: EngineState, site: int, query: Tensor | None
    ) -> tuple[Tensor, EngineState]:
        """The mix (B, T, D) at a site, in the type of v_0, and the state to go on with."""

    def scores(self, state: EngineState, site: int) -> Tensor:
        """(B, T, S, H) scores of the sources that a site sees, in float32 at least."""


class _Asked(threading.local):
    """The engine that a thread has asked for; a compiler guards on it."""

    def __init__(self) -> None:
        self.name = "auto"


_asked = _Asked()


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Histories that this thread starts inside are computed by this engine, also where other
    threads read them or run their backward; `auto` chooses. ValueError: no engine has this name.
    """
    if name not in NAMES:
        raise ValueError(f"no engine '{name}': {', '.join(NAMES)}")
    before, _asked.name = _asked.name, name
    try:
        yield
    finally:
        _asked.name = before


def choose(v: Tensor, scoring: Scoring) -> Engine:
    """The engine for a history whose first source is v. Under a compiler it is the unrolled sums or
    Triton's operators, which it takes whole; else the custom autograd, with Triton's kernels where
    there is a GPU.
    """
    name = _named(v)
    if torch.compiler.is_compiling() and (name == "eager" or _learns_unrolled(name, scoring)):
        name = "compile"
    if not v.numel():
        name = "compile"  # kernels and views of no tokens have no size to infer
    return _made(name, scoring)


def plain() -> bool:
    """Whether designs leave their sums to plain autograd: a compiler fuses those best, and the
    engines `reference` and `compile` have no gradients by hand.
    """
    return torch.compiler.is_compiling() or _asked.name in ("reference", "compile")


def fuses(x: Tensor) -> bool:
    """Whether a design's own kernels compute what it makes of x, as Triton's engine would."""
    return _named(x) == "triton" and x.numel() > 0 and not torch.compiler.is_compiling()


def decodes() -> bool:
    """Whether few tokens without gradients may be kept by few_tokens.py, which is no engine."""
    return _asked.name in ("auto", "eager") and not torch.compiler.is_compiling()


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def interprets_triton() -> bool:
    """Whether Triton's kernels run in its interpreter, on any device, slowly."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _named(x: Tensor) -> str:
    """The engine that was asked for; where none was, Triton's for what suits it."""
    if _asked.name != "auto":
        return _asked.name
    suits_triton = x.is_cuda and x.dtype in _TRITON_TYPES and has_triton()
    return "triton" if suits_triton else "eager"


def _learns_unrolled(name: str, scoring: Scoring) -> bool:
    """Whether no edge of CompiledGather brings back what these scores learn by."""
    brought = scoring.query is None and scoring.table is None
    return name == "triton" and torch.is_grad_enabled() and (scoring.plain or brought)


def _made(name: str, scoring: Scoring) -> Engine:
    if name == "reference":
        return Reference()
    if name == "compile":
        return Unrolled()
    if name == "eager":
        return Gather(Eager(scoring))
    from attnres_cli.nn.depthmix.fused.arithmetic import Triton  # needs triton

    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        return CompiledGather(Triton(scoring))
    return Gather(Triton(scoring))
