"""Runs one by one: the list, all about one, and what came of training one again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from attnres_cli.errors import last_line
from attnres_cli.records.merged import Fate, Merged
from attnres_cli.records.run import (
    FIRST_TUNING_SEED,
    Point,
    Removed,
    RunRecord,
    RunResult,
    Standing,
    Status,
)
from attnres_cli.records.run_records import Listed, as_records
from attnres_cli.records.verification import Verification
from attnres_cli.report.probes import probe_tables
from attnres_cli.report.table import Report, Style, Table, columns, tabled
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.fields import Field, picked
from attnres_cli.verdict.numbers import duration, number, params, plural, spans

_STYLES: dict[str, Style] = {
    Status.FAILED: "bad", Status.DIVERGED: "warning", Status.RUNNING: "good",
}  # fmt: skip
_MOST_POINTS = 12
_MOST_NAMES = 3


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


def named(gone: Sequence[Removed]) -> str:
    """`37 runs of gpas (seeds 0 to 4, and 32 for tuning), 1 run of dca (seed 3)`."""
    found: dict[str, list[int]] = {}
    for each in gone:
        found.setdefault(each.variant, []).append(each.seed)
    return ", ".join(
        f"{plural(len(seeds), 'run')} of {variant} ({_seeds(seeds)})"
        for variant, seeds in found.items()
    )


def _seeds(found: Sequence[int]) -> str:
    compared = sorted({seed for seed in found if seed < FIRST_TUNING_SEED})
    n_tuning = sum(seed >= FIRST_TUNING_SEED for seed in found)
    parts = [f"seed{'s' * (len(compared) > 1)} {spans(compared)}"] if compared else []
    parts += [f"{'and ' * bool(parts)}{n_tuning} for tuning"] if n_tuning else []
    return ", ".join(parts)


def list_of(lines: Sequence[Listed]) -> Report:
    """A row per run; JSON and CSV have their records."""
    records = partial(as_records, lines)
    of_one = len({line.record.fingerprint for line in lines}) == 1
    left_out = {
        field.title
        for field in _COLUMNS
        if field.is_optional and not any(field.text(line, None) for line in lines)
    }
    if of_one:
        left_out.add("data")
    counts = Counter(line.record.status for line in lines)
    of = ", ".join(f"{counts[status]} {status}" for status in Status if counts[status])
    notes = [plural(len(lines), "run") + (f": {of}" if of else "")]
    notes += [f"differs: from {base}" for base in dict.fromkeys(e.base for e in lines if e.own)]
    heads = [replace(f, is_optional=False) for f in _COLUMNS if f.title not in left_out]
    table = tabled("", heads, lines, None)
    return Report("", [table], notes=notes, document=records, records=records)


def merged_of(studies: Mapping[str, Sequence[Merged]]) -> Report:
    """How many runs of each study came to what; JSON and CSV have every run."""
    counts = Counter((name, each.fate) for name, found in studies.items() for each in found)
    rows = [
        [name, str(counts[name, fate]), str(fate)]
        for name in studies
        for fate in Fate
        if counts[name, fate]
    ]
    records = [
        {"study": name, "run": each.there, "here": each.here, "fate": str(each.fate)}
        for name, found in studies.items()
        for each in found
    ]
    table = Table("", columns("study:code", "runs", "here:text"), rows)
    return Report("", [table], document=records, fields=_MERGED, records=records)


_MERGED = ("study", "run", "here", "fate")
_COLUMNS: Sequence[Field[Listed, None]] = (
    Field("run", "record.id", "run"),
    Field("status", "record.status", "status", kind="word", style=_STYLES),
    Field("recipe", "record.recipe", "recipe", lambda line, _: _recipe(line), "text"),
    Field("differs", title="differs", kind="code", is_optional=True),
    Field("variant", "record.variant", "variant", kind="code"),
    Field("seed", "record.seed", "seed"),
    Field("data", "record.fingerprint", "data", kind="code", is_optional=True),
    Field(title="code", show=lambda line, _: shown(line.record), kind="code"),
    Field(title="step", show=lambda line, _: f"{line.standing.step or 0}/{line.recipe.steps}"),
    Field(title="val loss", show=lambda line, _: _outcome(line.record), kind="text"),
    Field(
        title="tags", show=lambda line, _: " ".join(line.record.tags), kind="text", is_optional=True
    ),
    Field("note", "record.note", "note", kind="text", is_optional=True),
    Field(title="owner", show=lambda line, _: _owner(line.standing), kind="text", is_optional=True),
)
"""Columns of the list; optional ones are left out where all rows have nothing."""


def _recipe(line: Listed) -> str:
    return f"{line.record.recipe} ({line.record.recipe_digest})"


def run_of(line: Listed) -> Report:
    """All about one run: its facts, its error, its curve and what is inside its model."""
    record, result = line.record, line.record.result
    facts = Table("", columns("fact:word", ":text"), [fact for fact in _facts(line) if fact[1]])
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
    """What there is to say of a run; some of it may be empty."""
    record, standing, result = line.record, line.standing, line.record.result
    cells = {field.title: field.text(line, None) for field in _COLUMNS}
    cells |= {"differs": f"{line.differs} (from {line.base})" if line.own else ""}
    cells |= {"merged from": record.origin}
    first = ("status", "recipe", "differs", "variant", "seed", "note", "tags", "merged from")
    found = [(name, cells[name]) for name in (*first, "data", "code", "step", "owner")]
    planned = datetime.fromisoformat(standing.created_at).isoformat(timespec="seconds")
    found += [
        ("attempts", str(standing.attempts)),
        ("planned", planned),
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
    return Table("curve, nats per token", columns("step", "train loss", "val loss"), rows)


def verification_of(found: Verification) -> Report:
    """What came of training a run once more: equal, or where it departs and what has changed."""
    record, before, first = found.record, found.record.result, found.departure
    assert before is not None
    lines = _equal(found, before) if found.is_equal else _departs(found, before)
    changed = [f"changed since: {name}: {old}, now {new}" for name, old, new in found.changed]
    if not changed and not found.is_equal:
        changed = ["nothing that is recorded has changed: hardware, or what no version shows"]
        if record.versions.get("git_dirty") == "yes":
            changed[0] += "; the run was made with source that was not committed (git_dirty)"
    final = {"recorded": before.val_loss, "now": found.result.val_loss}
    document: dict[str, Any] = {
        "run": record.id,
        "equal": found.is_equal,
        "agrees": found.is_equal or found.agrees,
        **picked(found, "apart spread tolerance weights_differ=weights"),
        "departs": first and picked(first, "step loss=what recorded now"),
        "final": final,
        "changed": [{"name": n, "recorded": old, "now": new} for n, old, new in found.changed],
    }
    title = f"run {record.id} ({record.variant}, seed {record.seed}): {lines[0]}"
    line = {"run": record.id, "equal": found.is_equal, **final}
    text = [*lines[1:], *changed]
    return Report(title, text=text, document=document, records=[line])


def _equal(found: Verification, before: RunResult) -> list[str]:
    if found.tolerance:
        return [
            f"equal to {found.tolerance:.0%}, as ranks round in their own way: final loss "
            f"{_both(before.val_loss, found.result.val_loss)}",
            "under torchrun with the ranks and train.parallel of the run, every bit is compared",
        ]
    weights = "; no weights are kept to compare" if found.weights is None else ", weights"
    points = plural(len(before.curve), "point")
    return [f"equal, bit for bit: {points} of the curve, final loss {before.val_loss!r}{weights}"]


def _departs(found: Verification, before: RunResult) -> list[str]:
    """Where it departs; of a run that agrees to rounding how far it does, first."""
    first, head = found.departure, "not equal"
    lines = [f"the {len(before.curve)} points of the curve are equal"]
    if first is not None:
        losses = _both(first.recorded, first.now)
        lines = [f"first at step {first.step}: {first.what} {losses}"]
    lines.append(f"final validation loss: {_both(before.val_loss, found.result.val_loss)}")
    if found.weights:
        more = len(found.weights) - _MOST_NAMES
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"final weights that differ: {', '.join(found.weights[:_MOST_NAMES])}{rest}")
    if found.agrees:
        share = found.apart / found.spread if found.spread else 0.0
        head = (
            f"agrees to rounding: final losses {found.apart:.4f} apart, {share:.0%} of the spread "
            "over seeds"
        )
        head += "" if first is None else f" (first different bit: step {first.step})"
    return [head, *lines]


def _both(recorded: float | None, now: float | None) -> str:
    """With all digits: departures may be in the last one."""
    then, after = ("none" if loss is None else repr(loss) for loss in (recorded, now))
    return f"{then} recorded, {after} now"
