"""The heartbeat: it records how far a run is, and notices when the run is another's."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from grids import wait_until
from studies import FACTS

from attnres_cli.config.recipe import Recipe
from attnres_cli.lab.workers import heartbeat
from attnres_cli.lab.workers.heartbeat import Heartbeat
from attnres_cli.records.run import RunSpec
from attnres_cli.store.store import Store
from attnres_cli.train.checkpoint import Checkpoints
from attnres_cli.train.keeper import Keeper, Stop


@pytest.fixture
def store(tmp_path: Path, tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    monkeypatch.setattr("attnres_cli.store.sqlite._BUSY_MS", 20)
    store = Store.open(str(tmp_path / "study.db"), create=True)
    store.plan([RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)], FACTS)
    assert store.claim([1]) is not None
    return store


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(Checkpoints(tmp_path / "run", {}), 30, Stop())


@pytest.fixture
def sql(store: Store) -> Iterator[Callable[[str], object]]:
    """What another process says to the study."""
    with closing(sqlite3.connect(store.folder.with_suffix(".db"), isolation_level=None)) as other:
        yield other.execute


def test_the_study_learns_how_far_the_run_is_until_it_is_over(store: Store, keeper: Keeper):
    with Heartbeat(store, 1, keeper):
        for step in (3, 7):
            keeper.step = step
            wait_until(lambda step=step: store.standings()[1].step == step, 120)
    before = store.standings()[1]
    time.sleep(0.2)
    assert store.standings()[1] == before


def test_a_checkpoint_is_recorded_even_if_the_run_ends_at_once(store: Store, keeper: Keeper, sql):
    sql("UPDATE attnres_runs SET attempts = 2")
    with Heartbeat(store, 1, keeper) as beating:
        keeper.step = 9
        beating.further(9)
    assert (store.standings()[1].attempts, store.standings()[1].step) == (1, 9)


def test_a_run_that_is_recorded_and_then_over_waits_for_no_beat(
    store: Store, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(heartbeat, "BEAT_S", 60)
    began = time.monotonic()
    with Heartbeat(store, 1, keeper) as beating:
        keeper.step = 9
        beating.further(9)
    assert time.monotonic() - began < 30
    assert store.standings()[1].step == 9


def test_training_stops_when_another_process_has_the_run(store: Store, keeper: Keeper, sql):
    with Heartbeat(store, 1, keeper):
        sql("UPDATE attnres_runs SET owner = 'other|boot|7|9'")
        wait_until(lambda: keeper.stop.wanted, 120)


def test_the_heart_beats_on_and_counts_a_checkpoint_after_the_study_was_locked(store, keeper, sql):
    sql("UPDATE attnres_runs SET attempts = 2")
    with Heartbeat(store, 1, keeper) as beating:
        sql("BEGIN IMMEDIATE")
        keeper.step = 9
        beating.further(9)
        time.sleep(0.3)
        sql("ROLLBACK")

        wait_until(lambda: store.standings()[1].attempts == 1, 120)
        assert store.standings()[1].step == 9
        keeper.step = 11
        wait_until(lambda: store.standings()[1].step == 11, 120)


def test_a_study_that_stays_locked_does_not_delay_the_end(store: Store, keeper: Keeper, sql):
    with Heartbeat(store, 1, keeper) as beating:
        sql("BEGIN IMMEDIATE")
        beating.further(9)
    sql("ROLLBACK")
    assert not beating._thread.is_alive()
