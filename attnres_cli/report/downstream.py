"""What tasks say of every arm: a table for each, what single seeds say, and the paper's Table 3."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from attnres_cli.report.against import KINDS, TASKS, tasks_table
from attnres_cli.report.comparison import SEEDS
from attnres_cli.report.table import Report, Table, columns, joined, listed, tabled
from attnres_cli.stats.sequential import ALPHA
from attnres_cli.verdict import labels
from attnres_cli.verdict.caveats import n_read, not_kept, qualifiers
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.downstream import RULE, Downstream, Judged
from attnres_cli.verdict.fields import Field, keys, picked, record
from attnres_cli.verdict.numbers import interval, plural
from attnres_cli.verdict.paper import BesideTasks, beside_tasks
from attnres_cli.verdict.rows import BASELINE, DIGEST, FINGERPRINT, RECIPE, STYLES, TERMS
from attnres_cli.verdict.task_answers import Measure, Task

_FIELDS: Sequence[Field[Judged, Comparison]] = (
    Field("task", "task.name"),
    Field(
        "measure", "measure.name", "measure",
        lambda row, _: row.measure.title + (", %" if row.measure.is_share else ""), "word",
    ),
    Field("variant", title="variant", kind="code"),
    Field("mean", "value", "value", lambda row, _: _value(row)),
    Field("difference", "", "vs baseline [interval]", lambda row, _: _difference(row)),
    Field("ci_low", "interval.0"),
    Field("ci_high", "interval.1"),
    Field("verdict", "", "verdict", lambda row, _: _verdict(row), "text", style=STYLES),
    Field("reason"),
    Field("kind", "task.kind"),
    Field("n_items", lambda row, _: len(row.task.documents)),
    Field("n_seeds", lambda row, _: len(row.seeds), "n", is_optional=True),
    Field("chance", "task.chance"),
    Field("detectable"),
    Field("look", "look.n"),
    Field("next_look", "look.next"),
    Field("alpha", "look.alpha"),
    Field("less_is_better", "measure.is_less_better"),
    BASELINE, RECIPE, DIGEST, FINGERPRINT, TERMS,
)  # fmt: skip
_ARM = "variant seeds mean=value difference interval look detectable verdict reason"
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


def _one(found: Downstream, n_tables: int) -> Report:
    beside = beside_tasks(found)
    document = _document(found, n_tables, beside)
    more = {"qualified": "; ".join(document["qualified"])}
    tables = [_of_task(found, task) for task in found.tasks]
    return Report(
        title=f"{document['title']}: tasks",
        text=[document["answer"]],
        caveats=document["qualified"],
        tables=[*tables, _within(found), tasks_table(beside)],
        notes=document["notes"],
        document=document,
        fields=[*keys(_FIELDS), "qualified"],
        records=[record(_FIELDS, row, found.comparison) | more for row in found.rows],
        question="What is the difference worth in tasks?",
    )


def _answer(found: Downstream) -> str:
    """What the tasks say, arm by arm, never pooled."""
    base, parts = found.comparison.baseline, []
    for said in ("better", "worse"):
        arms: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for row in found.rows:
            if row.verdict == said:
                points = " points" if row.measure.is_share else ""
                by = f"{row.measure.title} {_difference(row)}{points}"
                arms[row.variant][row.task.name].append(by)
        named = []
        for variant, tasks in arms.items():
            on = [f"{task} ({', '.join(much)})" for task, much in tasks.items()]
            named.append(f"{variant} on {listed(on)}")
        if named:
            parts.append(f"{said.capitalize()} than {base}: {'; '.join(named)}.")
    counts = Counter[str](row.verdict for row in found.rows)
    words = ("inconclusive", "pending", "blocked")
    others = [f"{plural(counts[word], 'row')} {word}" for word in words if counts[word]]
    if not parts and not others:
        return f"Only {base} has answered: there is nothing to compare it with."
    none = [] if parts else [f"No arm is better or worse than {base} on any task."]
    return " ".join([*none, *parts, *([f"Besides: {listed(others)}."] if others else [])])


def _of_task(found: Downstream, task: Task) -> Table:
    """A task's measures and arms."""
    chance = ""
    if task.chance is not None and task.chance_nats is not None:
        chance = f"; guessing has {100 * task.chance:.1f} % right, {task.chance_nats:.4f} nats"
    n_items = plural(f"{len(task.documents):,}", "item")
    rows = [row for row in found.rows if row.task is task]
    title = f"{task.name}: {KINDS[task.kind]}, {n_items}{chance}"
    return tabled(title, _FIELDS, rows, found.comparison, n_keys=2)


def _value(row: Judged) -> str:
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
    heads = columns(
        "task:word", "variant:code", "seed", "arm alone right", "baseline alone right", "p"
    )
    rows = [
        [row.task.name, row.variant, *map(str, (w.seed, w.arm_alone, w.baseline_alone)), _p(w.p)]
        for row in found.rows
        if row.verdict == "pending"
        for w in row.within
    ]
    return Table(_WITHIN, heads, rows, n_keys=2)


def _p(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _qualified(found: Downstream, n_tables: int) -> Iterator[str]:
    """What the answer must be read with."""
    held = found.comparison
    if held.registered:
        yield "exploratory: what was preregistered is the loss, not these tasks"
    n_ended = sum(run.result is not None for run in held.records)
    if found.n_runs < n_ended:
        yield f"{found.n_runs} of {n_ended} ended runs have answered: `attnres evaluate`"
    for task in found.tasks:
        if cut := _truncated(task):
            n = len(task.documents)
            yield f"{task.name}: {cut:,} of {n:,} items exceed the model's context, and are cut"
        if not task.measures:
            yield f"{task.name}: none of its metrics is judged ({', '.join(task.others)})"
    versions = {version for task in found.tasks for version in _harness(task)}
    if len(versions) > 1:
        yield f"asked by different versions of lm-eval: {', '.join(sorted(versions))}"
    yield from qualifiers(held, n_tables)


def _truncated(task: Task) -> int:
    return max(each.truncated for each in task.answers.values())


def _harness(task: Task) -> list[str]:
    return sorted({each.harness for each in task.answers.values()})


def _notes(found: Downstream, beside: Sequence[BesideTasks]) -> list[str]:
    held, arms = found.comparison, len(found.comparison.family.rates)
    n_tasks = plural(len(found.tasks), "task")
    return [
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
        *not_kept(held),
        SEEDS,
        *([TASKS] if any(each.gains for each in beside) else []),
    ]


def _document(found: Downstream, n_tables: int, beside: Sequence[BesideTasks]) -> dict[str, Any]:
    held = found.comparison
    return {
        "title": labels.title(held),
        "answer": _answer(found),
        "qualified": list(dict.fromkeys(_qualified(found, n_tables))),
        **picked(held, "recipe recipe_digest fingerprint=data.fingerprint baseline"),
        "terms": labels.name(held.terms),
        "error_rate": ALPHA,
        "tasks": [_task_document(found, task) for task in found.tasks],
        "paper": [picked(each, "kind variant gains said") for each in beside],
        "notes": _notes(found, beside),
    }


def _task_document(found: Downstream, task: Task) -> dict[str, Any]:
    def arms(measure: Measure) -> list[dict[str, Any]]:
        rows = [row for row in found.rows if row.task is task and row.measure is measure]
        return [
            picked(row, _ARM)
            | {"look": row.look and picked(row.look, "n next alpha")}
            | {"mcnemar": [vars(each) for each in row.within]}
            for row in rows
        ]

    measures = "measure=name less_is_better=is_less_better"
    return picked(task, "task=name kind chance not_judged=others") | {
        "items": len(task.documents),
        "truncated": _truncated(task),
        "harness": _harness(task),
        "measures": [picked(each, measures) | {"arms": arms(each)} for each in task.measures],
    }
