"""How tests train: with plain settings, and nobody who listens."""

from __future__ import annotations

from attnres_cli.records.run import Settings

SETTINGS = Settings("cpu", "test", "fp32", compiled=False, threads=1, engine="eager")


def quiet(step: int, loss: float | None) -> None:
    """Nobody listens."""
