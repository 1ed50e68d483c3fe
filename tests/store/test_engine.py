"""Opening a study: what is wrong with a file, migrations, and Optuna's tables beside ours."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import astuple
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import optuna
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from servers import open_to_all
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from studies import FACTS

from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.run import Point, RunRecord, RunSpec, Settings, Status
from attnres_cli.store import engine, queries
from attnres_cli.store.migrations import SCHEMAS
from attnres_cli.store.store import Store
from attnres_cli.store.tables import PREFIX, VERSION_TABLE, metadata

OURS = {"attnres_recipes", "attnres_data", "attnres_runs", "attnres_curve", "attnres_probes"}
OURS |= {"attnres_arm_recipes", "attnres_gates", "attnres_registrations", "attnres_schema"}
HEAD = SCHEMAS[-1]
HALF_A_MIGRATION = f"""
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "{HEAD}"

def upgrade():
    op.add_column("attnres_runs", sa.Column("half", sa.Text))
    op.create_table("attnres_other", sa.Column("id", sa.Integer, primary_key=True))
"""

Plan = Callable[[Path], list[RunRecord]]


@pytest.fixture
def plan(tiny_recipe: Recipe) -> Plan:
    """A function that opens a study and puts some runs into it."""
    specs = [RunSpec(tiny_recipe, "standard", seed, FACTS.fingerprint) for seed in range(50)]
    return lambda path: Store.open(str(path), create=True).plan(specs, FACTS)


@pytest.fixture
def optuna_study() -> Iterator[Callable[[Path], optuna.Study]]:
    """A function that opens Optuna's study in a file; its connections are closed afterwards."""
    opened: list[optuna.storages.RDBStorage] = []

    def make(path: Path) -> optuna.Study:
        opened.append(optuna.storages.RDBStorage(f"sqlite:///{path}"))
        return optuna.create_study(storage=opened[-1], study_name="s", load_if_exists=True)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    yield make
    for storage in opened:
        storage.remove_session()
        storage.engine.dispose()
    gc.collect()


def try_x(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", 0, 1)


def sql(path: Path, statement: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    with connection:
        found = connection.execute(statement).fetchall()
    connection.close()
    return found


def tables_of(path: Path) -> set[str]:
    return {str(name) for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type='table'")}


def schema_of(path: Path) -> list[tuple[object, ...]]:
    return sql(path, "SELECT name, sql FROM sqlite_master ORDER BY name")


def refusal(path: Path | str, *, create: bool = True) -> str:
    """The words with which a study is refused, which are one line and name it."""
    with pytest.raises(StudyError) as caught:
        Store.open(str(path), create=create)
    words = str(caught.value)
    assert "\n" not in words
    return words


def differences(path: Path) -> list[object]:
    """What autogenerate would change to make the file's tables those of tables.py."""
    options = {
        "version_table": VERSION_TABLE,
        "include_name": lambda name, kind, _: kind != "table" or str(name).startswith(PREFIX),
    }
    with engine.connect(str(path), create=False).connect() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def opened_at_once(path: Path, n: int = 3) -> list[str]:
    """What so many processes say that open a study at the same moment."""
    context = multiprocessing.get_context("spawn")
    ready, said = context.Barrier(n), context.Queue()
    arguments = (str(path), ready, said)
    processes = [
        context.Process(target=_open_at_once, args=arguments, daemon=True) for _ in range(n)
    ]
    for process in processes:
        process.start()
    answers = [said.get(timeout=800) for _ in processes]
    for process in processes:
        process.join()
    return answers


def _open_at_once(path: str, ready: Barrier, said: Queue[str]) -> None:
    """Run in a process of its own."""
    ready.wait()
    try:
        Store.open(path, create=True)
        said.put("opened")
    except Exception as error:
        said.put(repr(error))


def with_migration(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine find one migration more, in this folder."""
    folder.mkdir()
    (folder / "v9999_more.py").write_text(source, encoding="utf-8")
    shipped, config_of = Path(engine.__file__).parent / "migrations" / "versions", engine._config

    def config() -> Config:
        extended = config_of()
        extended.set_main_option("version_locations", f"{shipped}:{folder}")
        return extended

    monkeypatch.setattr(engine, "_config", config)
    monkeypatch.setattr(engine, "SCHEMAS", (*SCHEMAS, "9999"))


def of_first_schema(path: Path, recipe: Recipe) -> None:
    """Make a study as the first schema had it: a complete run, one that diverged, one waiting."""
    fresh = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with fresh.connect() as connection:
        config = engine._config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.commit()
    resolved = json.dumps(recipe.model_dump(mode="json"))
    sql(path, f"INSERT INTO attnres_recipes VALUES ('{recipe.digest}', 'tiny', '{resolved}')")
    sql(path, f"INSERT INTO attnres_data VALUES {astuple(FACTS)[:8]}")
    run = f"INSERT INTO attnres_runs VALUES ({{}}, '{recipe.digest}', 'standard', {{}}, "
    run += f"'{FACTS.fingerprint}', '{{}}', NULL, {{}}, '2026-01-01T00:00:00+00:00', "
    ended = "NULL, NULL, NULL, {}, 5.5, 6, 384, 0.1, 640.0, 1.0, 1000, 99, 600, 'cpu', 'A CPU', "
    ended += "'fp32', 0, 2, '{{\"torch\": \"2.9.0\"}}')"
    sql(path, run.format(1, 0, "complete", 1) + ended.format(1.5))
    sql(path, run.format(2, 1, "diverged", 1) + ended.format("NULL"))
    sql(path, run.format(3, 2, "pending", 0) + ", ".join(["NULL"] * 19) + ")")
    sql(path, "INSERT INTO attnres_curve VALUES (1, 0, NULL, 5.5), (1, 6, 2.0, 1.5)")


def test_a_new_study_has_our_tables_alone(tmp_path: Path):
    Store.open(str(tmp_path / "study.db"), create=True)

    assert tables_of(tmp_path / "study.db") == OURS


def test_a_study_is_opened_again_without_changing_it(tmp_path: Path, plan: Plan):
    path = tmp_path / "study.db"
    records = plan(path)
    before = path.read_bytes()

    store = Store.open(str(path), create=True)

    assert path.read_bytes() == before
    assert store.runs() == records


def test_a_study_can_be_named_by_url(tmp_path: Path):
    Store.open(f"sqlite:///{tmp_path}/study.db", create=True)

    assert tables_of(tmp_path / "study.db") == OURS


def test_a_study_can_be_named_by_a_path_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    store = Store.open("study.db", create=True)
    monkeypatch.chdir("/")

    assert store.runs() == []
    assert tables_of(tmp_path / "study.db") == OURS


@pytest.mark.parametrize("name", ["a b.db", "é.db", "it's.db", "a#b.db", "a?b.db", "a%20b.db"])
def test_a_study_lies_where_it_was_named_whatever_its_name(tmp_path: Path, name: str, plan: Plan):
    path = tmp_path / name

    records = plan(path)

    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert Store.open(str(path), create=False).runs() == records


def test_another_database_is_refused_without_showing_its_password():
    words = refusal("mysql://me:secret@host/db")

    assert "unknown kind of study 'mysql'" in words
    assert "or the path of a file" in words
    assert "secret" not in words


def test_a_missing_folder_is_refused_and_not_made(tmp_path: Path):
    words = refusal(tmp_path / "nowhere" / "study.db")

    assert f"folder {tmp_path / 'nowhere'} does not exist" in words
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_refused_with_the_name_of_a_file_in_it(tmp_path: Path):
    assert f"is a folder: name a file in it, as {tmp_path}/attnres.db" in refusal(tmp_path)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_to_is_refused():
    assert refusal("/proc/attnres.db").startswith("study /proc/attnres.db")


@pytest.mark.parametrize("create", [True, False])
def test_a_text_file_is_refused_and_left_as_it_was(tmp_path: Path, create: bool):
    path = tmp_path / "notes.txt"
    path.write_text("remember the milk\n" * 100, encoding="utf-8")
    before = path.read_bytes()

    words = refusal(path, create=create)

    assert "is not a SQLite file" in words
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("kept", [16, 99])
def test_a_file_shorter_than_a_header_is_refused(
    tmp_path: Path, plan: Plan, kept: int, create: bool
):
    path = tmp_path / "study.db"
    plan(path)
    path.write_bytes(path.read_bytes()[:kept])

    assert "truncated: restore a copy" in refusal(path, create=create)


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9999])
def test_a_file_shorter_than_its_header_says_is_refused_and_left_as_it_was(
    tmp_path: Path, plan: Plan, share: float, create: bool
):
    path = tmp_path / "study.db"
    plan(path)
    whole = path.read_bytes()
    cut = whole[: int(share * len(whole))]
    path.write_bytes(cut)

    words = refusal(path, create=create)

    assert f"study {path}" in words
    assert "restore a copy" in words
    assert path.read_bytes() == cut


def test_a_damaged_page_is_refused_with_what_to_do(tmp_path: Path, plan: Plan):
    path = tmp_path / "study.db"
    plan(path)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)

    assert "restore a copy" in refusal(path)


@pytest.mark.parametrize("create", [True, False])
def test_a_database_of_something_else_is_refused_and_left_as_it_was(tmp_path: Path, create: bool):
    path = tmp_path / "notes.db"
    sql(path, "CREATE TABLE notes (text TEXT)")
    before = path.read_bytes()

    words = refusal(path, create=create)

    assert "is a database of something else (table 'notes')" in words
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("create", [True, False])
def test_a_study_of_a_newer_attnres_is_refused_with_what_to_do(
    tmp_path: Path, plan: Plan, create: bool
):
    path = tmp_path / "study.db"
    plan(path)
    sql(path, "UPDATE attnres_schema SET version_num = '9999'")

    words = refusal(path, create=create)

    assert "was written by a newer attnres (schema 9999): upgrade attnres" in words
    assert sql(path, "SELECT version_num FROM attnres_schema") == [("9999",)]


def test_an_empty_file_becomes_a_study(tmp_path: Path):
    path = tmp_path / "study.db"
    path.touch()

    store = Store.open(str(path), create=True)

    assert store.runs() == []


def test_reading_no_study_says_what_to_type_and_makes_nothing(tmp_path: Path):
    words = refusal(tmp_path / "study.db", create=False)

    assert "`attnres ablate` makes one" in words
    assert list(tmp_path.iterdir()) == []


def test_reading_an_empty_file_says_what_to_type_and_leaves_it_empty(tmp_path: Path):
    path = tmp_path / "study.db"
    path.touch()

    words = refusal(path, create=False)

    assert f"`attnres ablate --study {path}`" in words
    assert path.read_bytes() == b""


def test_a_study_that_is_only_just_made_is_none_yet(tmp_path: Path):
    path = tmp_path / "study.db"
    with closing(sqlite3.connect(path)) as connection:  # the first thing that is done to it
        connection.execute("PRAGMA journal_mode = WAL")

    assert path.stat().st_size > 0
    assert Store.existing(str(path)) is None
    Store.open(str(path), create=True)
    assert Store.existing(str(path)) is not None


def test_reading_a_study_writes_nothing(tmp_path: Path, plan: Plan):
    path = tmp_path / "study.db"
    plan(path)
    before = path.read_bytes()

    Store.open(str(path), create=False).runs()

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_schemas_are_the_migrations_in_their_order():
    scripts = ScriptDirectory.from_config(engine._config())

    assert tuple(script.revision for script in scripts.walk_revisions())[::-1] == SCHEMAS


def test_a_study_is_read_without_what_makes_studies(tmp_path: Path, plan: Plan):
    plan(tmp_path / "study.db")
    code = (
        "import sys; from attnres_cli.store.store import Store; "
        "print(len(Store.open(sys.argv[1], create=False).runs()), 'alembic' in sys.modules)"
    )

    command = [sys.executable, "-c", code, str(tmp_path / "study.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["50", "False"]


def test_models_and_migrations_agree(tmp_path: Path, plan: Plan):
    plan(tmp_path / "study.db")

    assert differences(tmp_path / "study.db") == []


def test_the_comparison_of_models_and_migrations_sees_a_missing_column(tmp_path: Path, plan: Plan):
    plan(tmp_path / "study.db")
    sql(tmp_path / "study.db", "ALTER TABLE attnres_runs DROP COLUMN threads")

    assert len(differences(tmp_path / "study.db")) == 1


def test_every_table_has_our_prefix():
    assert all(name.startswith(PREFIX) for name in [*metadata.tables, VERSION_TABLE])


def test_optuna_works_in_a_study_that_was_there_first(tmp_path: Path, plan: Plan, optuna_study):
    path = tmp_path / "study.db"
    records = plan(path)

    optuna_study(path).optimize(try_x, n_trials=2)

    assert Store.open(str(path), create=True).runs() == records
    assert len(optuna_study(path).trials) == 2
    assert differences(path) == []


def test_a_study_works_in_a_file_of_optuna_that_was_there_first(
    tmp_path: Path, plan: Plan, optuna_study
):
    path = tmp_path / "study.db"
    searched = optuna_study(path)
    searched.optimize(try_x, n_trials=1)
    before = [row for row in schema_of(path) if not str(row[0]).startswith(PREFIX)]

    records = plan(path)
    searched.optimize(try_x, n_trials=1)

    after = schema_of(path)
    ours = [row for row in after if PREFIX in f"{row[0]}"]
    assert [row for row in after if row not in ours] == before
    assert Store.open(str(path), create=True).runs() == records
    assert len(optuna_study(path).trials) == 2


def test_optuna_writes_while_a_study_is_open_and_runs_are_claimed(
    tmp_path: Path, plan: Plan, optuna_study
):
    path = tmp_path / "study.db"
    ids = [record.id for record in plan(path)]
    store = Store.open(str(path), create=True)

    def claim_and_try(trial: optuna.Trial) -> float:
        claimed = store.claim(ids)
        assert claimed is not None
        store.fail(claimed.id, "no", {})
        return try_x(trial)

    searched = optuna_study(path)
    searched.optimize(claim_and_try, n_trials=3)

    assert len(searched.trials) == 3
    assert [record.status for record in store.runs(ids=ids[:4])] == [*["failed"] * 3, "pending"]


def test_reading_a_file_that_holds_optunas_tables_alone_says_what_to_type(
    tmp_path: Path, optuna_study
):
    path = tmp_path / "study.db"
    optuna_study(path)

    assert "holds no runs yet: `attnres ablate" in refusal(path, create=False)


def test_processes_that_make_a_study_at_once_all_open_it(tmp_path: Path):
    assert opened_at_once(tmp_path / "study.db") == ["opened"] * 3
    assert sql(tmp_path / "study.db", "SELECT version_num FROM attnres_schema") == [(HEAD,)]


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_that_is_locked_for_a_moment_is_waited_for(tmp_path: Path, lock: str):
    path = tmp_path / "study.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(lock)
    release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
    release.start()

    store = Store.open(str(path), create=True)

    release.join()
    other.close()
    assert store.runs() == []


def test_a_study_of_the_first_schema_is_upgraded_and_its_runs_were_the_list_forms(
    tmp_path: Path, tiny_recipe: Recipe
):
    path = tmp_path / "study.db"
    of_first_schema(path, tiny_recipe)

    assert "upgrades it" in refusal(path, create=False)
    runs = Store.open(str(path), create=True).runs()

    complete, diverged, pending = runs
    settings = Settings("cpu", "A CPU", "fp32", compiled=False, threads=2, engine="compile")
    assert complete.result is not None
    assert complete.result.val_loss == 1.5
    assert complete.result.settings == settings
    assert complete.result.curve == (Point(0, None, 5.5), Point(6, 2.0, 1.5))
    assert complete.versions == {"torch": "2.9.0"}
    assert diverged.result is not None
    assert diverged.result.settings == settings
    assert (pending.status, pending.result) == (Status.PENDING, None)
    assert Store.open(str(path), create=False).runs() == runs
    assert differences(path) == []


OPEN_AND_DIE = """
import itertools, os, shutil, signal, sys
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

for number in itertools.count():
    path = f"{sys.argv[2]}/{number}.db"
    shutil.copy(sys.argv[1], path)
    child = os.fork()
    if child == 0:
        open_and_die(path, number)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code)
    if code != -9:
        break
"""


def test_an_upgrade_killed_anywhere_is_done_when_the_study_is_opened_again(
    tmp_path: Path, tiny_recipe: Recipe
):
    older, whole = tmp_path / "older.db", tmp_path / "whole.db"
    of_first_schema(older, tiny_recipe)
    before = schema_of(older)
    shutil.copy(older, whole)
    runs, schema = Store.open(str(whole), create=True).runs(), schema_of(whole)
    command = [sys.executable, "-c", OPEN_AND_DIE, str(older), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    *killed, last = done.stdout.split()  # before each statement there is, and before the commit
    assert set(killed) == {"-9"}
    assert len(killed) > 15
    assert last == "0"
    for number in range(len(killed)):
        copy = tmp_path / f"{number}.db"
        assert schema_of(copy) == before, f"at statement {number}"
        assert Store.open(str(copy), create=True).runs() == runs
        assert sql(copy, "PRAGMA integrity_check") == [("ok",)]
        assert schema_of(copy) == schema
        (kept,) = tmp_path.glob(f"{number}.schema-*")  # the same, however often it was begun
        assert schema_of(kept) == before


def test_an_upgrade_keeps_all_runs(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "study.db"
    records = plan(path)
    with_migration(tmp_path / "more", HALF_A_MIGRATION, monkeypatch)

    assert "upgrades it" in refusal(path, create=False)
    assert Store.open(str(path), create=True).runs() == records
    assert sql(path, "SELECT version_num FROM attnres_schema") == [("9999",)]


def test_a_migration_that_breaks_off_leaves_the_study_as_it_was(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "study.db"
    records = plan(path)
    before = schema_of(path)
    broken = HALF_A_MIGRATION + "    raise RuntimeError('half way')\n"

    with monkeypatch.context() as patch:
        with_migration(tmp_path / "more", broken, patch)
        with pytest.raises(RuntimeError, match="half way"):
            Store.open(str(path), create=True)

    assert schema_of(path) == before
    assert Store.open(str(path), create=True).runs() == records


def test_a_migration_that_breaks_off_on_a_new_file_leaves_it_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "study.db"
    broken = HALF_A_MIGRATION + "    raise RuntimeError('half way')\n"
    with_migration(tmp_path / "more", broken, monkeypatch)

    with pytest.raises(RuntimeError, match="half way"):
        Store.open(str(path), create=True)

    assert tables_of(path) == set()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, and nobody but this one write to."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory(prefix="attnres-", dir=open_to_all()) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def another_user() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_study_in_a_folder_nobody_may_write_to_can_be_read(open_folder: Path, plan: Plan):
    records = plan(open_folder / "study.db")
    (open_folder / "study.db").chmod(0o444)
    open_folder.chmod(0o555)

    with another_user():
        found = Store.open(str(open_folder / "study.db"), create=False).runs()

    assert found == records


def test_who_may_not_write_reads_again_where_a_study_is_written_to_meanwhile(
    open_folder: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
):
    path = open_folder / "study.db"
    before, read, written = plan(path), queries.records, []
    path.chmod(0o644)
    removed = [record.id for record in before[:20]]

    def meanwhile(*arguments: Any, **wanted: Any) -> list[RunRecord]:
        found = read(*arguments, **wanted)
        if not written:
            os.seteuid(0)
            Store.open(str(path), create=True).remove(removed)
            written.extend(before[20:])
            os.seteuid(65534)
        return found

    with another_user():
        store = Store.open(str(path), create=False)
        monkeypatch.setattr(queries, "records", meanwhile)
        found = store.runs()

    assert found == written


def test_a_study_that_lost_a_table_is_refused(tmp_path: Path, plan: Plan):
    path = tmp_path / "study.db"
    plan(path)
    sql(path, "DROP TABLE attnres_curve")

    assert "tables are missing" in refusal(path, create=False)
    assert "tables are missing" in refusal(path, create=True)


def test_an_existing_study_is_opened_and_none_is_made(tmp_path: Path, plan: Plan):
    records = plan(tmp_path / "study.db")

    held = Store.existing(f"sqlite:///{tmp_path}/study.db")
    assert held is not None
    assert held.runs() == records
    assert Store.existing(str(tmp_path / "none.db")) is None
    assert not (tmp_path / "none.db").exists()


def test_an_existing_study_of_an_older_attnres_is_upgraded_where_it_may_be(
    tmp_path: Path, tiny_recipe: Recipe
):
    path = tmp_path / "study.db"
    of_first_schema(path, tiny_recipe)

    with pytest.raises(StudyError, match="upgrades it"):
        Store.existing(str(path))
    held = Store.existing(str(path), upgrade=True)

    assert held is not None
    assert len(held.runs()) == 3
