"""Opening a study: what is wrong with a file, and Optuna's tables beside ours."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from another_user import NOBODY, as_nobody
from grids import small_disk
from older import published
from sqlalchemy import MetaData
from sqlalchemy.schema import CreateIndex, CreateTable
from studies import FACTS

from attnres_cli.config.recipe import Data, Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.code import Code
from attnres_cli.records.run import RunRecord, RunSpec
from attnres_cli.store import engine, queries
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store
from attnres_cli.store.tables import PREFIX, SCHEMA, metadata

OURS = {"attnres_recipes", "attnres_data", "attnres_runs", "attnres_curve", "attnres_probes"}
OURS |= {"attnres_arm_recipes", "attnres_gates", "attnres_registrations", "attnres_schema"}
OURS |= {"attnres_removed", "attnres_items", "attnres_step_ratios", "attnres_until_decided"}
OURS |= {"attnres_asked", "attnres_evaluated"}
SCHEMA_OF = "SELECT name, sql FROM sqlite_master ORDER BY name"

Plan = Callable[[Path], list[RunRecord]]


@pytest.fixture
def plan(tiny_recipe: Recipe) -> Plan:
    """A function that opens a study and puts some runs into it."""
    specs = [RunSpec(tiny_recipe, "standard", seed, FACTS.fingerprint) for seed in range(50)]
    return lambda path: Store.open(str(path), create=True).plan(specs, FACTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.db"


def sql(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


def tables_of(path: Path) -> set[str]:
    return {str(name) for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type='table'")}


def refusal(path: Path | str, *, create: bool = True) -> str:
    """The one line with which a study is refused."""
    with pytest.raises(StudyError) as caught:
        Store.open(str(path), create=create).runs()
    (line,) = str(caught.value).splitlines()
    return line


def layout(path: Path) -> dict[str, set[str]]:
    """Lines of the statements that would make our tables of a file, in no order."""
    found = MetaData()
    found.reflect(engine.connect(str(path), create=False), only=[*metadata.tables])
    return {
        name: {line.strip(" \t,") for line in str(CreateTable(table)).splitlines()}
        | {str(CreateIndex(index)) for index in table.indexes}
        for name, table in found.tables.items()
    }


def test_a_new_study_has_only_our_tables_and_is_opened_again_unchanged(path: Path, plan: Plan):
    records = plan(path)
    before = path.read_bytes()

    store, held = Store.open(f"sqlite:///{path}", create=True), Store.existing(f"sqlite:///{path}")

    assert tables_of(path) == OURS == set(metadata.tables)
    assert all(name.startswith(PREFIX) for name in OURS)
    assert held is not None
    assert held.runs() == store.runs() == records
    assert path.read_bytes() == before
    folders = [store.folder_of(record) for record in records]
    assert len(set(folders)) == len(records)
    assert folders[0].parent == store.folder == path.with_suffix(".runs")
    assert folders[0].name.startswith(f"{records[0].id}-")


@pytest.fixture
def old(path: Path) -> Path:
    return published("designs", path)


def test_a_published_study_of_an_older_schema_is_read_as_it_is_then_continued(
    tmp_path: Path, old: Path
):
    before = old.read_bytes()

    store = Store.open(str(old), create=False)
    held = store.runs()
    (facts,) = {store.data(run.fingerprint) for run in held}
    assert len(held) == 168
    assert (store.asked(), facts.name) == (None, None)
    assert old.read_bytes() == before  # reading changes nothing

    Store.open(str(tmp_path / "fresh.db"), create=True)
    store = Store.open(str(old), create=True)
    first = held[0]
    assert store.runs() == held  # and neither does the upgrade
    assert sql(old, "SELECT version_num FROM attnres_schema") == [(SCHEMA,)]
    assert layout(old) == layout(tmp_path / "fresh.db")

    recipe, versions = store.recipe(first.recipe_digest), dict(first.versions)
    seeds = [run.seed for run in held if (run.recipe_digest, run.variant) == first.identity[:2]]
    of = (recipe, first.variant)
    specs = [RunSpec(*of, seed, first.fingerprint, Code.of(versions)) for seed in [*seeds, 10**6]]
    *known, new = store.plan(specs, facts)
    assert {run.id for run in known} <= {run.id for run in held}  # trained already
    store.remove([new.id])
    assert store.plan(specs, facts)[-1].id == new.id + 1  # no number is given twice


def test_where_data_lie_is_kept_with_them_once_a_recipe_says_so(path: Path, tiny_recipe: Recipe):
    store = Store.open(str(path), create=True)
    spec = RunSpec(tiny_recipe, "standard", 0, FACTS.fingerprint)
    store.plan([spec], FACTS)
    assert store.data(FACTS.fingerprint) == FACTS

    recipes = []
    for place in ("/corpora/english/", "elsewhere/shards/*.txt"):
        data = Data(source="text", path=place)
        recipes.append(tiny_recipe.model_copy(update={"data": data}))
        store.plan([replace(spec, recipe=recipes[-1])], FACTS)  # the same text: moved
        found = store.data(FACTS.fingerprint)
        assert found == replace(FACTS, path="/corpora/english/")
        assert found.name == "english"
    assert replace(FACTS, path="elsewhere/shards/*.txt").name == "shards"
    other = replace(FACTS, fingerprint="f" * 16)
    store.plan([replace(spec, recipe=recipes[1], fingerprint=other.fingerprint)], other)
    digest = recipes[0].digest  # of both: places are no part of it
    assert [store.recipe(digest, each.fingerprint) for each in (FACTS, other)] == recipes


def test_a_study_lies_under_the_name_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names = ["study.db", "a b.db", "é.db", "it's.db", "a#b.db", "a?b.db", "a%20b.db"]
    stores = [Store.open(name, create=True) for name in names]  # relative paths
    monkeypatch.chdir("/")

    assert {entry.name for entry in tmp_path.iterdir()} == set(names)
    for name, store in zip(names, stores, strict=True):
        assert store.runs() == Store.open(str(tmp_path / name), create=False).runs() == []


@pytest.mark.parametrize("create", [True, False])
def test_foreign_files_are_refused_in_a_line_and_left_as_they_were(tmp_path: Path, create: bool):
    (tmp_path / "notes.txt").write_text("remember the milk\n" * 100, encoding="utf-8")
    sql(tmp_path / "notes.db", "CREATE TABLE notes (text TEXT)")
    words = {
        tmp_path / "notes.txt": "is not a SQLite file",
        tmp_path / "notes.db": "is a database of something else (table 'notes')",
        tmp_path: f"is a folder: name a file in it, as {tmp_path}/attnres.db",
        tmp_path / "nowhere" / "study.db": f"folder {tmp_path / 'nowhere'} does not exist",
        "file:x.db": "give --study the path of a file, or a URL",
        "mysql://me:secret@host/db": "unknown kind of study 'mysql'",
        "/dev/null": "is no file",
        "/proc/attnres.db": "study",
    }
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for study, expected in words.items():
        found = refusal(study, create=create)
        assert expected in found
        assert "secret" not in found
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("create", [True, False])
def test_a_damaged_file_or_one_of_an_unknown_schema_is_refused_unchanged(
    path: Path, plan: Plan, create: bool
):
    plan(path)
    whole = path.read_bytes()
    ends = [16, 99, *(int(share * len(whole)) for share in (0.1, 0.5, 0.95))]
    for damaged in (*(whole[:end] for end in ends), whole[:-4096] + b"\xff" * 4096):
        path.write_bytes(damaged)

        words = refusal(path, create=create)

        assert f"study {path} is damaged" in words
        assert "restore a copy of it" in words
        assert path.read_bytes() == damaged
    path.write_bytes(whole)
    sql(path, "DROP TABLE attnres_curve")
    assert "tables are missing" in refusal(path, create=create)
    path.write_bytes(whole)
    sql(path, "UPDATE attnres_schema SET version_num = '9999'")
    newer = refusal(path, create=create)
    sql(path, "UPDATE attnres_schema SET version_num = '0006'")
    sql(path, "DROP TABLE attnres_registrations")
    before = sql(path, SCHEMA_OF)
    older = refusal(path, create=create)

    assert "was written by a newer attnres (schema 9999): upgrade attnres" in newer
    assert "before its first release (schema 0006), which this one cannot read" in older
    assert "--study names another, or a new one" in older
    assert sql(path, SCHEMA_OF) == before


def test_reading_makes_nothing_and_says_what_to_type(tmp_path: Path, path: Path, plan: Plan):
    assert "`attnres ablate` makes one" in refusal(path, create=False)
    assert Store.existing(str(path)) is None
    assert list(tmp_path.iterdir()) == []
    path.touch()
    assert f"`attnres ablate --study {path}`" in refusal(path, create=False)
    assert path.read_bytes() == b""
    sql(path, "PRAGMA journal_mode = WAL")  # the first step of making a study
    assert path.stat().st_size > 0
    assert Store.existing(str(path)) is None
    records = plan(path)
    assert Store.open(str(path), create=False).runs() == records
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_study_and_optuna_share_one_file(path: Path, plan: Plan, ours_first: bool):
    records = plan(path) if ours_first else []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    searched = optuna.create_study(storage=storage, study_name="s")
    if not ours_first:
        assert "holds no runs yet: `attnres ablate" in refusal(path, create=False)
        theirs = sql(path, SCHEMA_OF)
        records = plan(path)
        assert [row for row in sql(path, SCHEMA_OF) if PREFIX not in f"{row}"] == theirs
    store, ids = Store.open(str(path), create=True), [record.id for record in records]

    def claim_and_try(trial: optuna.Trial) -> float:
        claimed = store.claim(ids)
        assert claimed is not None
        store.fail(claimed.id, "no", {})
        return trial.suggest_float("x", 0, 1)

    searched.optimize(claim_and_try, n_trials=3)
    storage.remove_session()
    storage.engine.dispose()

    assert [record.status for record in store.runs(ids=ids[:4])] == [*["failed"] * 3, "pending"]
    with optuna_storage(str(path)) as again:
        assert len(optuna.load_study(storage=again, study_name="s").trials) == 3


def test_a_briefly_locked_file_is_waited_for_and_one_that_stays_locked_is_refused(
    path: Path, specs: list[RunSpec], monkeypatch: pytest.MonkeyPatch
):
    for lock in ("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"):
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute(lock)
        release = threading.Timer(0.05, other.execute, ["ROLLBACK"])
        release.start()

        store = Store.open(str(path), create=True)

        release.join()
        other.close()
        assert store.runs() == []
        path.unlink()
    monkeypatch.setattr("attnres_cli.store.sqlite._BUSY_MS", 50)
    store = Store.open(str(path), create=True)
    store.patience_s = 0.0
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StudyError, match="is locked by another program"):
            store.plan(specs, FACTS)


OPEN_AND_DIE = """
import os, signal, sys
from sqlalchemy import Engine, event
from attnres_cli.store.store import Store

def die(*_arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def open_and_die(path, statement):
    seen = []

    def count(*_arguments):
        seen.append(1)
        if len(seen) == statement:
            die()

    event.listen(Engine, "before_cursor_execute", count)
    if statement == 0:
        event.listen(Engine, "commit", die)
    Store.open(path, create=True)

for number in range(0, 1000, int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        open_and_die(f"{sys.argv[1]}/{number}.db", number)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code)
    if code != -9:
        break
"""


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("is_upgrade", [False, True])
def test_a_kill_while_a_study_is_made_or_upgraded_leaves_it_as_it_was(
    tmp_path: Path, old: Path, is_upgrade: bool, step: int
):
    """Killed before the commit, and before every statement or every third one."""
    if is_upgrade:
        curve = sql(old, "SELECT * FROM attnres_curve")
        for number in range(0, 40, step):
            (tmp_path / f"{number}.db").write_bytes(old.read_bytes())

    command = [sys.executable, "-c", OPEN_AND_DIE, str(tmp_path), str(step)]
    *killed, last = subprocess.check_output(command, text=True).split()

    assert set(killed) == {"-9"}
    assert last == "0"
    assert len(killed) > 12 / step
    for number in range(0, step * len(killed), step):
        path = tmp_path / f"{number}.db"
        if is_upgrade:
            assert sql(path, "SELECT version_num FROM attnres_schema") == [("0009",)]
            assert len(Store.open(str(path), create=True).runs()) == 168
            assert sql(path, "SELECT * FROM attnres_curve") == curve
            assert sql(path, "PRAGMA foreign_key_check") == []
        else:
            assert not path.exists() or tables_of(path) == set(), f"at statement {number}"
            assert Store.open(str(path), create=True).runs() == []
            assert tables_of(path) == OURS
        assert sql(path, "SELECT version_num FROM attnres_schema") == [(SCHEMA,)]


def test_a_reader_without_write_permission_reads_again_when_the_study_changes_meanwhile(
    public: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    path = public / "study.db"
    before, read, written = plan(path), queries.records, []
    path.chmod(0o444)
    removed = [record.id for record in before[:20]]

    def meanwhile(*arguments: Any, **asked: Any) -> list[RunRecord]:
        found = read(*arguments, **asked)
        if not written:
            os.seteuid(0)
            Store.open(str(path), create=True).remove(removed)
            written.extend(before[20:])
            os.seteuid(NOBODY)
        return found

    with as_nobody():
        store = Store.open(str(path), create=False)
        undisturbed = store.runs()
        monkeypatch.setattr(queries, "records", meanwhile)
        found = store.runs()

    assert undisturbed == before
    assert found == written


@pytest.mark.parametrize("has_log", [False, True])
def test_a_study_is_read_on_a_full_disk_with_the_log_of_a_killed_process(
    tmp_path: Path, plan: Plan, has_log: bool
):
    elsewhere = tmp_path / "s.db"
    before = plan(elsewhere)
    with small_disk(tmp_path / "full", "1m") as full, closing(sqlite3.connect(elsewhere)) as writer:
        if has_log:
            writer.execute("UPDATE attnres_runs SET attempts = 17")
            writer.commit()
        for file in tmp_path.glob("s.db*"):
            if not file.name.endswith("-shm"):
                (full / file.name).write_bytes(file.read_bytes())
        with suppress(OSError), (full / "filler").open("wb", 0) as out:
            while True:
                out.write(bytes(4096))

        store = Store.open(str(full / "s.db"), create=False)

        assert store.runs() == before
        attempts = {standing.attempts for standing in store.standings().values()}
        assert attempts == {17 if has_log else 0}
