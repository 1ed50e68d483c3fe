"""What tasks say of every arm: a table for each, what single seeds say, and the paper's Table 3."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from attnres_cli.report.against import KINDS, TASKS, tasks_table
from attnres_cli.report.footnotes import SEEDS
from attnres_cli.report.html import Part, Section, page
from attnres_cli.report.table import Column, Report, Table, joined, listed, tabled
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, qualifiers
from attnres_cli.verdict.comparison import Comparison, Verdict
from attnres_cli.verdict.downstream import RULE, Downstream, Judged
from attnres_cli.verdict.fields import Field, Style, keys, record
from attnres_cli.verdict.numbers import interval, plural
from attnres_cli.verdict.paper import BesideTasks, beside_tasks
from attnres_cli.verdict.task_answers import Task

_STYLES: dict[str, Style] = {
    "better": "good", "worse": "bad", "pending": "warning", "blocked": "warning",
    "baseline": "strong",
}  # fmt: skip
_OTHERS: tuple[Verdict, ...] = ("inconclusive", "pending", "blocked")
_ORDER = (
    "measures of a task, in this order: bits per byte of right answers or texts (less is better), "
    "log-probability of the right answer among those given (nats), share of right answers; the "
    "later sees less, and has less of the rate"
)
_ITEMS = (
    "items are taken as drawn one by one: where several share a passage, intervals are too narrow"
)
_WITHIN = (
    "one seed's two models, the items that one of them alone has right, and the exact p of "
    "McNemar's test: it speaks of these weights alone, not of the designs"
)


def report_of(found: Sequence[Downstream]) -> Report:
    """The tasks of one recipe's comparisons."""
    shown = [each.comparison for each in found]
    return joined([_one(each, n_read(each.comparison, shown)) for each in found])


def to_html(report: Report, study: str) -> str:
    """The same as a page."""
    sections = [
        Section(
            one.title,
            f"d{n}",
            [Part(tables=one.tables, notes=one.notes)],
            answer=one.document["answer"],
            qualified=one.document["qualified"],
        )
        for n, one in enumerate(report, 1)
    ]
    heading = "What is the difference worth in tasks?"
    return page(f"attnres: {report.title}", heading, sections, study)


def _one(found: Downstream, n_tables: int) -> Report:
    """One comparison's tasks."""
    beside = beside_tasks(found)
    document = _document(found, n_tables, beside)
    told = "; ".join(document["qualified"])
    return Report(
        title=f"{labels.title(found.comparison)}: tasks",
        text=[document["answer"]],
        caveats=document["qualified"],
        tables=[
            *(_of_task(found, task) for task in found.tasks),
            _within(found),
            tasks_table(beside),
        ],
        notes=document["notes"],
        document=document,
        fields=[*keys(_FIELDS), "qualified"],
        records=[
            record(_FIELDS, row, found.comparison) | {"qualified": told}
            for task in found.tasks
            for measure in task.measures
            for row in found.rows
            if row.task is task and row.measure is measure
        ],
        more=(),
    )


def _answer(found: Downstream) -> str:
    """What the tasks say, arm by arm, never pooled."""
    base, parts = found.comparison.baseline, []
    for said in ("better", "worse"):
        tasks: dict[str, dict[str, list[str]]] = {}
        for row in found.rows:
            if row.verdict == said:
                of_arm = tasks.setdefault(row.variant, {})
                of_arm.setdefault(row.task.name, []).append(_by_how_much(row))
        named = []
        for variant, of_arm in tasks.items():
            of_task = [f"{task} ({', '.join(of)})" for task, of in of_arm.items()]
            named.append(f"{variant} on {listed(of_task)}")
        if named:
            parts.append(f"{said.capitalize()} than {base}: {'; '.join(named)}.")
    counts = Counter(row.verdict for row in found.rows)
    others = [f"{plural(counts[other], 'row')} {other}" for other in _OTHERS if counts[other]]
    if not parts and not others:
        return f"Only {base} has answered: there is nothing to compare it with."
    none = [] if parts else [f"No arm is better or worse than {base} on any task."]
    return " ".join([*none, *parts, *([f"Besides: {listed(others)}."] if others else [])])


def _by_how_much(row: Judged) -> str:
    return f"{row.measure.title} {_difference(row)}" + (" points" if row.measure.is_share else "")


def _of_task(found: Downstream, task: Task) -> Table:
    """A task's measures and arms."""
    chance = ""
    if task.chance is not None and task.chance_nats is not None:
        chance = f"; guessing has {100 * task.chance:.1f} % right, {task.chance_nats:.4f} nats"
    n_items = plural(f"{len(task.documents):,}", "item")
    rows = [row for row in found.rows if row.task is task]
    title = f"{task.name}: {KINDS[task.kind]}, {n_items}{chance}"
    return tabled(title, _FIELDS, rows, found.comparison, n_keys=2)


def _number(row: Judged) -> str:
    if row.value is None:
        return "-"
    return f"{100 * row.value:.1f}" if row.measure.is_share else f"{row.value:.4f}"


def _difference(row: Judged) -> str:
    """`-0.0210 [-0.0312, -0.0108]`; of shares in points."""
    if row.difference is None:
        return "-"
    if not row.measure.is_share:
        return interval(row.difference, row.interval, "+.4f")
    ends = None if row.interval is None else (100 * row.interval[0], 100 * row.interval[1])
    return interval(100 * row.difference, ends, "+.2f")


def _verdict(row: Judged) -> str:
    if row.verdict in ("blocked", "pending"):
        return f"{row.verdict}: {row.reason}"
    if row.verdict != "inconclusive" or not row.detectable:
        return row.verdict
    sees = f"{100 * row.detectable:.1f}" if row.measure.is_share else f"{row.detectable:.3f}"
    return f"{row.verdict} (detects {sees})"


def _within(found: Downstream) -> Table:
    """What single seeds say, where it is all that there is."""
    columns = [Column("task", "word"), Column("variant", "code"), Column("seed")]
    columns += [Column("arm alone right"), Column("baseline alone right"), Column("p")]
    rows = [
        [row.task.name, row.variant, str(w.seed), str(w.arm_alone), str(w.baseline_alone), _p(w.p)]
        for row in found.rows
        if row.verdict == "pending"
        for w in row.within
    ]
    return Table(_WITHIN, columns, rows, n_keys=2)


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _qualified(found: Downstream, n_tables: int) -> Iterator[str]:
    """What the answer must be read with."""
    held = found.comparison
    if held.registered:
        yield "exploratory: what was preregistered is the loss, not these tasks"
    ended = [run for run in held.records if run.result is not None]
    if found.n_runs < len(ended):
        yield f"{found.n_runs} of {len(ended)} ended runs have answered: `attnres evaluate`"
    for task in found.tasks:
        if cut := max(each.truncated for each in task.answers.values()):
            n = len(task.documents)
            yield f"{task.name}: {cut:,} of {n:,} items exceed the model's context, and are cut"
        if not task.measures:
            yield f"{task.name}: none of its metrics is judged ({', '.join(task.others)})"
    versions = {each.harness for task in found.tasks for each in task.answers.values()}
    if len(versions) > 1:
        yield f"asked by different versions of lm-eval: {', '.join(sorted(versions))}"
    yield from qualifiers(held, n_tables)


def _notes(found: Downstream, beside: Sequence[BesideTasks]) -> list[str]:
    held, arms = found.comparison, len(found.comparison.family.rates)
    n_tasks = plural(len(found.tasks), "task")
    lines = [
        f"difference from {held.baseline}, arm minus baseline, paired by seed and item; shares of "
        "right answers in percent, their differences in points; n: seeds",
        RULE,
        f"the family of this table: {plural(arms, 'arm')}, {n_tasks}, all measures and looks",
        _ORDER,
        f"blocked at chance: the one-sided {100 * (1 - ALPHA):.0f} % bounds of the arm's and the "
        "baseline's share of right answers are not above what guessing gives",
        *(
            f"{task.name}: not judged, as its metrics see the same: {', '.join(task.others)}"
            for task in found.tasks
            if task.measures and task.others
        ),
        _ITEMS,
        SEEDS,
    ]
    return [*lines, TASKS] if any(each.gains for each in beside) else lines


def _document(found: Downstream, n_tables: int, beside: Sequence[BesideTasks]) -> dict[str, Any]:
    held = found.comparison
    return {
        "title": labels.title(held),
        "answer": _answer(found),
        "qualified": list(dict.fromkeys(_qualified(found, n_tables))),
        "recipe": held.recipe,
        "recipe_digest": held.recipe_digest,
        "fingerprint": held.data.fingerprint,
        "terms": labels.name(held.terms),
        "baseline": held.baseline,
        "error_rate": ALPHA,
        "tasks": [_task_document(found, task) for task in found.tasks],
        "paper": [
            {"kind": each.kind, "variant": each.variant, "gains": each.gains, "said": each.said}
            for each in beside
        ],
        "notes": _notes(found, beside),
    }


def _task_document(found: Downstream, task: Task) -> dict[str, Any]:
    return {
        "task": task.name,
        "kind": task.kind,
        "items": len(task.documents),
        "chance": task.chance,
        "truncated": max(each.truncated for each in task.answers.values()),
        "harness": sorted({each.harness for each in task.answers.values()}),
        "not_judged": task.others,
        "measures": [
            {
                "measure": measure.name,
                "less_is_better": measure.is_less_better,
                "arms": [
                    _arm(row) for row in found.rows if row.task is task and row.measure is measure
                ],
            }
            for measure in task.measures
        ],
    }


def _arm(row: Judged) -> dict[str, Any]:
    look = row.look
    return {
        "variant": row.variant,
        "seeds": row.seeds,
        "mean": row.value,
        "difference": row.difference,
        "interval": row.interval,
        "look": None if look is None else {"n": look.n, "next": look.next, "alpha": look.alpha},
        "detectable": row.detectable,
        "verdict": row.verdict,
        "reason": row.reason,
        "mcnemar": [vars(each) for each in row.within],
    }


_FIELDS: Sequence[Field[Judged, Comparison]] = (
    Field("task", lambda row, _: row.task.name),
    Field(
        "measure", lambda row, _: row.measure.name, "measure",
        lambda row, _: row.measure.title + (", %" if row.measure.is_share else ""), "word",
    ),
    Field("variant", lambda row, _: row.variant, "variant", kind="code"),
    Field("mean", lambda row, _: row.value, "value", lambda row, _: _number(row)),
    Field(
        "difference", lambda row, _: row.difference, "vs baseline [interval]",
        lambda row, _: _difference(row),
    ),
    Field("ci_low", lambda row, _: row.interval and row.interval[0]),
    Field("ci_high", lambda row, _: row.interval and row.interval[1]),
    Field(
        "verdict", lambda row, _: row.verdict, "verdict", lambda row, _: _verdict(row), "text",
        style=lambda row: _STYLES.get(row.verdict, ""),
    ),
    Field("reason", lambda row, _: row.reason),
    Field("kind", lambda row, _: row.task.kind),
    Field("n_items", lambda row, _: len(row.task.documents)),
    Field("n_seeds", lambda row, _: len(row.seeds), "n", is_optional=True),
    Field("chance", lambda row, _: row.task.chance),
    Field("detectable", lambda row, _: row.detectable),
    Field("look", lambda row, _: row.look and row.look.n),
    Field("next_look", lambda row, _: row.look and row.look.next),
    Field("alpha", lambda row, _: row.look and row.look.alpha),
    Field("less_is_better", lambda row, _: row.measure.is_less_better),
    Field("baseline", lambda _, of: of.baseline),
    Field("recipe", lambda _, of: of.recipe),
    Field("recipe_digest", lambda _, of: of.recipe_digest),
    Field("fingerprint", lambda _, of: of.data.fingerprint),
    Field("terms", lambda _, of: labels.name(of.terms)),
)  # fmt: skip
