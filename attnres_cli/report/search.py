"""A search in words: the best shapes of each variant, as the first look has them, and confirmed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TextIO

from attnres_cli.run import RunRecord
from attnres_cli.trials import Family, Search, State, Trial

_SHOWN = 5


def show(search: Search, runs: Sequence[RunRecord], form: str, out: TextIO) -> None:
    """Print the best shapes of a search; `runs` are all runs of the study."""
    losses = {
        (run.recipe_digest, run.variant, run.seed): run.result.val_loss
        for run in runs
        if run.result is not None and run.fingerprint == search.fingerprint
    }
    if form == "json":
        out.write(json.dumps(_finite(asdict(search)), indent=2) + "\n")
        return
    out.write(f"search {search.name}: recipe {search.recipe}, {search.budget}, {search.space}\n")
    for family in search.families:
        out.write(f"{family.variant} ({family.sampler})\n")
        for trial in best(family)[:_SHOWN]:
            found = [
                losses.get((trial.recipe_digest, trial.variant, seed))
                for seed in search.confirm_seeds
            ]
            known = [f"{loss:.4f}" for loss in found if loss is not None]
            sizes = ", ".join(
                f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in trial.dimensions.items()
            )
            then = f"; then {', '.join(known)}" if known else ""
            out.write(f"  {trial.values[0]:.4f}{then}: {trial.variant}, {sizes}\n")
        failed = sum(trial.state is State.FAILED for trial in family.trials)
        if failed:
            out.write(f"  {failed} trials failed\n")


def best(family: Family) -> list[Trial]:
    """The complete trials of a family, best first."""
    ended = [trial for trial in family.trials if trial.state is State.COMPLETE]
    return sorted(ended, key=lambda trial: trial.values)


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
