"""The paper's numbers beside the user's, as a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnres_cli.config.shipped import paper
from attnres_cli.records.items import Kind
from attnres_cli.report.answer import unanswerable
from attnres_cli.report.comparison import difference_text
from attnres_cli.report.facts import UNIT
from attnres_cli.report.table import (
    Cell,
    Column,
    Report,
    Style,
    Table,
    but,
    flat,
    joined,
    noted_once,
)
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.paper import RULE, Beside, BesideTasks, beside
from attnres_cli.verdict.qualified import n_read, qualifiers

_STYLES: dict[str, Style] = {
    "same sign": "good", "opposite sign": "bad", "no verdict": "warning", "baseline": "strong",
}  # fmt: skip
_COLUMNS = (
    Column("variant", "code"),
    Column("paper"),
    Column("yours [interval]"),
    Column("ranks"),
    Column("beside the paper", "word"),
)

KINDS = {
    Kind.CHOICE: "choice of an answer", Kind.ANSWER: "a given answer", Kind.TEXT: "whole texts",
    Kind.GENERATION: "a written answer",
}  # fmt: skip
TASKS = (
    "the paper: Table 3, arXiv 2603.15031: a 48B model with Block AttnRes, one run each, no "
    "intervals. Its benchmarks are other tasks than yours: signs can be compared by kind of task, "
    "values cannot. Yours is the sign of the measure that a task has first"
)


def report_of(comparisons: Sequence[Comparison]) -> Report:
    """Every comparison beside the paper. Raises UsageError where the paper lacks the baseline."""
    each = [one_report(comparison, n_read(comparison, comparisons)) for comparison in comparisons]
    return joined(noted_once(each))


def one_report(comparison: Comparison, n_tables: int = 1) -> Report:
    """One comparison beside the paper. Raises UsageError as `report_of`."""
    found, title, told = beside(comparison), labels.title(comparison), notes(comparison)
    qualified, why = qualifiers(comparison, n_tables), unanswerable(comparison)
    heading = f"difference from {comparison.baseline}, {UNIT}"
    records = [_record(row, comparison) for row in found]
    arms = [record | {"terms": asdict(comparison.terms)} for record in records]
    return Report(
        title=f"{title}, beside the paper",
        text=[*([why] if why else []), *but(qualified)],
        tables=[Table(heading, _COLUMNS, [_cells(row) for row in found])],
        notes=told,
        document={
            "title": title,
            "answer": why,
            "qualified": qualified,
            "unit": UNIT,
            "arms": arms,
            "notes": told,
        },
        fields=[*_FIELDS, "qualified"],
        records=[record | {"qualified": "; ".join(qualified)} for record in records],
        more=(),
    )


def _cells(row: Beside) -> list[str | Cell]:
    gap = "-" if row.paper_gap is None else f"{row.paper_gap:+.3f}"
    ranks = ["-" if rank is None else str(rank) for rank in (row.paper_rank, row.rank)]
    word = f"{row.said}: {row.reason}" if row.reason else row.said
    told = Cell(word, _STYLES.get(row.said, ""))
    return [row.arm.variant, gap, difference_text(row.arm), " / ".join(ranks), told]


def notes(comparison: Comparison) -> list[str]:
    """What the numbers are of, the rule, and where the paper is loose."""
    held = paper()
    lines = [
        "paper: Kimi Team 2026, arXiv 2603.15031, Table 4, Fig. 6 and Table 2 at 436M active "
        "parameters (32 sublayers, 87.9B tokens); an arm is matched by its name, blocks by their "
        "size in sublayers",
        f"yours: recipe {comparison.recipe} ({comparison.recipe_digest}), data "
        f"{comparison.data.source}; other data, size and budget: signs and orders can be compared, "
        "values cannot",
        "ranks: the paper's / yours, among the arms shown here that both have, least loss first",
        RULE,
    ]
    if comparison.baseline in next(iter(held["table2"].values())):
        lines.append(_sizes(comparison.baseline, held["table2"]))
    for key, text in held["notes"].items():  # of table2 or figure4
        place = re.sub(r"^table(?=\d)", "Table ", re.sub(r"^figure(?=\d)", "Fig. ", key))
        lines.append(f"the paper, {place}: {text}")
    return lines


def _sizes(baseline: str, table: Mapping[str, Mapping[str, float]]) -> str:
    """The gaps at the sizes of Table 2."""
    specs = [spec for spec in next(iter(table.values())) if spec != baseline]
    parts = [
        f"{spec} " + " ".join(f"{row[spec] - row[baseline]:+.3f}" for row in table.values())
        for spec in specs
    ]
    return f"the paper's gaps by size, {' '.join(table)} (Table 2): {'; '.join(parts)}"


_FIELDS = {
    "variant": "arm.variant", "paper_loss": "paper_loss", "paper_difference": "paper_gap",
    "paper_rank": "paper_rank", "difference": "arm.difference.mean",
    "ci_low": "low", "ci_high": "high",
    "n_seeds": "n_seeds", "rank": "rank", "beside_paper": "said", "reason": "reason",
    "verdict": "arm.verdict", "baseline": "baseline", "recipe": "recipe",
    "recipe_digest": "recipe_digest", "fingerprint": "fingerprint", "terms": "terms",
    "registered": "registered",
}  # fmt: skip


def _record(row: Beside, comparison: Comparison) -> dict[str, Any]:
    low, high = row.arm.interval or (None, None)
    n_seeds = len(row.arm.pairs) or len(row.arm.losses)
    more = {
        "n_seeds": n_seeds,
        "low": low,
        "high": high,
        "reason": row.reason,
        "terms": labels.name(comparison.terms),
    }
    return flat(vars(comparison) | vars(comparison.data) | asdict(row) | more, _FIELDS)


def tasks_table(beside: Sequence[BesideTasks]) -> Table:
    """Arms beside Table 3, by kind of task; empty where the paper has none of them."""
    columns = [Column("kind of task", "word"), Column("variant", "code")]
    columns += [Column("the paper's benchmarks"), Column("mean gain, points")]
    columns += [Column("yours beside it", "text")]
    rows = []
    for each in beside:
        if each.mean is not None:
            up = sum(gain > 0 for gain in each.gains.values())
            of = f"{up} of {len(each.gains)} gain"
            rows.append([KINDS[each.kind], each.variant, of, f"{each.mean:+.1f}", _said(each)])
    return Table("beside the paper's Table 3, whose tasks are others", columns, rows, n_keys=2)


def _said(each: BesideTasks) -> str:
    """`same sign: cloze, words; within noise: recall`."""
    by_word: dict[str, list[str]] = {}
    for task, said in each.said.items():
        by_word.setdefault(said, []).append(task)
    return "; ".join(f"{said}: {', '.join(tasks)}" for said, tasks in by_word.items())
