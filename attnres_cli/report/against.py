"""The paper's numbers beside the user's, as a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attnres_cli.config.shipped import paper
from attnres_cli.records.comparison_terms import stated
from attnres_cli.records.items import Kind
from attnres_cli.report.answer import unanswerable
from attnres_cli.report.footnotes import UNIT
from attnres_cli.report.table import Column, Report, Table, joined, noted_once, tabled
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.fields import Field, Style, keys, record
from attnres_cli.verdict.paper import RULE, Beside, BesideTasks, beside
from attnres_cli.verdict.rows import difference_text, n_seeds

_STYLES: dict[str, Style] = {
    "same sign": "good", "opposite sign": "bad", "no verdict": "warning", "baseline": "strong",
}  # fmt: skip
_FIELDS: Sequence[Field[Beside, Comparison]] = (
    Field("variant", lambda row, _: row.arm.variant, "variant", kind="code"),
    Field("paper_loss", lambda row, _: row.paper_loss),
    Field("paper_difference", lambda row, _: row.paper_gap, "paper", lambda row, _: _gap(row)),
    Field("paper_rank", lambda row, _: row.paper_rank),
    Field("difference", lambda row, _: row.arm.difference and row.arm.difference.mean),
    Field("ci_low", lambda row, _: row.arm.interval and row.arm.interval[0]),
    Field("ci_high", lambda row, _: row.arm.interval and row.arm.interval[1]),
    Field(title="yours [interval]", show=lambda row, _: difference_text(row.arm)),
    Field("n_seeds", lambda row, _: n_seeds(row.arm)),
    Field("rank", lambda row, _: row.rank, "ranks", lambda row, _: _ranks(row)),
    Field(
        "beside_paper", lambda row, _: row.said, "beside the paper",
        lambda row, _: f"{row.said}: {row.reason}" if row.reason else row.said, "word",
        style=lambda row: _STYLES.get(row.said, ""),
    ),
    Field("reason", lambda row, _: row.reason),
    Field("verdict", lambda row, _: row.arm.verdict),
    Field("baseline", lambda _, of: of.baseline),
    Field("recipe", lambda _, of: of.recipe),
    Field("recipe_digest", lambda _, of: of.recipe_digest),
    Field("fingerprint", lambda _, of: of.data.fingerprint),
    Field("terms", lambda _, of: labels.name(of.terms)),
    Field("registered", lambda _, of: of.registered),
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


def report_of(comparisons: Sequence[Comparison]) -> Report:
    """Every comparison beside the paper. Raises UsageError where the paper lacks the baseline."""
    each = [one_report(comparison, n_read(comparison, comparisons)) for comparison in comparisons]
    return joined(noted_once(each))


def one_report(comparison: Comparison, n_tables: int = 1) -> Report:
    """One comparison beside the paper. Raises UsageError as `report_of`."""
    found, title, told = beside(comparison), labels.title(comparison), notes(comparison)
    qualified, why = qualifiers(comparison, n_tables), unanswerable(comparison)
    heading = f"difference from {comparison.baseline}, {UNIT}"
    records = [record(_FIELDS, row, comparison) for row in found]
    arms = [one | {"terms": stated(comparison.terms)} for one in records]
    return Report(
        title=f"{title}, beside the paper",
        text=[why] if why else [],
        caveats=qualified,
        tables=[tabled(heading, _FIELDS, found, comparison)],
        notes=told,
        document={
            "title": title,
            "answer": why,
            "qualified": qualified,
            "unit": UNIT,
            "arms": arms,
            "notes": told,
        },
        fields=[*keys(_FIELDS), "qualified"],
        records=[one | {"qualified": "; ".join(qualified)} for one in records],
        more=(),
    )


def _gap(row: Beside) -> str:
    return "-" if row.paper_gap is None else f"{row.paper_gap:+.3f}"


def _ranks(row: Beside) -> str:
    return " / ".join("-" if rank is None else str(rank) for rank in (row.paper_rank, row.rank))


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
    if any(arm.variant in _OF_SCALARS for arm in comparison.arms):
        lines.append(_ONE_RATE)
    for key, text in held["notes"].items():  # of table2 or figure4
        place = re.sub(r"^table(?=\d)", "Table ", re.sub(r"^figure(?=\d)", "Fig. ", key))
        lines.append(f"the paper, {place}: {text}")
    return lines


_OF_SCALARS = ("denseformer", "attnres:score=static")
_ONE_RATE = (
    "the paper names one learning rate for all designs of Table 4. In recipe quick designs made of "
    "scalars, denseformer and attnres:score=static, end as low as attnres once these learn ten "
    "times as fast (docs/results/rates.md): at another size, budget and optimizer, so that it is "
    "no evidence about the paper's runs"
)


def _sizes(baseline: str, table: Mapping[str, Mapping[str, float]]) -> str:
    """The gaps at the sizes of Table 2."""
    specs = [spec for spec in next(iter(table.values())) if spec != baseline]
    parts = [
        f"{spec} " + " ".join(f"{row[spec] - row[baseline]:+.3f}" for row in table.values())
        for spec in specs
    ]
    return f"the paper's gaps by size, {' '.join(table)} (Table 2): {'; '.join(parts)}"


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
