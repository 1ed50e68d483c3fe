"""What the laboratory asks of a study, on real files and with real processes."""

from __future__ import annotations

import math
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
from processes import in_processes
from studies import FACTS, SETTINGS, VERSIONS

from attnres_cli.config.recipe import Recipe, load
from attnres_cli.errors import AwayError, StudyError
from attnres_cli.records import gates
from attnres_cli.records.code import Code
from attnres_cli.records.comparison_terms import BY_DESIGN, Given, Matched, Terms, Tuned
from attnres_cli.records.plan import Arm, Plan
from attnres_cli.records.run import Point, Probe, RunRecord, RunResult, RunSpec, Status
from attnres_cli.store import engine, owner, rows, sqlite
from attnres_cli.store.store import Store

CURVE = (Point(0, None, 5.5), Point(3, 4.25, None), Point(6, 2.5, 2.375))
LARGE = {"tokens": 10**11, "peak_bytes": 10**11, "n_params": 10**10, "flops_per_token": 6 * 10**10}
RESULT = replace(studies.RESULT, val_loss=2.375, initial_loss=5.5, steps=6, curve=CURVE, **LARGE)
DIVERGED = replace(RESULT, status=Status.DIVERGED, val_loss=math.nan)
OF_A_PROCESS = "UPDATE attnres_runs SET status = 'running', owner = '{}', "


def claimed(store: Store, ids: Sequence[int]) -> RunRecord:
    record = store.claim(ids)
    assert record is not None
    return record


def finished(store: Store, ids: Sequence[int], result: RunResult = RESULT) -> RunRecord:
    """The first waiting run, claimed here and ended with this result."""
    record = replace(claimed(store, ids), status=result.status, result=result, versions=VERSIONS)
    store.finish(record)
    return replace(record, gates=gates.of(result, FACTS))


def grid(recipe: Recipe, n_seeds: int) -> list[RunSpec]:
    return [RunSpec(recipe, "standard", seed, FACTS.fingerprint) for seed in range(n_seeds)]


def sql(study: str, statement: str) -> list[tuple[Any, ...]]:
    """The rows that a statement finds, past the store."""
    with engine.connect(study, create=True).begin() as connection:
        found = connection.exec_driver_sql(statement)
        return [tuple(row) for row in found] if found.returns_rows else []


def status_of(store: Store, run_id: int) -> Status:
    return store.statuses([run_id])[run_id]


def orphaned(study: str, run_id: int) -> None:
    """Make a run belong to a process of this machine that is gone."""
    gone = owner.this_process().rpartition("|")[0] + "|1"
    sql(study, f"{OF_A_PROCESS.format(gone)} attempts = attempts + 1 WHERE id = {run_id}")


def elsewhere(study: str, run_id: int, heartbeat: str) -> None:
    """Make a run belong to a process on another host."""
    other = OF_A_PROCESS.format("other/1|boot|7|9")
    sql(study, f"{other} attempts = 1, heartbeat_at = '{heartbeat}' WHERE id = {run_id}")


def test_planned_runs_wait_in_the_order_of_specs_and_exist_once(store: Store, specs: list[RunSpec]):
    first = store.plan(specs[:2], FACTS)
    ended = finished(store, [first[0].id])

    *records, again = store.plan([*specs, specs[0]], FACTS)

    assert [(r.variant, r.seed) for r in records] == [(s.variant, s.seed) for s in specs]
    assert {r.status for r in first + records[1:]} == {Status.PENDING}
    assert {(r.recipe, r.recipe_digest, r.fingerprint) for r in records} == {
        ("tiny", specs[0].recipe.digest, FACTS.fingerprint)
    }
    assert records[0] == again == ended
    assert records[1] == first[1]
    assert store.runs() == records
    assert store.runs(ids=[records[3].id, records[0].id]) == [records[3], records[0]]


def test_another_seed_variant_recipe_data_or_code_is_another_run_but_another_name_is_not(
    store: Store, specs: list[RunSpec], tiny_recipe: Recipe
):
    train = tiny_recipe.train.model_copy(update={"tokens": 512})
    longer = tiny_recipe.model_copy(update={"train": train})
    renamed = tiny_recipe.model_copy(update={"name": "copy", "description": "the same"})
    sizes = {"n_bytes": 5_000_000_000, "train_tokens": 4_750_000_000}
    other, one = replace(FACTS, fingerprint="fedcba9876543210", **sizes), specs[0]
    code = Code("design", "trunk", "engine", "loop", "data")
    several = [one, replace(one, seed=9), replace(one, variant="x"), replace(one, recipe=longer)]
    several += [replace(one, code=code), replace(one, code=replace(code, design="edited"))]

    *records, same = store.plan([*several, replace(one, recipe=renamed)], FACTS)
    store.plan([replace(one, fingerprint=other.fingerprint)], other)

    assert records[0] == same
    assert len(store.runs()) == 7
    assert [run.recipe_digest for run in store.runs()].count(longer.digest) == 1
    assert [store.data(each.fingerprint) for each in (FACTS, other)] == [FACTS, other]
    assert [run.code for run in records[4:]] == [each.code.digest for each in several[4:]]
    assert Code.of(records[4].versions) == code  # before any of it is trained


def test_a_recipe_comes_back_equal_to_the_last_field(store: Store):
    sets = [f"data.val_fraction={1 / 3}", f"optim.lr={0.1 + 0.2}", "optim.schedule=wsd"]
    sets += ["model.n_heads=4", "model.n_kv_heads=2", "model.d_head=6", "model.d_ff=20"]
    sets += ["model.mlp=gelu", "model.tie_embeddings=yes", "model.rope_theta=500.5"]
    sets += ["model.norm_eps=1e-5", "optim.weight_decay=0", "train.precision=bf16"]
    sets += ["name=récipé", "data.source=text", "data.path=/data/é.txt", "train.tokens=2B"]
    described = {"description": 'with "quotes" and\nlines'}
    recipe = load("smoke", sets).model_copy(update=described)

    store.plan([RunSpec(recipe, "standard", 0, FACTS.fingerprint)], FACTS)

    assert store.recipe(recipe.digest) == recipe
    assert store.recipe(recipe.digest).digest == recipe.digest


def test_recipes_are_in_the_order_of_their_first_runs_under_their_present_name(
    store: Store, tiny_recipe: Recipe
):
    searched = tiny_recipe.model_copy(update={"name": f"{tiny_recipe.name}/search"})
    planned = [*map(tiny_recipe.at_rate, (0.5, 0.125, 0.25)), searched, tiny_recipe]
    for recipe in planned:
        store.plan([RunSpec(recipe, "standard", 0, FACTS.fingerprint)], FACTS)

    found = store.recipes()

    assert list(found.values()) == [*planned[:3], tiny_recipe]
    assert all(digest == recipe.digest for digest, recipe in found.items())


def test_runs_planned_together_share_a_time_and_later_plans_have_later_ones(
    store: Store, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
):
    class Standing(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime(2026, 11, 22, 20, 14, 44, tzinfo=UTC)

    monkeypatch.setattr(rows, "datetime", Standing)
    both, one = store.plan(specs[:2], FACTS), store.plan(specs[:3], FACTS)[2]
    again = store.plan([replace(specs[0], variant="rezero")], FACTS)[0]
    store.remove([finished(store, [again.id]).id])
    last = store.plan([replace(specs[0], variant="rezero")], FACTS)[0]

    times = [run.created_at for run in (*both, one, again, last)]
    assert times[0] == times[1] < times[2] < times[3] < times[4]
    assert [datetime.fromisoformat(time).second for time in times] == [44] * 5
    before = "2026-11-22T20:14:44+00:00"  # whole seconds, as of an older version
    assert before < "2026-11-22T20:14:44.000001+00:00" < "2026-11-22T20:14:45+00:00"
    assert rows.later("2100-01-01T00:00:00+00:00") == "2100-01-01T00:00:00.000001+00:00"


def test_claims_follow_the_requested_order_and_last_until_released(store: Store, ids: list[int]):
    order = [ids[4], ids[0], ids[2]]

    claims = [claimed(store, order) for _ in order]

    assert [record.id for record in claims] == order
    assert {record.status for record in claims} == {Status.RUNNING}
    assert store.claim(order) is None
    assert store.owners(ids) == dict.fromkeys(order, owner.this_process())
    assert store.beat(ids[4], 42)
    standing = store.standings()[ids[4]]
    assert (standing.step, standing.is_alive, standing.attempts) == (42, True, 1)
    assert standing.owner == owner.this_process()
    assert store.owns(ids[4])
    assert store.standings(ids[1:2])[ids[1]].is_alive is None
    store.let_go(ids[4])
    assert status_of(store, ids[4]) is Status.PENDING
    assert store.standings()[ids[4]].attempts == 0


CLAIM = """
import sys
from attnres_cli.store.store import Store
print(Store.open(sys.argv[1], create=True).claim([int(sys.argv[2])]).id, flush=True)
sys.stdin.read()
"""


def test_a_run_is_left_to_its_process_while_that_lives_and_waits_again_once_it_is_killed(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    command = [sys.executable, "-c", CLAIM, study, str(ids[0])]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().decode().strip() == str(ids[0])

        assert store.release(ids, cause="it died") == 0
        (record, *_) = store.plan(specs, FACTS, retry_failed=True)
        assert not store.beat(ids[0], 1)
        assert not store.owns(ids[0])
        store.let_go(ids[0])
        with pytest.raises(StudyError, match="no longer this process's"):
            store.finish(replace(record, status=Status.COMPLETE, result=RESULT))
        assert record.status is Status.RUNNING
        assert store.runs(ids=[record.id]) == [record]
        process.kill()
        process.wait()
    mine = claimed(store, ids)

    assert store.release(ids[1:]) == 0
    assert status_of(store, ids[0]) is Status.RUNNING
    assert store.release(ids) == 1
    assert store.owners(ids) == {mine.id: owner.this_process()}
    assert claimed(store, ids).id == ids[0]


def test_a_run_that_kills_its_processes_without_progress_fails_after_max_attempts(
    study: str, store: Store, ids: list[int], specs: list[RunSpec]
):
    for _ in range(3):  # as when a machine goes, and the command is typed again
        orphaned(study, ids[0])
        assert store.plan(specs, FACTS)[0].status is Status.PENDING
    statuses = []
    for cause in ("it died", None, "it died", "ended with signal SIGKILL"):
        orphaned(study, ids[0])
        store.release(ids, cause=cause)
        statuses.append(status_of(store, ids[0]))

    assert statuses == [*[Status.PENDING] * 3, Status.FAILED]  # an interruption counts for nothing
    assert store.runs(ids=ids)[0].error == "ended with signal SIGKILL"
    assert store.owners(ids) == {}
    store.plan(specs, FACTS, retry_failed=True)
    orphaned(study, ids[0])
    store.release(ids, cause="it died")
    assert status_of(store, ids[0]) is Status.PENDING  # it has all its attempts again
    for _ in range(4):  # and keeps them while it progresses
        assert store.beat(claimed(store, ids).id, 9, further=True)
        sql(study, f"UPDATE attnres_runs SET owner = 'nobody' WHERE id = {ids[0]}")
        store.release(ids, cause="it died")
        assert status_of(store, ids[0]) is Status.PENDING


def test_a_run_of_another_host_is_taken_over_only_when_its_heartbeat_stops(
    study: str, store: Store, ids: list[int], monkeypatch: pytest.MonkeyPatch
):
    now, other = [1000.0], Store.open(study, create=True)
    monkeypatch.setattr(owner.time, "monotonic", lambda: now[0])
    for minute in range(5):  # alive, with a clock that is years behind
        with monkeypatch.context() as there:
            there.setattr(owner, "_host", lambda: "elsewhere/1")
            said = f"2001-01-01T00:0{minute}:00+00:00"
            there.setattr("attnres_cli.store.store.now", lambda said=said: said)
            assert other.beat(ids[0], 1) if minute else claimed(other, ids[:1])
        assert store.release(ids) == 0
        now[0] += 40
    now[0] += 10

    assert store.release(ids) == 1
    assert claimed(store, ids).id == ids[0]
    assert store.owns(ids[0])


def live_a_study(study: str, specs: list[RunSpec], ready: Any) -> list[int]:
    """Open the study, plan, and claim, beat and end runs until none waits, as a worker does that
    trains in no time.
    """
    ready.wait()
    store, mine = Store.open(study, create=True), []
    ids = [record.id for record in store.plan(specs, FACTS)]
    while (record := store.claim(ids)) is not None and len(mine) <= len(ids):  # not forever
        for step in range(5):
            assert store.beat(record.id, step, further=step % 2 == 0)
            store.release(ids)
        store.finish(replace(record, status=Status.COMPLETE, result=RESULT, versions=VERSIONS))
        mine.append(record.id)
    return mine


@pytest.mark.parametrize(
    ("any_study", "n_processes"),
    [
        ("sqlite", 3),
        pytest.param("sqlite", 4, marks=pytest.mark.slow),
        pytest.param("postgresql", 4, marks=pytest.mark.slow),
        pytest.param("postgresql", 16, marks=pytest.mark.nightly),
    ],
    indirect=["any_study"],
)
def test_processes_that_plan_claim_and_end_at_once_take_each_run_once_and_lose_nothing(
    study: str, tiny_recipe: Recipe, n_processes: int
):
    said = in_processes(n_processes, live_a_study, study, grid(tiny_recipe, 10 * n_processes))

    assert [type(mine) for mine in said] == [list] * n_processes, said
    store = Store.open(study, create=False)
    records = store.runs()
    assert len(records) == 10 * n_processes
    assert sorted(run_id for mine in said for run_id in mine) == [record.id for record in records]
    assert {record.status for record in records} == {Status.COMPLETE}
    assert all(record.result and record.result.curve == CURVE for record in records)
    assert {standing.attempts for standing in store.standings().values()} == {1}


def test_a_run_is_ended_once_by_the_process_that_claimed_it_and_read_as_it_ended(
    study: str, store: Store, ids: list[int]
):
    with pytest.raises(StudyError, match=f"run {ids[0]} is no longer this process's"):
        store.fail(ids[0], "no", VERSIONS)
    assert status_of(store, ids[0]) is Status.PENDING
    other = replace(RESULT, curve=(Point(0, None, 5.0), Point(6, 1.0, 1.5)), val_loss=5.75)
    records = [finished(store, ids), finished(store, ids, other)]
    bare = finished(store, ids, replace(RESULT, curve=()))
    with pytest.raises(StudyError, match="no longer"):
        store.fail(ids[0], "no", VERSIONS)
    with pytest.raises(StudyError, match="no longer"):
        store.finish(replace(records[0], result=other))

    held = Store.open(study, create=False)  # as the next command finds it
    assert held.runs(ids=ids[:3]) == [*records, bare]
    assert held.owners(ids) == {}
    assert [gate.name for gate in records[1].gates if not gate.passed] == ["learned"]
    (found,) = held.runs(ids=ids[:1], curves=False)
    assert found == replace(records[0], result=replace(RESULT, curve=()))
    standing = held.standings()[ids[0]]
    assert (standing.step, standing.owner) == (RESULT.steps, None)
    curve = (Point(0, None, 5.5), Point(2, 1e30, None), Point(3, math.inf, math.nan))
    diverged = finished(store, ids, replace(DIVERGED, steps=3, curve=curve))
    (found,) = held.runs(ids=[diverged.id])
    assert found.status is Status.DIVERGED
    assert found.result is not None
    assert math.isnan(found.result.val_loss)
    assert found.result.curve == (*curve[:2], Point(3, math.inf, None))


def test_a_failed_run_keeps_its_traceback_and_is_trained_again_only_when_asked(
    store: Store, ids: list[int], specs: list[RunSpec]
):
    record = claimed(store, ids)

    store.fail(record.id, "Traceback ...\nValueError: no", VERSIONS, 17)

    why = {"error": "Traceback ...\nValueError: no", "versions": VERSIONS}
    assert store.runs(ids=[record.id]) == [replace(record, status=Status.FAILED, **why)]
    assert store.standings()[record.id].step == 17
    assert store.claim(ids[:1]) is None
    finished(store, ids)
    claimed(store, ids)
    store.plan(specs[1:], FACTS, retry_failed=True)  # it is not among these
    assert store.plan(specs, FACTS)[0].status is Status.FAILED
    records = store.plan(specs, FACTS, retry_failed=True)
    expected = [Status.PENDING, Status.COMPLETE, Status.RUNNING, *[Status.PENDING] * 3]
    assert [each.status for each in records] == expected
    assert records[0].error is None


def probe(step: int, sites: int = 3, **changes: object) -> Probe:
    """One with numbers that float32 holds exactly."""
    row = tuple(step + i / 4 for i in range(sites))
    probe = Probe(step, row, row, row, row, row, row, row, row, mixing=(row,) * sites)
    return replace(probe, **changes)


def test_probes_come_back_as_they_were_and_only_if_asked(study: str, store: Store, ids: list[int]):
    without = {"mixing": None, "entropy": None, "no_mixing": "channels are mixed, “ganz”"}
    one = finished(store, ids, replace(RESULT, probes=(probe(0), probe(25), probe(100))))
    odd = probe(6, output_rms=(math.nan, math.inf, 1.0), **without)
    other = finished(store, ids, replace(RESULT, probes=(odd,)))

    found = store.probes([one.id, other.id, ids[2], 99])
    (bare,) = store.runs(ids=[one.id])

    assert found[one.id] == (probe(0), probe(25), probe(100))
    assert repr(found[other.id]) == repr((odd,))  # nan is not nan
    assert (found[ids[2]], found[99]) == ((), ())
    assert bare.result == RESULT
    arrays = "SELECT shape, data FROM attnres_probes WHERE name = 'mixing' AND step = 25"
    ((shape, data),) = sql(study, arrays)
    assert str(shape) == "[3, 3]"
    assert bytes(data) == struct.pack("<9f", *(25, 25.25, 25.5) * 3)  # little-endian float32


@pytest.mark.slow
def test_a_thousand_runs_are_read_in_under_a_second_whatever_was_measured_in_them(
    tmp_path: Path, tiny_recipe: Recipe
):
    store = Store.open(str(tmp_path / "study.db"), create=True)
    ids = [record.id for record in store.plan(grid(tiny_recipe, 1000), FACTS)]
    blob = np.zeros((49, 49), "<f4").tobytes()
    rows = [(i, s, f"n{n}", "[49, 49]", blob) for i in ids for s in range(4) for n in range(3)]
    with closing(sqlite3.connect(tmp_path / "study.db")) as connection, connection:
        connection.execute(
            "UPDATE attnres_runs SET status = 'complete', val_loss = 2.0, steps = 1, tokens = 32, "
            "step_s = 0.1, tokens_per_second = 320, train_s = 0.1, peak_bytes = 1, n_params = 1, "
            "flops_per_token = 6, device = 'cpu', device_name = 'one', precision = 'fp32', "
            "compiled = 0, threads = 1, engine = 'eager'"
        )
        connection.executemany("INSERT INTO attnres_probes VALUES (?, ?, ?, ?, ?)", rows)

    started = time.process_time()
    store.runs()

    assert time.process_time() - started < 1


def own_plan(recipe: Recipe, *, lr: float = 0.0, tokens: int = 0) -> Plan:
    """Two arms, the second at a learning rate or with tokens of its own."""
    how: Tuned | Matched
    if tokens:
        own, terms = recipe.at(tokens), Terms("time", "standard")
        how = Matched("tokens", 384, tokens, 8.0, 4.0, 4.0, (2.0, 1.5, 2.5), 25, "A CPU")
    else:
        own, terms = recipe.at_rate(lr), Terms(is_tuned=True)
        how = Tuned(1e-2, (5e-3, 1e-2, 2e-2), (2.5, None, 2.25), (7, 8), lr, True, "as it is")
    arms = (Arm("standard", 99, 600), Arm("attnres", 99, 600, recipe=own, how=how))
    return Plan(recipe, arms, (0,), ("cpu",), SETTINGS, FACTS.fingerprint, terms=terms)


def test_an_arms_own_recipe_comes_back_with_how_it_came_to_be(
    study: str, store: Store, tiny_recipe: Recipe
):
    """A rate that is tuned again replaces the former, but the first matched tokens stand."""
    first, again = (own_plan(tiny_recipe, **own) for own in ({"tokens": 192}, {"lr": 3e-2}))
    for plan in (first, own_plan(tiny_recipe, lr=2e-2)):
        assert store.keep_arm_recipes(plan, FACTS) == plan.arm_recipes
        held = Store.open(study, create=False)
        (own,) = (each for each in held.arm_recipes() if each.how == plan.arms[1].how)
        assert [own] == plan.arm_recipes
        assert own in held.arm_recipes(tiny_recipe.digest, FACTS.fingerprint)
        assert held.arm_recipes(tiny_recipe.digest, "another") == []
        assert held.recipe(own.digest) == plan.recipe_of(plan.arms[1])

    store.keep_arm_recipes(again, FACTS)
    assert store.keep_arm_recipes(own_plan(tiny_recipe, tokens=256), FACTS) == first.arm_recipes
    assert {own.how for own in store.arm_recipes()} == {again.arms[1].how, first.arms[1].how}


def test_a_study_can_be_read_but_not_written_by_a_reader_while_another_process_writes(
    study: str, store: Store, ids: list[int]
):
    with sqlite.immediate(engine.connect(study, create=True)).connect() as other:
        other.exec_driver_sql("UPDATE attnres_runs SET status = 'failed'")

        seen = {record.status for record in Store.open(study, create=False).runs()}
        other.rollback()

    assert seen == {Status.PENDING}
    with pytest.raises(StudyError, match=r"read-?only"):
        Store.open(study, create=False).claim(ids)


def test_a_removed_run_takes_what_was_measured_along_and_is_recorded_once_any_loss_is_known(
    study: str, store: Store, specs: list[RunSpec], ids: list[int]
):
    store.remove(ids[5:])
    assert store.removed() == []  # a mistake before anything was trained
    probed = replace(RESULT, probes=(probe(6),))
    first, diverged, kept = (finished(store, ids, each) for each in (probed, DIVERGED, probed))

    store.remove([first.id, ids[3], 99])
    store.remove([diverged.id], reason="the machine was too warm")
    store.remove([first.id])  # it is gone already

    assert [record.id for record in store.runs()] == [kept.id, ids[4]]
    assert [record.id for record in store.runs(ids=ids)] == [kept.id, ids[4]]
    assert store.runs(ids=[kept.id])[0].result == replace(RESULT, probes=())
    for table in ("attnres_curve", "attnres_gates", "attnres_probes"):
        assert sql(study, f"SELECT DISTINCT run_id FROM {table}") == [(kept.id,)]
    removed = store.removed()
    assert [(each.variant, each.seed, each.status, each.reason) for each in removed] == [
        ("standard", 0, Status.COMPLETE, None),
        ("attnres", 1, Status.PENDING, None),
        ("attnres", 0, Status.DIVERGED, "the machine was too warm"),
    ]
    assert [str(each.val_loss) for each in removed] == ["2.375", "nan", "nan"]
    assert {each.recipe_digest for each in removed} == {specs[0].recipe.digest}
    assert {each.created_at for each in removed} == {first.created_at}
    assert removed[0].removed_at > first.created_at[:19]
    again = finished(store, [store.plan(specs[:1], FACTS)[0].id])
    store.remove([again.id])  # trained again, and removed again
    held = Store.open(study, create=False).removed()
    assert held[:3] == removed
    assert [each.seed for each in held] == [0, 1, 0, 0]


def test_an_unfinished_run_that_has_drawn_its_curve_is_told_of_and_with_it_all_of_its_table(
    store: Store, specs: list[RunSpec], ids: list[int]
):
    claimed = store.claim(ids)
    assert claimed is not None
    store.beat(claimed.id, 0)
    store.let_go(claimed.id)
    store.remove(ids[5:])
    assert store.removed() == []  # nobody has seen a loss
    again = store.claim(ids)
    assert again is not None
    store.beat(again.id, 1)
    store.let_go(again.id)
    store.remove([again.id, ids[4]])
    assert [each.status for each in store.removed()] == [Status.PENDING] * 2


def test_a_run_of_an_arm_with_a_recipe_of_its_own_is_told_of_once_another_arm_has_begun(
    store: Store, specs: list[RunSpec]
):
    base, other = specs[0].recipe, specs[0].recipe.at_rate(0.3)
    arms = tuple(
        Arm(variant, 1, 1, recipe=recipe, how=Given(0.3, is_own=True))
        for variant, recipe in (("standard", base), ("attnres", other))
    )
    plan = Plan(base, arms, (0,), ("cpu",), SETTINGS, FACTS.fingerprint, terms=BY_DESIGN)
    store.keep_arm_recipes(plan, FACTS)
    first, second = store.plan(plan.specs, FACTS)
    assert store.claim([first.id]) is not None
    store.beat(first.id, 3)
    store.remove([second.id])
    assert [gone.variant for gone in store.removed()] == ["attnres"]


def test_the_number_of_a_removed_run_is_never_given_again(
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

    def removed_just_before(self: Store, **asked: Any) -> list[RunRecord]:
        monkeypatch.undo()
        self.remove(ids[:1])
        return read(self, **asked)

    monkeypatch.setattr(Store, "runs", removed_just_before)
    records = store.plan(specs, FACTS)

    assert [(r.variant, r.seed) for r in records] == [(s.variant, s.seed) for s in specs]
    assert records == store.runs(ids=[record.id for record in records])


def test_a_run_that_may_be_running_is_not_removed(study: str, store: Store, ids: list[int]):
    finished(store, ids[5:])
    claimed(store, ids)
    elsewhere(study, ids[1], store.standings()[ids[0]].heartbeat_at or "")
    elsewhere(study, ids[2], "2001-01-01T00:00:00+00:00")

    for run_id in ids[:2]:
        with pytest.raises(StudyError, match=f"run {run_id} is running"):
            store.remove([ids[5], run_id])
    assert store.removed() == []
    store.remove([ids[2]])

    assert len(store.runs()) == len(ids) - 1


HOLD = """
import sqlite3, sys, time
held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


def test_a_file_that_another_program_holds_is_waited_for_and_its_holder_named(
    tmp_path: Path,
    tiny_recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(sqlite, "_BUSY_MS", 50)
    study = str(tmp_path / "attnres.db")
    store = Store.open(study, create=True)
    ids = [record.id for record in store.plan(grid(tiny_recipe, 1), FACTS)]

    def held_for(seconds: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", HOLD, study, str(seconds)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    store.patience_s = 0.0
    with held_for(60) as process:
        with pytest.raises(AwayError, match=rf"is locked by \S+ \(process {process.pid}\)$"):
            store.claim(ids)
        process.kill()
    store.patience_s = 60.0
    with held_for(1):
        assert claimed(store, ids).id == ids[0]
    assert "; trying again for 60 s" in capsys.readouterr().err


def test_a_file_that_is_removed_or_replaced_meanwhile_is_noticed_before_anything_is_written(
    tmp_path: Path, tiny_recipe: Recipe
):
    path, other = tmp_path / "attnres.db", tmp_path / "other.db"
    store = Store.open(str(path), create=True)
    ids = [record.id for record in store.plan(grid(tiny_recipe, 1), FACTS)]
    Store.open(str(other), create=True)  # while the first is there: its number is not given again
    path.unlink()
    with pytest.raises(StudyError, match=r"attnres\.db was removed while this ran"):
        store.claim(ids)
    with pytest.raises(StudyError, match="was removed"):
        store.runs()
    assert not path.exists()

    other.rename(path)
    before = path.read_bytes()
    with pytest.raises(StudyError, match="was replaced by another file while this ran"):
        store.claim(ids)
    assert path.read_bytes() == before
    assert Store.open(str(path), create=False).runs() == []


@pytest.mark.parametrize("is_first", [True, False])
def test_a_file_that_is_removed_while_it_is_opened_is_said_to_be_removed(
    tmp_path: Path, *, is_first: bool
):
    path = tmp_path / "attnres.db"
    opened = sqlite.same_file(lambda: path.unlink() if removes else None, path)
    removes = is_first
    path.touch()
    if not is_first:
        opened()
        removes = True
    with pytest.raises(StudyError, match="was removed while this ran"):
        opened()
