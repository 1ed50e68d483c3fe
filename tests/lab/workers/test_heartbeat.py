"""The heartbeat: it tells how far a run is, and hears where the run is another's."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
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
    store = Store.open(str(tmp_path / "study.db"), create=True)
    store.plan([RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)], FACTS)
    assert store.claim([1]) is not None
    return store


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(Checkpoints(tmp_path / "run", {}), 30, Stop())


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 120
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_it_tells_how_far_the_run_is(store: Store, keeper: Keeper):
    with Heartbeat(store, 1, keeper):
        for step in (3, 7):
            keeper.step = step
            assert soon(lambda step=step: store.standings()[1].step == step)


def test_it_is_silent_when_the_run_is_over(store: Store, keeper: Keeper):
    with Heartbeat(store, 1, keeper):
        keeper.step = 3
    before = store.standings()[1]
    time.sleep(0.2)

    assert store.standings()[1] == before


def begun_twice(store: Store) -> None:
    with sqlite3.connect(store.folder.with_suffix(".db")) as connection:
        connection.execute("UPDATE attnres_runs SET attempts = 2")
    connection.close()


def test_what_was_saved_is_told_even_if_the_run_ends_at_once(store: Store, keeper: Keeper):
    begun_twice(store)

    with Heartbeat(store, 1, keeper) as beating:
        keeper.step = 9
        beating.further(9)

    assert store.standings()[1].attempts == 1
    assert store.standings()[1].step == 9


def test_training_is_stopped_where_another_process_has_the_run(store: Store, keeper: Keeper):
    with Heartbeat(store, 1, keeper):
        with sqlite3.connect(store.folder.with_suffix(".db")) as connection:
            connection.execute("UPDATE attnres_runs SET owner = 'other|boot|7|9'")
        connection.close()

        assert soon(lambda: keeper.stop.wanted)


def test_a_study_that_is_locked_for_a_while_ends_no_heart(
    store: Store, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("attnres_cli.store.sqlite._BUSY_MS", 20)
    other = sqlite3.connect(store.folder.with_suffix(".db"), isolation_level=None)
    with Heartbeat(store, 1, keeper):
        other.execute("BEGIN IMMEDIATE")
        time.sleep(0.3)
        other.execute("ROLLBACK")
        keeper.step = 5

        assert soon(lambda: store.standings()[1].step == 5)
    other.close()


def test_what_was_saved_while_a_study_is_locked_counts_as_further(
    store: Store, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("attnres_cli.store.sqlite._BUSY_MS", 20)
    begun_twice(store)
    other = sqlite3.connect(store.folder.with_suffix(".db"), isolation_level=None)
    with Heartbeat(store, 1, keeper) as beating:
        other.execute("BEGIN IMMEDIATE")
        keeper.step = 9
        beating.further(9)
        time.sleep(0.3)
        other.execute("ROLLBACK")

        assert soon(lambda: store.standings()[1].attempts == 1)
        assert store.standings()[1].step == 9
    other.close()


def test_a_study_that_stays_locked_holds_up_no_end(
    store: Store, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("attnres_cli.store.sqlite._BUSY_MS", 20)
    other = sqlite3.connect(store.folder.with_suffix(".db"), isolation_level=None)
    with Heartbeat(store, 1, keeper) as beating:
        other.execute("BEGIN IMMEDIATE")
        beating.further(9)
    other.execute("ROLLBACK")

    assert not beating._thread.is_alive()
    other.close()
