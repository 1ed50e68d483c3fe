"""What runs answered to tasks, as a report, and how far they are, on stderr."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attnres_cli.console import note
from attnres_cli.records.items import (
    ACC,
    CHOICE_NATS,
    EXACT_MATCH,
    GOLD_BYTES,
    N_CHOICES,
    Answered,
    Items,
)  # fmt: skip
from attnres_cli.report.progress import live
from attnres_cli.report.table import Column, Report, Table, columns
from attnres_cli.verdict.fields import picked
from attnres_cli.verdict.numbers import plural

_LINE_EVERY_S = 10.0
_SHOWN = {CHOICE_NATS: "nats among answers", ACC: "accuracy", EXACT_MATCH: "exact match"}
"""Metrics that have a column, where a task has them; all are in JSON and CSV."""
_RECORD = (
    "task=items.task of=label run=items.run_id variant seed kind=items.kind items=items.doc_ids "
    "truncated=items.truncated chance=items.chance chance_nats=items.chance_nats "
    "bits_per_byte=items.bits_per_byte bits_per_byte_se=items.bits_per_byte "
    "content=items.content weights_sha256=items.weights_sha256 harness=items.harness"
)


def report_of(answered: Sequence[Answered], study: str) -> Report:
    """By task and run: bits per byte, what was chosen or written, and what guessing gives."""
    rows = sorted(answered, key=lambda each: each.items.task)
    records = [_record(each) for each in rows]
    shown = [name for name in _SHOWN if any(name in each.items.values for each in rows)]
    heads = columns("task:code", "of:word", "variant:code", "seed", "items", "bits per byte")
    for name in shown:
        heads += columns(_SHOWN[name], *["chance"] * (name != EXACT_MATCH))
    heads.append(Column("cut", is_optional=True))
    cut = sum(each.items.truncated for each in rows)
    notes = [
        "value ± standard error over items; items of two runs pair: their differences have less"
    ]
    if cut:
        notes.append(
            f"cut: {plural(cut, 'context')} longer than a model's, of which it saw the end"
        )
    if lacking := sum(each.items.left_out for each in rows):
        notes.append(f"left out of means: {plural(lacking, 'item')} without a number")
    return Report(
        title=f"downstream tasks: {study}",
        tables=[Table("", heads, [_row(each, shown) for each in rows], n_keys=4)],
        notes=notes,
        document={"study": study, "results": records},
        records=records,
    )


def _row(each: Answered, shown: Sequence[str]) -> list[str]:
    items, found = each.items, _record(each)
    chances = {CHOICE_NATS: items.chance_nats, ACC: items.chance}
    cells = [items.task, each.label, each.variant, str(each.seed), f"{len(items.doc_ids):,}"]
    for name in ("bits_per_byte", *shown):
        value, chance = found.get(name), chances.get(name)
        cells.append(_with_error(value, found[f"{name}_se"]) if value is not None else "")
        if name in chances:
            cells.append("" if value is None or chance is None else f"{chance:.3f}")
    return [*cells, str(items.truncated or "")]


def _with_error(value: float, error: float) -> str:
    """Without ± where one item alone has a number."""
    return f"{value:.3f}" if math.isnan(error) else f"{value:.3f} ± {error:.3f}"


def _bits_error(items: Items) -> float:
    """Standard error of the ratio of two sums over items."""
    bits, answers = items.bits_per_byte, items.answers
    if bits is None or len(answers) < 2:
        return math.nan
    off = [(-nats / math.log(2) - bits * size) ** 2 for nats, size in answers]
    n = len(answers)
    return math.sqrt(math.fsum(off) * n / (n - 1)) / math.fsum(size for _, size in answers)


def _record(each: Answered) -> dict[str, Any]:
    items = each.items
    has_bits = items.bits_per_byte is not None
    found = picked(each, _RECORD) | {
        "run": items.run_id or None,
        "kind": str(items.kind),
        "items": len(items.doc_ids),
        "bits_per_byte_se": _bits_error(items) if has_bits else None,
    }
    for name in items.values:
        if name not in (GOLD_BYTES, N_CHOICES):
            found |= {name: items.mean(name), f"{name}_se": items.standard_error(name)}
    return found


Watch = Callable[[str, str, int, int], None]


@contextmanager
def progress(total: int) -> Iterator[tuple[Watch, Callable[[Answered], None]]]:
    """Two functions: one to tell who answers which task, how many requests are done and of how
    many; one for what has been answered, of `total` in all. A live line, or lines now and then.
    """
    ended, now = 0, ""

    def words() -> str:
        return now and f"{ended} of {total} answered; {now}"

    def end(answered: Answered) -> None:
        nonlocal ended
        ended += 1
        if answered.is_new:
            note(f"{answered.label} {answered.items.task}: {_headline(answered.items)}")

    with live(words, words, _LINE_EVERY_S) as show:

        def watch(who: str, task: str, done: int, of: int) -> None:
            nonlocal now
            now = f"{who} {task}: {done:,} of {of:,} requests"
            show(True)

        yield watch, end


def _headline(items: Items) -> str:
    """What there is to say first of a task."""
    bits, chance = items.bits_per_byte, items.chance
    parts = [] if bits is None else [f"{bits:.3f} bits per byte"]
    shares = [name for name in (ACC, EXACT_MATCH) if name in items.values]
    parts += [f"{_SHOWN[name]} {items.mean(name):.3f}" for name in shares]
    parts += [] if chance is None else [f"chance {chance:.3f}"]
    return ", ".join(parts) or plural(len(items.doc_ids), "item")
