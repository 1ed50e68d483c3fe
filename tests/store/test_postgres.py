"""Studies on a server: refusals, outages and lost answers."""

from __future__ import annotations

import math
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grids import wait_until
from older import statements
from servers import PASSWORD, Server
from sqlalchemy import Engine, event
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import OperationalError
from studies import FACTS, RESULT, VERSIONS

from attnres_cli.errors import AwayError, StudyError, UsageError, installing
from attnres_cli.records.run import RunRecord, RunSpec, Status
from attnres_cli.records.step_ratio import TimedArm
from attnres_cli.store import engine, owner, postgres
from attnres_cli.store.retry import RETRY_S, patiently
from attnres_cli.store.store import Store

Lab = tuple[Server, str]
NOWHERE = "postgresql+psycopg://me@127.0.0.1:1/lab"
OURS = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'attnres%'"


@pytest.fixture
def study(database: Lab) -> str:
    server, name = database
    return server.url(name)


def claimed(store: Store, ids: list[int]) -> RunRecord:
    record = store.claim(ids)
    assert record is not None
    return record


def refusal(study: str, *, create: bool = True) -> str:
    """The one line with which a study is refused, which never holds the password."""
    with pytest.raises(StudyError) as caught:
        Store.open(study, create=create)
    (line,) = str(caught.value).splitlines()
    assert PASSWORD not in line
    return line


def test_a_missing_database_or_password_is_refused_with_what_to_type_or_where_it_is_looked_for(
    database: Lab, monkeypatch: pytest.MonkeyPatch
):
    server, name = database
    making = f"createdb -h 127.0.0.1 -p {server.port} -U lab nowhere"
    assert refusal(server.url("nowhere")).endswith(f"there is no such database: {making}")
    for user, password in (("lab", "wrong"), ("nobody", "x")):
        words = refusal(server.url(user=user, password=password))
        assert f'password authentication failed for user "{user}"' in words
        assert "PGPASSWORD, in ~/.pgpass" in words
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    assert "no password supplied" in refusal(server.url(name).replace(":s3cret-%25-word", ""))


def test_an_impossible_url_is_refused_with_the_form_and_an_unreachable_server_tried_but_once():
    for study, expected in (
        ("mysql://me@host/lab", "unknown kind of study 'mysql'"),
        ("postgresql+asyncpg://me@host/lab", "did you mean 'postgresql+psycopg'?"),
        ("postgres://me@host/lab", "Known: postgresql+psycopg, sqlite"),
        ("postgresql+psycopg://me@host:port/lab", "expected postgresql+psycopg://user@host:port/"),
        ("postgresql+psycopg://me@host", "name a database"),
        ("postgresql+psycopg://me@host/lab?conect_timeout=3", "conect_timeout"),
    ):
        assert expected in refusal(study)
    for place in ("127.0.0.1:1", "no-such-host.invalid"):
        began = time.monotonic()
        words = refusal(f"postgresql+psycopg://me:s3cret@{place}/lab")
        assert f"study postgresql+psycopg://me@{place}/lab cannot be reached" in words
        assert time.monotonic() - began < 60


def test_a_missing_driver_is_named_with_its_extra(study: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "psycopg", None)  # importing it now raises
        assert refusal(study).endswith(f"needs psycopg: {installing('postgres')}")


def test_a_database_of_a_stranger_or_of_something_else_or_newer_is_refused_and_left_as_it_was(
    database: Lab, study: str
):
    server, name = database
    server.sql("DROP ROLE IF EXISTS guest")
    server.sql("CREATE ROLE guest LOGIN PASSWORD 'x'")
    words = refusal(server.url(name, user="guest", password="x"))
    assert "permission denied for schema public: take a database of your own" in words
    server.sql("CREATE TABLE notes (text TEXT)", name)
    assert "is a database of something else (table 'notes')" in refusal(study)
    assert server.sql(OURS, name) == [(0,)]
    server.sql("DROP TABLE notes", name)
    Store.open(study, create=True)
    server.sql("UPDATE attnres_schema SET version_num = '9999'", name)
    for create in (True, False):
        words = refusal(study, create=create)
        assert "was written by a newer attnres (schema 9999): upgrade" in words


def test_reading_makes_nothing_and_another_schema_can_be_named(database: Lab, study: str):
    server, name = database
    assert Store.existing(study) is None
    assert "holds no runs yet: `attnres ablate --study postgresql" in refusal(study, create=False)
    assert server.sql(OURS, name) == [(0,)]
    server.sql("CREATE SCHEMA mine", name)

    Store.open(f"{study}?options=-csearch_path%3Dmine", create=True)

    assert server.sql(f"{OURS} AND schemaname = 'mine'", name) == [(15,)]
    assert server.sql(f"{OURS} AND schemaname = 'public'", name) == [(0,)]


COLUMNS = (
    "SELECT column_name, data_type, character_maximum_length, is_nullable, column_default "
    "FROM information_schema.columns WHERE table_name IN "
    "('attnres_data', 'attnres_items', 'attnres_removed', 'attnres_runs') "
    "AND NOT (column_name = 'id') ORDER BY table_name, column_name"
)
KEYS = (
    "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE conname LIKE 'attnres%' ORDER BY conname"
)


def test_an_older_study_is_read_as_it_is_and_upgraded_when_written_to(
    database: Lab, study: str, specs: list[RunSpec], ids: list[int]
):
    server, name = database
    layout = server.sql(COLUMNS, name), server.sql(KEYS, name)
    before = Store.open(study, create=True).runs()
    for statement in statements("0008"):
        server.sql(statement, name)
    older = server.sql(KEYS, name)

    read = Store.open(study, create=False)
    assert (read.runs(), read.removed(), read.items()) == (before, [], [])
    assert server.sql(KEYS, name) == older

    store = Store.open(study, create=True)
    assert (store.runs(), store.removed()) == (before, [])
    assert [run.id for run in store.plan(specs, FACTS)] == ids
    assert (server.sql(COLUMNS, name), server.sql(KEYS, name)) == layout


@pytest.mark.parametrize("command", ["look", "open"])
def test_a_study_that_is_made_meanwhile_is_not_taken_for_a_damaged_one(study: str, command: str):
    """Another thread makes the study between the first two queries that look for one."""
    asked: list[str] = []
    looking = threading.current_thread()

    def make_after_the_first_query(_c, _cursor, statement: str, *_rest: object) -> None:
        if "pg_catalog.pg_class" not in statement or threading.current_thread() is not looking:
            return
        asked.append(statement)
        if len(asked) == 1:
            maker = threading.Thread(target=lambda: Store.open(study, create=True))
            maker.start()
            maker.join()

    event.listen(Engine, "after_cursor_execute", make_after_the_first_query)
    try:
        if command == "look":
            assert Store.existing(study) is None
        else:
            assert "holds no runs yet" in refusal(study, create=False)
    finally:
        event.remove(Engine, "after_cursor_execute", make_after_the_first_query)

    assert asked
    assert Store.existing(study) is not None


def test_a_run_that_another_process_is_taking_is_skipped_and_that_of_a_dead_one_freed_once(
    database: Lab, study: str, store: Store, ids: list[int]
):
    server, name = database
    other = Store.open(study, create=True)
    dead = "UPDATE attnres_runs SET status = 'running', owner = 'nobody' WHERE id = 1"
    server.sql(dead, name)  # an owner in no known form is gone
    with engine.connect(study, create=True).begin() as connection:  # somebody is at these two
        connection.exec_driver_sql("SELECT * FROM attnres_runs WHERE id < 3 FOR UPDATE")

        assert store.release(ids) == 0
        assert claimed(store, ids).id == ids[2]

    assert other.release(ids) == 1
    assert store.release(ids) == 0


def test_two_commands_that_time_the_same_arm_at_once_keep_one_ratio(
    database: Lab, study: str, specs: list[RunSpec], ids: list[int]
):
    (server, name), digest = database, specs[0].recipe.digest
    first, second = (Store.open(study, create=True) for _ in range(2))
    timed = TimedArm(digest, "attnres", "standard", "cpu", "EPYC", 5, 1.2, 1.1, 1.3)
    waits = "SELECT 1 FROM pg_locks WHERE NOT granted"

    def begin_the_other(_c, _cursor, statement: str, *_rest: object) -> None:
        if statement.startswith("INSERT") and not pending:
            pending.append(pool.submit(second.keep_step_ratios, [timed]))
            wait_until(lambda: server.sql(waits, name), 60)

    pending: list[Future[None]] = []
    event.listen(Engine, "after_cursor_execute", begin_the_other)
    try:
        with ThreadPoolExecutor() as pool:
            first.keep_step_ratios([timed])
    finally:
        event.remove(Engine, "after_cursor_execute", begin_the_other)

    (other,) = pending
    assert other.result() is None
    assert first.step_ratios(digest) == [timed]


@pytest.mark.slow
def test_a_store_gives_up_after_its_patience_and_waits_for_a_server_that_comes_back(
    own_server: Server, specs: list[RunSpec], capfd: pytest.CaptureFixture[str]
):
    store = Store.open(own_server.url(), create=True)
    ids = [record.id for record in store.plan(specs, FACTS)]
    own_server.stop()
    with pytest.raises(AwayError):  # a heartbeat does not wait: the next one comes soon
        store.beat(ids[0], 1)
    patience, store.patience_s = store.patience_s, 1.0
    with pytest.raises(AwayError, match="cannot be reached"):
        store.claim(ids)
    assert capfd.readouterr().err.count("trying again for 1 s") == 1

    store.patience_s = patience
    later = threading.Timer(1.0, own_server.start)
    later.start()
    record = claimed(store, ids)

    later.join()
    assert store.owns(record.id)
    assert set(store.statuses(ids[1:]).values()) == {Status.PENDING}


def one_unanswered(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Make the server do the next commit and go away before it says so. The list fills when that
    has happened; clear it for another time.
    """
    unanswered: list[object] = []
    commit = PGDialect_psycopg.do_commit

    def once(dialect: Any, pooled: Any) -> None:
        if not unanswered:
            unanswered.append(pooled)
            server.commit_unanswered(pooled.dbapi_connection)
        commit(dialect, pooled)

    monkeypatch.setattr(PGDialect_psycopg, "do_commit", once)
    return unanswered


@pytest.mark.parametrize("val_loss", [1.5, pytest.param(math.nan, marks=pytest.mark.slow)])
def test_a_result_or_removal_whose_commit_was_not_answered_is_recorded_once(
    database: Lab, store: Store, ids: list[int], monkeypatch, val_loss: float
):
    ended, failed = claimed(store, ids), claimed(store, ids)
    status = Status.DIVERGED if math.isnan(val_loss) else Status.COMPLETE
    result = replace(RESULT, val_loss=val_loss, status=status)
    unanswered = one_unanswered(database[0], monkeypatch)
    store.finish(replace(ended, status=status, result=result, versions=VERSIONS))
    assert unanswered
    unanswered.clear()
    store.fail(failed.id, "out\0 of memory", VERSIONS, 7)  # the server cannot hold a NUL
    assert unanswered

    statuses = store.statuses([ended.id, failed.id])
    assert (statuses[ended.id], statuses[failed.id]) == (status, Status.FAILED)
    (held, why) = store.runs(ids=[ended.id, failed.id])
    assert why.error == "out of memory"
    assert held.result is not None
    assert len(held.result.curve) == len(result.curve)
    with pytest.raises(StudyError, match="its result was not recorded"):
        store.fail(ended.id, "another end", VERSIONS)
    unanswered.clear()
    store.remove(ids[:2])
    assert unanswered
    assert [record.id for record in store.runs()] == ids[2:]


def test_an_outage_takes_no_run_from_its_process(
    study: str, store: Store, ids: list[int], monkeypatch
):
    now = [1000.0]
    monkeypatch.setattr(owner.time, "monotonic", lambda: now[0])
    with engine.connect(study, create=True).begin() as connection:
        connection.exec_driver_sql(
            "UPDATE attnres_runs SET status = 'running', owner = 'other/1|boot|7|9', "
            "heartbeat_at = '2026-01-01T00:00:00+00:00' WHERE id = 1"
        )
    assert store.release(ids) == 0
    now[0] += 40
    store.patience_s = 0.0
    there, store._reading = store._reading, postgres.engine_of(NOWHERE, readonly=True)
    with pytest.raises(AwayError):
        store.release(ids)
    store._reading = there
    now[0] += 10

    assert store.release(ids) == 0  # 50 s after the first look, but nothing could be seen


def test_a_server_that_starts_or_ends_or_has_no_free_connections_is_tried_again():
    states = "starting up", "shutting down", "in recovery mode", "not yet accepting connections"
    for state in states:
        error = OperationalError("", {}, Exception(f"FATAL:  the database system is {state}"))
        refused = postgres.refusal("postgresql://me@host/lab", error, opened=False)
        assert isinstance(refused, AwayError)
        assert refused.is_up
    tries = []

    def work() -> str:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise AwayError("too many clients already", is_up=True)
        return "done"

    assert patiently(work, 10.0, only_up=True) == "done"
    assert len(tries) == 3


def test_patience_is_a_number_of_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for text in ("soon", "-1", "nan"):
        monkeypatch.setenv(RETRY_S, text)
        with pytest.raises(UsageError, match="ATTNRES_RETRY_S must be a number of seconds"):
            Store.open(str(tmp_path / "study.db"), create=True)


def test_files_of_runs_are_in_the_users_data_folder_by_server_and_name(study: str, tmp_path: Path):
    folder = Store.open(study, create=True).folder
    others = [study.replace("127.0.0.1", "localhost"), study.replace("/lab_", "/other_")]
    assert folder.parent == tmp_path / "home" / "attnres"
    assert folder == engine.runs_folder(study.replace("lab:s3cret-%25-word@", "you@"))
    assert len({folder, *map(engine.runs_folder, others)}) == 3
