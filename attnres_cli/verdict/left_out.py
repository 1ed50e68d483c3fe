"""Runs that were left out with a reason, once more: what a verdict would be with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attnres_cli.records.run import Removed, RunRecord


def restored(runs: Sequence[RunRecord], removed: Sequence[Removed]) -> list[RunRecord]:
    """The runs of an arm with those of these that are of it, as far as is known of them."""
    like = next((run for run in runs if run.result is not None), None)
    if like is None or like.result is None:
        return [*runs]
    result = like.result
    return [*runs] + [
        replace(
            like, seed=e.seed, status=e.status, gates=(),
            result=replace(result, status=e.status, val_loss=e.val_loss),
        )
        for e in removed
        if e.variant == like.variant
    ]  # fmt: skip
