"""What a study goes on to know of runs that were removed, and when runs were planned."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from studies import FACTS, fill

from attnres_cli.config.recipe import Recipe
from attnres_cli.records.code import Code
from attnres_cli.records.run import RunSpec, Status
from attnres_cli.store import rows
from attnres_cli.store.store import Store

CODE = Code("design", "trunk", "engine", "loop", "data")


@pytest.fixture
def specs(tiny_recipe: Recipe) -> list[RunSpec]:
    return [RunSpec(tiny_recipe, "standard", seed, FACTS.fingerprint, CODE) for seed in range(3)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "study.db"), create=True)


def test_a_removed_run_is_told_of(tmp_path: Path, tiny_recipe: Recipe):
    store = fill(tmp_path / "s.db", tiny_recipe, {"standard": [1.5, math.nan, 1.25]})
    first, diverged, _ = store.runs()
    (pending,) = store.plan([RunSpec(tiny_recipe, "rezero", 0, FACTS.fingerprint)], FACTS)

    store.remove([first.id, pending.id])
    store.remove([diverged.id], reason="the machine was too warm")

    told = store.removed()
    assert [(one.variant, one.seed, one.status, one.reason) for one in told] == [
        ("standard", 0, Status.COMPLETE, None),
        ("rezero", 0, Status.PENDING, None),
        ("standard", 1, Status.DIVERGED, "the machine was too warm"),
    ]
    assert told[0].val_loss == 1.5
    assert math.isnan(told[1].val_loss)
    assert math.isnan(told[2].val_loss)
    assert {one.recipe_digest for one in told} == {tiny_recipe.digest}
    assert told[0].created_at == first.created_at
    assert told[0].removed_at > first.created_at[:19]
    assert Store.open(str(tmp_path / "s.db"), create=False).removed()[:1] == told[:1]


def test_a_run_that_is_trained_again_after_it_was_removed_is_told_of_each_time(
    tmp_path: Path, tiny_recipe: Recipe
):
    for _ in range(2):
        store = fill(tmp_path / "s.db", tiny_recipe, {"standard": [1.5]})
        store.remove([record.id for record in store.runs()])

    assert [one.seed for one in store.removed()] == [0, 0]


def test_nothing_is_told_where_nothing_could_be_removed(tmp_path: Path, tiny_recipe: Recipe):
    store = fill(tmp_path / "s.db", tiny_recipe, {"standard": [1.5]})
    (running,) = store.plan([RunSpec(tiny_recipe, "rezero", 0, FACTS.fingerprint)], FACTS)
    store.claim([running.id])

    with pytest.raises(Exception, match="is running"):
        store.remove([1, running.id])

    assert store.removed() == []


def test_runs_of_one_design_by_two_codes_are_two_runs(store: Store, specs: list[RunSpec]):
    edited = [replace(spec, code=replace(CODE, design="edited")) for spec in specs]

    ours, theirs, again = (store.plan(asked, FACTS) for asked in (specs, edited, specs))

    assert {run.id for run in ours}.isdisjoint(run.id for run in theirs)
    assert ours == again
    assert {run.code for run in ours} == {CODE.digest}
    assert {run.code for run in theirs} == {edited[0].code.digest}
    assert Code.of(ours[0].versions) == CODE  # before any of it is trained


def test_runs_that_are_planned_at_once_have_one_time_which_no_others_have(
    store: Store, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
):
    class Standing(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2026, 11, 22, 20, 14, 44, tzinfo=UTC)

    monkeypatch.setattr(rows, "datetime", Standing)
    both, one = store.plan(specs[:2], FACTS), store.plan(specs, FACTS)[2]
    again = store.plan([replace(specs[0], variant="rezero")], FACTS)[0]

    times = [run.created_at for run in (*both, one, again)]
    assert times[0] == times[1] < times[2] < times[3]
    assert [datetime.fromisoformat(time).second for time in times] == [44] * 4


def test_a_time_in_whole_seconds_is_before_later_ones_as_text():
    before = "2026-11-22T20:14:44+00:00"

    assert before < "2026-11-22T20:14:44.000001+00:00" < "2026-11-22T20:14:45+00:00"
    assert rows.later("2100-01-01T00:00:00+00:00") == "2100-01-01T00:00:00.000001+00:00"


def test_a_new_plan_is_later_than_a_removed_one(tmp_path: Path, tiny_recipe: Recipe):
    store = fill(tmp_path / "s.db", tiny_recipe, {"standard": [1.5]})
    (record,) = store.runs()
    store.remove([record.id])

    (again,) = store.plan([RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)], FACTS)

    assert again.created_at > record.created_at
