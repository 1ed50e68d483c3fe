"""Runs one by one: the list, all about one, and what came of training one again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from attnres_cli.records.merged import Fate, Merged
from attnres_cli.records.run import Point, RunRecord, RunResult, Standing, Status
from attnres_cli.records.run_records import Listed, as_records
from attnres_cli.records.verification import Verification
from attnres_cli.report.plans import params
from attnres_cli.report.probes import probe_tables
from attnres_cli.report.table import Cell, Column, Kind, Report, Style, Table
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.comparison import last_line
from attnres_cli.verdict.numbers import duration, number, plural

_STYLES: dict[Status, Style] = {
    Status.FAILED: "bad", Status.DIVERGED: "warning", Status.RUNNING: "good",
}  # fmt: skip
_MOST_POINTS = 12
_MOST_NAMES = 3


def _progress(line: Listed) -> str:
    """`120/400`, as far as its process has told."""
    return f"{line.standing.step or 0}/{line.recipe.steps}"


def _owner(standing: Standing) -> str:
    """`process 17 on here`, with `(gone)` or its last sign of life; empty where none has it."""
    if standing.owner is None:
        return ""
    host, _, pid, _ = (*standing.owner.split("|"), "", "", "")[:4]
    where = f"process {pid} on {host.partition('/')[0]}"
    if standing.is_alive is None and standing.heartbeat_at is not None:
        said = datetime.now(UTC) - datetime.fromisoformat(standing.heartbeat_at)
        return f"{where}, heard {duration(max(0.0, said.total_seconds()))} ago"
    return where if standing.is_alive else f"{where} (gone)"


def _outcome(record: RunRecord) -> str:
    """The validation loss, or what went wrong."""
    if record.status is Status.FAILED:
        return last_line(record.error)
    result = record.result
    return f"{result.val_loss:.4f}" if result and math.isfinite(result.val_loss) else ""


def list_of(lines: Sequence[Listed]) -> Report:
    """A row per run; JSON and CSV have their records."""
    records = as_records(lines)
    of_one = len({line.record.fingerprint for line in lines}) == 1
    told = [_columns(line) | ({"data": ""} if of_one else {}) for line in lines]
    shown = [name for name in _COLUMNS if name in _ALWAYS or any(row[name] for row in told)]
    counts = Counter(line.record.status for line in lines)
    of = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    notes = [plural(len(lines), "run") + (f": {of}" if of else "")]
    bases = dict.fromkeys(line.base for line in lines if line.own)
    notes += [f"differs: from {base}" for base in bases]
    columns = [Column(name, _COLUMNS[name]) for name in shown]
    rows = [[row[name] for name in shown] for row in told]
    fields = list(records[0]) if records else []
    return Report(
        "", [Table("", columns, rows)], notes=notes, document=records, fields=fields,
        records=records,
    )  # fmt: skip


def merged_of(studies: Mapping[str, Sequence[Merged]]) -> Report:
    """How many runs of each study came to what; JSON and CSV have every run."""
    columns = [Column("study", "code"), Column("runs"), Column("here", "text")]
    counts = {name: Counter(each.fate for each in found) for name, found in studies.items()}
    rows = [
        [name, str(count[fate]), str(fate)]
        for name, count in counts.items()
        for fate in Fate
        if count[fate]
    ]
    records = [
        {"study": name, "run": each.there, "here": each.here, "fate": str(each.fate)}
        for name, found in studies.items()
        for each in found
    ]
    fields = ("study", "run", "here", "fate")
    return Report("", [Table("", columns, rows)], document=records, fields=fields, records=records)


_COLUMNS: dict[str, Kind] = {
    "run": "number", "status": "word", "recipe": "text", "differs": "code", "variant": "code",
    "seed": "number", "data": "code", "code": "code", "step": "number", "val loss": "text",
    "tags": "text", "note": "text", "owner": "text",
}  # fmt: skip
_ALWAYS = ("run", "status", "recipe", "variant", "seed", "code", "step", "val loss")


def _columns(line: Listed) -> dict[str, str | Cell]:
    """What a row may show, by column; some columns are left out where all rows have nothing."""
    record = line.record
    return {
        "run": str(record.id),
        "status": Cell(record.status, _STYLES.get(record.status, "")),
        "recipe": f"{record.recipe} ({record.recipe_digest})",
        "differs": line.differs,
        "variant": record.variant,
        "seed": str(record.seed),
        "data": record.fingerprint,
        "code": shown(record),
        "step": _progress(line),
        "val loss": _outcome(record),
        "tags": " ".join(record.tags),
        "note": record.note,
        "owner": _owner(line.standing),
    }


def run_of(line: Listed) -> Report:
    """All about one run: its facts, its error, its curve and what is inside its model."""
    record, result = line.record, line.record.result
    columns = [Column("fact", "word"), Column("", "text")]
    facts = Table("", columns, [fact for fact in _facts(line) if fact[1]])
    inside, notes = probe_tables(result.probes if result else ())
    (document,) = as_records([line])
    document |= {"settings": line.settings, "result": result and asdict(result)}
    return Report(
        title=f"run {record.id}",
        tables=[facts, *([_curve(result.curve)] if result else []), *inside],
        warnings=[record.error] if record.error is not None else [],
        notes=notes,
        document=document | {"versions": dict(record.versions)},
    )


def _facts(line: Listed) -> list[tuple[str, str]]:
    record, standing, result = line.record, line.standing, line.record.result
    found = [
        ("status", str(record.status)),
        ("recipe", f"{record.recipe} ({record.recipe_digest})"),
        ("differs", f"{line.differs} (from {line.base})" if line.own else ""),
        ("variant", record.variant),
        ("seed", str(record.seed)),
        ("note", record.note),
        ("tags", " ".join(record.tags)),
        ("merged from", record.origin),
        ("data", record.fingerprint),
        ("code", shown(record)),
        ("step", _progress(line)),
        ("owner", _owner(standing)),
        ("attempts", str(standing.attempts)),
        ("planned", datetime.fromisoformat(standing.created_at).isoformat(timespec="seconds")),
        ("started", standing.started_at or ""),
        ("last heard", standing.heartbeat_at or ""),
        ("ended", standing.finished_at or ""),
    ]
    if result is not None:
        found += [
            ("validation loss", f"{number(result.val_loss)}, at first {result.initial_loss:.4f}"),
            ("tokens", f"{result.tokens:,}"),
            ("parameters", params(result.n_params, line.recipe)),
            ("training FLOPs", f"{result.flops_per_token:,} per token"),
            ("speed", speed_text(result)),
            ("time", f"{duration(result.train_s)}, {1000 * result.step_s:.1f} ms per step"),
            ("peak memory", f"{result.peak_bytes / 2**20:,.0f} MiB"),
            ("computed with", f"{result.settings.numerics} on {result.settings.device_name}"),
            ("engine", f"{result.settings.engine}, {plural(result.settings.threads, 'thread')}"),
        ]
    return found + sorted(record.versions.items())


def speed_text(result: RunResult) -> str:
    """`51,200 tokens/s, MFU 41.0 %`, the share where the device's peak is known."""
    share = "" if result.mfu is None else f", MFU {100 * result.mfu:.1f} %"
    return f"{result.tokens_per_second:,.0f} tokens/s{share}"


def _curve(points: Sequence[Point]) -> Table:
    """The evaluations, and as many points between as make a small table."""
    gap = max(1, math.ceil(len(points) / _MOST_POINTS))
    chosen = [p for i, p in enumerate(points) if p.val_loss is not None or i % gap == 0]
    rows = [[str(p.step), number(p.train_loss), number(p.val_loss)] for p in chosen]
    columns = [Column(name) for name in ("step", "train loss", "val loss")]
    return Table("curve, nats per token", columns, rows)


def verification_of(found: Verification) -> Report:
    """What came of training a run once more: equal, or where it departs and what has changed."""
    record, before, first = found.record, found.record.result, found.departure
    assert before is not None
    told = _equal(found, before) if found.is_equal else _departs(found, before)
    if found.agrees:
        told = _agrees(found, told)
    changed = [f"changed since: {name}: {old}, now {new}" for name, old, new in found.changed]
    if not changed and not found.is_equal:
        changed = ["nothing that is recorded has changed: hardware, or what no version shows"]
        if record.versions.get("git_dirty") == "yes":
            changed[0] += "; the run was made with source that was not committed (git_dirty)"
    document: dict[str, Any] = {
        "run": record.id,
        "equal": found.is_equal,
        "agrees": found.is_equal or found.agrees,
        "apart": found.apart,
        "spread": found.spread,
        "tolerance": found.tolerance,
        "departs": first
        and {"step": first.step, "loss": first.what, "recorded": first.recorded, "now": first.now},
        "final": {"recorded": before.val_loss, "now": found.result.val_loss},
        "weights_differ": found.weights,
        "changed": [{"name": n, "recorded": old, "now": new} for n, old, new in found.changed],
    }
    title = f"run {record.id} ({record.variant}, seed {record.seed}): {told[0]}"
    line = {"run": record.id, "equal": found.is_equal, **document["final"]}
    text = [*told[1:], *changed]
    return Report(title, text=text, document=document, fields=list(line), records=[line])


def _equal(found: Verification, before: RunResult) -> list[str]:
    if found.tolerance:
        ends = f"{_exact(before.val_loss)} recorded, {_exact(found.result.val_loss)} now"
        return [
            f"equal to {found.tolerance:.0%}, as ranks round in their own way: final loss {ends}",
            "under torchrun with the ranks and train.parallel of the run, every bit is compared",
        ]
    weights = "; no weights are kept to compare" if found.weights is None else ", weights"
    points, loss = f"{plural(len(before.curve), 'point')} of the curve", _exact(before.val_loss)
    return [f"equal, bit for bit: {points}, final loss {loss}{weights}"]


def _agrees(found: Verification, told: Sequence[str]) -> list[str]:
    """The lines of a run that agrees to rounding, with where it first differs."""
    assert found.spread is not None
    share = found.apart / found.spread if found.spread else 0.0
    first = (
        "" if found.departure is None else f" (first different bit: step {found.departure.step})"
    )
    ends = f"final losses {found.apart:.4f} apart, {share:.0%} of the spread over seeds"
    return [f"agrees to rounding: {ends}{first}", *told[1:]]


def _departs(found: Verification, before: RunResult) -> list[str]:
    lines, first = ["not equal"], found.departure
    if first is None:
        lines.append(f"the {len(before.curve)} points of the curve are equal")
    else:
        losses = f"{_exact(first.recorded)} recorded, {_exact(first.now)} now"
        lines.append(f"first at step {first.step}: {first.what} {losses}")
    ends = f"{_exact(before.val_loss)} recorded, {_exact(found.result.val_loss)} now"
    lines.append(f"final validation loss: {ends}")
    if found.weights:
        more = len(found.weights) - _MOST_NAMES
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"final weights that differ: {', '.join(found.weights[:_MOST_NAMES])}{rest}")
    return lines


def _exact(loss: float | None) -> str:
    """All digits: departures may be in the last one."""
    return "none" if loss is None else repr(loss)
