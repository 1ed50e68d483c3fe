"""What came of training a run once more."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from rich.text import Text

from attnres_cli.records.run import Verification
from attnres_cli.report.terminal import console

_MOST_NAMES = 3


def print_verification(found: Verification, *, as_json: bool) -> None:
    """Equal, or where it departs and what has changed since, on stdout."""
    if as_json:
        sys.stdout.write(json.dumps(_plain(found), indent=2) + "\n")
        return
    out = console(sys.stdout)
    for line in _lines(found):
        out.print(Text(line))


def _lines(found: Verification) -> list[str]:
    record, before = found.record, found.record.result
    assert before is not None
    name = f"run {record.id} ({record.variant}, seed {record.seed})"
    points = f"{len(before.curve)} points of the curve"
    if found.is_equal:
        what = f"{points}, final loss {_loss(before.val_loss)}"
        weights = "; no weights are kept to compare" if found.weights is None else ", weights"
        return [f"{name}: equal, bit for bit: {what}{weights}", *_changes(found)]
    lines = [f"{name}: not equal"]
    if found.departure is not None:
        first = found.departure
        losses = f"{_loss(first.recorded)} recorded, {_loss(first.now)} now"
        lines.append(f"first at step {first.step}: {first.what} {losses}")
    else:
        lines.append(f"the {points} are equal")
    ends = f"{_loss(before.val_loss)} recorded, {_loss(found.result.val_loss)} now"
    lines.append(f"final validation loss: {ends}")
    if found.weights:
        names = ", ".join(found.weights[:_MOST_NAMES])
        more = len(found.weights) - _MOST_NAMES
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"final weights that differ: {names}{rest}")
    return [*lines, *_changes(found)]


def _changes(found: Verification) -> list[str]:
    """What has changed since the run was recorded; where it departs, that nothing has, too."""
    lines = [f"changed since: {name}: {old}, now {new}" for name, old, new in found.changed]
    if lines or found.is_equal:
        return lines
    unseen = "nothing that is recorded has changed: hardware, or what no version shows"
    if found.record.versions.get("git_dirty") == "yes":
        unseen += "; the run was made with source that was not committed (git_dirty)"
    return [unseen]


def _loss(loss: float | None) -> str:
    """All digits: departures may be in the last one."""
    return "none" if loss is None else repr(loss)


def _plain(found: Verification) -> dict[str, Any]:
    before, first = found.record.result, found.departure
    assert before is not None
    return {
        "run": found.record.id,
        "equal": found.is_equal,
        "departs": first
        and {"step": first.step, "loss": first.what, "recorded": first.recorded, "now": first.now},
        "final": {"recorded": _finite(before.val_loss), "now": _finite(found.result.val_loss)},
        "weights_differ": None if found.weights is None else list(found.weights),
        "changed": [{"name": n, "recorded": old, "now": new} for n, old, new in found.changed],
    }


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None
