"""Ended runs of a study that a comparison cannot use, though they are of its recipe and arms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnres_cli.records.code import Code
from attnres_cli.records.plan import Plan
from attnres_cli.records.run import RunRecord
from attnres_cli.store.store import Store
from attnres_cli.verdict.codes import shown
from attnres_cli.verdict.numbers import plural


def notes(plan: Plan, records: Sequence[RunRecord], store: Store) -> Iterator[str]:
    """A line on those by other code than that of now, and one on those on other data of the same
    source, if there are any.
    """
    arms = {plan.spec(arm, 0).identity[:2]: arm.code for arm in plan.arms}
    ended = [run for run in records if run.result is not None and run.identity[:2] in arms]
    mine = [run for run in ended if run.fingerprint == plan.fingerprint]
    older = [(run, now) for run in mine if run.code != (now := arms[run.identity[:2]]).digest]
    if older:
        yield _of_other_code(older)
    others = [run for run in ended if run.fingerprint != plan.fingerprint]
    same = [run for run in others if run.code == arms[run.identity[:2]].digest]
    if elsewhere := _of_this_source(plan, same, store):
        yield _on_other_data(plan, elsewhere)


def _of_other_code(older: Sequence[tuple[RunRecord, Code]]) -> str:
    before = [(Code.of(run.versions), now) for run, now in older]
    parts = dict.fromkeys(part for code, now in before if code.digest for part in code.changed(now))
    changed = f"{', '.join(parts)} changed" if parts else "which is not recorded"
    return (
        f"the study holds {_counted([run for run, _ in older])} by other code ({changed}): they "
        f"stay, `attnres report --code {shown(older[-1][0])}` compares them; what is missing of "
        "this code is trained"
    )


def _of_this_source(plan: Plan, runs: Sequence[RunRecord], store: Store) -> list[RunRecord]:
    """Those of these runs whose data were read from where the plan's are: not of another text."""
    data = plan.recipe.data
    facts = {each: store.data(each) for each in {run.fingerprint for run in runs}}
    same = {n for n, f in facts.items() if (f.source, f.path) == (data.source, data.path)}
    return [run for run in runs if run.fingerprint in same]


def _on_other_data(plan: Plan, runs: Sequence[RunRecord]) -> str:
    source = plan.recipe.data.source
    why = "the text there is another one"
    if source == "stdlib":
        pythons = sorted({run.versions.get("python", "unknown") for run in runs})
        why = f"stdlib is the source of the Python that trains, there {', '.join(pythons)}"
    return (
        f"the study holds {_counted(runs)} on other data of source {source} "
        f"({runs[-1].fingerprint}): {why}; they are not shared, and all runs are trained on "
        f"{plan.fingerprint}"
    )


def _counted(runs: Sequence[RunRecord]) -> str:
    """`6 runs of standard, attnres`."""
    return f"{plural(len(runs), 'run')} of {', '.join(dict.fromkeys(r.variant for r in runs))}"
