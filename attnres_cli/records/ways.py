"""Ways to compute a run on a machine, and what came of trying them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    """How a run may be computed."""

    device: str
    engine: str
    precision: str
    compiled: bool
    graphs: bool = False  # compiled, and replayed as CUDA graphs


@dataclass(frozen=True)
class Tried:
    """What came of a way: what is `wrong`, None where nothing is, and how far loss and gradients
    are from plain torch's in float32, as parts of them, at most over the designs.
    """

    way: Way
    wrong: str | None
    loss: float | None = None
    gradient: float | None = None
