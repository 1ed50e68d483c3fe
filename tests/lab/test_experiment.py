"""Runs of an experiment: what a study lacks, and how far it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from studies import FACTS, RESULT, SETTINGS, VERSIONS
from untrained import Silent

from attnres_cli.config.recipe import load
from attnres_cli.lab.experiment import Experiment, Place
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import Event, RunRecord, RunSpec, Status
from attnres_cli.report.progress import ProgressDisplay
from attnres_cli.store.store import Store

RECIPE = load("smoke")
SPECS = [RunSpec(RECIPE, "standard", seed, FACTS.fingerprint) for seed in range(4)]
PLAN = Plan(
    RECIPE, (Arm("standard", 1, 6, None, RECIPE),), (0, 1, 2, 3), ("cpu",), SETTINGS,
    FACTS.fingerprint,
)  # fmt: skip


class Shown(Silent):
    """A watcher that keeps the last display."""

    @contextmanager
    def progress(self, *arguments: Any, **options: Any) -> Iterator[ProgressDisplay]:
        with super().progress(*arguments, **options) as self.display:
            yield self.display


@pytest.fixture
def experiment(here: Path) -> Experiment:
    tokens: Any = SimpleNamespace(fingerprint=FACTS.fingerprint, description=FACTS)
    return Experiment(Place("a.db"), Store.open("a.db", create=True), tokens, Shown())


def end(store: Store, ids: Sequence[int]) -> RunRecord:
    """Claim the first of these runs that waits, and finish it."""
    record = store.claim(ids)
    assert record is not None
    store.finish(replace(record, status=RESULT.status, result=RESULT, versions=VERSIONS))
    return record


def test_commands_that_are_launched_together_retry_a_run_once(experiment: Experiment):
    store, (spec, *_) = experiment.store, SPECS
    (run,) = experiment.records([spec])

    def fail(at: str) -> None:
        assert store.claim([run.id]) is not None
        store.fail(run.id, "no memory", VERSIONS)
        with closing(sqlite3.connect("a.db")) as held, held:
            held.execute("UPDATE attnres_runs SET finished_at = ?", [at])

    def again(before: str) -> Status:
        place = replace(experiment.place, retry_failed=True, retry_before=before)
        return replace(experiment, place=place).records([spec])[0].status

    launched = "2026-11-29T12:00:00+00:00"
    fail("2026-11-29T11:59:59+00:00")
    assert again(launched) is Status.PENDING
    fail("2026-11-29T12:00:09+00:00")
    assert again(launched) is Status.FAILED
    assert again("") is Status.PENDING


def test_a_display_is_full_when_another_command_has_trained_half_of_the_runs(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
):
    heads, store = list[str](), experiment.store

    def train(_plan: Plan, wanted: Callable[[int], list[int]], shown: ProgressDisplay) -> None:
        for _ in range(2):
            ended, _of_another = end(store, wanted(1)), end(store, wanted(1))
            wanted(1)
            shown(Event(0, ended.id, done=True, val_loss=2.0))
            wanted(1)
            heads.append(shown.head().partition("%")[0])

    monkeypatch.setattr(experiment, "train", train)
    experiment.train_missing(PLAN, experiment.records(SPECS))

    assert heads == ["1 of 3 runs, 33", "2 of 2 runs, 100"]
