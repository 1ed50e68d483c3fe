"""Opening a study: what is wrong with a file, and Optuna's tables beside ours."""

from __future__ import annotations

import json
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
from commands import attnres
from grids import small_disk
from processes import in_processes
from sqlalchemy import inspect
from studies import FACTS

import attnres_cli
from attnres_cli.config.recipe import Recipe
from attnres_cli.errors import StudyError
from attnres_cli.records.code import Code
from attnres_cli.records.run import RunRecord, RunSpec
from attnres_cli.store import engine, reader
from attnres_cli.store.optuna import optuna_storage
from attnres_cli.store.store import Store
from attnres_cli.store.tables import PREFIX, SCHEMA, metadata

OURS = {"attnres_recipes", "attnres_data", "attnres_runs", "attnres_curve", "attnres_probes"}
OURS |= {"attnres_arm_recipes", "attnres_gates", "attnres_registrations", "attnres_schema"}
OURS |= {"attnres_removed", "attnres_items"}
OLD = Path(__file__).parent / "golden" / "schema_0007.sql"
"""A study of 2026-11-22, by a version before the first release: `ablate --tune-lr`, `--match` and
`search` of the recipe smoke. Names of its machine and most probes were taken out.
"""

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


def schema_of(path: Path) -> list[tuple[object, ...]]:
    return sql(path, "SELECT name, sql FROM sqlite_master ORDER BY name")


def tables_of(path: Path) -> set[str]:
    return {str(name) for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type='table'")}


def refusal(path: Path | str, *, create: bool = True) -> str:
    """The words with which a study is refused, which are one line."""
    with pytest.raises(StudyError) as caught:
        Store.open(str(path), create=create).runs()
    words = str(caught.value)
    assert "\n" not in words
    return words


def layout(path: Path) -> dict[str, tuple[object, ...]]:
    """Columns, keys and indexes of our tables in a file, in no order."""
    with engine.connect(str(path), create=False).connect() as connection:
        found = inspect(connection)

        def columns(table: str) -> set[tuple[str, str, bool]]:
            return {(c["name"], str(c["type"]), c["nullable"]) for c in found.get_columns(table)}

        return {
            name: (
                columns(name),
                found.get_pk_constraint(name),
                sorted(map(repr, found.get_foreign_keys(name))),
                found.get_unique_constraints(name),
                found.get_indexes(name),
            )
            for name in metadata.tables
        }


def test_a_new_study_has_our_tables_alone_and_is_opened_again_unchanged(path: Path, plan: Plan):
    records = plan(path)
    before = path.read_bytes()

    store = Store.open(f"sqlite:///{path}", create=True)

    assert tables_of(path) == OURS == set(metadata.tables)
    assert all(name.startswith(PREFIX) for name in OURS)
    assert path.read_bytes() == before
    assert store.runs() == records


@pytest.fixture
def old(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(OLD.read_text(encoding="utf-8"))
    return path


def test_a_study_of_before_the_first_release_is_reported_as_it_was(
    old: Path, capsys: pytest.CaptureFixture[str]
):
    code, out, _ = attnres(capsys, "report", "--study", str(old), "--format", "json")

    assert code == 0
    report = json.loads(out)
    losses = {arm["variant"]: arm["losses"] for arm in report["arms"]}
    assert losses == {
        "standard": {"0": 2.8641823530197144, "1": 2.7300755381584167, "2": 2.820477217435837},
        "attnres:block_size=4": {
            "0": 2.830394983291626, "1": 2.7338316440582275, "2": 2.82531014084816
        },
    }  # fmt: skip
    assert len(report["more"]) == 2  # tuned, and matched


def test_a_study_of_before_the_first_release_is_read_and_continued(tmp_path: Path, old: Path):
    path, fresh = old, tmp_path / "fresh.db"
    Store.open(str(fresh), create=True)

    store = Store.open(str(path), create=True)
    held = store.runs()
    first = held[0]
    recipe, facts = store.recipe(first.recipe_digest), store.data(first.fingerprint)
    specs = [RunSpec(recipe, first.variant, seed, first.fingerprint) for seed in range(4)]
    planned = store.plan(specs, facts)
    store.remove([planned[3].id])
    again = store.plan(specs, facts)[3]

    assert layout(path) == layout(fresh)
    assert first.result is not None
    assert (len(held), first.result.val_loss) == (50, 2.8641823530197144)
    assert recipe.digest == first.recipe_digest
    assert planned[:3] == [held[0], held[2], held[4]]  # trained already
    assert (planned[3].id, again.id) == (51, 52)  # the number of a removed run is not given again
    assert len(store.probes([1])[1]) == 1
    assert {own.terms.match for own in store.arm_recipes()} == {"tokens", "flops"}
    assert store.has_searches()


def test_an_older_study_that_is_only_read_stays_as_it_was(old: Path):
    before = old.read_bytes()

    store = Store.open(str(old), create=False)
    held, standing = store.runs(), store.standings([1])[1]

    assert old.read_bytes() == before
    assert (len(held), held[0].code, store.removed()) == (50, "", [])
    assert held[0].created_at == standing.created_at == "2026-11-22T20:14:44+00:00"
    assert Store.open(str(old), create=True).runs() == held  # and is the same when it is not
    assert old.read_bytes() != before


@pytest.mark.parametrize("upgraded", [True, False])
def test_runs_of_an_older_study_are_of_the_code_that_they_say_where_they_say_all_of_it(
    old: Path, upgraded: bool
):
    parts = {f"code_{name}": f"{name:.12}" for name in ("design", "trunk", "engine", "loop")}
    all_of_them = json.dumps(parts | {"code_data": "data"})
    sql(old, f"UPDATE attnres_runs SET versions = '{json.dumps(parts)}' WHERE id = 1")
    sql(old, f"UPDATE attnres_runs SET versions = '{all_of_them}' WHERE id = 2")

    held = Store.open(str(old), create=upgraded).runs()

    known = Code("design", "trunk", "engine", "loop", "data").digest
    assert [record.code for record in held[:3]] == ["", known, ""]
    assert len(known) == 12
    if upgraded:
        codes = sql(old, "SELECT code FROM attnres_runs ORDER BY id LIMIT 3")
        assert codes == [("",), (known,), ("",)]


@pytest.mark.parametrize("upgraded", [True, False])
def test_reference_lines_of_an_older_study_are_not_shown_and_written_anew_by_the_next_command(
    old: Path, upgraded: bool
):
    store = Store.open(str(old), create=upgraded)

    facts = store.data("e32521529fcef8e1")

    assert (facts.unigram_loss, facts.bigram_loss, facts.split) == (None, None, None)
    assert facts.xz_bits == 1.48329172858812596835
    if upgraded:
        fitted = replace(facts, unigram_loss=3.41, bigram_loss=2.46)
        store.plan([], fitted)
        store.plan([], replace(fitted, bigram_loss=1.0))  # what is known stays
        assert store.data(facts.fingerprint) == fitted


def test_an_upgrade_that_is_killed_anywhere_leaves_the_study_as_it_was(old: Path, tmp_path: Path):
    whole = sql(old, "SELECT * FROM attnres_curve")
    script = tmp_path / "open_and_die.py"
    script.write_text(OPEN_AND_DIE.replace("range(1000)", "range(0, 1000, 3)"), encoding="utf-8")
    for number in range(0, 60, 3):
        copy = tmp_path / f"{number}.db"
        copy.write_bytes(old.read_bytes())

    done = subprocess.run([sys.executable, str(script), str(tmp_path)], check=True,
                          capture_output=True, text=True)  # fmt: skip

    *killed, last = done.stdout.split()
    assert last == "0"
    assert len(killed) > 5
    for number in range(len(killed)):
        path = tmp_path / f"{3 * number}.db"
        assert sql(path, "SELECT version_num FROM attnres_schema") == [("0007",)]
        assert len(Store.open(str(path), create=True).runs()) == 50
        assert sql(path, "SELECT * FROM attnres_curve") == whole
        assert sql(path, "PRAGMA foreign_key_check") == []


@pytest.mark.parametrize("create", [True, False])
def test_studies_of_other_schemas_are_refused_and_left_as_they_were(
    path: Path, plan: Plan, create: bool
):
    plan(path)
    sql(path, "UPDATE attnres_schema SET version_num = '9999'")
    newer = refusal(path, create=create)
    sql(path, "UPDATE attnres_schema SET version_num = '0006'")
    sql(path, "DROP TABLE attnres_registrations")
    before = schema_of(path)
    older = refusal(path, create=create)

    assert "was written by a newer attnres (schema 9999): upgrade attnres" in newer
    assert "before its first release (schema 0006), which this one cannot read" in older
    assert "--study names another, or a new one" in older
    assert schema_of(path) == before


def test_a_study_can_be_named_by_a_path_from_here(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)

    store = Store.open("study.db", create=True)
    monkeypatch.chdir("/")

    assert store.runs() == []
    assert tables_of(path) == OURS


@pytest.mark.parametrize("name", ["a b.db", "é.db", "it's.db", "a#b.db", "a?b.db", "a%20b.db"])
def test_a_study_lies_where_it_was_named_whatever_its_name(tmp_path: Path, name: str):
    path = tmp_path / name

    Store.open(str(path), create=True)

    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert Store.open(str(path), create=False).runs() == []


def test_a_study_is_made_by_an_installation_in_a_folder_of_any_name(tmp_path: Path, path: Path):
    """As `100%`: what reads settings from files would take it for a reference."""
    installed = tmp_path / "100%(here)s"
    installed.mkdir()
    (installed / "attnres_cli").symlink_to(Path(attnres_cli.__file__).parent)
    code = "import sys; from attnres_cli.store.store import Store; "
    code += "from attnres_cli.store import tables; print(tables.__file__); "
    code += "Store.open(sys.argv[1], create=True)"

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        check=True, capture_output=True, text=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
    )  # fmt: skip

    assert done.stdout.startswith(str(installed))
    assert tables_of(path) == OURS


@pytest.mark.parametrize("create", [True, False])
def test_what_is_no_study_is_refused_in_a_line_and_left_as_it_was(
    tmp_path: Path, create: bool, subtests: pytest.Subtests
):
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
        with subtests.test(study=str(study)):
            found = refusal(study, create=create)

            assert expected in found
            assert "secret" not in found
            assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("kept", [16, 99, 0.1, 0.5, 0.95])
def test_a_file_that_is_cut_is_refused_and_left_as_it_was(
    path: Path, plan: Plan, kept: float, create: bool
):
    plan(path)
    whole = path.read_bytes()
    cut = whole[: kept if isinstance(kept, int) else int(kept * len(whole))]
    path.write_bytes(cut)

    words = refusal(path, create=create)

    assert f"study {path} is damaged" in words
    assert "restore a copy of it" in words
    assert path.read_bytes() == cut


def test_a_damaged_page_is_refused_with_what_to_do(path: Path, plan: Plan):
    plan(path)
    content = bytearray(path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    path.write_bytes(content)

    assert "restore a copy" in refusal(path)


def test_a_study_that_lost_a_table_is_refused(path: Path, plan: Plan):
    plan(path)
    sql(path, "DROP TABLE attnres_curve")

    assert "tables are missing" in refusal(path, create=False)
    assert "tables are missing" in refusal(path, create=True)


def test_reading_makes_nothing_and_says_what_to_type(tmp_path: Path, path: Path, plan: Plan):
    assert "`attnres ablate` makes one" in refusal(path, create=False)
    assert Store.existing(str(path)) is None
    assert list(tmp_path.iterdir()) == []
    path.touch()
    assert f"`attnres ablate --study {path}`" in refusal(path, create=False)
    assert path.read_bytes() == b""
    records = plan(path)  # an empty file becomes a study
    before = path.read_bytes()

    held = Store.existing(f"sqlite:///{path}")

    assert held is not None
    assert held.runs() == records
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_study_that_is_only_just_made_is_none_yet(path: Path):
    with closing(sqlite3.connect(path)) as connection:  # the first thing that is done to it
        connection.execute("PRAGMA journal_mode = WAL")

    assert path.stat().st_size > 0
    assert Store.existing(str(path)) is None
    Store.open(str(path), create=True)
    assert Store.existing(str(path)) is not None


def try_x(trial: optuna.Trial) -> float:
    return trial.suggest_float("x", 0, 1)


@pytest.mark.parametrize("ours_first", [True, False])
def test_a_study_and_optuna_work_in_one_file(path: Path, plan: Plan, ours_first: bool):
    records = plan(path) if ours_first else []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
    searched = optuna.create_study(storage=storage, study_name="s")
    if not ours_first:
        assert "holds no runs yet: `attnres ablate" in refusal(path, create=False)
        theirs = schema_of(path)
        records = plan(path)
        assert [row for row in schema_of(path) if PREFIX not in f"{row}"] == theirs
    store, ids = Store.open(str(path), create=True), [record.id for record in records]

    def claim_and_try(trial: optuna.Trial) -> float:
        claimed = store.claim(ids)
        assert claimed is not None
        store.fail(claimed.id, "no", {})
        return try_x(trial)

    searched.optimize(claim_and_try, n_trials=3)
    storage.remove_session()
    storage.engine.dispose()

    assert [record.status for record in store.runs(ids=ids[:4])] == [*["failed"] * 3, "pending"]
    with optuna_storage(str(path)) as again:
        assert len(optuna.load_study(storage=again, study_name="s").trials) == 3


def open_at_once(path: str, ready: Any) -> str:
    ready.wait()
    Store.open(path, create=True)
    return "opened"


def test_processes_that_make_a_study_at_once_all_open_it(path: Path):
    assert in_processes(3, open_at_once, str(path)) == ["opened"] * 3
    assert sql(path, "SELECT version_num FROM attnres_schema") == [(SCHEMA,)]


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_file_that_is_locked_for_a_moment_is_waited_for(path: Path, lock: str):
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute(lock)
    release = threading.Timer(0.2, other.execute, ["ROLLBACK"])
    release.start()

    store = Store.open(str(path), create=True)

    release.join()
    other.close()
    assert store.runs() == []


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

for number in range(1000):
    child = os.fork()
    if child == 0:
        open_and_die(f"{sys.argv[1]}/{number}.db", number)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code)
    if code != -9:
        break
"""


def test_a_process_killed_anywhere_as_it_makes_a_study_leaves_all_tables_or_none(tmp_path: Path):
    command = [sys.executable, "-c", OPEN_AND_DIE, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)

    *killed, last = done.stdout.split()  # before each statement there is, and before the commit
    assert set(killed) == {"-9"}
    assert len(killed) > 15
    assert last == "0"
    for number in range(len(killed)):
        path = tmp_path / f"{number}.db"
        assert not path.exists() or tables_of(path) == set(), f"at statement {number}"
        assert Store.open(str(path), create=True).runs() == []
        assert tables_of(path) == OURS


def test_who_may_not_write_reads_again_where_a_study_is_written_to_meanwhile(
    public: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    path = public / "study.db"
    before, read, written = plan(path), reader.records, []
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
        monkeypatch.setattr(reader, "records", meanwhile)
        found = store.runs()

    assert undisturbed == before
    assert found == written


@pytest.mark.parametrize("has_log", [False, True])
def test_a_study_is_read_on_a_full_disk_with_what_a_killed_process_left_in_its_log(
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
        _fill(full / "filler")

        store = Store.open(str(full / "s.db"), create=False)

        assert store.runs() == before
        attempts = {standing.attempts for standing in store.standings().values()}
        assert attempts == {17 if has_log else 0}


def _fill(file: Path) -> None:
    with suppress(OSError), file.open("wb", 0) as out:
        while True:
            out.write(bytes(4096))
