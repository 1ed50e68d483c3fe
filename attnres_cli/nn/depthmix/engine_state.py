"""Ledger: what an engine has of the sources made so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from attnres_cli.nn.depthmix.scoring import Layout, Scoring


@dataclass(frozen=True)
class Ledger:
    """Never changed in place: engines return new ones.

    Attributes:
        scoring: who reads what.
        layout: the same, turned around.
        sources: v_0..v_j, each (B, T, D).
        notes: what the engine has noted of each.
        partial: what reads without a gradient have in common (phases.Partial), or None.

    """

    scoring: Scoring
    layout: Layout
    sources: tuple[Tensor, ...] = ()
    notes: tuple[Any, ...] = ()
    partial: Any = None


class Engine(Protocol):
    """What history.py asks of an engine, which keeps no state of its own."""

    @property
    def name(self) -> str:
        """By which it is asked for."""

    def append(self, ledger: Ledger, v: Tensor) -> Ledger:
        """The ledger with the source v (B, T, D) and the engine's note of it."""

    def read(self, ledger: Ledger, site: int, query: Tensor | None) -> tuple[Tensor, Ledger]:
        """The mix (B, T, D) at a site, in the type of v_0, and the ledger to go on with."""

    def scores(self, ledger: Ledger, site: int) -> Tensor:
        """(B, T, S, H) scores of the sources that a site sees, in float32 at least."""
