"""What the laboratory asks of a study, on real SQLite files and with real processes."""

from __future__ import annotations

import math
import multiprocessing
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from attnres_cli.config.recipe import Recipe, validate
from attnres_cli.errors import StudyError
from attnres_cli.records import gates
from attnres_cli.records.comparison_terms import Matched, Terms, Tuned
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import (
    DataDescription,
    Point,
    RunRecord,
    RunResult,
    RunSpec,
    Settings,
    Status,
)
from attnres_cli.store import engine, owner, sqlite
from attnres_cli.store.store import Store

FACTS = DataDescription(
    "0123456789abcdef", "stdlib", 5_000_000_000, 256, 4_750_000_000, 7, 3.3, 2.4
)
VERSIONS = {"attnres": "0.1.0", "torch": "2.9.0", "git_dirty": "no"}
SETTINGS = Settings("cuda", "NVIDIA H200", "bf16", compiled=True, threads=3, engine="compile")
CURVE = (Point(0, None, 5.5), Point(3, 4.25, None), Point(6, 2.5, 2.375))
RESULT = RunResult(
    status=Status.COMPLETE,
    val_loss=2.375,
    initial_loss=5.5,
    steps=6,
    tokens=10**11,
    step_s=0.0125,
    tokens_per_second=5120.0,
    train_s=1.5,
    peak_bytes=10**11,
    n_params=10**10,
    flops_per_token=6 * 10**10,
    settings=SETTINGS,
    curve=CURVE,
)
CLAIM = """
import os, signal, sys
from attnres_cli.store.store import Store
print(Store.open(sys.argv[1], create=True).claim([int(sys.argv[2])]).id, flush=True)
"""
CLAIM_AND_DIE = CLAIM + "os.kill(os.getpid(), signal.SIGKILL)"
CLAIM_AND_WAIT = CLAIM + "sys.stdin.read()"


@pytest.fixture
def study(any_study: str) -> str:
    """In a file, and on PostgreSQL."""
    return any_study


@pytest.fixture
def file_study(tmp_path: Path) -> str:
    return str(tmp_path / "study.db")


@pytest.fixture
def store(study: str) -> Store:
    return Store.open(study, create=True)


@pytest.fixture
def specs(tiny_recipe: Recipe) -> list[RunSpec]:
    """Two arms, three seeds."""
    return [
        RunSpec(tiny_recipe, variant, seed, FACTS.fingerprint)
        for seed in range(3)
        for variant in ("standard", "attnres")
    ]


@pytest.fixture
def ids(store: Store, specs: list[RunSpec]) -> list[int]:
    return [record.id for record in store.plan(specs, FACTS)]


def claimed(store: Store, ids: Sequence[int]) -> RunRecord:
    record = store.claim(ids)
    assert record is not None
    return record


def finished(store: Store, ids: Sequence[int], result: RunResult = RESULT) -> RunRecord:
    """The first waiting run, claimed here and ended with this result."""
    record = replace(claimed(store, ids), status=result.status, result=result, versions=VERSIONS)
    store.finish(record)
    return replace(record, gates=gates.of(result, FACTS))


def sql(study: str, statement: str) -> list[tuple[Any, ...]]:
    """What a statement finds, past the store."""
    with engine.connect(study, create=True).begin() as connection:
        found = connection.exec_driver_sql(statement)
        return [tuple(row) for row in found] if found.returns_rows else []


def status_of(store: Store, run_id: int) -> Status:
    return store.runs(ids=[run_id])[0].status


def claimed_by_a_process_that_is_killed(study: str, run_id: int) -> None:
    command = [sys.executable, "-c", CLAIM_AND_DIE, study, str(run_id)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (str(run_id), -9)


def claim_all(study: str, ids: list[int], ready: Barrier) -> list[int]:
    """Claim until nothing waits."""
    store, mine = Store.open(study, create=True), []
    ready.wait()
    while (record := store.claim(ids)) is not None:
        mine.append(record.id)
    return mine


def plan_all(study: str, specs: list[RunSpec], ready: Barrier) -> list[int]:
    ready.wait()
    return [record.id for record in Store.open(study, create=True).plan(specs, FACTS)]


def say(said: Queue[object], function: Callable[..., object], *arguments: object) -> None:
    """Run in a process of its own."""
    try:
        said.put(function(*arguments))
    except Exception as error:
        said.put(repr(error))


def in_processes(n: int, function: Callable[..., object], *arguments: object) -> list[Any]:
    """What a function returns in each of n processes, which go on together at the barrier."""
    context = multiprocessing.get_context("spawn")
    ready, said = context.Barrier(n), context.Queue()
    call = (said, function, *arguments, ready)
    processes = [context.Process(target=say, args=call, daemon=True) for _ in range(n)]
    for process in processes:
        process.start()
    answers = [said.get(timeout=800) for _ in processes]
    for process in processes:
        process.join()
    return answers


def test_planned_runs_wait_in_the_order_of_the_specs(store: Store, specs: list[RunSpec]):
    records = store.plan(specs, FACTS)

    assert [(r.variant, r.seed) for r in records] == [(s.variant, s.seed) for s in specs]
    assert {r.status for r in records} == {Status.PENDING}
    assert {(r.recipe, r.recipe_digest, r.fingerprint, r.error, r.result) for r in records} == {
        ("tiny", specs[0].recipe.digest, FACTS.fingerprint, None, None)
    }


def test_planning_again_changes_nothing(store: Store, specs: list[RunSpec]):
    first = store.plan(specs, FACTS)

    second = store.plan(specs, FACTS)

    assert second == first
    assert store.runs() == first


def test_planning_more_keeps_what_is_there(store: Store, specs: list[RunSpec]):
    first = store.plan(specs[:2], FACTS)
    ended = finished(store, [first[0].id])

    more = store.plan(specs, FACTS)

    assert more[:2] == [ended, first[1]]
    assert len(store.runs()) == len(specs)


def test_a_run_is_in_the_study_once_however_often_it_is_asked_for(
    store: Store, specs: list[RunSpec]
):
    first, second = store.plan([specs[0], specs[0]], FACTS)

    assert first == second
    assert store.runs() == [first]


def test_a_recipe_under_another_name_gives_the_same_runs(store: Store, specs: list[RunSpec]):
    renamed = specs[0].recipe.model_copy(update={"name": "copy", "description": "the same"})

    records = store.plan([specs[0], replace(specs[0], recipe=renamed)], FACTS)

    assert records[0] == records[1]


def test_another_seed_variant_recipe_or_data_is_another_run(
    store: Store, specs: list[RunSpec], tiny_recipe: Recipe
):
    longer = tiny_recipe.model_copy(
        update={"train": tiny_recipe.train.model_copy(update={"tokens": 512})}
    )
    other_data = replace(FACTS, fingerprint="fedcba9876543210")
    one = specs[0]
    several = [one, replace(one, seed=9), replace(one, variant="x"), replace(one, recipe=longer)]

    store.plan(several, FACTS)
    store.plan([replace(one, fingerprint=other_data.fingerprint)], other_data)

    assert len(store.runs()) == 5
    assert len(store.runs(recipe_digest=longer.digest)) == 1


def test_processes_that_plan_the_same_runs_at_once_make_each_once(study: str, specs: list[RunSpec]):
    said = in_processes(2, plan_all, study, specs)

    assert said[0] == said[1]
    assert len(Store.open(study, create=False).runs()) == len(specs)


def test_claims_follow_the_order_asked_for_and_end_with_none(store: Store, ids: list[int]):
    order = list(reversed(ids))

    claims = [claimed(store, order).id for _ in ids]

    assert claims == order
    assert store.claim(ids) is None


def test_only_runs_that_were_asked_for_are_claimed(store: Store, ids: list[int]):
    assert claimed(store, ids[2:3]).id == ids[2]
    assert store.claim(ids[2:3]) is None


def test_processes_that_claim_at_once_never_share_a_run(
    study: str, store: Store, tiny_recipe: Recipe
):
    grid = [RunSpec(tiny_recipe, "standard", seed, FACTS.fingerprint) for seed in range(40)]
    ids = [record.id for record in store.plan(grid, FACTS)]

    said = in_processes(3, claim_all, study, ids)

    assert sorted(run_id for mine in said for run_id in mine) == ids


def test_a_claimed_run_is_running_and_its_owner_is_known(store: Store, ids: list[int]):
    record = claimed(store, ids)

    assert record.status is Status.RUNNING
    assert store.owners(ids) == {record.id: owner.this_process()}


def test_a_finished_run_comes_back_as_it_was_recorded(store: Store, ids: list[int]):
    record = finished(store, ids)

    assert store.runs(ids=[record.id]) == [record]
    assert store.owners(ids) == {}


def test_a_finished_run_is_there_for_the_next_command(study: str, store: Store, ids: list[int]):
    record = finished(store, ids)

    assert Store.open(study, create=False).runs()[0] == record


def test_versions_are_kept_with_the_run(store: Store, ids: list[int]):
    finished(store, ids)

    assert store.runs(ids=ids)[0].versions == VERSIONS


def test_a_diverged_run_keeps_its_curve_and_has_no_loss(store: Store, ids: list[int]):
    curve = (Point(0, None, 5.5), Point(2, 1e30, None), Point(3, math.inf, None))
    diverged = replace(RESULT, status=Status.DIVERGED, val_loss=math.nan, steps=3, curve=curve)

    finished(store, ids, diverged)

    (record,) = store.runs(ids=ids[:1])
    assert record.status is Status.DIVERGED
    assert record.result is not None
    assert math.isnan(record.result.val_loss)
    assert record.result.curve == curve


def test_a_point_that_is_nan_comes_back_as_no_loss(store: Store, ids: list[int]):
    diverged = replace(
        RESULT, status=Status.DIVERGED, val_loss=math.nan, curve=(Point(3, math.nan, math.nan),)
    )

    finished(store, ids, diverged)

    (record,) = store.runs(ids=ids[:1])
    assert record.result is not None
    assert record.result.curve == (Point(3, None, None),)


def test_runs_without_curves_are_else_the_same(store: Store, ids: list[int]):
    record = finished(store, ids, RESULT)

    (bare,) = store.runs(ids=[record.id], curves=False)

    assert record.result is not None
    assert record.gates
    assert bare == replace(record, result=replace(record.result, curve=()))


def test_a_run_without_a_curve_can_be_recorded(store: Store, ids: list[int]):
    record = finished(store, ids, replace(RESULT, curve=()))

    assert store.runs(ids=[record.id]) == [record]


def test_curves_of_several_runs_are_not_mixed(store: Store, ids: list[int]):
    other = replace(RESULT, curve=(Point(0, None, 5.0), Point(6, 1.0, 1.5)))

    finished(store, ids)
    finished(store, ids, other)

    curves = [record.result.curve for record in store.runs(ids=ids[:2]) if record.result]
    assert curves == [CURVE, other.curve]


def test_a_failed_run_keeps_its_error_and_versions(store: Store, ids: list[int]):
    record = claimed(store, ids)

    store.fail(record.id, "Traceback ...\nValueError: no", VERSIONS)

    assert store.runs(ids=[record.id]) == [
        replace(
            record, status=Status.FAILED, error="Traceback ...\nValueError: no", versions=VERSIONS
        )
    ]


def test_a_failed_run_is_not_claimed_again(store: Store, ids: list[int]):
    store.fail(claimed(store, ids[:1]).id, "no", VERSIONS)

    assert store.claim(ids[:1]) is None


def test_a_failed_run_stays_failed_when_planned_again(store: Store, ids: list[int], specs):
    store.fail(claimed(store, ids).id, "no", VERSIONS)

    assert store.plan(specs, FACTS)[0].status is Status.FAILED


def test_retry_failed_lets_failed_runs_wait_and_leaves_all_others(
    store: Store, ids: list[int], specs: list[RunSpec]
):
    store.fail(claimed(store, ids).id, "no", VERSIONS)
    finished(store, ids)
    claimed(store, ids)

    records = store.plan(specs, FACTS, retry_failed=True)

    expected = [Status.PENDING, Status.COMPLETE, Status.RUNNING, *[Status.PENDING] * 3]
    assert [record.status for record in records] == expected
    assert records[0].error is None


def test_retry_failed_leaves_failed_runs_that_were_not_asked_for(
    store: Store, ids: list[int], specs: list[RunSpec]
):
    store.fail(claimed(store, ids).id, "no", VERSIONS)

    store.plan(specs[1:], FACTS, retry_failed=True)

    assert status_of(store, ids[0]) is Status.FAILED


def test_a_process_that_has_not_claimed_a_run_cannot_end_it(store: Store, ids: list[int]):
    with pytest.raises(StudyError, match=f"run {ids[0]} is no longer this process's"):
        store.fail(ids[0], "no", VERSIONS)

    assert status_of(store, ids[0]) is Status.PENDING


def test_a_run_that_has_ended_cannot_be_ended_again(store: Store, ids: list[int]):
    record = finished(store, ids)

    with pytest.raises(StudyError, match="no longer"):
        store.fail(record.id, "no", VERSIONS)

    assert store.runs(ids=[record.id]) == [record]


def test_a_run_of_a_living_process_is_left_to_it(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    command = [sys.executable, "-c", CLAIM_AND_WAIT, study, str(ids[0])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()

        store.release(ids, cause="it died")
        (record, *_) = store.plan(specs, FACTS, retry_failed=True)
        with pytest.raises(StudyError, match="no longer this process's"):
            store.finish(replace(record, status=Status.COMPLETE, result=RESULT))
        process.communicate()

    assert record.status is Status.RUNNING
    assert store.runs(ids=[record.id]) == [record]


def test_a_run_of_this_process_is_not_released(store: Store, ids: list[int]):
    record = claimed(store, ids)

    store.release(ids)

    assert status_of(store, record.id) is Status.RUNNING


def test_a_run_whose_process_was_killed_waits_again_after_release(
    study: str, store: Store, ids: list[int]
):
    claimed_by_a_process_that_is_killed(study, ids[0])
    assert status_of(store, ids[0]) is Status.RUNNING

    store.release(ids)

    assert store.owners(ids) == {}
    assert claimed(store, ids).id == ids[0]


def test_a_run_whose_process_was_killed_waits_again_when_planned(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    claimed_by_a_process_that_is_killed(study, ids[0])

    assert store.plan(specs, FACTS)[0].status is Status.PENDING


def test_release_leaves_runs_that_were_not_asked_for(study: str, store: Store, ids: list[int]):
    claimed_by_a_process_that_is_killed(study, ids[0])

    store.release(ids[1:])

    assert status_of(store, ids[0]) is Status.RUNNING


def test_a_run_that_kills_every_process_fails_after_max_attempts(
    study: str, store: Store, ids: list[int]
):
    statuses = []
    for _ in range(2):
        claimed_by_a_process_that_is_killed(study, ids[0])
        store.release(ids, cause="ended with signal SIGKILL")
        statuses.append(status_of(store, ids[0]))

    assert statuses == [Status.PENDING, Status.FAILED]
    assert store.runs(ids=ids)[0].error == "ended with signal SIGKILL"
    assert store.owners(ids) == {}


def test_an_interruption_does_not_count_as_an_attempt(study: str, store: Store, ids: list[int]):
    for cause in ("it died", None, "it died"):
        claimed_by_a_process_that_is_killed(study, ids[0])
        store.release(ids, cause=cause)

    assert status_of(store, ids[0]) is Status.PENDING


def test_the_death_of_all_processes_does_not_count_as_an_attempt(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    for _ in range(3):  # as when a machine goes, and the command is typed again
        claimed_by_a_process_that_is_killed(study, ids[0])
        store.plan(specs, FACTS)
    claimed_by_a_process_that_is_killed(study, ids[0])

    store.release(ids, cause="it died")

    assert status_of(store, ids[0]) is Status.PENDING


def test_a_retried_run_has_all_its_attempts_again(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    store.fail(claimed(store, ids).id, "no", VERSIONS)
    store.plan(specs, FACTS, retry_failed=True)

    claimed_by_a_process_that_is_killed(study, ids[0])
    store.release(ids, cause="it died")

    assert status_of(store, ids[0]) is Status.PENDING


def test_runs_come_in_the_order_of_ids(store: Store, ids: list[int]):
    order = [ids[3], ids[0], ids[5]]

    assert [record.id for record in store.runs(ids=order)] == order


def test_runs_of_another_recipe_are_left_out(store: Store, ids: list[int], tiny_recipe: Recipe):
    assert len(store.runs(recipe_digest=tiny_recipe.digest)) == len(ids)
    assert store.runs(recipe_digest="0" * 12) == []


def test_a_recipe_comes_back_equal_to_the_last_field(store: Store):
    recipe = validate(
        {
            "name": "récipé",
            "description": 'with "quotes" and\nlines',
            "model": {
                "n_layers": 2,
                "d_model": 16,
                "n_heads": 4,
                "n_kv_heads": 2,
                "d_head": 6,
                "d_ff": 20,
                "seq_len": 16,
                "mlp": "gelu",
                "tie_embeddings": True,
                "rope_theta": 500.5,
                "norm_eps": 1e-5,
            },
            "data": {"source": "text", "path": "/data/é.txt", "val_fraction": 1 / 3},
            "optim": {"lr": 0.1 + 0.2, "schedule": "wsd", "weight_decay": 0.0},
            "train": {"tokens": "2B", "batch_size": 4, "eval_tokens": 256, "precision": "bf16"},
        },
        "test",
    )

    store.plan([RunSpec(recipe, "standard", 0, FACTS.fingerprint)], FACTS)

    assert store.recipe(recipe.digest) == recipe
    assert store.recipe(recipe.digest).digest == recipe.digest


def test_reference_lines_that_an_older_study_lacks_are_filled_in(store: Store, specs):
    store.plan(specs, FACTS)
    found = replace(FACTS, zlib_bits=1.9, xz_bits=1.5)

    store.plan(specs, found)
    store.plan(specs, FACTS)  # as of the same data in files whose text is not known

    assert store.data(FACTS.fingerprint) == found


def test_data_come_back_as_they_were(store: Store, ids: list[int]):
    assert store.data(FACTS.fingerprint) == FACTS


def test_a_study_can_be_read_while_another_process_writes(study: str, store: Store, ids: list[int]):
    with sqlite.immediate(engine.connect(study, create=True)).connect() as other:
        other.exec_driver_sql("UPDATE attnres_runs SET status = 'failed'")

        seen = {record.status for record in Store.open(study, create=False).runs()}
        other.rollback()

    assert seen == {Status.PENDING}


def test_a_file_that_stays_locked_is_a_study_error(
    file_study: str, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sqlite, "_BUSY_MS", 50)
    store = Store.open(file_study, create=True)
    with sqlite3.connect(file_study, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StudyError, match="database is locked"):
            store.plan(specs, FACTS)
        other.execute("ROLLBACK")
    other.close()


def test_what_is_opened_for_reading_cannot_be_written(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    reading = Store.open(study, create=False)

    with pytest.raises(StudyError, match=r"read-?only"):
        reading.claim(ids)


def test_the_store_does_not_import_torch():
    script = "import sys, attnres_cli.store.store; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_heartbeat_says_how_far_a_run_is(store: Store, ids: list[int]):
    record = claimed(store, ids)

    assert store.beat(record.id, 42)

    standing = store.standings()[record.id]
    assert (standing.step, standing.is_alive, standing.attempts) == (42, True, 1)
    assert standing.owner == owner.this_process()
    assert store.statuses(ids)[record.id] is Status.RUNNING
    assert store.standings(ids[1:2])[ids[1]].is_alive is None


def test_a_heartbeat_for_a_run_that_another_process_has_is_refused(
    study: str, store: Store, ids: list[int]
):
    assert not store.beat(ids[0], 1)
    claimed_by_a_process_that_is_killed(study, ids[0])

    assert not store.beat(ids[0], 1)
    assert not store.owns(ids[0])
    store.let_go(ids[0])
    assert status_of(store, ids[0]) is Status.RUNNING


def test_a_run_that_comes_further_between_deaths_never_fails_of_them(
    study: str, store: Store, ids: list[int]
):
    further = CLAIM_AND_DIE.replace(
        "os.kill",
        "Store.open(sys.argv[1], create=True).beat(int(sys.argv[2]), 9, further=True); os.kill",
    )
    for _ in range(4):
        command = [sys.executable, "-c", further, study, str(ids[0])]
        subprocess.run(command, check=False, capture_output=True)
        store.release(ids, cause="it died")
        assert status_of(store, ids[0]) is Status.PENDING


def test_a_run_that_is_let_go_waits_again_and_counts_no_death(store: Store, ids: list[int]):
    record = claimed(store, ids)
    assert store.owns(record.id)

    store.let_go(record.id)

    assert status_of(store, record.id) is Status.PENDING
    assert store.standings()[record.id].attempts == 0


def test_a_failed_run_keeps_its_last_step(store: Store, ids: list[int]):
    record = claimed(store, ids)

    store.fail(record.id, "no", VERSIONS, 17)

    assert store.standings()[record.id].step == 17


def test_a_finished_run_has_come_to_its_last_step(store: Store, ids: list[int]):
    record = finished(store, ids)

    standing = store.standings()[record.id]
    assert (standing.step, standing.owner) == (RESULT.steps, None)


def elsewhere(study: str, run_id: int, heartbeat: str) -> None:
    """Let a run be one of a process on another host."""
    sql(
        study,
        "UPDATE attnres_runs SET status = 'running', owner = 'other/1|boot|7|9', attempts = 1, "
        f"heartbeat_at = '{heartbeat}' WHERE id = {run_id}",
    )


def test_a_run_of_another_host_is_taken_over_when_its_heartbeat_stops_and_not_before(
    study: str, store: Store, ids: list[int], monkeypatch: pytest.MonkeyPatch
):
    now = [1000.0]
    monkeypatch.setattr(owner.time, "monotonic", lambda: now[0])
    for minute in range(5):  # alive, with a clock that is years behind
        elsewhere(study, ids[0], f"2001-01-01T00:0{minute}:00+00:00")
        assert store.release(ids) == 0
        now[0] += 40
    now[0] += 10

    assert store.release(ids) == 1
    assert claimed(store, ids).id == ids[0]


def test_runs_are_removed_with_their_curves(study: str, store: Store, ids: list[int]):
    finished(store, ids)
    kept = finished(store, ids)

    store.remove(ids[:1])

    assert [record.id for record in store.runs()] == ids[1:]
    assert store.runs(ids=[kept.id]) == [kept]
    for table in ("attnres_curve", "attnres_gates"):
        assert sql(study, f"SELECT DISTINCT run_id FROM {table}") == [(kept.id,)]


def test_a_removed_run_is_passed_over_and_left_out(store: Store, ids: list[int]):
    store.remove([*ids[:2], 99])

    assert [record.id for record in store.runs(ids=ids)] == ids[2:]
    store.remove(ids[:2])
    assert [record.id for record in store.runs()] == ids[2:]


def test_the_number_of_a_removed_run_is_never_another_runs(
    store: Store, specs: list[RunSpec], ids: list[int]
):
    had, now = set(ids), ids
    for part in (slice(-1, None), slice(2), slice(None)):
        removed = now[part]
        store.remove(removed)
        now = [record.id for record in store.plan(specs, FACTS)]
        new = set(now) - had
        assert len(new) == len(removed)
        assert min(new) > max(had)
        had |= new


def test_a_run_that_is_removed_while_it_is_planned_is_made_again(
    store: Store, specs: list[RunSpec], ids: list[int], monkeypatch: pytest.MonkeyPatch
):
    read = Store.runs

    def removed_just_before(self: Store, **wanted: Any) -> list[RunRecord]:
        monkeypatch.undo()
        self.remove(ids[:1])
        return read(self, **wanted)

    monkeypatch.setattr(Store, "runs", removed_just_before)
    records = store.plan(specs, FACTS)

    assert [(r.variant, r.seed) for r in records] == [(s.variant, s.seed) for s in specs]
    assert records == store.runs(ids=[record.id for record in records])


def test_a_run_that_may_be_running_is_not_removed(study: str, store: Store, ids: list[int]):
    claimed(store, ids)
    elsewhere(study, ids[1], store.standings()[ids[0]].heartbeat_at or "")
    elsewhere(study, ids[2], "2001-01-01T00:00:00+00:00")

    for run_id in ids[:2]:
        with pytest.raises(StudyError, match=f"run {run_id} is running"):
            store.remove([ids[5], run_id])
    store.remove([ids[2]])

    assert len(store.runs()) == len(ids) - 1


def test_files_of_runs_lie_beside_the_file_of_a_study(file_study: str, tmp_path: Path):
    assert Store.open(file_study, create=True).folder == tmp_path / "study.runs"


def test_every_run_has_a_folder_of_its_own(store: Store, ids: list[int]):
    one, other = store.runs(ids=ids[:2])

    assert store.folder_of(one).parent == store.folder
    assert store.folder_of(one) != store.folder_of(other)
    assert store.folder_of(one).name.startswith(f"{one.id}-")


def live_a_study(study: str, ids: list[int], ready: Barrier) -> list[int]:
    """Claim, beat and end runs until none waits, as a worker does that trains in no time."""
    ready.wait()
    store, mine = Store.open(study, create=True), []
    while (record := store.claim(ids)) is not None:
        for step in range(5):
            assert store.beat(record.id, step, further=step % 2 == 0)
            store.release(ids)
        ended = replace(record, status=Status.COMPLETE, result=RESULT, versions=VERSIONS)
        store.finish(ended)
        mine.append(record.id)
    return mine


@pytest.mark.slow
def test_sixteen_processes_on_one_file_lose_nothing(study: str, store: Store, tiny_recipe: Recipe):
    grid = [RunSpec(tiny_recipe, "standard", seed, FACTS.fingerprint) for seed in range(160)]
    ids = [record.id for record in store.plan(grid, FACTS)]

    said = in_processes(16, live_a_study, study, ids)

    assert [type(mine) for mine in said] == [list] * 16, said
    assert sorted(run_id for mine in said for run_id in mine) == ids
    records = store.runs()
    assert {record.status for record in records} == {Status.COMPLETE}
    assert all(record.result and record.result.curve == CURVE for record in records)
    assert {standing.attempts for standing in store.standings().values()} == {1}


def tuned_plan(recipe: Recipe, lr: float) -> Plan:
    """Two arms, the second at a learning rate of its own."""
    own = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"lr": lr})})
    how = Tuned(1e-2, (5e-3, 1e-2, 2e-2), (2.5, None, 2.25), (7, 8), lr, True, "as it is")
    arms = (Arm("standard", 99, 600), Arm("attnres", 99, 600, recipe=own, how=how))
    terms = Terms(is_tuned=True)
    return Plan(recipe, arms, (0,), ("cpu",), SETTINGS, FACTS.fingerprint, terms=terms)


def timed_plan(recipe: Recipe, tokens: int) -> Plan:
    own = recipe.model_copy(update={"train": recipe.train.model_copy(update={"tokens": tokens})})
    how = Matched("tokens", 384, tokens, 8.0, 4.0, 4.0, (2.0, 1.5, 2.5), 25, "A CPU")
    arms = (Arm("standard", 99, 600), Arm("attnres", 99, 600, recipe=own, how=how))
    terms = Terms("time", "standard")
    return Plan(recipe, arms, (0,), ("cpu",), SETTINGS, FACTS.fingerprint, terms=terms)


@pytest.mark.parametrize("make", [lambda r: tuned_plan(r, 2e-2), lambda r: timed_plan(r, 192)])
def test_an_arms_own_recipe_comes_back_with_how_it_came_to_be(
    make: Callable[[Recipe], Plan], study: str, store: Store, tiny_recipe: Recipe
):
    plan = make(tiny_recipe)

    assert store.keep_arm_recipes(plan, FACTS) == plan.arm_recipes

    held = Store.open(study, create=False)
    assert held.arm_recipes() == plan.arm_recipes
    assert held.arm_recipes(tiny_recipe.digest, FACTS.fingerprint) == plan.arm_recipes
    assert held.arm_recipes(tiny_recipe.digest, "another") == []
    (found,) = held.arm_recipes()
    assert held.recipe(found.digest) == plan.recipe_of(plan.arms[1])


def test_a_rate_that_is_chosen_again_takes_the_place_of_the_former(
    store: Store, tiny_recipe: Recipe
):
    store.keep_arm_recipes(tuned_plan(tiny_recipe, 2e-2), FACTS)
    again = tuned_plan(tiny_recipe, 3e-2)

    store.keep_arm_recipes(again, FACTS)

    assert store.arm_recipes() == again.arm_recipes


def test_tokens_that_were_measured_first_stand(store: Store, tiny_recipe: Recipe):
    first = timed_plan(tiny_recipe, 192)
    store.keep_arm_recipes(first, FACTS)

    kept = store.keep_arm_recipes(timed_plan(tiny_recipe, 256), FACTS)

    assert kept == store.arm_recipes() == first.arm_recipes


def test_gates_are_written_with_the_end_of_a_run(store: Store, ids: list[int]):
    bad = replace(RESULT, val_loss=5.75)

    finished(store, ids, bad)

    (record,) = store.runs(ids=ids[:1])
    assert [(gate.name, gate.passed) for gate in record.gates] == [
        ("finite", True),
        ("start", True),
        ("learned", False),
    ]
    assert (record.gates[2].value, record.gates[2].high) == (5.75, 5.5)


def test_a_run_that_may_not_be_ended_leaves_no_gates(study: str, store: Store, ids: list[int]):
    record = finished(store, ids)

    with pytest.raises(StudyError, match="no longer"):
        store.finish(replace(record, result=replace(RESULT, val_loss=5.75)))

    assert store.runs(ids=[record.id]) == [record]
