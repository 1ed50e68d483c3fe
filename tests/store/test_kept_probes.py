"""What was measured inside models: kept with a run's result, and read only when asked for."""

from __future__ import annotations

import math
import sqlite3
import struct
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studies import FACTS, SETTINGS

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.run import Point, Probe, RunRecord, RunResult, RunSpec, Status
from attnres_cli.store.store import Store


def probe(step: int, sites: int = 3, **changes: object) -> Probe:
    """One with numbers that float32 holds exactly."""
    row = tuple(step + i / 4 for i in range(sites))
    probe = Probe(step, row, row, row, row, row, row, row, row, mixing=(row,) * sites)
    return replace(probe, **changes)


def result(*probes: Probe) -> RunResult:
    numbers = (2.5, 5.5, 6, 384, 0.01, 5e3, 1.5, 10**9, 1234, 5678)
    return RunResult(Status.COMPLETE, *numbers, SETTINGS, (Point(6, 2.5, 2.5),), probes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "study.db"), create=True)


def ended(store: Store, recipe: Recipe, seed: int, *probes: Probe) -> RunRecord:
    spec = RunSpec(recipe, "standard", seed, FACTS.fingerprint)
    record = store.claim([each.id for each in store.plan([spec], FACTS)])
    assert record is not None
    record = replace(record, status=Status.COMPLETE, result=result(*probes))
    store.finish(record)
    return record


def test_probes_come_back_as_they_were_in_the_order_of_steps(store: Store, tiny_recipe: Recipe):
    why = "channels are mixed, “ganz”"
    without = {"mixing": None, "entropy": None, "no_mixing": why}
    one = ended(store, tiny_recipe, 0, probe(0), probe(25), probe(100))
    other = ended(store, tiny_recipe, 1, probe(6, **without))

    found = store.probes([one.id, other.id])

    assert found == {
        one.id: (probe(0), probe(25), probe(100)),
        other.id: (probe(6, **without),),
    }


def test_runs_are_read_without_their_probes(store: Store, tiny_recipe: Recipe):
    record = ended(store, tiny_recipe, 0, probe(0))

    (read,) = store.runs()

    assert record.result is not None
    assert read.result == replace(record.result, probes=())


def test_a_run_that_has_not_ended_has_no_probes(store: Store, tiny_recipe: Recipe):
    spec = RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)
    (record,) = store.plan([spec], FACTS)

    assert store.probes([record.id, 99]) == {record.id: (), 99: ()}


def test_numbers_that_are_none_stay_what_they_are(store: Store, tiny_recipe: Recipe):
    record = ended(store, tiny_recipe, 0, probe(6, output_rms=(math.nan, math.inf, 1.0)))

    (read,) = store.probes([record.id])[record.id]

    assert math.isnan(read.output_rms[0])
    assert read.output_rms[1:] == (math.inf, 1.0)


def test_an_array_is_stored_as_little_endian_float32(
    tmp_path: Path, store: Store, tiny_recipe: Recipe
):
    ended(store, tiny_recipe, 0, probe(1))

    connection = sqlite3.connect(tmp_path / "study.db")
    shape, data = connection.execute(
        "SELECT shape, data FROM attnres_probes WHERE name = 'mixing'"
    ).fetchone()
    connection.close()

    assert shape == "[3, 3]"
    assert data == struct.pack("<9f", *(1, 1.25, 1.5) * 3)


def test_removed_runs_leave_no_probes(tmp_path: Path, store: Store, tiny_recipe: Recipe):
    one = ended(store, tiny_recipe, 0, probe(1))
    other = ended(store, tiny_recipe, 1, probe(1))

    store.remove([one.id])

    assert store.probes([one.id, other.id]) == {one.id: (), other.id: (probe(1),)}


def test_a_result_that_is_not_recorded_leaves_no_probes(store: Store, tiny_recipe: Recipe):
    record = ended(store, tiny_recipe, 0, probe(1))
    other = replace(result(probe(5)), train_s=result().train_s + 1)
    with pytest.raises(Exception, match="no longer this process's"):
        store.finish(replace(record, result=other))

    assert store.probes([record.id]) == {record.id: (probe(1),)}


def test_a_thousand_runs_are_read_in_under_a_second_whatever_was_measured_in_them(
    tmp_path: Path, store: Store, tiny_recipe: Recipe
):
    specs = [RunSpec(tiny_recipe, "standard", seed, FACTS.fingerprint) for seed in range(1000)]
    ids = [record.id for record in store.plan(specs, FACTS)]
    blob = np.zeros((49, 49), "<f4").tobytes()
    connection = sqlite3.connect(tmp_path / "study.db")
    connection.execute("UPDATE attnres_runs SET status = 'complete', val_loss = 2.0")
    rows = [(i, s, f"n{n}", "[49, 49]", blob) for i in ids for s in range(4) for n in range(3)]
    connection.executemany("INSERT INTO attnres_probes VALUES (?, ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()

    started = time.process_time()
    store.runs()

    assert time.process_time() - started < 1
