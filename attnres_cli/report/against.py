"""The paper's numbers beside the user's: gaps, ranks, and whether their signs agree."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from attnres_cli.errors import UsageError, unknown
from attnres_cli.report import latex
from attnres_cli.report.export import UNIT, difference_text
from attnres_cli.report.terminal import console
from attnres_cli.verdict import labels
from attnres_cli.verdict.comparison import ArmResult, Comparison

_SIZE = "436M"  # of Table 2: the model of Table 4
_BLOCKS = "attnres:n_blocks=8"  # of 32 sublayers: block_size=4, which Table 4 has too
_DIGITS = 4  # of differences of numbers that are printed with three decimals

Said = Literal[
    "same sign", "opposite sign", "within noise", "no gap in the paper", "not in the paper",
    "no verdict", "baseline",
]  # fmt: skip

RULE = (
    "within noise: the 95 % interval of your difference, paired by seed and not corrected for the "
    "number of arms, holds 0; else the signs of both differences are compared"
)


@dataclass(frozen=True)
class Beside:
    """One arm in both. Gaps are differences from the same baseline, nats per token.

    Attributes:
        paper_loss: as printed; None where the paper has no such arm.
        ranks: among the arms that both have, the least loss first; equal ones share a rank. None
            where either has no gap.
        reason: why there is no verdict, where there is none.

    """

    arm: ArmResult
    paper_loss: float | None
    paper_gap: float | None
    paper_rank: int | None
    rank: int | None
    said: Said
    reason: str = ""


def losses(paper: Mapping[str, Any]) -> dict[str, float]:
    """The paper's losses by spec of one model: Table 4 with Fig. 6, and Table 2 at its size."""
    of_size = {spec: loss for spec, loss in paper["table2"][_SIZE].items() if spec != _BLOCKS}
    return {**of_size, **paper["table4"]}


def beside(comparison: Comparison, paper: Mapping[str, Any]) -> list[Beside]:
    """Every arm of a comparison beside the paper's of the same name, in the comparison's order.

    Raises:
        UsageError: the paper does not have the baseline, so that it has no gaps to it.

    """
    theirs, baseline = losses(paper), comparison.baseline
    if baseline not in theirs:
        raise UsageError(f"--against paper: {unknown('baseline in the paper', baseline, theirs)}")
    gaps = {spec: round(loss - theirs[baseline], _DIGITS) for spec, loss in theirs.items()}
    ours = {arm.variant: _gap(arm) for arm in comparison.arms}
    known = {name: gap for name, gap in ours.items() if gap is not None and name in gaps}
    ranks, paper_ranks = _ranks(known), _ranks({name: gaps[name] for name in known})
    found = []
    for arm in comparison.arms:
        gap = gaps.get(arm.variant)
        said, reason = _said(arm, gap)
        found.append(
            Beside(
                arm=arm,
                paper_loss=theirs.get(arm.variant),
                paper_gap=gap,
                paper_rank=paper_ranks.get(arm.variant),
                rank=ranks.get(arm.variant),
                said=said,
                reason=reason,
            )
        )
    return found


def is_known(comparison: Comparison, paper: Mapping[str, Any]) -> bool:
    """Whether the paper has the baseline and some other arm of a comparison."""
    arms = {arm.variant for arm in comparison.arms} | {comparison.baseline}
    known = arms & losses(paper).keys()
    return comparison.baseline in known and len(known) > 1


def _gap(arm: ArmResult) -> float | None:
    """The paired difference, 0 of the baseline itself; None where the arm is blocked."""
    if arm.verdict == "baseline":
        return 0.0
    return None if arm.difference is None else arm.difference.mean


def _ranks(gaps: Mapping[str, float]) -> dict[str, int]:
    return {name: 1 + sum(other < gap for other in gaps.values()) for name, gap in gaps.items()}


def _said(arm: ArmResult, gap: float | None) -> tuple[Said, str]:
    """The word for an arm, and why there is none."""
    if arm.verdict == "baseline":
        return "baseline", arm.reason
    if gap is None:
        return "not in the paper", ""
    if arm.difference is None:
        return "no verdict", arm.reason
    low, high = arm.difference.ci95
    if low <= 0 <= high:
        return "within noise", ""
    if gap == 0:
        return "no gap in the paper", ""
    return ("same sign" if (gap < 0) == (arm.difference.mean < 0) else "opposite sign"), ""


def notes(comparison: Comparison, paper: Mapping[str, Any]) -> list[str]:
    """What the numbers are of, the rule, and where the paper is loose."""
    lines = [
        "paper: Kimi Team 2026, arXiv 2603.15031, Table 4, Fig. 6 and Table 2 at 436M active "
        "parameters (32 sublayers, 87.9B tokens); an arm is matched by its name, blocks by their "
        "size in sublayers",
        f"yours: recipe {comparison.recipe} ({comparison.recipe_digest}), data "
        f"{comparison.data.source}; other data, size and budget: signs and orders can be compared, "
        "values cannot",
        "ranks: the paper's / yours, among the arms that both have, least loss first",
        RULE,
    ]
    if comparison.baseline in next(iter(paper["table2"].values())):
        lines.append(_sizes(comparison.baseline, paper))
    return lines + [f"the paper, {_place(key)}: {text}" for key, text in paper["notes"].items()]


def _place(key: str) -> str:
    """`Fig. 4` for figure4, `Table 2` for table2."""
    return re.sub(r"^table(?=\d)", "Table ", re.sub(r"^figure(?=\d)", "Fig. ", key))


def _sizes(baseline: str, paper: Mapping[str, Any]) -> str:
    """The gaps at the sizes of Table 2."""
    table: Mapping[str, Mapping[str, float]] = paper["table2"]
    specs = [spec for spec in table[_SIZE] if spec != baseline]
    parts = [
        f"{spec} " + " ".join(f"{row[spec] - row[baseline]:+.3f}" for row in table.values())
        for spec in specs
    ]
    return f"the paper's gaps by size, {' '.join(table)} (Table 2): {'; '.join(parts)}"


_Row = tuple[Comparison, Sequence[Beside]]


def show(
    comparisons: Sequence[Comparison], form: str, paper: Mapping[str, Any], out: TextIO
) -> None:
    """Print comparisons beside the paper into a stream; html is no form here.

    Raises:
        UsageError: as `beside`.

    """
    rows = [(each, beside(each, paper)) for each in comparisons]
    if form == "table":
        for comparison, found in rows:
            _print(comparison, found, paper, out)
        return
    write: dict[str, Callable[[Sequence[_Row], Mapping[str, Any]], str]] = {
        "json": _to_json,
        "csv": lambda rows, _: _to_csv(rows),
        "markdown": _to_markdown,
        "latex": _to_latex,
    }
    out.write(write[form](rows, paper).rstrip("\n") + "\n")


def _to_latex(rows: Sequence[_Row], paper: Mapping[str, Any]) -> str:
    tables = [
        latex.table(
            f"{labels.title(comparison)}, beside the paper: differences from "
            f"{comparison.baseline}, {UNIT}.",
            COLUMNS,
            [[row.arm.variant, *cells(row)] for row in found],
            notes(comparison, paper),
            left=COLUMNS[-1:],
        )
        for comparison, found in rows
    ]
    return latex.document(*tables)


COLUMNS = ("variant", "paper", "yours [95 %]", "ranks", "beside the paper")


def cells(row: Beside) -> list[str]:
    """The paper's gap, the user's, both ranks, the word."""
    gap = "-" if row.paper_gap is None else f"{row.paper_gap:+.3f}"
    ranks = ["-" if rank is None else str(rank) for rank in (row.paper_rank, row.rank)]
    word = f"{row.said}: {row.reason}" if row.reason else row.said
    return [gap, difference_text(row.arm), " / ".join(ranks), word]


_STYLE = {"same sign": "green", "opposite sign": "red", "no verdict": "yellow"}


def _print(
    comparison: Comparison, rows: Sequence[Beside], paper: Mapping[str, Any], stream: TextIO
) -> None:
    out = console(stream)
    title = f"{labels.title(comparison)}: difference from {comparison.baseline}, {UNIT}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    first, *middle, last = COLUMNS
    table.add_column(first, overflow="fold", min_width=13)
    for name in middle:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(last, overflow="fold", min_width=13)
    for row in rows:
        *numbers, word = cells(row)
        style = "bold" if row.said == "baseline" else None
        table.add_row(row.arm.variant, *numbers, Text(word, _STYLE.get(row.said, "")), style=style)
    out.print(table)
    for line in notes(comparison, paper):
        out.print(Text(line, style="dim"))


def _to_markdown(rows: Sequence[_Row], paper: Mapping[str, Any]) -> str:
    pages = []
    for comparison, found in rows:
        title = labels.title(comparison)
        head = [
            f"### {title[0].upper()}{title[1:]}, beside the paper",
            "",
            f"| variant | paper's difference ({UNIT}) | yours [95 % interval] | ranks "
            "| beside the paper |",
            "|---|---|---|---|---|",
        ]
        body = [f"| `{row.arm.variant}` | {' | '.join(cells(row))} |" for row in found]
        facts = [f"- {line}" for line in notes(comparison, paper)]
        pages.append("\n".join([*head, *body, "", *facts]) + "\n")
    return "\n".join(pages)


_COLUMNS = (
    "variant", "paper_loss", "paper_difference", "paper_rank", "difference", "ci95_low",
    "ci95_high", "n_seeds", "rank", "beside_paper", "reason", "verdict", "baseline", "recipe",
    "recipe_digest", "fingerprint", "terms", "registered",
)  # fmt: skip


def _flat(row: Beside, comparison: Comparison) -> dict[str, Any]:
    difference = row.arm.difference
    low, high = difference.ci95 if difference else (None, None)
    return {
        "variant": row.arm.variant,
        "paper_loss": row.paper_loss,
        "paper_difference": row.paper_gap,
        "paper_rank": row.paper_rank,
        "difference": difference.mean if difference else None,
        "ci95_low": low,
        "ci95_high": high,
        "n_seeds": difference.n if difference else len(row.arm.losses),
        "rank": row.rank,
        "beside_paper": row.said,
        "reason": row.reason,
        "verdict": row.arm.verdict,
        "baseline": comparison.baseline,
        "recipe": comparison.recipe,
        "recipe_digest": comparison.recipe_digest,
        "fingerprint": comparison.data.fingerprint,
        "terms": labels.name(comparison.terms),
        "registered": comparison.registered,
    }


def _to_csv(rows: Sequence[_Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for comparison, found in rows:
        writer.writerows(_flat(row, comparison) for row in found)
    return text.getvalue()


def _to_json(rows: Sequence[_Row], paper: Mapping[str, Any]) -> str:
    documents = []
    for comparison, found in rows:
        head = {"title": labels.title(comparison)}
        arms = [_flat(row, comparison) | {"terms": asdict(comparison.terms)} for row in found]
        documents.append(head | {"unit": UNIT, "arms": arms, "notes": notes(comparison, paper)})
    first, *more = documents
    return json.dumps(first | {"more": more}, indent=2, allow_nan=False)
