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

from attnres_cli.records import items as metrics
from attnres_cli.records.items import Items, Kind
from attnres_cli.records.run import RunRecord
from attnres_cli.stats.crossed import per_unit
from attnres_cli.stats.sequential import shares
from attnres_cli.verdict.comparison import Comparison
from attnres_cli.verdict.numbers import plural

Floats = NDArray[np.float64]

FIRST_MEASURE = 0.5
"""Part of a task's rate that its first measure has; the others share the rest evenly."""


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
        return self.name in (metrics.ACC, metrics.EXACT_MATCH)


def _bits_per_byte(of: Mapping[str, Floats]) -> Floats:
    return per_unit(-of[metrics.GOLD_NATS] / math.log(2), of[metrics.GOLD_BYTES][0])


def _plain(name: str, title: str) -> Measure:
    return Measure(name, title, (name,), lambda of: of[name])


_GOLD = (metrics.GOLD_NATS, metrics.GOLD_BYTES)
MEASURES = (
    Measure("bits_per_byte", "bits per byte", _GOLD, _bits_per_byte, is_less_better=True),
    _plain(metrics.CHOICE_NATS, "nats among answers"),
    _plain(metrics.ACC, "accuracy"),
    _plain(metrics.EXACT_MATCH, "exact match"),
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
        choices = metrics.N_CHOICES
        return 1 / self._column(found, choices) if choices in found.values else 0.0

    def rate_of(self, measure: Measure) -> float:
        """The part of an arm's rate that a measure has."""
        if len(self.measures) == 1:
            return self.rate
        rest = (1 - FIRST_MEASURE) / (len(self.measures) - 1)
        return self.rate * (FIRST_MEASURE if measure == self.measures[0] else rest)

    def lacks(self, run: RunRecord) -> str:
        """Why a run's answers do not count; empty where they do."""
        found, weights = self.answers.get(run.id), run.result and run.result.weights_sha256
        if found is None:
            why = "is not evaluated"
        elif found.content != self.content:
            why = "was asked otherwise"
        elif weights and found.weights_sha256 and weights != found.weights_sha256:
            why = "was evaluated with other weights than it has"
        elif (n := len(found.doc_ids)) != (every := len(self.documents)):
            why = f"answered {n:,} of {plural(f'{every:,}', 'item')}"
        else:
            return ""
        by_file = "" if self.name in metrics.SHIPPED else f", or with the task file of {self.name}"
        return f"{why}: `attnres evaluate {run.id} --tasks {self.name}`{by_file}"

    def values(self, measure: Measure, runs: Sequence[RunRecord]) -> Floats:
        """(seeds, items) of a measure, of runs that lack nothing."""
        answers = [self.answers[run.id] for run in runs]
        held = {m: np.array([self._column(each, m) for each in answers]) for m in measure.metrics}
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
    parts = zip(groups, shares([len(group) for group in groups]) if groups else [], strict=True)
    return [_task(name, by_task[name], part) for group, part in parts for name in group]


def _task(name: str, answers: Mapping[int, Items], rate: float) -> Task:
    newest = max(answers.values(), key=lambda each: each.evaluated_at)
    alike = [each for each in answers.values() if each.content == newest.content]
    documents = {each for held in alike for each in zip(held.doc_ids, held.doc_hashes, strict=True)}
    held = set.intersection(*(set(each.values) for each in alike))
    measures = tuple(each for each in MEASURES if held.issuperset(each.metrics))
    used = {metric for measure in measures for metric in measure.metrics} | {metrics.N_CHOICES}
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
        first, second = (*times[name], "~")[:2]  # after any time
        if not groups or first > closed:
            groups.append([])
            closed = second
        groups[-1].append(name)
        closed = min(closed, second)
    return groups
