"""Runs one by one, as tables or JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attnres_cli.records.run import Point, RunRecord, Standing, Status
from attnres_cli.report.comparison import speed_text
from attnres_cli.report.probes import print_probes
from attnres_cli.report.terminal import console
from attnres_cli.verdict.comparison import last_line
from attnres_cli.verdict.format import duration

_STYLE = {Status.FAILED: "red", Status.DIVERGED: "yellow", Status.RUNNING: "green"}
_MOST_POINTS = 12


@dataclass(frozen=True)
class Line:
    """A run, where it stands, how many steps its recipe has, and the search that ended it early,
    where nobody has trained it since.
    """

    record: RunRecord
    standing: Standing
    steps: int
    pruned_by: str = ""

    @property
    def progress(self) -> str:
        """`120/400`, as far as its process has told."""
        return f"{self.standing.step or 0}/{self.steps}"

    @property
    def owner(self) -> str:
        """`process 17 on here`, with `(gone)` or its last sign of life; empty where none has it."""
        if self.standing.owner is None:
            return ""
        host, _, pid, _ = (*self.standing.owner.split("|"), "", "", "")[:4]
        where = f"process {pid} on {host.partition('/')[0]}"
        if self.standing.is_alive is None and self.standing.heartbeat_at is not None:
            said = datetime.fromisoformat(self.standing.heartbeat_at)
            return f"{where}, heard {duration(_age_s(said))} ago"
        return where if self.standing.is_alive else f"{where} (gone)"

    @property
    def outcome(self) -> str:
        """The validation loss, or what went wrong; of a run that waits, whether it was pruned."""
        if self.pruned_by:
            return f"pruned by search {self.pruned_by}"
        if self.record.status is Status.FAILED:
            return last_line(self.record.error)
        result = self.record.result
        return f"{result.val_loss:.4f}" if result and math.isfinite(result.val_loss) else ""


def print_runs(lines: Sequence[Line], *, as_json: bool) -> None:
    """One line per run on stdout."""
    if as_json:
        sys.stdout.write(json.dumps([_short(line) for line in lines], indent=2) + "\n")
        return
    out = console(sys.stdout)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("run", "status", "recipe", "variant", "seed", "step", "val loss", "owner"):
        right = name in ("run", "seed", "step")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for line in lines:
        record = line.record
        status = Text(record.status, style=_STYLE.get(record.status, ""))
        recipe = f"{record.recipe} ({record.recipe_digest})"
        cells = (recipe, record.variant, str(record.seed), line.progress, line.outcome, line.owner)
        table.add_row(str(record.id), status, *cells)
    out.print(table)
    counts = {s: sum(line.record.status is s for line in lines) for s in Status}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    out.print(Text(f"{len(lines)} runs" + (f": {told}" if told else "")))


def print_run(line: Line, *, as_json: bool) -> None:
    """All about one run on stdout."""
    if as_json:
        sys.stdout.write(json.dumps(_whole(line), indent=2, allow_nan=False) + "\n")
        return
    out, record = console(sys.stdout), line.record
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    for name, value in _facts(line):
        facts.add_row(name, value)
    out.print(facts)
    if record.error is not None:
        out.print(Text(record.error, style="red"))
    if record.result is not None:
        out.print(_curve(record.result.curve))
        print_probes(out, record.result.probes)


def _facts(line: Line) -> list[tuple[str, str]]:
    record, standing, result = line.record, line.standing, line.record.result
    found = [
        ("run", str(record.id)),
        ("status", str(record.status)),
        ("pruned by", line.pruned_by and f"search {line.pruned_by}"),
        ("recipe", f"{record.recipe} ({record.recipe_digest})"),
        ("variant", record.variant),
        ("seed", str(record.seed)),
        ("data", record.fingerprint),
        ("step", line.progress),
        ("owner", line.owner),
        ("attempts", str(standing.attempts)),
        ("planned", standing.created_at),
        ("started", standing.started_at or ""),
        ("last heard", standing.heartbeat_at or ""),
        ("ended", standing.finished_at or ""),
    ]
    if result is not None:
        found += [
            ("validation loss", f"{_number(result.val_loss)}, at first {result.initial_loss:.4f}"),
            ("tokens", f"{result.tokens:,}"),
            ("parameters", f"{result.n_params:,}"),
            ("training FLOPs", f"{result.flops_per_token:,} per token"),
            ("speed", speed_text(result)),
            ("time", f"{duration(result.train_s)}, {1000 * result.step_s:.1f} ms per step"),
            ("peak memory", f"{result.peak_bytes / 2**20:,.0f} MiB"),
            ("computed with", f"{result.settings.numerics} on {result.settings.device_name}"),
            ("engine", f"{result.settings.engine}, {result.settings.threads} threads"),
        ]
    found += [(name, value) for name, value in sorted(record.versions.items())]
    return [(name, value) for name, value in found if value]


def _curve(points: Sequence[Point]) -> Table:
    """The evaluations, and as many points between as make a small table."""
    gap = max(1, math.ceil(len(points) / _MOST_POINTS))
    chosen = [p for i, p in enumerate(points) if p.val_loss is not None or i % gap == 0]
    table = Table(title="curve, nats per token", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("step", "train loss", "val loss"):
        table.add_column(name, justify="right")
    for point in chosen:
        table.add_row(str(point.step), _number(point.train_loss), _number(point.val_loss))
    return table


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _age_s(said: datetime) -> float:
    return max(0.0, (datetime.now(UTC) - said).total_seconds())


def _short(line: Line) -> dict[str, Any]:
    record, standing, result = line.record, asdict(line.standing), line.record.result
    del standing["run_id"]
    return {
        "id": record.id,
        "status": str(record.status),
        "recipe": record.recipe,
        "recipe_digest": record.recipe_digest,
        "variant": record.variant,
        "seed": record.seed,
        "data": record.fingerprint,
        "steps": line.steps,
        "val_loss": _finite(result.val_loss) if result else None,
        "error": record.error,
        "pruned_by": line.pruned_by or None,
        **standing,
    }


def _whole(line: Line) -> dict[str, Any]:
    result = line.record.result
    made = _plain(asdict(result)) if result is not None else None
    return _short(line) | {"result": made, "versions": dict(line.record.versions)}


def _plain(value: Any) -> Any:
    """The same with null where JSON has no number."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
