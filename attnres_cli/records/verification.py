"""A recorded run beside a second training of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnres_cli.records.run import RunRecord, RunResult


@dataclass(frozen=True)
class Departure:
    """The first point of a curve at which a second training was not the first one: both losses."""

    step: int
    what: str  # "training loss" or "validation loss"
    recorded: float | None
    now: float | None


_ROUNDING = {
    *("device_name", "cpu_capability", "torch", "cuda", "triton"),
    *("float32_matmul", "attention"),
}
"""What of a run's provenance decides how sums are rounded. On a GPU chance does too: the backward
pass of flash attention adds in no fixed order.
"""
_EARLY = 1e-3
"""Relative: rounding is 1e-7 at the first step, and grows; other settings differ at once."""
_OF_SPREAD = 1.0
"""Of the spread over seeds: docs/recovery.md says what another processor came to."""


@dataclass(frozen=True)
class Verification:
    """A recorded run beside `result`, that of a second training. Where that was shared by ranks in
    another way, rounding differs, and losses are compared to a `tolerance`, relative; it is 0 where
    every bit is. `early` is the largest relative difference of losses in the first steps, `spread`
    the standard deviation of the arm's final losses over seeds, None where it has too few.
    """

    record: RunRecord
    result: RunResult
    departure: Departure | None  # None where the curves are equal, bit for bit
    weights: tuple[str, ...] | None  # those that differ; None where the study keeps none
    changed: tuple[tuple[str, str, str], ...]  # (name, recorded, now) of its provenance
    tolerance: float = 0.0
    early: float = math.inf
    spread: float | None = None

    @property
    def apart(self) -> float:
        """How far the final losses are apart, nats per token."""
        assert self.record.result is not None
        return abs(self.record.result.val_loss - self.result.val_loss)

    @property
    def agrees(self) -> bool:
        """Whether the two are equal but for rounding: something has changed that decides how sums
        are rounded, or a GPU was at it, and no code; they begin alike, and end within what seeds
        differ by.
        """
        names = {name for name, *_ in self.changed}
        varies = bool(names & _ROUNDING) or self.result.settings.device == "cuda"
        is_rounding = varies and not any(n.startswith("code") for n in names)
        if self.is_equal or not is_rounding or self.spread is None:
            return False
        return self.early <= _EARLY and self.apart <= _OF_SPREAD * self.spread

    @property
    def is_equal(self) -> bool:
        """Whether all that can be compared is."""
        recorded = self.record.result
        assert recorded is not None
        ours, theirs = recorded.val_loss, self.result.val_loss
        same_end = repr(ours) == repr(theirs)  # nan is not nan
        same_end |= math.isclose(ours, theirs, rel_tol=self.tolerance)
        return self.departure is None and not self.weights and same_end
