"""What the runs of a table answered to each task: which answers count, their numbers, and the rate.

Tasks share the error rate of a table in the order in which they joined, as arms do. The first has
with it all tasks that were begun before a second run had answered any of them: until then nothing
could be compared. Later ones share what is kept for them, so that who adds tasks until one says
what is hoped for errs no more often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnres_cli.records.items import (
    ACC,
    CHOICE_NATS,
    EXACT_MATCH,
    GOLD_BYTES,
    GOLD_NATS,
    N_CHOICES,
    Items,
    Kind,
)
from attnres_cli.records.run import RunRecord
from attnres_cli.stats.crossed import per_unit
from attnres_cli.stats.sequential import shares
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.numbers import plural

Floats = NDArray[np.float64]

FIRST_MEASURE = 0.5
"""Part of a task's rate that its first measure has; the others share the rest evenly."""


def _bits_per_byte(of: Mapping[str, Floats]) -> Floats:
    return per_unit(-of[GOLD_NATS] / math.log(2), of[GOLD_BYTES][0])


@dataclass(frozen=True)
class Measure:
    """One number per item: `of` makes it, (seeds, items), of metrics that are (seeds, items)."""

    name: str
    title: str
    metrics: tuple[str, ...]
    of: Callable[[Mapping[str, Floats]], Floats]
    is_less_better: bool = False

    @property
    def is_share(self) -> bool:
        """Whether it is a share of items that are right, of which guessing gets some."""
        return self.name in (ACC, EXACT_MATCH)


def _plain(name: str, title: str) -> Measure:
    return Measure(name, title, (name,), lambda of: of[name])


MEASURES = (
    Measure("bits_per_byte", "bits per byte", (GOLD_NATS, GOLD_BYTES), _bits_per_byte, True),
    _plain(CHOICE_NATS, "nats among answers"),
    _plain(ACC, "accuracy"),
    _plain(EXACT_MATCH, "exact match"),
)
"""In the order in which they are judged: what sees most first."""


@dataclass(frozen=True)
class Task:
    """One task as a table's runs answered it. `rate` is its part of an arm's, `documents` all that
    any run has answered, (number, hash) of each.
    """

    name: str
    kind: Kind
    measures: tuple[Measure, ...]
    rate: float
    documents: tuple[tuple[int, str], ...]
    answers: Mapping[int, Items]  # by run
    content: str
    chance: float | None  # right, mean over items; None where there is nothing to choose from
    chance_nats: float | None  # of the right answer
    others: tuple[str, ...] = ()  # metrics that are not judged

    def guessed(self, run: RunRecord) -> Floats | float:
        """How often who guesses is right, of each item, by the answers of a run."""
        found = self.answers[run.id]
        return 1 / self._column(found, N_CHOICES) if N_CHOICES in found.values else 0.0

    def rate_of(self, measure: Measure) -> float:
        """The part of an arm's rate that a measure has."""
        if len(self.measures) == 1:
            return self.rate
        rest = (1 - FIRST_MEASURE) / (len(self.measures) - 1)
        return self.rate * (FIRST_MEASURE if measure == self.measures[0] else rest)

    def lacks(self, run: RunRecord) -> str:
        """Why a run's answers do not count; empty where they do."""
        found, again = self.answers.get(run.id), f"`attnres evaluate {run.id} --tasks {self.name}`"
        if found is None:
            return f"is not evaluated: {again}"
        if found.content != self.content:
            return f"was asked otherwise: {again}"
        weights = run.result and run.result.weights_sha256
        if weights and found.weights_sha256 and weights != found.weights_sha256:
            return f"was evaluated with other weights than it has: {again}"
        n, every = len(found.doc_ids), len(self.documents)
        return "" if n == every else f"answered {n:,} of {plural(f'{every:,}', 'item')}: {again}"

    def values(self, measure: Measure, runs: Sequence[RunRecord]) -> Floats:
        """(seeds, items) of a measure, of runs that lack nothing."""
        held = {
            name: np.array([self._column(self.answers[run.id], name) for run in runs])
            for name in measure.metrics
        }
        return measure.of(held)

    def _column(self, found: Items, metric: str) -> Floats:
        """A metric of one run, in the order of `documents`."""
        values = np.array(found.values[metric], dtype=np.float64)
        own = tuple(zip(found.doc_ids, found.doc_hashes, strict=True))
        if own == self.documents:
            return values
        place = {document: i for i, document in enumerate(own)}
        return values[[place[document] for document in self.documents]]


def tasks_of(comparison: Comparison, items: Sequence[Items]) -> list[Task]:
    """The tasks that runs of a table have answered, in the order in which they joined."""
    mine = {run.id for run in comparison.records}
    by_task: dict[str, dict[int, Items]] = {}
    for each in items:
        if each.run_id in mine:
            by_task.setdefault(each.task, {})[each.run_id] = each
    groups = joined(by_task)
    parts = shares([len(group) for group in groups]) if groups else []
    return [
        _task(name, by_task[name], part)
        for group, part in zip(groups, parts, strict=True)
        for name in group
    ]


def _task(name: str, answers: Mapping[int, Items], rate: float) -> Task:
    newest = max(answers.values(), key=lambda each: each.evaluated_at)
    alike = [each for each in answers.values() if each.content == newest.content]
    documents = dict.fromkeys(
        document for each in alike for document in zip(each.doc_ids, each.doc_hashes, strict=True)
    )
    held = set.intersection(*(set(each.values) for each in alike))
    measures = tuple(each for each in MEASURES if held.issuperset(each.metrics))
    used = {metric for measure in measures for metric in measure.metrics} | {N_CHOICES}
    return Task(
        name=name,
        kind=newest.kind,
        measures=measures,
        rate=rate,
        documents=tuple(sorted(documents)),
        answers=answers,
        content=newest.content,
        chance=newest.chance,
        chance_nats=newest.chance_nats,
        others=tuple(sorted(held - used)),
    )


def joined(by_task: Mapping[str, Mapping[int, Items]]) -> list[list[str]]:
    """The tasks in the groups in which they joined."""
    times = {
        name: sorted(each.evaluated_at for each in answers.values())
        for name, answers in by_task.items()
    }
    groups: list[list[str]] = []
    closed = ""  # when a second run had answered a task of the last group
    for name in sorted(times, key=lambda name: (times[name][0], name)):
        second = times[name][1] if len(times[name]) > 1 else "~"  # after any time
        if groups and times[name][0] <= closed:
            groups[-1].append(name)
            closed = min(closed, second)
        else:
            groups.append([name])
            closed = second
    return groups
