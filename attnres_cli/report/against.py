"""The numbers of the paper, or of another report, beside the user's, as a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnres_cli.config.shipped import paper, report_texts
from attnres_cli.files import read_text
from attnres_cli.records.comparison_terms import stated
from attnres_cli.records.items import Kind
from attnres_cli.report.answer import unanswerable
from attnres_cli.report.comparison import UNIT
from attnres_cli.report.table import Report, Table, columns, grouped, joined, tabled
from attnres_cli.verdict import labels
from attnres_cli.verdict import paper as papers
from attnres_cli.verdict import published_table as published
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.fields import Field, Row, Style, keys, picked, record
from attnres_cli.verdict.numbers import plural
from attnres_cli.verdict.rows import (
    BASELINE,
    DIGEST,
    FINGERPRINT,
    RECIPE,
    REGISTERED,
    TERMS,
    difference_text,
    n_seeds,
)  # fmt: skip

_STYLES: dict[str, Style] = {
    "same sign": "good", "opposite sign": "bad", "baseline": "strong", "no verdict": "warning",
    "no verdict here": "warning", "no verdict there": "warning",
}  # fmt: skip
_YOURS: Sequence[Field[Any, Any]] = (
    Field("difference", "arm.difference.mean"),
    Field("ci_low", "arm.interval.0"),
    Field("ci_high", "arm.interval.1"),
    Field(title="yours [interval]", show=lambda row, _: difference_text(row.arm)),
)
_PAPER: Sequence[Field[papers.Beside, Comparison]] = (
    Field("variant", "arm.variant", "variant", kind="code"),
    Field("paper_loss"),
    Field("paper_difference", "paper_gap", "paper", "{:+.3f}"),
    Field("paper_rank"),
    *_YOURS,
    Field("n_seeds", lambda row, _: n_seeds(row.arm)),
    Field("rank", "", "ranks", lambda row, _: _ranks(row)),
    Field(
        "beside_paper", "said", "beside the paper",
        lambda row, _: f"{row.said}: {row.reason}" if row.reason else row.said, "word",
        style=_STYLES,
    ),
    Field("reason"),
    Field("verdict", "arm.verdict"),
    BASELINE, RECIPE, DIGEST, FINGERPRINT, TERMS, REGISTERED,
)  # fmt: skip
_OTHER: Sequence[Field[published.Beside, Comparison]] = (
    Field("variant", "arm.variant", "variant", kind="code"),
    Field(
        "their_difference", "theirs.difference.mean", "theirs [interval]",
        lambda row, _: difference_text(row.theirs),
    ),
    Field("their_low", "theirs.interval.0"),
    Field("their_high", "theirs.interval.1"),
    Field("their_verdict", "theirs.verdict"),
    Field("their_seeds", "theirs.look.n"),
    *_YOURS,
    Field("verdict", "arm.verdict"),
    Field(
        "n_seeds", lambda row, _: n_seeds(row.arm), "seeds", lambda row, _: _seeds(row),
        is_optional=True,
    ),
    Field("beside", "said", "yours beside theirs", kind="word", style=_STYLES),
    DIGEST,
    Field("their_recipe_digest", "table.recipe_digest"),
)  # fmt: skip

KINDS = {
    Kind.CHOICE: "choice of an answer", Kind.ANSWER: "a given answer", Kind.TEXT: "whole texts",
    Kind.GENERATION: "a written answer",
}  # fmt: skip
TASKS = (
    "the paper: Table 3, arXiv 2603.15031: a 48B model with Block AttnRes, one run each, no "
    "intervals. Its benchmarks are other tasks than yours: signs can be compared by kind of task, "
    "values cannot. Yours is the sign of the measure that a task has first"
)
_NOTES = (
    "paper: Kimi Team 2026, arXiv 2603.15031, Table 4, Fig. 6 and Table 2 at 436M active "
    "parameters (32 sublayers, 87.9B tokens); an arm is matched by its name, blocks by their "
    "size in sublayers",
    "yours: recipe {0.recipe} ({0.recipe_digest}), data {0.data.source}; other data, size and "
    "budget: signs and orders can be compared, values cannot",
    "ranks: the paper's / yours, among the arms shown here that both have, least loss first",
    papers.RULE,
)
_UNKNOWN = (
    "The paper has none of these arms besides `{}`: `attnres ablate --suite table4` trains those "
    "that it has."
)
_OF_SCALARS = ("denseformer", "attnres:score=static")
_ONE_RATE = (
    "the paper names one learning rate for all designs of Table 4. In recipe quick designs made of "
    "scalars, denseformer and attnres:score=static, end as low as attnres once these learn ten "
    "times as fast (docs/results/rates.md): at another size, budget and optimizer, so that it is "
    "no evidence about the paper's runs"
)
_MOST_BYTES = 2**26
_MOST_NAMED = 3


def report_of(comparisons: Sequence[Comparison]) -> Report:
    """Every comparison beside the paper. Raises UsageError where the paper lacks the baseline."""
    return joined([one_report(each, n_read(each, comparisons)) for each in comparisons])


def one_report(mine: Comparison, n_tables: int = 1) -> Report:
    """One comparison beside the paper. Raises UsageError as `report_of`."""
    rows, why = papers.beside(mine), unanswerable(mine)
    if not why and not papers.is_known(mine):
        why = _UNKNOWN.format(mine.baseline)
    report = _beside(mine, "the paper", n_tables, _PAPER, rows, _notes(mine))
    terms = {"terms": stated(mine.terms)}
    return replace(
        report,
        text=[why] if why else [],
        document=report.document
        | {"answer": why, "arms": [one | terms for one in report.document["arms"]]},
        question=f"Do these differences from {mine.baseline} agree with the paper's?",
    )


def report_of_other(of: str, comparisons: Sequence[Comparison]) -> Report:
    """Each comparison beside the nearest of a shipped report or a file. Raises UsageError."""
    texts = report_texts(of) or [read_text(Path(of), "--against", most=_MOST_BYTES)]
    tables = [table for text in texts for table in published.read(text, f"--against {of}")]
    name, reports = Path(of).name, []
    for mine in comparisons:
        theirs = published.nearest(tables, mine)
        rows, both = published.beside(theirs, mine), published.again(theirs, mine)
        notes = _other_notes(name, theirs, mine, both)
        report = _beside(mine, name, n_read(mine, comparisons), _OTHER, rows, notes)
        document = {
            "theirs": picked(theirs, "title versions"),
            "terms": stated(mine.terms),
            "again": {"runs": len(both.gaps), "equal": both.n_equal},
        }
        reports.append(replace(report, document=report.document | document))
    question = "Do these differences agree with those of the other report?"
    return replace(joined(reports), question=question)


def _beside(
    mine: Comparison,
    what: str,
    n_tables: int,
    fields: Sequence[Field[Row, Comparison]],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> Report:
    title, qualified = labels.title(mine), qualifiers(mine, n_tables)
    arms = [record(fields, row, mine) for row in rows]
    return Report(
        f"{title}, beside {what}",
        [tabled(f"difference from {mine.baseline}, {UNIT}", fields, rows, mine)],
        caveats=qualified,
        notes=notes,
        document={
            "title": title, "qualified": qualified, "unit": UNIT, "arms": arms, "notes": notes,
        },
        fields=[*keys(fields), "qualified"],
        records=[arm | {"qualified": "; ".join(qualified)} for arm in arms],
    )  # fmt: skip


def _ranks(row: papers.Beside) -> str:
    return " / ".join("-" if rank is None else str(rank) for rank in (row.paper_rank, row.rank))


def _seeds(row: published.Beside) -> str:
    theirs = row.theirs.look.n if row.theirs and row.theirs.look else "-"
    return f"{theirs} / {n_seeds(row.arm)}"


def _notes(mine: Comparison) -> list[str]:
    """What the numbers are of, the rule, and where the paper is loose."""
    held = paper()
    lines = [note.format(mine) for note in _NOTES]
    table = held["table2"]
    if mine.baseline in next(iter(table.values())):
        parts = [
            f"{spec} "
            + " ".join(f"{row[spec] - row[mine.baseline]:+.3f}" for row in table.values())
            for spec in next(iter(table.values()))
            if spec != mine.baseline
        ]
        lines.append(f"the paper's gaps by size, {' '.join(table)} (Table 2): {'; '.join(parts)}")
    if any(arm.variant in _OF_SCALARS for arm in mine.arms):
        lines.append(_ONE_RATE)
    for key, text in held["notes"].items():  # of table2 or figure4
        place = re.sub(r"^table(?=\d)", "Table ", re.sub(r"^figure(?=\d)", "Fig. ", key))
        lines.append(f"the paper, {place}: {text}")
    return lines


def _other_notes(
    name: str, table: published.OtherTable, mine: Comparison, both: published.Again
) -> list[str]:
    same = zip(("recipe", "data"), published.are_same(table, mine), strict=True)
    how = "the same recipe and data as yours: values can be compared"
    if other := [word for word, is_same in same if not is_same]:
        how = f"another {' and other '.join(other)} than yours: signs and orders can be compared"
    return [
        f"theirs: {name}, {table.title}; data {table.data.source} ({table.data.fingerprint}); "
        f"{'; '.join(table.versions)}",
        how,
        *([_again_text(both, table, mine)] if both.gaps else []),
        published.RULE,
    ]


def _again_text(both: published.Again, table: published.OtherTable, mine: Comparison) -> str:
    """How many ended alike, how far apart the others are, and what is not the same there."""
    n, equal = len(both.gaps), both.n_equal
    head = f"{plural(n, 'run')} that both trained (one recipe, design, seed and data): "
    if equal == n:
        return f"{head}all ended with the same loss, bit for bit"
    parts = [f"{equal} ended with the same loss, bit for bit"]
    if both.n_diverged:
        parts.append(f"{both.n_diverged} diverged on one side alone")
    if apart := both.apart:
        parts.append(f"others are apart by {apart[0]:.4g} in the median, {apart[1]:.4g} at most")
    for what, theirs, yours in (
        ("computed with", table.settings, mine.settings),
        ("trained by", table.versions, mine.versions),
    ):
        if set(theirs) != set(yours):
            parts.append(f"{what}: theirs {', '.join(theirs)}; yours {', '.join(yours)}")
    if others := both.other_code:
        named = ", ".join(others) if len(others) <= _MOST_NAMED else plural(len(others), "design")
        parts.append(f"by other code: {named}")
    return head + "; ".join(parts)


def tasks_table(beside: Sequence[papers.BesideTasks]) -> Table:
    """Arms beside Table 3, by kind of task; empty where the paper has none of them."""
    rows = []
    for each in beside:
        if each.mean is not None:
            up = sum(gain > 0 for gain in each.gains.values())
            of = f"{up} of {len(each.gains)} gain"
            rows.append([KINDS[each.kind], each.variant, of, f"{each.mean:+.1f}", _said(each.said)])
    heads = columns(
        "kind of task:word", "variant:code", "the paper's benchmarks", "mean gain, points",
        "yours beside it:text",
    )  # fmt: skip
    return Table("beside the paper's Table 3, whose tasks are others", heads, rows, n_keys=2)


def _said(by_task: Mapping[str, str]) -> str:
    """`same sign: cloze, words; within noise: recall`."""
    by_word = grouped((said, task) for task, said in by_task.items())
    return "; ".join(f"{said}: {', '.join(tasks)}" for said, tasks in by_word.items())
